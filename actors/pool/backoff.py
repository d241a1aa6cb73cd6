"""Pauses between attempts that fail: longer each time, and never in step with others."""

import random


class Backoff:
    """Doubles from ``first`` to ``most`` seconds; each pause is between half and all of it."""

    def __init__(self, first: float, most: float) -> None:
        self._first = first
        self._most = most
        self._failures = 0

    @property
    def failures(self) -> int:
        """Failures since the last success."""
        return self._failures

    def failed(self) -> None:
        """Makes the next pause longer."""
        self._failures += 1

    def worked(self) -> None:
        """Ends the series of failures."""
        self._failures = 0

    def pause(self) -> float:
        """Seconds to wait before the next attempt; 0 after a success."""
        if not self._failures:
            return 0.0
        longest = min(self._most, self._first * 2.0 ** min(self._failures - 1, 30))
        return longest * random.uniform(0.5, 1.0)  # noqa: S311  # spreads load, hides nothing

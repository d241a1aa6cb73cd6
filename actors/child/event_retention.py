"""How many events the streams of runs keep: a number, more as long as they are fresh, and bytes.

Redis trims a stream by its length only. So whoever appends to it says with each batch how long it
may be, from what this process has written of the run.
"""

import math
import sys
from collections import deque
from collections.abc import Mapping
from time import monotonic

FRESH_SECONDS = 10.0
FRESH_BYTES = 32 << 20
"""Events of a run are kept so long, up to so many bytes, though they are more than ``maxlen``: a
node that holds up its loop says all it had to say at once, and readers need time to hear it."""

_GRAIN_BYTES = 64 * 1024
"""Batches are remembered together up to this size: a run may say a million things one by one."""


class _Recent:
    """The last that was written of one run: how many events, in batches."""

    def __init__(self) -> None:
        self.count = 0
        self.is_cut = False
        """Whether anything was let go of."""
        self._size = 0
        self._batches: deque[tuple[float, int, int]] = deque()

    def add(self, count: int, size: int) -> None:
        """A batch was written now."""
        self.count += count
        self._size += size
        if self._batches and self._batches[-1][2] + size <= _GRAIN_BYTES:
            _, more, larger = self._batches.pop()
            count, size = count + more, size + larger
        self._batches.append((monotonic(), count, size))

    def age(self, seconds: float, most_bytes: int) -> None:
        """Lets go of what is older, and of the oldest of what is more."""
        begun = monotonic() - seconds
        while self._batches and (self._batches[0][0] < begun or self._size > most_bytes):
            _, count, size = self._batches.popleft()
            self.count -= count
            self._size -= size
            self.is_cut = True


class Retention:
    """Of the streams to which one process writes."""

    def __init__(
        self, *, maxlen: int, max_bytes: int, fresh_seconds: float, fresh_bytes: int
    ) -> None:
        """maxlen: events that a stream keeps. max_bytes: of one attempt's, however few they are.

        fresh_seconds, fresh_bytes: what is so young and not more is kept beyond ``maxlen``.
        """
        self._maxlen = maxlen
        self._max_bytes = max_bytes
        self._fresh_seconds = fresh_seconds
        self._fresh_bytes = fresh_bytes
        self._fresh: dict[str, _Recent] = {}
        self._kept: dict[str, _Recent] = {}
        """What fits into the streams of runs that go on, of what this process wrote."""

    def lengths(self, added: Mapping[str, tuple[int, int]]) -> dict[str, int]:
        """How long the streams may be that get so many events, of so many bytes."""
        for run_id, fresh in list(self._fresh.items()):
            fresh.age(self._fresh_seconds, self._fresh_bytes)
            if not fresh.count:
                del self._fresh[run_id]
        kept = {run_id: fresh.count for run_id, fresh in self._fresh.items()}
        return {
            run_id: min(
                max(self._maxlen, kept.get(run_id, 0) + count), self._fitting(run_id, count, size)
            )
            for run_id, (count, size) in added.items()
        }

    def add(self, run_id: str, count: int, size: int, *, goes_on: bool) -> None:
        """Events of the run were written. goes_on: whether more may follow."""
        self._fresh.setdefault(run_id, _Recent()).add(count, size)
        if goes_on:
            self._kept.setdefault(run_id, _Recent()).add(count, size)

    def forget(self, run_id: str) -> None:
        """The run writes no more."""
        self._kept.pop(run_id, None)

    def _fitting(self, run_id: str, count: int, size: int) -> int:
        """How many of a run's last events fit into its stream, with those that are added now."""
        recent = self._kept.get(run_id, _Recent())
        recent.age(math.inf, self._max_bytes - size)
        return recent.count + count if recent.is_cut else sys.maxsize

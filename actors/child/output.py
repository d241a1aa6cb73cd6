"""What user code prints goes to the log, as much of it as a log is for.

A graph that prints a million lines would cost its machine a core that copies them, and would push
out of the rotated logs whatever else they hold. What native code writes past Python is not counted.
"""

import io
import os
import sys
from collections.abc import Callable
from time import monotonic
from typing import BinaryIO, cast

from actors.child.outlet import Outlet

BURST_CHARACTERS = 1_000_000
CHARACTERS_PER_SECOND = 100_000
"""What one stream of a graph process may print: at once, and in the long run."""


class BoundedText(io.TextIOWrapper):
    """A text stream that leaves out what is too much, whole writes at a time, and says how much."""

    def __init__(
        self, buffer: BinaryIO, encoding: str, clock: Callable[[], float] = monotonic
    ) -> None:
        super().__init__(buffer, encoding, "backslashreplace", line_buffering=True)
        self._clock = clock
        self._room = float(BURST_CHARACTERS)
        self._seen_at = clock()
        self._left_out = 0

    def write(self, text: str) -> int:
        """Writes the text, or counts it. The answer is the same: whoever prints needs not care."""
        now = self._clock()
        gained = (now - self._seen_at) * CHARACTERS_PER_SECOND
        self._seen_at = now
        self._room = min(self._room + gained, BURST_CHARACTERS)
        # Until there is room for much again: else every line that fits is followed by a note.
        enough = BURST_CHARACTERS / 10 if self._left_out else 0
        if self._room < max(len(text), enough):
            self._left_out += len(text)
            return len(text)
        if self._left_out:
            super().write(f"[{self._left_out} characters were printed too fast and left out]\n")
            self._left_out = 0
        self._room -= len(text)
        return super().write(text)


def keep_apart() -> None:
    """Sends what is printed to stderr, bounded and line by line; what is read is empty."""
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    # The first ones too: they are without their buffers now.
    sys.stdout = sys.__stdout__ = _bounded(sys.stdout)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _bounded(sys.stderr)  # type: ignore[misc]


def _bounded(stream: object) -> io.TextIOWrapper:
    if not isinstance(stream, io.TextIOWrapper):
        raise TypeError("a new process has Python's own streams")
    encoding, buffer = stream.encoding, stream.detach()
    return BoundedText(cast("BinaryIO", Outlet(buffer.fileno())), encoding)

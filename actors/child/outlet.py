"""A stream for what is logged and printed, whose reader may be frozen: nobody waits for it long.

What our processes say goes through a pipe to supervisord, or whoever else started them. If that is
stopped, or hangs on the disk to which it writes, the pipe is soon full, and the next line would
hold up whoever says it: the loop that serves requests, or the one that prolongs leases.
"""

import io
import os
import select
import sys
import threading
from typing import TYPE_CHECKING, BinaryIO, cast

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_PATIENCE_SECONDS = 0.5
"""So long a reader may take to take anything; then all is left out until it does."""


def take_over() -> None:
    """From now on what Python code of this process prints goes through outlets."""
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            cast("BinaryIO", Outlet(stream.fileno())),
            "utf-8",
            "backslashreplace",
            line_buffering=True,
        )
        for stream in (sys.stdout, sys.stderr)
    )


class Outlet(io.RawIOBase):
    """Writes to a descriptor as long as somebody takes it, and counts what nobody took.

    A pipe is written through a description of our own, so that who inherits the descriptor, as
    programs that user code starts, writes as ever.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        try:
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_APPEND
            self._own = os.open(f"/proc/self/fd/{descriptor}", flags)
        except OSError:  # no Linux, or a socket: there it may still wait, for one write
            self._own = descriptor
        self._room = select.poll()
        self._room.register(self._own, select.POLLOUT)
        self._renew_lock()
        os.register_at_fork(after_in_child=self._renew_lock)
        self._is_deaf = False
        self._left_out = 0

    def _renew_lock(self) -> None:
        # For a signal's handler that logs, too.
        self._lock = threading.RLock()

    def writable(self) -> bool:
        """It is."""
        return True

    def fileno(self) -> int:
        """The descriptor, for others."""
        return self._descriptor

    def write(self, data: "ReadableBuffer", /) -> int:
        """Writes or counts all of it. Raises OSError when the reader is gone."""
        whole = memoryview(data).cast("B")
        with self._lock:
            if self._is_deaf and self._has_room(0):
                self._is_deaf = False
                note = f"[{self._left_out} bytes were left out: nobody took them]\n"
                self._left_out = self._written(memoryview(note.encode()))
            self._left_out += self._written(whole)
        return len(whole)

    def _written(self, rest: memoryview) -> int:
        """Writes; returns how many bytes were not taken."""
        while rest and not self._is_deaf:
            if self._has_room(_PATIENCE_SECONDS):
                try:
                    rest = rest[os.write(self._own, rest) :]
                except BlockingIOError:  # another process was quicker
                    continue
            else:
                self._is_deaf = True
        return len(rest)

    def _has_room(self, seconds: float) -> bool:
        return bool(self._room.poll(seconds * 1000))

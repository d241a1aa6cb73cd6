"""Signals as something to wait for."""

import os
import select
import signal
from types import FrameType, TracebackType


class Signals:
    """Waits for signals in the main thread without doing anything inside a handler.

    A handler interrupts whatever line it meets, a lock's inside included; so it only exists for the
    number to be written to a pipe.
    """

    def __init__(self, *numbers: signal.Signals) -> None:
        self._numbers = numbers

    def __enter__(self) -> "Signals":
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._before_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, _ignore) for number in self._numbers}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._before_fd)
        os.close(self._read)
        os.close(self._write)

    def wait(self, seconds: float) -> int:
        """Returns how many of the signals came, after at most so many seconds."""
        ready, _, _ = select.select([self._read], [], [], seconds)
        if not ready:
            return 0
        return sum(number in self._numbers for number in os.read(self._read, 512))

    def wake(self) -> None:
        """Ends the wait under way, or the next one, without a signal. For any thread."""
        os.write(self._write, b"\0")


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """The number is already in the pipe."""

"""The control thread: hears the worker whatever the loop does, and ends the process without it.

A loop that user code holds up cannot read a frame; a thread can, as long as Python runs at all. So
a cancel gets through, and a process whose worker is gone or silent does not live on with runs that
have an owner elsewhere.
"""

import logging
import os
import threading
from collections.abc import Callable
from time import monotonic

from actors.child.pipe import Pipe
from actors.child.protocol import BrokenFrame, Frame
from actors.child.stop import TICK_SECONDS, Ladder

_log = logging.getLogger(__name__)

ORPHANED = 3
"""Exit status of a process whose worker is gone, silent or out of step."""

_IDLE_SECONDS = 0.5


class Control:
    """Reads the pipe in a thread of its own and passes each frame on."""

    def __init__(
        self, pipe: Pipe, ladder: Ladder, receive: Callable[[Frame], None], lease_seconds: float
    ) -> None:
        """receive: called in the control thread. lease_seconds: the worker's longest silence."""
        self._pipe = pipe
        self._ladder = ladder
        self._receive = receive
        self._lease_seconds = lease_seconds
        self._heard_at = monotonic()
        self._expects_pings = False

    def start(self) -> None:
        """Starts the thread. It ends with the process only."""
        threading.Thread(target=self._listen, name="control", daemon=True).start()

    def expect_pings(self) -> None:
        """From now on silence counts: before it is ready, a process is not pinged."""
        self._heard_at = monotonic()
        self._expects_pings = True

    def _listen(self) -> None:
        try:
            while True:
                self._tick()
        except BrokenFrame as error:
            _leave(f"the pipe is out of step: {error}")
        except BaseException:  # noqa: BLE001  # a process that cannot be stopped must not go on
            _log.critical("the control thread failed", exc_info=True)
            os._exit(ORPHANED)

    def _tick(self) -> None:
        timeout = TICK_SECONDS if self._ladder.is_pressing else _IDLE_SECONDS
        begun = monotonic()
        frames = self._pipe.receive(timeout)
        if frames is None:
            _leave("the worker is gone")
        for frame in frames or ():
            self._heard_at = monotonic()
            self._receive(frame)
        # By the time before the pipe was found empty: code that keeps the interpreter lock, or a
        # stop of the whole process (SIGSTOP), may hold us up after any line, and what the worker
        # said meanwhile is still to be read.
        if not frames and self._is_deserted(begun):
            _leave("the worker has been silent for longer than the lease")
        self._ladder.press()

    def _is_deserted(self, at: float) -> bool:
        return self._expects_pings and at - self._heard_at > self._lease_seconds


def _leave(why: str) -> None:
    _log.error("graph process ends itself", extra={"reason": why})
    os._exit(ORPHANED)

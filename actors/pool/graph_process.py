"""One graph process from the outside: start it, speak with it, see it die.

It is exec'd, never forked: this process has threads, a loop and connections that no child may
share. Its death is seen twice, and both must come before it is reported: the kernel says so through
a pidfd, and its pipe closes. The pipe comes last, so that what it said before it died is heard.
"""

import asyncio
import contextlib
import os
import resource
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from actors.child.board import Board
from actors.child.protocol import (
    BOARD_FD_VARIABLE,
    FD_VARIABLE,
    BrokenFrame,
    Decoder,
    Frame,
    encode,
)

log = structlog.get_logger(__name__)

ANSWER_SECONDS = 1.0
"""A process whose loop leaves a ping unanswered for longer gets no new run."""

_SIGN_OF_LIFE_SECONDS = 2.0
"""A process that owes an answer still hears from us so often: it ends itself when we are silent."""

_LAST_WORDS_SECONDS = 0.5
"""How long the pipe of a dead process may stay open; a grandchild may hold the other end."""

_PAGE_BYTES = resource.getpagesize()


def describe_exit(code: int) -> str:
    """How a graph process ended, in words."""
    if code >= 0:
        return f"graph process exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown signal"
    guess = ", out of memory?" if -code == signal.SIGKILL else ""
    return f"graph process killed by signal {-code} ({name}{guess})"


class GraphProcess(asyncio.Protocol):
    """A child and the pipe to it. All methods belong to the loop's thread.

    The thread that makes one must outlive it: the kernel kills a child whose parent thread ends.
    """

    def __init__(
        self,
        on_frame: Callable[["GraphProcess", Frame], None],
        on_exit: Callable[["GraphProcess"], None],
        seats: int,
    ) -> None:
        """on_frame: called with each frame but ``ready`` and ``pong``. on_exit: called once.

        seats: of how many runs are on its board.
        ``ready`` resolves to that frame, or raises ConnectionResetError if the process ends first;
        ``gone`` resolves when it is dead and everything it said is heard.
        """
        self._on_frame = on_frame
        self._on_exit = on_exit
        self._seats = seats
        self._decoder = Decoder()
        self._transport: asyncio.WriteTransport | None = None
        self._pid = 0
        self._code: int | None = None
        self._pipe_closed = False
        self._ping_sent: float | None = None
        self._spoke_at = 0.0
        self._pings = 0
        self._is_suspect = False
        self.delay = 0.0
        self.ready: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self.ready.add_done_callback(lambda future: future.cancelled() or future.exception())
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._started_at = time.monotonic()

    async def start(
        self, command: list[str], env: Mapping[str, str], cwd: Path, first: Frame
    ) -> None:
        """Starts the program and sends the first frame; does not wait until it is ready."""
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        board = -1
        try:
            board = Board.file(self._seats)
            self.board = Board(board, self._seats)
            self._popen = self._exec(command, env, cwd, theirs.fileno(), board)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            if board >= 0:
                os.close(board)
        self._pid = self._popen.pid
        self._watch(loop)
        transport, _ = await loop.create_connection(lambda: self, sock=ours)
        self._transport = transport
        self.send(first)

    @staticmethod
    def _exec(
        command: list[str], env: Mapping[str, str], cwd: Path, fd: int, board: int
    ) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            command,
            env={**env, FD_VARIABLE: str(fd), BOARD_FD_VARIABLE: str(board)},
            cwd=cwd,
            pass_fds=(fd, board),
            stdin=subprocess.DEVNULL,
            stdout=2,  # what user code prints belongs to the log
            start_new_session=True,
        )

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Arranges for ``_died`` to be called as soon as the process is dead."""
        if hasattr(os, "pidfd_open"):
            pidfd = os.pidfd_open(self._pid)

            def dead() -> None:
                loop.remove_reader(pidfd)
                os.close(pidfd)
                self._died()

            loop.add_reader(pidfd, dead)
        else:  # no pidfd outside Linux: a thread waits instead

            def wait() -> None:
                os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)
                loop.call_soon_threadsafe(self._died)

            threading.Thread(target=wait, daemon=True, name=f"wait {self._pid}").start()

    @property
    def pid(self) -> int:
        """The process id; 0 before the start."""
        return self._pid

    @property
    def exited(self) -> str:
        """How it ended, in words."""
        return describe_exit(self._code if self._code is not None else 0)

    @property
    def answering(self) -> bool:
        """Whether it lives, and its loop answers pings."""
        if self._code is not None or not self.ready.done() or self._is_suspect:
            return False
        return self._ping_sent is None or time.monotonic() - self._ping_sent < ANSWER_SECONDS

    @property
    def silent_seconds(self) -> float:
        """How long its loop has left a ping unanswered."""
        return 0.0 if self._ping_sent is None else time.monotonic() - self._ping_sent

    @property
    def age(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self._started_at

    def rss(self) -> int | None:
        """Resident memory in bytes; None where the kernel does not say."""
        try:
            pages = Path(f"/proc/{self._pid}/statm").read_bytes().split()[1]
        except (OSError, IndexError):
            return None
        return int(pages) * _PAGE_BYTES

    def send(self, frame: Frame) -> None:
        """Queues a frame. A process that is dying does not hear it; its exit is reported."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(frame))

    def ping(self) -> None:
        """Asks the loop for a sign of life. To one that still owes an answer it gives one."""
        now = time.monotonic()
        if self._ping_sent is None:
            self._pings += 1
            self._ping_sent = now
        elif now - self._spoke_at < _SIGN_OF_LIFE_SECONDS:
            return
        self._spoke_at = now
        self.send(Frame("ping", {"n": self._pings}))

    def suspect(self) -> None:
        """Takes it for one that does not answer, until it does."""
        self._is_suspect = True

    def terminate(self) -> None:
        """Asks the process to end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the process and everything that it started."""
        if self._code is None and self._pid:
            try:
                os.killpg(self._pid, signal.SIGKILL)
            except ProcessLookupError:
                self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._code is None and self._pid:
            self._popen.send_signal(number)

    # asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        """Hands on each frame that is complete."""
        try:
            for frame in self._decoder.feed(data):
                self._receive(frame)
        except (BrokenFrame, ValueError, KeyError) as error:
            log.error("graph process speaks out of step", pid=self._pid, error=str(error))
            self.kill()

    def connection_lost(self, exc: Exception | None) -> None:
        """Without its pipe a process can report nothing: it must end."""
        self._pipe_closed = True
        self.kill()
        self._report()

    def _receive(self, frame: Frame) -> None:
        match frame.kind:
            case "pong":
                if frame.head.get("n") == self._pings and self._ping_sent is not None:
                    self.delay = time.monotonic() - self._ping_sent
                    self._ping_sent = None
                    self._is_suspect = False
            case "ready":
                if not self.ready.done():
                    self.ready.set_result(frame)
            case _:
                self._on_frame(self, frame)

    # death

    def _died(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            # Before it is reaped its id belongs to nobody else: end what it left behind.
            os.killpg(self._pid, signal.SIGKILL)
        self._code = self._popen.wait()
        if not self._pipe_closed:
            asyncio.get_running_loop().call_later(_LAST_WORDS_SECONDS, self._close_pipe)
        self._report()

    def _close_pipe(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _report(self) -> None:
        if self._code is None or not self._pipe_closed or self.gone.done():
            return
        self.gone.set_result(None)
        if not self.ready.done():
            self.ready.set_exception(ConnectionResetError(self.exited))
        self._on_exit(self)

"""The graph process: ``python -P -m actors.child``, started by a worker.

    main thread      imports the graphs, then turns the loop: runs, answers, events, checkpoints
    control thread   reads the pipe; stops runs when the loop does not turn; notices a lost worker
    pipe writer      writes frames to the worker
    graph threads    sync nodes and whatever else must not hold the loop up

The loop is asyncio's own: a signal handler has to run in the middle of a coroutine that does not
yield, and Python runs handlers in the main thread, between bytecodes. The process ends by
``os._exit``, so that no thread that user code left behind can keep it alive.
"""

import asyncio
import ctypes
import faulthandler
import logging
import os
import signal
import socket
import sys
from collections.abc import Coroutine
from typing import Any

from actors.child import loopback, output
from actors.child.board import Board
from actors.child.control import ORPHANED, Control
from actors.child.loader import Graphs
from actors.child.logs import log_to_stderr
from actors.child.pipe import Pipe, first_frames
from actors.child.process import GraphProcess, Settings
from actors.child.protocol import BOARD_FD_VARIABLE, FD_VARIABLE
from actors.child.store_config import StoreConfig

_INIT_SECONDS = 30.0
_PR_SET_PDEATHSIG = 1

_log = logging.getLogger(__name__)


def main() -> None:
    """Lives until it has retired, or its worker is gone."""
    pipe = Pipe(_inherited_socket())
    _die_with_parent()
    output.keep_apart()
    log_to_stderr()
    faulthandler.enable()  # a crash in native code shows where it was, in the log
    frames = first_frames(pipe, _INIT_SECONDS)
    if not frames:
        os._exit(ORPHANED)
    settings = Settings.of(frames[0])
    sys.setswitchinterval(settings.switch_interval)

    loop = asyncio.new_event_loop()
    process = GraphProcess(pipe, _inherited_board(settings.concurrency), settings, loop)
    control = Control(pipe, process.ladder, process.receive, settings.lease_seconds)
    for frame in frames[1:]:
        process.receive(frame)
    control.start()
    if settings.server_url is not None:
        loopback.install(settings.server_url)
    # Before the loop runs: a module may call asyncio.run while it is imported.
    graphs = Graphs.import_all(settings.project)
    store = StoreConfig.load(settings.project)
    control.expect_pings()
    _turn(loop, process.serve(graphs, store))
    pipe.close(timeout=30.0)
    sys.stdout.flush()
    os._exit(0)


def _turn(loop: asyncio.AbstractEventLoop, code: Coroutine[Any, Any, None]) -> None:
    """Turns the loop until ``code`` is done.

    asyncio lets SystemExit and KeyboardInterrupt of any task fly out of the loop. In a node they
    end a run: the task has them as its result already, so the loop goes on where it was.
    """
    served = loop.create_task(code)
    while not served.done():
        try:
            loop.run_until_complete(served)
        except (SystemExit, KeyboardInterrupt) as error:
            _log.warning("a graph raised %s", type(error).__name__)


def _inherited_socket() -> socket.socket:
    """The socket to the worker, which no process that user code starts may inherit."""
    connection = socket.socket(fileno=int(os.environ.pop(FD_VARIABLE)))
    connection.set_inheritable(False)
    connection.setblocking(True)
    # A forked grandchild that kept it open would hide our death from the worker.
    os.register_at_fork(after_in_child=connection.close)
    return connection


def _inherited_board(seats: int) -> Board:
    fd = int(os.environ.pop(BOARD_FD_VARIABLE))
    try:
        return Board(fd, seats)
    finally:
        os.close(fd)


def _die_with_parent() -> None:
    """Asks the kernel for SIGKILL when the worker dies; the pipe's end covers other systems."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the worker's to judge
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died in between; before that, the pipe shows it
            os._exit(ORPHANED)


if __name__ == "__main__":
    try:
        main()
    except BaseException:  # noqa: BLE001  # whatever it is, threads must not keep the process
        _log.critical("graph process failed", exc_info=True)
        os._exit(1)

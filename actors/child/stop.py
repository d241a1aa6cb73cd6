"""Stops the code of one run, and of no other, in a process that executes many.

Three kinds of code have to be reached, and for each there is one way:

    a coroutine that waits     its task is cancelled; if it swallows that, what it waits for raises
    a thread of the executor   an asynchronous exception, raised between two of its bytecodes
    a coroutine that never     SIGUSR1, whose handler runs in the main thread, in the very context
    yields: the loop is stuck  of the code it interrupts, and raises if that is the run's

The second and third are needed only for code that did not stop when it was asked; they are
repeated, with pauses in which ``finally`` blocks can do their work. C code that keeps the GIL or
waits in a thread, and code that swallows everything, cannot be stopped from inside: for that the
worker ends the process.
"""

import asyncio
import ctypes
import signal
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, ContextVar, copy_context
from time import monotonic
from types import FrameType
from typing import Any, TypeVar
from weakref import WeakSet

from actors.child.board import Board

T = TypeVar("T")

TICK_SECONDS = 0.05
"""How often code that does not stop is looked at; also what a loop gets to answer."""
REPEAT_SECONDS = 1.0
"""Pause between two exceptions in the same code."""


class Stopped(BaseException):  # like CancelledError, so that "except Exception" lets it pass
    """The run that this code belongs to is to stop."""


class GraphExited(RuntimeError):
    """The graph called sys.exit, which ends its run; the process belongs to other runs too."""


def as_failure(error: BaseException) -> BaseException:
    """The error as a run may show it: an exit is a failure like any other."""
    if isinstance(error, SystemExit):
        return GraphExited(f"the graph called sys.exit({error.code!r})")
    if isinstance(error, KeyboardInterrupt):
        return GraphExited("the graph raised KeyboardInterrupt")
    return error


current_work: ContextVar["Work | None"] = ContextVar("current_work", default=None)
"""The work that the code at this point belongs to; None in code that serves all runs."""


class Work:
    """The code of one run, as far as it can be stopped.

    ``stop_requested`` is set by the control thread, at once; ``stopped`` when the code was really
    hit by it, so that a run that came to its end just before is not said to have been stopped.

    board, seat: where it shows who executes its code; ``seat`` is 0 when that is nobody's business.
    """

    def __init__(self, board: Board | None = None, seat: int = 0) -> None:
        self.board = board
        self.seat = seat
        self.context: Context = copy_context()
        self.context.run(current_work.set, self)
        self.stop_requested = False
        self.stopped = False
        self.ended = False
        self._held_back = False
        self.cancelled_at = 0.0
        self.task: asyncio.Task[Any] | None = None
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self.threads_left = asyncio.Event()

    def start(self, code: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts the run's code in the run's context."""
        task = asyncio.get_running_loop().create_task(code, context=self.context)
        self.task = task
        if self.stop_requested:
            self.cancel()
        return task

    def cancel(self) -> None:
        """Asks the run's task to end, once: to repeat it would break off its orderly end."""
        if self.task is not None and not self.task.done() and not self.task.cancelling():
            self.stopped = True
            self.cancelled_at = monotonic()
            self.task.cancel()

    @property
    def is_displaced(self) -> bool:
        """Whether the worker gave the run to another process: no step of it may begin here."""
        return self.board is not None and self.board.is_displaced(self.seat)

    def holds_back(self, *, is_root: bool) -> bool:
        """Whether a step that is due has to wait, now that the run was displaced.

        The first one does, and cancels the run's task; the others until that has ended it, but not
        for ever: among them may be a library's task that serves many runs. What the run's own task
        and those that it cancels do in order to end well is their right, as with any stop.

        is_root: whether it is a step of the run's own task.
        """
        if not self._held_back:
            self._held_back = True
            self.cancel()
            return True
        if is_root or self.task is None or self.task.done():
            return False
        return monotonic() - self.cancelled_at < REPEAT_SECONDS

    def end(self) -> None:
        """Nothing of it is to be stopped any more; what it left behind shows on no board."""
        self.ended = True
        self.seat = 0

    def rouse(self) -> bool:
        """Raises in coroutines of the run that were cancelled and wait again nevertheless.

        Those just cancelled are left alone: they may wait for something in order to end well.
        Looks only at tasks that were cancelled: a library's task that serves many runs may have
        been started by this one. The run's own task is hit last, since it waits for the others.
        Returns False when one is about to run, and could not be reached for that.
        """
        if monotonic() - self.cancelled_at < REPEAT_SECONDS:
            return True
        deaf = [task for task in self.tasks if task.cancelling() and not task.done()]
        inner = [task for task in deaf if task is not self.task] or deaf
        reached = [_raise_in(task) for task in inner]
        return all(reached)


def _raise_in(task: "asyncio.Task[Any]") -> bool:
    """Whether the task waits for something that could be made to raise in it."""
    waits_for: asyncio.Future[Any] | None = getattr(task, "_fut_waiter", None)
    if isinstance(waits_for, asyncio.Task):
        return True  # that one is in the list itself, or belongs to somebody else
    if waits_for is None or waits_for.done():
        return False
    waits_for.set_exception(Stopped())
    return True


class GraphThreads(ThreadPoolExecutor):
    """The loop's default executor: knows which run each of its threads serves."""

    def __init__(self, loop: asyncio.AbstractEventLoop, max_workers: int) -> None:
        super().__init__(max_workers, thread_name_prefix="graph")
        self._lock = threading.Lock()
        self._serving: dict[int, Work] = {}
        self._loop = loop

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """As the base class; the call counts as work of the run that submits it."""
        work = current_work.get()
        if work is None:
            return super().submit(fn, *args, **kwargs)
        return super().submit(self._serve, work, fn, args, kwargs)

    def serves(self, work: Work) -> bool:
        """Whether a thread executes code of this run."""
        with self._lock:
            return work in self._serving.values()

    def interrupt(self, work: Work) -> None:
        """Raises Stopped in the threads that serve this run, as soon as they execute Python."""
        with self._lock:
            for thread, served in self._serving.items():
                if served is work:
                    _raise_in_thread(thread, Stopped)

    def _serve(
        self, work: Work, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> T:
        me, seat = threading.get_ident(), work.seat
        try:
            with self._lock:
                self._serving[me] = work
                self._show(work.board, seat)
            # In this order: the worker writes the one and then reads the other.
            if work.is_displaced:
                raise Stopped
            return fn(*args, **kwargs)
        except (SystemExit, KeyboardInterrupt) as error:
            raise as_failure(error) from error
        finally:
            self._leave(me, work, seat)

    def _leave(self, me: int, work: Work, seat: int) -> None:
        """From here on the thread serves no run; an exception meant for this one must not stay."""
        while True:
            try:
                with self._lock:
                    self._serving.pop(me, None)
                    self._show(work.board, seat)
                    _raise_in_thread(me, None)
                break
            except Stopped:  # it came while we were leaving
                continue
        if work.stop_requested:
            self._loop.call_soon_threadsafe(work.threads_left.set)

    def _show(self, board: Board | None, seat: int) -> None:
        if board is not None and seat:
            threads = sum(served.seat == seat for served in self._serving.values())
            board.cells[board.threads + seat] = threads


def _raise_in_thread(thread: int, kind: type[BaseException] | None) -> None:
    """Makes ``kind`` pending in the thread; None takes back what is pending."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), None if kind is None else ctypes.py_object(kind)
    )


class Ladder:
    """Stops runs step by step. Driven by the control thread, which runs when the loop does not."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: GraphThreads) -> None:
        """Takes SIGUSR1 over; belongs to the main thread."""
        self._loop = loop
        self._threads = threads
        self._stubborn: dict[Work, _Pressure] = {}
        self._targets: set[Work] = set()
        signal.signal(signal.SIGUSR1, self._on_signal)

    @property
    def is_pressing(self) -> bool:
        """Whether ``press`` wants to be called every ``TICK_SECONDS``."""
        return bool(self._stubborn)

    def cancel(self, work: Work) -> None:
        """The first step: asks."""
        work.stop_requested = True
        self._loop.call_soon_threadsafe(work.cancel)

    def interrupt(self, work: Work) -> None:
        """The second step: raises in what code of the run is still there, until it has ended."""
        self.cancel(work)
        self._press(work, self._stubborn.setdefault(work, _Pressure()))

    def press(self) -> None:
        """Looks after every run that was interrupted and has not ended."""
        for work, pressure in list(self._stubborn.items()):
            if work.ended:
                self._stubborn.pop(work, None)
                self._targets.discard(work)
            else:
                self._press(work, pressure)

    def _press(self, work: Work, pressure: "_Pressure") -> None:
        now = monotonic()
        if now >= pressure.threads_due:
            pressure.threads_due = now + REPEAT_SECONDS
            self._threads.interrupt(work)
        if now < pressure.loop_due:
            return
        asked_at = pressure.asked_at
        if asked_at is None:
            asked_at = pressure.asked_at = now
            self._loop.call_soon_threadsafe(self._answer, work, pressure)
        if now - asked_at >= TICK_SECONDS:
            self._targets.add(work)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    def _answer(self, work: Work, pressure: "_Pressure") -> None:
        """On the loop: proves that it turns, and raises in the run's waiting coroutines."""
        self._targets.discard(work)
        if work.rouse():
            pressure.rest()
        pressure.asked_at = None

    def _on_signal(self, _number: int, frame: FrameType | None) -> None:
        """Runs between two bytecodes of the main thread, in the context of what it interrupts."""
        work = current_work.get()
        if work is not None and work in self._targets and _may_raise_in(frame):
            self._targets.discard(work)
            if pressure := self._stubborn.get(work):
                pressure.rest()
            work.stopped = True
            raise Stopped


_SHARED = frozenset({"asyncio", "actors"})
_BETWEEN = frozenset({"psycopg", "psycopg_pool", "redis", "_weakrefset", "weakref", "heapq"})


def _may_raise_in(frame: FrameType | None) -> bool:
    """Whether this code is the run's own, and not what serves all runs on behalf of this one.

    An exception in the middle of ``loop.call_soon`` would lose a task's next step, and one in our
    saver or pool what they keep for others. The signal comes again, and catches the run elsewhere.
    """
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        package = module.partition(".")[0]
        if package in _SHARED:
            return False
        if package not in _BETWEEN and not module.startswith("langgraph.checkpoint"):
            return True
        frame = frame.f_back
    return False


class _Pressure:
    """When a stubborn run is hit again, and since when the loop owes an answer (monotonic)."""

    def __init__(self) -> None:
        self.threads_due = 0.0
        self.loop_due = 0.0
        self.asked_at: float | None = None

    def rest(self) -> None:
        """The code was hit; it gets time for its ``finally`` blocks."""
        self.loop_due = monotonic() + REPEAT_SECONDS

"""A graph process from the inside: what is open in it, and what becomes of each frame."""

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any

import orjson
from langgraph.store.base import BaseStore

from actors.child import connections, execution, introspect, runner
from actors.child.board import Board
from actors.child.events import EventWriter
from actors.child.loader import Graphs
from actors.child.pipe import Pipe
from actors.child.protocol import Frame
from actors.child.saver import BatchingSaver
from actors.child.state_serde import StateSerializer
from actors.child.steps import task_factory
from actors.child.stop import GraphThreads, Ladder, Work
from actors.child.store import GraphStore
from actors.child.store_config import StoreConfig

_log = logging.getLogger(__name__)

FLUSH_SECONDS = 5.0
"""So long an outcome waits for its run's events; they are written later, when Redis is back."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The first frame: what to load, where to write. Seconds and bytes."""

    project: dict[str, Any]
    database_url: str
    redis_url: str | None
    pool_max: int
    concurrency: int
    lease_seconds: float
    stream_maxlen: int
    stream_ttl_seconds: int
    event_buffer_bytes: int
    stream_max_bytes: int
    switch_interval: float = 0.0005
    prepare_threshold: int | None = 0
    server_url: str | None = None

    @classmethod
    def of(cls, frame: Frame) -> "Settings":
        """Takes what it knows. Raises TypeError when something is missing."""
        known = cls.__dataclass_fields__
        return cls(**{name: value for name, value in frame.head.items() if name in known})


@dataclass(eq=False, slots=True)
class Attempt:
    """A run in this process, from its start frame to its outcome.

    seat: its number on the board. expires_at: after this it is not begun (``time.monotonic``).
    """

    frame: Frame
    work: Work
    seat: int
    expires_at: float

    @property
    def key(self) -> tuple[str, int]:
        """Run id and fencing token."""
        return self.frame.head["run_id"], self.frame.head["attempt"]


class GraphProcess:
    """Runs what the worker starts, stops what it stops, answers what it asks."""

    def __init__(
        self, pipe: Pipe, board: Board, settings: Settings, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Must be made in the main thread; ``receive`` may be called from then on."""
        self._pipe = pipe
        self._board = board
        self._settings = settings
        self._loop = loop
        # Twice the runs, and more: a thread that a stopped run left behind, in C code, is occupied
        # until the process ends, and sync nodes must not queue behind it.
        self._threads = GraphThreads(loop, 4 * settings.concurrency + 8)
        loop.set_default_executor(self._threads)
        loop.set_task_factory(task_factory)  # type: ignore[arg-type]  # typeshed's is for eager tasks
        self.ladder = Ladder(loop, self._threads)
        self._attempts: dict[tuple[str, int], Attempt] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()
        self._retiring = False
        self._retired = asyncio.Event()

    async def serve(self, graphs: Graphs, store: StoreConfig) -> None:
        """Says that the process is ready, and returns when it has retired."""
        settings = self._settings
        async with connections.pool(
            settings.database_url,
            settings.pool_max,
            prepare_threshold=settings.prepare_threshold,
        ) as pool:
            self._graphs = graphs
            self._store: BaseStore = GraphStore(pool, store)
            graphs.store = self._store
            self._saver = BatchingSaver(pool, serde=StateSerializer())
            self._events = EventWriter(
                settings.redis_url,
                maxlen=settings.stream_maxlen,
                ttl_seconds=settings.stream_ttl_seconds,
                buffer_bytes=settings.event_buffer_bytes,
                max_stream_bytes=settings.stream_max_bytes,
            )
            await self._events.open()
            self._open.set()
            self._pipe.send(Frame("ready", {"graphs": graphs.ids, "broken": graphs.broken}))
            await self._retired.wait()
            await self._events.close(FLUSH_SECONDS)
            await self._saver.aclose()

    # Frames, in the control thread

    def receive(self, frame: Frame) -> None:
        """Takes a frame. Whatever needs the loop is handed to it; a stop does not wait for that."""
        match frame.kind:
            case "start":
                seat, expires_at = frame.head.pop("seat"), frame.head.pop("expires_at")
                attempt = Attempt(frame, Work(self._board, seat), seat, expires_at)
                self._attempts[attempt.key] = attempt
                self._on_loop(self._perform, attempt)
            case "stop":
                self._stop(frame)
            case "ping":
                self._loop.call_soon_threadsafe(self._pipe.send, Frame("pong", frame.head))
            case "inspect":
                self._on_loop(self._answer, frame)
            case "retire":
                self._loop.call_soon_threadsafe(self._retire)
            case unknown:
                _log.error("unknown frame", extra={"frame": unknown})

    def _stop(self, frame: Frame) -> None:
        attempt = self._attempts.get((frame.head["run_id"], frame.head["attempt"]))
        if attempt is None:  # it has ended; its outcome is under way
            return
        if frame.head["step"] == "interrupt":
            self.ladder.interrupt(attempt.work)
        else:
            self.ladder.cancel(attempt.work)

    def _on_loop(self, serve: Any, argument: Any) -> None:
        def start() -> None:
            task = self._loop.create_task(serve(argument))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        self._loop.call_soon_threadsafe(start)

    # Runs, on the loop

    async def _perform(self, attempt: Attempt) -> None:
        """One attempt, from start to outcome. Not in the run's own context: no stop can hit it."""
        await self._open.wait()
        work = attempt.work
        self._board.begin(attempt.seat)
        # In this order: what the worker, after that time, reads as not taken up never will be.
        if monotonic() > attempt.expires_at:
            self._board.clear(attempt.seat)
            self._pipe.send(execution.untouched(*attempt.key))
            self._forget(attempt)
            return
        code = work.start(self._execute(attempt.frame))
        await asyncio.wait({code})
        if work.stopped:
            await self._threads_have_left(work)
        work.end()
        await self._flush(attempt)
        events = self._events.count(attempt.key[0])
        self._events.forget(attempt.key[0])
        self._pipe.send(execution.outcome(*attempt.key, work, code, events))
        self._forget(attempt)

    def _forget(self, attempt: Attempt) -> None:
        del self._attempts[attempt.key]
        self._retire_when_empty()

    async def _execute(self, frame: Frame) -> runner.Result:
        start, events = runner.Start(**frame.head, kwargs=orjson.loads(frame.body)), self._events
        return await execution.execute(
            start, self._graphs, self._saver, self._store, events.put, events.settle
        )

    async def _threads_have_left(self, work: Work) -> None:
        """Waits until no thread executes code of a stopped run any more.

        Its task ends at once when a sync node is cancelled; the node's thread does not. An outcome
        says that the work has ended, so it is only sent when this is true; if it never becomes
        true, the worker ends the process.
        """
        while self._threads.serves(work):
            self.ladder.interrupt(work)
            work.threads_left.clear()
            if self._threads.serves(work):
                await work.threads_left.wait()

    async def _flush(self, attempt: Attempt) -> None:
        """Nobody may learn of the end before the events are there; but Redis may be away."""
        run_id, _ = attempt.key
        written = False
        with suppress(TimeoutError):
            # Of a run that was stopped, nobody waits for more.
            async with asyncio.timeout(FLUSH_SECONDS if attempt.work.stopped else None):
                written = await self._events.flush(run_id, FLUSH_SECONDS)
        if not written:
            _log.warning("outcome sent before its events", extra={"run_id": run_id})

    def _retire(self) -> None:
        self._retiring = True
        self._retire_when_empty()

    def _retire_when_empty(self) -> None:
        if self._retiring and not self._attempts:
            self._retired.set()

    # Questions, on the loop

    async def _answer(self, frame: Frame) -> None:
        await self._open.wait()
        status, body = await introspect.inspect(
            frame.head["op"],
            orjson.loads(frame.body or b"{}"),
            self._graphs,
            self._saver.unfenced(),
            self._store,
        )
        self._pipe.send(Frame("answer", {"id": frame.head["id"], "status": status}, body))

"""Executes runs as asyncio tasks of this very process, so that a debugger stops in their nodes.

The same loader, runner, saver and answers as in a graph process, without the process around them:
code that does not stop when it is asked, and whose thread hears no exception, goes on until the
server ends.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from uuid import UUID

import orjson
import structlog

from actors.child import connections, execution, introspect, runner
from actors.child.loader import Graphs
from actors.child.saver import BatchingSaver
from actors.child.state_serde import StateSerializer
from actors.child.steps import task_factory
from actors.child.stop import GraphThreads, Work
from actors.child.store import GraphStore
from actors.child.store_config import StoreConfig
from actors.event_memory import MemoryEventLog
from actors.outcome import Ended, Outcome
from actors.pool.attempt import (
    Asked,
    Attempt,
    Draining,
    Revoked,
    Stop,
    TooLong,
    outranks,
    reported,
    stopped,
)
from actors.settings import WorkerSettings
from persistence.lifecycle import CancelAction
from persistence.runs import ClaimedRun
from persistence.settings import DatabaseSettings

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Running:
    """An attempt, and its code."""

    attempt: Attempt
    work: Work = field(default_factory=Work)


class InProcessExecutor:
    """The ``Executor`` of in-process mode. Belongs to one event loop; open and close it there."""

    def __init__(
        self,
        graphs: Graphs,
        events: MemoryEventLog,
        settings: WorkerSettings,
        database: DatabaseSettings,
        room: Callable[[], None],
        store: StoreConfig | None = None,
    ) -> None:
        """graphs: imported before the loop runs. room: called when a slot became free."""
        self._graphs = graphs
        self._events = events
        self._settings = settings
        self._database = database
        self._room = room
        self._store_config = store
        self._taken = 0
        self._running: dict[tuple[UUID, int], _Running] = {}
        self._stack = AsyncExitStack()

    async def open(self) -> None:
        """Connects the saver and the store, and takes over threads and tasks of the loop."""
        loop = asyncio.get_running_loop()
        self._threads = GraphThreads(loop, 4 * self.slots + 8)
        loop.set_default_executor(self._threads)
        loop.set_task_factory(task_factory)  # type: ignore[arg-type]  # typeshed: eager tasks only
        pool = connections.pool(
            self._database.url,
            self._settings.executor_pool_max,
            prepare_threshold=self._database.prepare_threshold,
        )
        await pool.open()
        self._stack.push_async_callback(pool.close)
        self._graphs.store = self._store = GraphStore(pool, self._store_config)
        self._saver = BatchingSaver(pool, serde=StateSerializer())
        self._stack.push_async_callback(self._saver.aclose)

    async def close(self) -> None:
        """Lets go of connections. What still runs then can write nothing any more."""
        await self._stack.aclose()

    # ── slots ────────────────────────────────────────────────────────────────────────────────────

    @property
    def slots(self) -> int:
        """See ``Executor.slots``."""
        return self._settings.n_jobs_per_worker

    @property
    def free(self) -> int:
        """See ``Executor.free``."""
        return self.slots - self._taken

    def reserve(self) -> bool:
        """See ``Executor.reserve``."""
        if not self.free:
            return False
        self._taken += 1
        return True

    def release(self) -> None:
        """See ``Executor.release``."""
        self._taken -= 1
        self._room()

    # ── runs ─────────────────────────────────────────────────────────────────────────────────────

    async def execute(self, claimed: ClaimedRun) -> Outcome:
        """See ``Executor.execute``."""
        loop = asyncio.get_running_loop()
        running = _Running(Attempt(claimed, loop.create_future()))
        self._running[running.attempt.key] = running
        limit = self._settings.bg_job_timeout_secs
        clock = loop.call_later(limit, self._stop, running, TooLong(limit))
        try:
            code = running.work.start(self._execute(claimed))
            code.add_done_callback(lambda code: self._ended(running, code))
            outcome = await asyncio.shield(running.attempt.outcome)
            await self._threads_left(running.work)
            return outcome
        finally:
            clock.cancel()
            running.work.end()
            del self._running[running.attempt.key]
            self.release()

    def cancel(self, run_id: UUID, action: CancelAction) -> None:
        """See ``Executor.cancel``."""
        for running in self._running.values():
            if running.attempt.claimed.run_id == run_id:
                self._stop(running, Asked(action))

    def revoke(self, run_id: UUID, attempt: int) -> None:
        """See ``Executor.revoke``."""
        if running := self._running.get((run_id, attempt)):
            self._stop(running, Revoked())

    def hand_back(self) -> None:
        """Stops every run because the server stops; they stay pending and go on next time."""
        for running in self._running.values():
            self._stop(running, Draining())

    async def _execute(self, claimed: ClaimedRun) -> runner.Result:
        start = runner.Start(
            run_id=str(claimed.run_id),
            thread_id=str(claimed.thread_id),
            assistant_id=str(claimed.assistant_id),
            graph_id=claimed.graph_id,
            attempt=claimed.attempt,
            kwargs=orjson.loads(claimed.kwargs),
            metadata=claimed.metadata,
            credential=f"{claimed.run_id}.{claimed.credential}",
            unfinished=claimed.unfinished,
        )
        events = self._events
        return await execution.execute(
            start, self._graphs, self._saver, self._store, events.put, events.settle
        )

    def _ended(self, running: _Running, code: "asyncio.Task[runner.Result]") -> None:
        """The code came to its end: whoever waits is told how."""
        run_id, attempt = running.attempt.key
        events = self._events.count(str(run_id), attempt)
        frame = execution.outcome(str(run_id), attempt, running.work, code, events)
        running.attempt.conclude(reported(frame, running.attempt.stop))

    # ── stopping ─────────────────────────────────────────────────────────────────────────────────

    def _stop(self, running: _Running, stop: Stop) -> None:
        """Begins to stop a run, or only notes a better reason when it is being stopped already."""
        attempt, work = running.attempt, running.work
        if attempt.over or not outranks(stop, attempt.stop):
            return
        attempt.stop = stop
        if attempt.climbing:
            return
        attempt.climbing = True
        work.stop_requested = True
        work.cancel()
        loop, grace = asyncio.get_running_loop(), self._settings.cancel_grace_seconds
        loop.call_later(grace / 2, self._insist, running)
        loop.call_later(grace, self._give_up, running)

    def _insist(self, running: _Running) -> None:
        if not running.attempt.over:
            self._threads.interrupt(running.work)
            running.work.rouse()

    def _give_up(self, running: _Running) -> None:
        """Settles the run without its code: fenced as it is, that can change nothing any more."""
        attempt = running.attempt
        if attempt.stop is not None and not attempt.over:
            log.error("code of a run does not stop", run_id=str(attempt.claimed.run_id))
            attempt.conclude(stopped(attempt.stop, Ended()))

    async def _threads_left(self, work: Work) -> None:
        """Waits a little until no thread executes a stopped run: its task ends before they do."""
        if not work.stopped:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.cancel_grace_seconds):
                while self._threads.serves(work):
                    self._threads.interrupt(work)
                    work.threads_left.clear()
                    if self._threads.serves(work):
                        await work.threads_left.wait()
        if self._threads.serves(work):
            log.error("a thread of a stopped run goes on until the server ends")

    # ── questions ────────────────────────────────────────────────────────────────────────────────

    async def inspect(self, op: str, args: bytes) -> tuple[int, bytes]:
        """See ``Executor.inspect``."""
        saver = self._saver.unfenced()
        return await introspect.inspect(op, orjson.loads(args), self._graphs, saver, self._store)

"""The pool: W graph processes with N runs each, and a spare to take the place of one that dies.

    actor threads ──reserve──▶ Pool ──start, stop──▶ W graph processes ──outcome──▶ Pool
                                 │                   a spare (loaded, idle)
                                 └────ask──────────▶ inspector

Everything but ``reserve``, ``release`` and ``free`` belongs to one loop thread. A process is never
mended: one that breaks, hangs, grows too large or holds a run that will not stop takes no new runs
(it *retires*), a fresh one takes its place at once, and it ends when its runs have.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

import orjson
import structlog

from actors.child.protocol import Frame
from actors.errors import GraphProcessFailed, InspectorUnavailable
from actors.outcome import Crashed, Ended, Failed, HandedBack, Outcome
from actors.pool import placement
from actors.pool.attempt import (
    Asked,
    Attempt,
    Draining,
    Revoked,
    Stop,
    TooLong,
    leaves_state,
    outranks,
    reported,
    stopped,
)
from actors.pool.backoff import Backoff
from actors.pool.graph_process import GraphProcess
from actors.pool.inspector import Inspector
from actors.pool.launcher import Launcher
from actors.pool.member import Member
from actors.settings import WorkerSettings
from persistence.lifecycle import CancelAction
from persistence.runs import ClaimedRun

log = structlog.get_logger(__name__)

_TICK_SECONDS = 0.25
_MEMORY_TICKS = 8
_KILL_AT = 1.5
"""A process that grew beyond its limit times this is killed: it may take the machine with it."""
_SEAT_SECONDS = 10.0
"""How long a claimed run waits when the process that had room for it has just died."""
_STATE_SECONDS = 1.0
_INTERRUPT_AFTER = 0.4
_INTERRUPT_STUCK_AFTER = 0.1
"""Shares of the grace after which a run that was told to stop is interrupted: by then its task had
time to clean up; a loop that does not answer will not even hear that it shall stop."""
_REVOKED_GRACE_SECONDS = 1.0
"""Another worker may own the run by now: no time for manners."""
_STUCK_SECONDS = 0.5
"""A loop that leaves a ping unanswered so long, when its run should have stopped, is held up."""
_DEATH_SECONDS = 5.0
_TERMINATE_SECONDS = 2.0
_SHORT_LIFE_SECONDS = 10.0


class Pool:
    """Executes runs in graph processes. See ``actors.executor.Executor``."""

    def __init__(
        self, launcher: Launcher, settings: WorkerSettings, on_room: Callable[[], None]
    ) -> None:
        """on_room: called, from any thread, whenever a slot has become free."""
        self._launcher = launcher
        self._settings = settings
        self._on_room = on_room
        self._inspector = Inspector(launcher)
        self._backoff = Backoff(0.2, 30.0)
        self._members: dict[GraphProcess, Member] = {}
        self._attempts: dict[tuple[UUID, int], Attempt] = {}
        self._growing = 0
        self._closed = False
        self._draining = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._seat_waiters: set[asyncio.Future[None]] = set()
        self.failure: BaseException | None = None
        """An error that nobody foresaw: runs may be left without anybody to end them."""
        self._lock = threading.Lock()
        self._room = 0
        self._reserved = 0

    # life

    def open(self) -> None:
        """Begins to start processes; does not wait for them."""
        self._balance()
        self._spawn(self._inspector.keep())
        self._spawn(self._watch())

    def drain(self) -> None:
        """Takes no new runs from now on."""
        self._draining = True
        self._recount()

    def hand_back(self) -> None:
        """Begins to stop every run so that another worker can go on with it."""
        for attempt in list(self._attempts.values()):
            self._stop(attempt, Draining())

    async def close(self) -> None:
        """Ends all processes; runs still in them are handed back."""
        self._closed = True
        self.drain()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for member in self._members.values():
            member.fate = HandedBack("the worker is stopping")
            member.process.send(Frame("retire"))
        await self._emptied(_TERMINATE_SECONDS)
        for member in self._members.values():
            member.process.kill()
        await self._emptied(_TERMINATE_SECONDS)

    async def _emptied(self, seconds: float) -> None:
        """Returns when the last process is gone, or after so long."""
        if gone := [member.process.gone for member in self._members.values()]:
            await asyncio.wait(gone, timeout=seconds)

    # slots

    @property
    def slots(self) -> int:
        """Runs that the processes which serve can execute at once."""
        return sum(member.limit for member in self._members.values() if member.open)

    @property
    def spares(self) -> int:
        """Processes that are loaded and wait to take the place of one that serves."""
        return sum(not member.serving for member in self._members.values())

    @property
    def free(self) -> int:
        """Runs that could start now: free seats of processes that answer, less those promised."""
        return max(0, self._room - self._reserved)

    @property
    def active(self) -> int:
        """Runs whose outcome is awaited."""
        return len(self._attempts)

    @property
    def trouble(self) -> str | None:
        """Why no process serves; None when one does or the first is still loading."""
        if self._backoff.failures and not self.slots:
            return f"graph processes do not start ({self._backoff.failures} failures in a row)"
        return None

    def reserve(self) -> bool:
        """See ``Executor.reserve``."""
        with self._lock:
            if self._room <= self._reserved:
                return False
            self._reserved += 1
            return True

    def release(self) -> None:
        """See ``Executor.release``."""
        with self._lock:
            self._reserved -= 1
        self._on_room()

    def _recount(self) -> None:
        """Counts the room anew; whoever waits for some is told when there is more."""
        seats = () if self._draining else (member.seats() for member in self._members.values())
        room = placement.room(seats)
        with self._lock:
            grew, self._room = room > self._room, room
        if grew:
            self._on_room()
            for waiter in self._seat_waiters:
                if not waiter.done():
                    waiter.set_result(None)

    # runs

    async def execute(self, claimed: ClaimedRun) -> Outcome:
        """See ``Executor.execute``."""
        loop = asyncio.get_running_loop()
        attempt = Attempt(claimed, loop.create_future())
        self._attempts[attempt.key] = attempt
        limit = self._settings.bg_job_timeout_secs
        timer = loop.call_later(limit, self._stop, attempt, TooLong(limit))
        try:
            member = await self._seat(attempt)
            if member is not None:
                self._start(member, attempt)
            return await attempt.outcome
        finally:
            timer.cancel()
            del self._attempts[attempt.key]

    def cancel(self, run_id: UUID, action: CancelAction) -> None:
        """See ``Executor.cancel``."""
        for attempt in list(self._attempts.values()):
            if attempt.claimed.run_id == run_id:
                self._stop(attempt, Asked(action))

    def revoke(self, run_id: UUID, attempt: int) -> None:
        """See ``Executor.revoke``."""
        found = self._attempts.get((run_id, attempt))
        if found is not None:
            self._stop(found, Revoked())

    async def inspect(self, op: str, args: bytes) -> tuple[int, bytes]:
        """See ``Executor.inspect``."""
        return await self._inspector.ask(op, args)

    async def _seat(self, attempt: Attempt) -> Member | None:
        """Gives the attempt a place and uses up its reservation; None when its end has come."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _SEAT_SECONDS
        while attempt.stop is None and not attempt.over:
            member = placement.choose(
                member.seats()
                for member in self._members.values()
                if not member.holds(attempt.claimed.run_id)
            )
            if member is not None:
                member.attempts[attempt.key] = attempt
                with self._lock:
                    self._reserved -= 1
                self._recount()
                return member
            waiter: asyncio.Future[None] = loop.create_future()
            self._seat_waiters.add(waiter)
            either: tuple[asyncio.Future[Any], ...] = (waiter, attempt.outcome)
            await asyncio.wait(either, timeout=end - loop.time())
            self._seat_waiters.discard(waiter)
            if loop.time() >= end:
                attempt.conclude(HandedBack("no graph process had room"))
        self.release()
        return None

    def _start(self, member: Member, attempt: Attempt) -> None:
        claimed = attempt.claimed
        member.started += 1
        if reason := member.why_not(claimed.graph_id):
            attempt.conclude(Failed("GraphUnavailable", reason, Ended()))
            self._leave(member, attempt)
        else:
            head = {
                "run_id": str(claimed.run_id),
                "thread_id": str(claimed.thread_id),
                "assistant_id": str(claimed.assistant_id),
                "graph_id": claimed.graph_id,
                "attempt": claimed.attempt,
                "metadata": claimed.metadata,
            }
            member.process.send(Frame("start", head, claimed.kwargs))
        if (most := self._settings.executor_max_runs) and member.started >= most:
            self._retire(member, "it executed as many runs as allowed", patient=True)

    def _hear(self, process: GraphProcess, frame: Frame) -> None:
        member = self._members.get(process)
        if member is None or frame.kind != "outcome":
            return
        key = (UUID(frame.head["run_id"]), int(frame.head["attempt"]))
        attempt = member.attempts.get(key)
        if attempt is not None:
            attempt.conclude(reported(frame, attempt.stop))
            self._leave(member, attempt)

    def _leave(self, member: Member, attempt: Attempt) -> None:
        del member.attempts[attempt.key]
        self._recount()
        self._bury(member)

    # stopping one run

    def _stop(self, attempt: Attempt, why: Stop) -> None:
        if attempt.over or not outranks(why, attempt.stop):
            return
        attempt.stop = why
        if not attempt.climbing:
            attempt.climbing = True
            self._spawn(self._climb(attempt))

    async def _climb(self, attempt: Attempt) -> None:
        """The ladder: cancel its task, interrupt its thread, then settle without it."""
        member = self._member_of(attempt)
        if member is None:
            await self._conclude(attempt)
            return
        grace = self._settings.cancel_grace_seconds
        if isinstance(attempt.stop, Revoked):
            grace = min(grace, _REVOKED_GRACE_SECONDS)
        patience = grace * (
            _INTERRUPT_AFTER if member.process.answering else _INTERRUPT_STUCK_AFTER
        )
        for step, seconds in (("cancel", patience), ("interrupt", grace - patience)):
            head = {"run_id": str(attempt.claimed.run_id), "attempt": attempt.claimed.attempt}
            member.process.send(Frame("stop", {**head, "step": step}))
            await asyncio.wait({attempt.outcome}, timeout=seconds)
            if attempt.over:
                return
        await self._give_up(member, attempt)

    async def _give_up(self, member: Member, attempt: Attempt) -> None:
        run_id = str(attempt.claimed.run_id)
        neighbours = [other for other in member.unfinished() if other.stop is None]
        log.warning("run does not stop", run_id=run_id, pid=member.process.pid)
        if neighbours and member.process.silent_seconds < _STUCK_SECONDS:
            self._retire(member, f"run {run_id} in it does not stop")
        else:
            self._kill(member, HandedBack(f"its graph process was killed to stop run {run_id}"))
            await asyncio.wait({attempt.outcome}, timeout=_DEATH_SECONDS)
        await self._conclude(attempt)
        self._bury(member)

    async def _conclude(self, attempt: Attempt) -> None:
        """Settles an attempt that could not report, with what the thread looks like."""
        if attempt.over or attempt.stop is None:
            return
        ended = await self._state(attempt.claimed) if leaves_state(attempt.stop) else Ended()
        attempt.conclude(stopped(attempt.stop, ended))

    async def _state(self, claimed: ClaimedRun) -> Ended:
        args = {"thread_id": str(claimed.thread_id), "graph_id": claimed.graph_id}
        try:
            async with asyncio.timeout(_STATE_SECONDS):
                status, body = await self._inspector.ask("values", orjson.dumps(args))
        except (TimeoutError, InspectorUnavailable):
            return Ended()
        if status != 200:
            return Ended()
        state = orjson.loads(body)
        values = state.get("values")
        return Ended(
            values=None if values is None else orjson.dumps(values),
            interrupts=orjson.dumps(state.get("interrupts") or {}),
            next=tuple(state.get("next") or ()),
        )

    def _member_of(self, attempt: Attempt) -> Member | None:
        found = (m for m in self._members.values() if attempt.key in m.attempts)
        return next(found, None)

    # processes

    def _retire(self, member: Member, reason: str, *, patient: bool = False) -> None:
        """Takes no new runs for it and replaces it at once; it ends with its last run.

        patient: its runs are innocent and nothing presses, so they may take their time.
        """
        if member.retiring is not None:
            return
        log.info("graph process retires", pid=member.process.pid, reason=reason)
        member.retiring = reason
        member.process.send(Frame("retire"))
        self._balance()
        self._recount()
        self._spawn(self._see_off(member, patient=patient))

    async def _see_off(self, member: Member, *, patient: bool) -> None:
        """Ends a retired process when its time is over."""
        if patient and (outcomes := [attempt.outcome for attempt in member.unfinished()]):
            await asyncio.wait(outcomes)
        await asyncio.sleep(self._settings.retire_timeout_seconds)
        if member.process in self._members:
            member.fate = member.fate or HandedBack(f"its graph process retired: {member.retiring}")
            member.process.terminate()
            await asyncio.sleep(_TERMINATE_SECONDS)
            member.process.kill()

    def _bury(self, member: Member) -> None:
        """Kills a retired process in which nothing is left but code that would not stop."""
        if member.retiring is not None and member.attempts and not member.unfinished():
            member.process.kill()

    def _kill(self, member: Member, fate: HandedBack | Crashed) -> None:
        member.fate = member.fate or fate
        member.process.kill()

    def _exited(self, process: GraphProcess) -> None:
        """Tells every run in a dead process what became of it, and replaces the process."""
        member = self._members.pop(process, None)
        if member is None:
            return
        level = "info" if member.retiring is not None or self._closed else "error"
        getattr(log, level)("graph process ended", pid=process.pid, reason=process.exited)
        if process.age < _SHORT_LIFE_SECONDS and not member.started and not self._closed:
            self._backoff.failed()
        else:
            self._backoff.worked()
        for attempt in member.attempts.values():
            if attempt.stop is not None:
                self._spawn(self._conclude(attempt))
            else:
                attempt.conclude(member.fate or Crashed(process.exited))
        self._balance()
        self._recount()

    def _balance(self) -> None:
        """Starts what is missing to W and the spares, and lets the spare serve when one is due."""
        if self._closed:
            return
        kept = [member for member in self._members.values() if member.retiring is None]
        wanted = self._settings.worker_count + self._settings.executor_spares
        for _ in range(wanted - len(kept) - self._growing):
            self._growing += 1
            self._spawn(self._grow())
        serving = sum(member.serving for member in kept)
        for member in kept:
            if serving >= self._settings.worker_count:
                break
            if not member.serving:
                member.serving = True
                serving += 1

    async def _grow(self) -> None:
        """Adds one process, however many attempts it takes."""
        try:
            process, ready = await self._started()
        finally:
            self._growing -= 1
        broken = dict(ready.head.get("broken", {}))
        graphs = frozenset(ready.head.get("graphs", ()))
        log.info("graph process is ready", pid=process.pid, graphs=sorted(graphs))
        for graph_id, reason in broken.items():
            log.error("graph cannot be loaded", graph_id=graph_id, reason=reason)
        self._members[process] = Member(
            process=process,
            graphs=graphs,
            broken=broken,
            limit=self._settings.n_jobs_per_worker,
        )
        self._balance()
        self._recount()

    async def _started(self) -> tuple[GraphProcess, Frame]:
        while True:
            await asyncio.sleep(self._backoff.pause())
            try:
                return await self._launcher.start(self._hear, self._exited)
            except GraphProcessFailed as error:
                self._backoff.failed()
                failures = self._backoff.failures
                log.error("graph process does not start", reason=str(error), failures=failures)

    async def _watch(self) -> None:
        """Pings every process, and looks at its size now and then."""
        ticks = 0
        while True:
            ticks += 1
            for member in list(self._members.values()):
                member.process.ping()
                if ticks % _MEMORY_TICKS == 0:
                    self._weigh(member)
            await asyncio.sleep(_TICK_SECONDS)
            self._recount()

    def _weigh(self, member: Member) -> None:
        limit = self._settings.executor_max_rss_mb
        # One that has not run anything is as large as its imports: a fresh one would be no smaller.
        size = member.process.rss() if limit and member.started else None
        if limit is None or size is None or size <= limit * 2**20:
            return
        used = f"graph process used {size >> 20} MB of memory, EXECUTOR_MAX_RSS_MB is {limit}"
        self._retire(member, used)
        member.fate = member.fate or Crashed(used)
        if size > limit * 2**20 * _KILL_AT:
            member.process.kill()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("pool task failed", exc_info=error)
            self.failure = error

"""The pool: N runs in each of W graph processes, each one placed, heard and stopped.

    actor threads ──reserve──▶ Pool ──start, stop──▶ Crew: W graph processes and a spare
                                 │ ◀────outcome────
                                 └──────ask────────▶ Inspector

Everything but ``reserve``, ``release`` and ``free`` belongs to one loop thread.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import structlog

from actors import left_state
from actors.child.protocol import Frame
from actors.outcome import Crashed, Ended, Failed, HandedBack, Outcome
from actors.pool import placement
from actors.pool.attempt import (
    Asked,
    Attempt,
    Displaced,
    Draining,
    Revoked,
    Stop,
    TooLong,
    leaves_state,
    outranks,
    reported,
    stopped,
)
from actors.pool.crew import Crew
from actors.pool.inspector import Inspector
from actors.pool.launcher import Launcher
from actors.pool.member import Member
from actors.settings import WorkerSettings
from persistence.lifecycle import CancelAction
from persistence.runs import ClaimedRun

log = structlog.get_logger(__name__)

_SEAT_SECONDS = 10.0
"""How long a claimed run waits when the process that had room for it has just died."""
_START_SECONDS = 1.0
"""How long a start is good for. A loop that did not take the run up by then never does."""
_LATE_SECONDS = 0.1
"""How much later what another process wrote to the board is surely seen."""
_INTERRUPT_AFTER = 0.4
_INTERRUPT_STUCK_AFTER = 0.1
"""Shares of the grace after which a run that was told to stop is interrupted: by then its task had
time to clean up; a loop that does not answer will not even hear that it shall stop."""
_REVOKED_GRACE_SECONDS = 1.0
"""Another worker may own the run by now: no time for manners."""
_STUCK_SECONDS = 0.5
"""A loop that owes an answer for so long, when its run should have stopped, is held up."""
_DEATH_SECONDS = 5.0


class Pool:
    """Executes runs in graph processes. See ``actors.executor.Executor``."""

    def __init__(
        self, launcher: Launcher, settings: WorkerSettings, on_room: Callable[[], None]
    ) -> None:
        """on_room: called, from any thread, whenever a slot has become free."""
        self._settings = settings
        self._on_room = on_room
        self._crew = Crew(launcher, settings, self._heard, self._exited, self._changed)
        self._inspector = Inspector(launcher)
        self._attempts: dict[tuple[UUID, int], Attempt] = {}
        self._draining = False
        self._seat_waiters: set[asyncio.Future[None]] = set()
        self._lock = threading.Lock()
        self._room = 0
        self._reserved = 0

    def open(self) -> None:
        """Begins to start processes; does not wait for them."""
        self._crew.open()
        self._crew.spawn(self._inspector.keep())

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
        self.drain()
        await self._crew.close()

    @property
    def failure(self) -> BaseException | None:
        """An error that nobody foresaw: runs may be left without anybody to end them."""
        return self._crew.failure

    # slots

    @property
    def slots(self) -> int:
        """Runs that the processes which serve can execute at once."""
        return sum(member.limit for member in self._crew.members if member.open)

    @property
    def spares(self) -> int:
        """Processes that are loaded and wait to step in for one that dies."""
        return self._crew.spares

    @property
    def start_failures(self) -> int:
        """How many starts of graph processes failed in a row."""
        return self._crew.failures

    @property
    def free(self) -> int:
        """Runs that could start now: free seats of processes that answer, less those promised."""
        return max(0, self._room - self._reserved)

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

    def _changed(self) -> None:
        self._recount()
        self._relieve()

    def _recount(self) -> None:
        """Counts the room anew; whoever waits for some looks again."""
        room = 0 if self._draining else placement.room(m.seats() for m in self._crew.members)
        with self._lock:
            grew, self._room = room > self._room, room
        if grew:
            self._on_room()
        for waiter in self._seat_waiters:  # some wait for a spare, which is no room
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
            await self._begin(attempt)
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
        if (found := self._attempts.get((run_id, attempt))) is not None:
            self._stop(found, Revoked())

    async def inspect(self, op: str, args: bytes) -> tuple[int, bytes]:
        """See ``Executor.inspect``."""
        return await self._inspector.ask(op, args)

    async def _begin(self, attempt: Attempt) -> None:
        """Gives the attempt to processes until one takes it up: who does not in time never will."""
        seconds = _START_SECONDS
        while (member := await self._seat(attempt)) is not None:
            self._start(member, attempt, seconds)
            await asyncio.wait({attempt.outcome}, timeout=seconds + _LATE_SECONDS)
            if attempt.over or member.has_begun(attempt):
                return
            run_id, pid = str(attempt.claimed.run_id), member.process.pid
            log.info("run is not taken up and goes elsewhere", run_id=run_id, pid=pid)
            member.process.suspect()
            with self._lock:
                self._reserved += 1
            member.lapse(attempt)
            self._recount()
            self._crew.bury(member)
            seconds *= 2  # on a machine so busy that every process is late
        await self._conclude(attempt)

    async def _seat(self, attempt: Attempt) -> Member | None:
        """Gives the attempt a seat and uses up its reservation; None when its end has come."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _SEAT_SECONDS
        while attempt.stop is None and not attempt.over:
            member = self._place(attempt.claimed)
            if member is not None:
                member.take(attempt)
                with self._lock:
                    self._reserved -= 1
                self._recount()
                return member
            waiter: asyncio.Future[None] = loop.create_future()
            self._seat_waiters.add(waiter)
            either: tuple[asyncio.Future[Any], ...] = (waiter, attempt.outcome)
            await asyncio.wait(
                either, timeout=end - loop.time(), return_when=asyncio.FIRST_COMPLETED
            )
            self._seat_waiters.discard(waiter)
            if loop.time() >= end:
                attempt.conclude(HandedBack("no graph process had room"))
        self.release()
        return None

    def _place(self, claimed: ClaimedRun) -> Member | None:
        """The process for a run; None when none has room for it.

        One that died too often, but in company, goes alone: so it shows who is the cause, and no
        run ends in error because of its neighbours.
        """
        if self._is_last_chance(claimed) and (vacant := self._crew.vacant()) is not None:
            return vacant
        if self._is_last_chance(claimed) and self._settings.executor_spares:
            return None
        return placement.choose(
            member.seats() for member in self._crew.members if not member.holds(claimed.run_id)
        )

    def _is_last_chance(self, claimed: ClaimedRun) -> bool:
        return claimed.crashes > self._settings.bg_job_max_retries

    def _start(self, member: Member, attempt: Attempt, seconds: float) -> None:
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
                "credential": f"{claimed.run_id}.{claimed.credential}",
                "unfinished": claimed.unfinished,
                "seat": attempt.seat,
                "expires_at": time.monotonic() + seconds,
            }
            member.process.send(Frame("start", head, claimed.kwargs))
        if (most := self._settings.executor_max_runs) and member.started >= most:
            self._crew.retire(member, "it executed as many runs as allowed", patient=True)
        elif self._is_last_chance(claimed):
            self._crew.retire(member, "for a run that may have killed others", patient=True)

    def _heard(self, member: Member, frame: Frame) -> None:
        if frame.kind != "outcome":
            return
        key = (UUID(frame.head["run_id"]), int(frame.head["attempt"]))
        if (attempt := member.attempts.get(key)) is not None:
            attempt.conclude(reported(frame, attempt.stop))
            self._leave(member, attempt)
        elif member.lapsed.pop(key, None) is not None:
            self._recount()

    def _leave(self, member: Member, attempt: Attempt) -> None:
        del member.attempts[attempt.key]
        self._recount()
        self._crew.bury(member)

    def _exited(self, member: Member) -> None:
        """Tells every run in a dead process what became of it."""
        fate = member.fate or Crashed(member.process.exited)
        if isinstance(fate, Crashed):
            fate = replace(fate, alone=len(member.attempts) == 1)
        for attempt in member.attempts.values():
            if attempt.stop is not None:
                self._crew.spawn(self._conclude(attempt))
            elif not member.has_begun(attempt):
                attempt.conclude(HandedBack("its graph process died before it took it up"))
            else:
                attempt.conclude(fate)

    # processes that are held up

    def _relieve(self) -> None:
        """Where one run holds the loop up, the others go on elsewhere, and another process serves.

        Of the runs in such a process only those are taken back of which nothing is executed: what
        executes lives, and is not started again however long it takes.
        """
        for member in self._crew.held_up:
            held_up = member.held_up()
            for attempt in held_up:
                attempt.stop = Displaced()
                self._crew.spawn(self._displace(member, attempt))
            is_missed = not self._draining and not self.free and member.has_room
            if held_up or is_missed:
                self._crew.retire(member, "its loop does not turn", patient=True)

    async def _displace(self, member: Member, attempt: Attempt) -> None:
        """Ends an attempt of which nothing is executed, in a process whose loop does not turn.

        A step that began in this very moment does not show yet, and may not have seen that it must
        not: then it shows a moment later, and the attempt ends when that step has.
        """
        member.displace(attempt)
        await asyncio.sleep(_LATE_SECONDS)
        if not member.executes(attempt):
            await self._conclude(attempt)

    # stopping one run

    def _stop(self, attempt: Attempt, why: Stop) -> None:
        if attempt.over or not outranks(why, attempt.stop):
            return
        attempt.stop = why
        if not attempt.climbing:
            attempt.climbing = True
            self._crew.spawn(self._climb(attempt))

    async def _climb(self, attempt: Attempt) -> None:
        """The ladder: cancel its task, interrupt its thread, then settle without it."""
        member = next((m for m in self._crew.members if attempt.key in m.attempts), None)
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
        """Ends an attempt that does not stop: with its process, or left behind in a retired one."""
        run_id = str(attempt.claimed.run_id)
        is_stuck = member.process.silent_seconds >= _STUCK_SECONDS
        if is_stuck and not member.executes(attempt):  # it would stop if the loop let it
            await self._displace(member, attempt)
            if attempt.over:
                return
        log.warning("run does not stop", run_id=run_id, pid=member.process.pid)
        neighbours = [other for other in member.unfinished() if other.stop is None]
        if neighbours and not is_stuck:
            self._crew.retire(member, f"run {run_id} in it does not stop")
        else:
            fate = HandedBack(f"its graph process was killed to stop run {run_id}")
            self._crew.kill(member, fate)
            await asyncio.wait({attempt.outcome}, timeout=_DEATH_SECONDS)
        await self._conclude(attempt)
        self._crew.bury(member)

    async def _conclude(self, attempt: Attempt) -> None:
        """Settles an attempt that could not report, with what the thread looks like."""
        if attempt.over or attempt.stop is None:
            return
        ended = Ended()
        if leaves_state(attempt.stop):
            claimed = attempt.claimed
            ended = await left_state.read(self._inspector.ask, claimed.thread_id, claimed.graph_id)
        attempt.conclude(stopped(attempt.stop, ended))

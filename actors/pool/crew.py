"""The crew: W graph processes that serve, and a spare to step in for one that dies.

A process is never mended. One that breaks, hangs, grows too large or holds a run that will not stop
takes no new runs (it *retires*), another takes its place at once, and it ends when its runs have.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from actors.child.protocol import Frame
from actors.errors import GraphProcessFailed
from actors.outcome import Crashed, HandedBack
from actors.pool.backoff import Backoff
from actors.pool.graph_process import GraphProcess
from actors.pool.launcher import Launcher
from actors.pool.member import Member
from actors.settings import WorkerSettings
from actors.tasks import stop

log = structlog.get_logger(__name__)

_TICK_SECONDS = 0.25
_MEMORY_TICKS = 8
_KILL_AT = 1.5
"""A process that grew beyond its limit times this is killed: it may take the machine with it."""
_TERMINATE_SECONDS = 2.0
_SHORT_LIFE_SECONDS = 10.0


class Crew:
    """The graph processes of a pool. Belongs to one event loop."""

    def __init__(
        self,
        launcher: Launcher,
        settings: WorkerSettings,
        on_frame: Callable[[Member, Frame], None],
        on_exit: Callable[[Member], None],
        on_change: Callable[[], None],
    ) -> None:
        """on_frame: called with what a member reports. on_exit: called when it is dead.

        on_change: called whenever the crew may have more or fewer seats to offer.
        """
        self._launcher = launcher
        self._settings = settings
        self._on_frame = on_frame
        self._on_exit = on_exit
        self._on_change = on_change
        self._backoff = Backoff(0.2, 30.0)
        self._members: dict[GraphProcess, Member] = {}
        self._growing = 0
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.failure: BaseException | None = None
        """An error that nobody foresaw: something may be left undone."""

    def open(self) -> None:
        """Begins to start processes; does not wait for them."""
        self._balance()
        self.spawn(self._watch())

    async def close(self) -> None:
        """Ends all processes; runs still in them are handed back."""
        self._closed = True
        await stop(*self._tasks)
        for member in self._members.values():
            member.fate = HandedBack("the worker is stopping")
            member.process.send(Frame("retire"))
        await self._emptied()
        for member in self._members.values():
            member.process.kill()
        await self._emptied()

    async def _emptied(self) -> None:
        if gone := [member.process.gone for member in self._members.values()]:
            await asyncio.wait(gone, timeout=_TERMINATE_SECONDS)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Does something beside; an error in it is kept as the crew's ``failure``."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("pool task failed", exc_info=error)
            self.failure = error

    @property
    def members(self) -> list[Member]:
        """All processes that are ready, retiring ones included."""
        return list(self._members.values())

    @property
    def spares(self) -> int:
        """Processes that are loaded and wait to step in."""
        return sum(not member.serving for member in self._members.values())

    @property
    def held_up(self) -> list[Member]:
        """Processes whose loops do not turn, as many as can be afforded beside those that serve."""
        stuck = [member for member in self._members.values() if member.is_held_up]
        retired = [member for member in stuck if member.retiring is not None]
        others = [member for member in stuck if member.retiring is None]
        return retired + others[: max(0, 2 * self._settings.worker_count - len(retired))]

    def vacant(self) -> Member | None:
        """A process with nothing in it, if possible one that does not serve yet."""
        empty = [
            member
            for member in self._members.values()
            if member.retiring is None and not member.load and member.process.answering
        ]
        return min(empty, key=lambda member: member.serving, default=None)

    @property
    def failures(self) -> int:
        """How many starts failed in a row."""
        return self._backoff.failures

    def retire(self, member: Member, reason: str, *, patient: bool = False) -> None:
        """Takes no new runs for it and replaces it at once; it ends with its last run.

        patient: its runs are innocent and nothing presses, so they may take their time; others are
        handed back after ``RETIRE_TIMEOUT_SECONDS``.
        """
        if member.retiring is not None:
            return
        log.info("graph process retires", pid=member.process.pid, reason=reason)
        member.retiring = reason
        member.process.send(Frame("retire"))
        self._balance()
        self._on_change()
        self.spawn(self._see_off(member, patient=patient))

    def kill(self, member: Member, fate: HandedBack | Crashed) -> None:
        """Ends a process now. fate: what its runs are told, unless it was told before."""
        member.fate = member.fate or fate
        member.process.kill()

    def bury(self, member: Member) -> None:
        """Kills a retired process in which nothing is left but code that would not stop."""
        if member.retiring is not None and member.attempts and not member.unfinished():
            member.process.kill()

    async def _see_off(self, member: Member, *, patient: bool) -> None:
        """Ends a retired process when its time is over."""
        if patient and (outcomes := [attempt.outcome for attempt in member.unfinished()]):
            await asyncio.wait(outcomes)
        await asyncio.wait({member.process.gone}, timeout=self._settings.retire_timeout_seconds)
        if not member.process.gone.done():
            member.fate = member.fate or HandedBack(f"its graph process retired: {member.retiring}")
            member.process.terminate()
            await asyncio.wait({member.process.gone}, timeout=_TERMINATE_SECONDS)
            member.process.kill()

    def _balance(self) -> None:
        """Starts what is missing to W and the spares, and lets a spare serve when one is due."""
        if self._closed:
            return
        kept = [member for member in self._members.values() if member.retiring is None]
        wanted = self._settings.worker_count + self._settings.executor_spares
        for _ in range(wanted - len(kept) - self._growing):
            self._growing += 1
            self.spawn(self._grow())
        due = self._settings.worker_count - sum(member.serving for member in kept)
        for member in [member for member in kept if not member.serving][: max(0, due)]:
            member.serving = True

    async def _grow(self) -> None:
        """Adds one process, however many attempts it takes."""
        try:
            process, ready = await self._started()
        finally:
            self._growing -= 1
        member = Member(
            process=process,
            graphs=frozenset(ready.head.get("graphs", ())),
            broken=dict(ready.head.get("broken", {})),
            limit=self._settings.n_jobs_per_worker,
        )
        log.info("graph process is ready", pid=process.pid, graphs=sorted(member.graphs))
        for graph_id, reason in member.broken.items():
            log.error("graph cannot be loaded", graph_id=graph_id, reason=reason)
        if process.gone.done():  # it died in the same turn of the loop
            self._account(process, member)
            return
        self._members[process] = member
        self._balance()
        self._on_change()

    async def _started(self) -> tuple[GraphProcess, Frame]:
        while True:
            await asyncio.sleep(self._backoff.pause())
            try:
                return await self._launcher.start(self._heard, self._exited)
            except GraphProcessFailed as error:
                self._backoff.failed()
                failures = self._backoff.failures
                log.error("graph process does not start", reason=str(error), failures=failures)

    def _heard(self, process: GraphProcess, frame: Frame) -> None:
        if (member := self._members.get(process)) is not None:
            self._on_frame(member, frame)

    def _exited(self, process: GraphProcess) -> None:
        member = self._members.pop(process, None)
        if member is not None:
            self._account(process, member)

    def _account(self, process: GraphProcess, member: Member) -> None:
        """Tells the pool of a death, and replaces the dead."""
        is_orderly = member.retiring is not None or self._closed
        say = log.info if is_orderly else log.error
        say("graph process ended", pid=process.pid, reason=process.exited)
        if process.age < _SHORT_LIFE_SECONDS and not member.started and not is_orderly:
            self._backoff.failed()
        else:
            self._backoff.worked()
        self._on_exit(member)
        self._balance()
        self._on_change()

    async def _watch(self) -> None:
        """Pings every process, and looks at its size now and then."""
        ticks = 0
        while True:
            ticks += 1
            for member in self.members:
                member.process.ping()
                if ticks % _MEMORY_TICKS == 0:
                    self._weigh(member)
            await asyncio.sleep(_TICK_SECONDS)
            for member in self.members:
                member.look()
            self._on_change()

    def _weigh(self, member: Member) -> None:
        limit = self._settings.executor_max_rss_mb
        # One that has not run anything is as large as its imports: a fresh one would be no smaller.
        size = member.process.rss() if limit and member.started else None
        if limit is None or size is None or size <= limit * 2**20:
            return
        used = f"graph process used {size >> 20} MB of memory, EXECUTOR_MAX_RSS_MB is {limit}"
        self.retire(member, used)
        member.fate = member.fate or Crashed(used)
        if size > limit * 2**20 * _KILL_AT:
            member.process.kill()

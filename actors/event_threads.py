"""Tells those who follow a thread which of its runs have started: at once, when a worker says so.

    worker claims a run ──PUBLISH──▶ woken ──▶ one statement for all woken threads ──▶ followers
    every few seconds ─────────────────────▶ one statement for all followed threads

The wake-up carries nothing but the thread's id: one that is lost costs seconds, never a run. A
thread that is silent costs its followers a share of the slow statement.
"""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from uuid import UUID

import structlog

from persistence import thread_runs
from persistence.engine import Database
from persistence.errors import PersistenceError
from persistence.thread_runs import News, Seen, StartedRun

log = structlog.get_logger(__name__)

POLL_SECONDS = 5.0
"""Between looks at threads of which nobody said anything."""
_RETRY_SECONDS = 1.0
_BATCH = 1000


@dataclass(eq=False, slots=True)
class _Followed:
    """What is new on one thread since somebody follows it, shared by all who do.

    seen: how far ``runs`` tells. Whoever learns more tells all: nothing else would.
    """

    followers: int = 0
    seen: Seen = field(default_factory=Seen)
    runs: list[StartedRun] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def learn(self, news: News) -> None:
        """Takes what has been read, which may be older than what is known, and tells all."""
        new = [run for run in news.runs if run.started_at > self.seen.started_at]
        self.skip(news)
        if new:
            self.runs += new
            self.news.set()
            self.news = asyncio.Event()

    def skip(self, news: News) -> None:
        """Takes what has been read for known."""
        self.seen = Seen(
            max(self.seen.started_at, news.seen.started_at),
            max(self.seen.updated_at, news.seen.updated_at),
        )


class ThreadWatch:
    """Looks at the runs of followed threads. Belongs to the loop that runs it."""

    def __init__(self, database: Database, *, poll_seconds: float = POLL_SECONDS) -> None:
        self._database = database
        self._poll_seconds = poll_seconds
        self._threads: dict[UUID, _Followed] = {}
        self._woken: dict[UUID, None] = {}
        self._any = asyncio.Event()

    async def runs_of(self, thread_id: UUID) -> AsyncGenerator[list[StartedRun], None]:
        """Yields the runs that have started, in that order: first all there are, then each new one.

        The first list comes as soon as the rows were read, and may be empty: the thread need not
        exist yet. Never ends by itself.
        """
        followed = self._threads.setdefault(thread_id, _Followed())
        followed.followers += 1
        at = len(followed.runs)  # what is there already is among those that are read now
        try:
            first = await self._read(thread_id)
            if followed.followers > 1:
                followed.learn(first)
            else:  # nobody else has to be told
                followed.skip(first)
            yield list(first.runs)
            while True:
                news = followed.news
                found = [
                    run for run in followed.runs[at:] if run.started_at > first.seen.started_at
                ]
                at = len(followed.runs)
                if found:
                    yield found
                else:
                    await news.wait()
        finally:
            followed.followers -= 1
            if not followed.followers and self._threads.get(thread_id) is followed:
                del self._threads[thread_id]
                self._woken.pop(thread_id, None)

    async def _read(self, thread_id: UUID) -> News:
        while True:
            try:
                found = await thread_runs.started(self._database, {thread_id: Seen()})
                return found.get(thread_id, News(Seen(), ()))
            except PersistenceError:
                log.warning("runs of a thread cannot be read", thread_id=str(thread_id))
                await asyncio.sleep(_RETRY_SECONDS)

    def wake(self, thread_id: UUID) -> None:
        """Looks at the thread's runs now, if somebody follows it."""
        if thread_id in self._threads:
            self._woken[thread_id] = None
            self._any.set()

    def wake_all(self) -> None:
        """Looks at every followed thread now: wake-ups may have been missed."""
        for thread_id in self._threads:
            self.wake(thread_id)

    async def run(self) -> None:
        """Looks and tells until cancelled."""
        clock = asyncio.get_running_loop().time
        due = clock() + self._poll_seconds
        while True:
            try:
                async with asyncio.timeout(max(0.0, due - clock())):
                    await self._any.wait()
            except TimeoutError:
                self._woken |= dict.fromkeys(self._threads)
                due = clock() + self._poll_seconds
            self._any.clear()
            while self._woken:
                batch = list(self._woken)[:_BATCH]
                for thread_id in batch:
                    del self._woken[thread_id]
                if not await self._look(batch):
                    due = min(due, clock() + _RETRY_SECONDS)
                    break

    async def _look(self, batch: list[UUID]) -> bool:
        watched = {one: self._threads[one].seen for one in batch if one in self._threads}
        try:
            found = await thread_runs.started(self._database, watched)
        except PersistenceError:
            log.warning("runs of followed threads cannot be read", threads=len(batch))
            return False
        for thread_id in watched:
            followed, news = self._threads.get(thread_id), found.get(thread_id)
            if followed is not None and news is not None:
                followed.learn(news)
        return True

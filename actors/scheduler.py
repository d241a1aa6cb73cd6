"""The clock: fixed ticks, and nothing else. Any number of schedulers may run.

A tick sends a message for the maintenance actor, so that the work is done once and by a worker;
without Redis, or without an answer from it, the scheduler does the work itself.
"""

import asyncio
import signal
from contextlib import AsyncExitStack

import structlog
from apscheduler.schedulers.asyncio import AsyncIOScheduler

from actors import crons, reaper
from actors.dispatch import Dispatcher, RedisDispatcher
from actors.event_ends import RedisEventEnds
from actors.events import EventEnds
from actors.settings import WorkerSettings
from actors.without_redis import MuteDispatcher, MuteEnds
from persistence.engine import Database
from persistence.errors import Unavailable
from persistence.settings import DatabaseSettings

log = structlog.get_logger(__name__)

_DUE_TICK_SECONDS = 0.5
"""A delayed run starts at most so much late."""


class Scheduler:
    """Ticks until it is told to stop."""

    def __init__(self, settings: WorkerSettings, database_settings: DatabaseSettings) -> None:
        self._settings = settings
        self._database_settings = database_settings

    def run(self) -> int:
        """Ticks until SIGTERM or SIGINT; returns the exit code."""
        asyncio.run(self._live())
        return 0

    async def _live(self) -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with AsyncExitStack() as stack:
            db = await stack.enter_async_context(Database(self._database_settings))
            dispatcher: Dispatcher = MuteDispatcher()
            ends: EventEnds = MuteEnds()
            if url := self._settings.redis_url:
                dispatcher = redis_dispatcher = RedisDispatcher(url)
                stack.push_async_callback(redis_dispatcher.close)
                ends = redis_ends = RedisEventEnds(url, self._settings.stream_ttl_seconds)
                await redis_ends.open()
                stack.push_async_callback(redis_ends.close)
            ticks = _Ticks(self._settings, db, dispatcher, ends)
            ticks.start()
            stack.callback(ticks.stop)
            log.info("scheduler runs")
            await stop.wait()


class _Ticks:
    """What happens at fixed intervals."""

    def __init__(
        self, settings: WorkerSettings, db: Database, dispatcher: Dispatcher, ends: EventEnds
    ) -> None:
        self._settings = settings
        self._db = db
        self._dispatcher = dispatcher
        self._ends = ends
        self._clock = AsyncIOScheduler(
            timezone="UTC",
            # A tick that is late is made up for once; a slow one is never joined by a second.
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": 30},
        )

    def start(self) -> None:
        """Begins to tick, with the first sweep at once."""
        self._clock.add_job(self.sweep, "interval", seconds=self._settings.reaper_interval_seconds)
        self._clock.add_job(self.sweep)
        self._clock.add_job(self.send_due, "interval", seconds=_DUE_TICK_SECONDS)
        self._clock.add_job(self.fire_crons, "interval", seconds=crons.TICK_SECONDS)
        self._clock.start()

    def stop(self) -> None:
        """Ticks no more."""
        self._clock.shutdown(wait=False)

    async def sweep(self) -> None:
        """Has a worker sweep, or sweeps."""
        if isinstance(self._dispatcher, RedisDispatcher) and await self._dispatcher.maintain():
            return
        try:
            await reaper.sweep(self._db, self._dispatcher, self._ends, self._settings)
        except Unavailable as error:
            log.warning("sweep failed", error=str(error))

    async def send_due(self) -> None:
        """Sends delayed runs whose time has come."""
        try:
            await reaper.send_due(self._db, self._dispatcher, _DUE_TICK_SECONDS * 3)
        except Unavailable as error:
            log.warning("delayed runs cannot be read", error=str(error))

    async def fire_crons(self) -> None:
        """Makes and sends the runs of crons whose date has come."""
        try:
            await crons.fire_due(self._db, self._dispatcher)
        except Unavailable as error:
            log.warning("crons cannot be fired", error=str(error))

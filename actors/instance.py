"""What a worker's loop runs: its parts, wired, from the first lease to the last.

message ─▶ Messages ─▶ RunActor ─▶ Leases ─▶ Postgres
poll ────────────────────┘  └────▶ Pool ───▶ graph processes
"""

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import structlog

from actors import left_state, reaper
from actors.cancels import CancelListener
from actors.dispatch import Dispatcher, RedisDispatcher
from actors.ending import announce, of_released
from actors.errors import WorkerBroken
from actors.event_ends import RedisEventEnds
from actors.events import EventEnds
from actors.inspections import Inspections
from actors.lease import Leases
from actors.messages import Messages, Work
from actors.poll import Poll
from actors.pool.launcher import Launcher
from actors.pool.pool import Pool
from actors.run_actor import RunActor
from actors.settings import WorkerSettings
from actors.tasks import stop as stop_tasks
from actors.tasks import supervise
from actors.webhook_policy import WebhookPolicy
from actors.webhooks import Webhooks
from actors.without_redis import MuteDispatcher, MuteEnds
from actors.worker_slot import WorkerSlot
from persistence import runs
from persistence.engine import Database
from persistence.errors import PersistenceError, Unavailable
from persistence.settings import DatabaseSettings

log = structlog.get_logger(__name__)

_LOOK_SECONDS = 1.0
_RETRY_SECONDS = 1.0
_LAST_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class _Redis:
    """The parts that need Redis; a worker without one has none of them."""

    dispatcher: RedisDispatcher
    ends: RedisEventEnds
    messages: Messages
    inspections: Inspections
    cancels: CancelListener


class Instance:
    """One worker on its loop. Make and use it there."""

    def __init__(
        self,
        settings: WorkerSettings,
        database_settings: DatabaseSettings,
        project: Mapping[str, Any],
        worker_slot: WorkerSlot,
        webhooks: WebhookPolicy,
    ) -> None:
        self._settings = settings
        self._worker_slot = worker_slot
        self._loop = asyncio.get_running_loop()
        self._performing = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False
        self._slots_told = 0
        self._db = Database(database_settings)
        self._pool = Pool(Launcher(settings, project, database_settings), settings, self._room)
        self._leases = Leases(self._db, self._pool, worker_slot.owner, settings)
        self._webhooks = Webhooks(self._db, webhooks)
        self._poll = Poll(
            self._db,
            self._pool,
            self._perform,
            settings.postgres_poll_interval_seconds,
            self._messages_flow,
        )
        self._redis = None if settings.redis_url is None else self._over_redis(settings.redis_url)
        self._dispatcher: Dispatcher
        self._ends: EventEnds
        if self._redis is None:
            self._leases.deaf = True
            self._dispatcher = MuteDispatcher(self._poll.nudge, self._leases.look)
            self._ends = MuteEnds()
        else:
            self._dispatcher, self._ends = self._redis.dispatcher, self._redis.ends
        self._actor = RunActor(self._leases, self._pool, self._ends, self._dispatcher)

    def _over_redis(self, url: str) -> _Redis:
        inspections = Inspections(url, self._pool)
        work = Work(self._perform, inspections.accept, self._sweep)
        return _Redis(
            dispatcher=RedisDispatcher(url, on_unsent=self._poll.nudge),
            ends=RedisEventEnds(url, self._settings.stream_ttl_seconds),
            messages=Messages(url, work, self._pool, self._settings.slots),
            inspections=inspections,
            cancels=CancelListener(url, self._leases),
        )

    async def live(self, stop: asyncio.Event, hurry: asyncio.Event) -> None:
        """Works until ``stop``, then drains; ``hurry`` cuts the drain short.

        Raises when a part fails that cannot be done without.
        """
        async with AsyncExitStack() as stack:
            await self._open(stack)
            async with asyncio.TaskGroup() as group:
                duties = [group.create_task(duty) for duty in self._duties()]
                log.info("worker runs", owner=self._worker_slot.owner, slots=self._settings.slots)
                await stop.wait()
                await self._drain(hurry)
                await stop_tasks(*duties)
            await self._sign_off()

    async def _open(self, stack: AsyncExitStack) -> None:
        await stack.enter_async_context(self._db)
        if self._redis is not None:
            await self._redis.ends.open()
            stack.push_async_callback(self._redis.ends.close)
            stack.push_async_callback(self._redis.dispatcher.close)
            stack.push_async_callback(self._redis.inspections.close)
        self._pool.open()
        stack.push_async_callback(self._pool.close)
        if self._redis is not None:
            self._redis.messages.start()
            stack.push_async_callback(self._redis.messages.stop, _LAST_SECONDS)

    def _duties(self) -> list[Coroutine[Any, Any, None]]:
        duties = [
            self._take_back(),
            self._leases.keep(),
            self._poll.run(),
            supervise(self._webhooks.run),
            self._supervise(),
        ]
        if self._redis is not None:
            duties.append(self._redis.cancels.run())
        return duties

    async def _take_back(self) -> None:
        """Gives the runs of this slot's predecessor back, as soon as the database answers.

        One of which a step is still being stored comes when that is done.
        """
        key, boot_id, retries = (
            self._worker_slot.key,
            self._worker_slot.boot_id,
            self._settings.bg_job_max_retries,
        )
        while True:
            try:
                released = await runs.take_back(self._db, key, boot_id, retries)
                await asyncio.gather(
                    *(left_state.show(self._db, self._pool.inspect, one) for one in released)
                )
                for one in released:
                    log.warning("run of a predecessor taken back", run_id=str(one.run_id))
                    await announce(of_released(one), self._ends, self._dispatcher)
                if not await runs.left_by_predecessor(self._db, key, boot_id):
                    return
            except Unavailable as error:
                log.warning("database is not available yet", error=str(error))
            await asyncio.sleep(_RETRY_SECONDS)

    async def _supervise(self) -> None:
        while True:
            if self._redis is not None and not self._redis.messages.alive:
                raise WorkerBroken("a thread that takes messages has ended")
            if (failure := self._pool.failure) is not None:
                raise WorkerBroken("the pool failed") from failure
            await asyncio.sleep(_LOOK_SECONDS)

    # work

    async def _perform(self, run_id: UUID) -> None:
        """Executes a run for which a slot is reserved, and never raises: nobody would hear it."""
        if self._draining:
            self._pool.release()
            await self._dispatcher.run(run_id)
            return
        self._performing += 1
        self._idle.clear()
        try:
            await self._actor.perform(run_id)
        except Exception:  # the lease runs out and the reaper takes care of the run
            log.exception("run could not be performed", run_id=str(run_id))
        finally:
            self._performing -= 1
            if not self._performing:
                self._idle.set()

    async def _sweep(self) -> None:
        try:
            await reaper.sweep(
                self._db, self._dispatcher, self._ends, self._settings, self._pool.inspect
            )
        except PersistenceError as error:
            log.warning("sweep failed", error=str(error))

    def _messages_flow(self) -> bool:
        return self._redis is not None and self._redis.messages.flow

    def _room(self) -> None:
        """A slot became free; called from any thread, also before and after this is whole."""
        if (redis := getattr(self, "_redis", None)) is not None:
            redis.messages.wake()
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._room_on_loop)

    def _room_on_loop(self) -> None:
        self._poll.room()
        if self._pool.slots != self._slots_told:
            # Readiness looks at what the heartbeat said: say it now.
            self._slots_told = self._pool.slots
            self._leases.look()

    # the end

    async def _drain(self, hurry: asyncio.Event) -> None:
        """Takes nothing new, lets runs end, and hands back those that do not."""
        log.info("worker drains", runs=self._performing)
        self._draining = True
        self._pool.drain()
        if self._redis is not None:
            self._redis.messages.drain()
        await self._idle_within(self._settings.worker_drain_timeout, hurry)
        if self._performing:
            log.info("runs are handed back", runs=self._performing)
            self._pool.hand_back()
            await self._idle_within(self._settings.cancel_grace_seconds + 2 * _LAST_SECONDS)

    async def _sign_off(self) -> None:
        """Leaves the list of instances, so that readiness does not count on this one."""
        try:
            async with asyncio.timeout(_LAST_SECONDS):
                await runs.retire(self._db, self._worker_slot.owner)
        except (PersistenceError, TimeoutError) as error:
            log.warning("instance could not be signed off", error=str(error))

    async def _idle_within(self, seconds: float, hurry: asyncio.Event | None = None) -> None:
        events = [self._idle] if hurry is None else [self._idle, hurry]
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

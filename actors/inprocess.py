"""In-process mode: the worker's part of the story inside the gateway's process, without Redis.

message → lease → execute → settle → end is ``run_actor``'s page as everywhere; messages are calls,
events are lists, and graph processes are asyncio tasks. For a person with a debugger: a crash of
this process takes everything with it.
"""

import asyncio
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import orjson
import structlog

from actors import crons, reaper
from actors.child.loader import Graphs
from actors.child.store_config import StoreConfig
from actors.ending import announce, of_released
from actors.errors import InspectorUnavailable
from actors.event_memory import MemoryEventLog
from actors.inprocess_executor import InProcessExecutor
from actors.lease import Leases
from actors.poll import Poll
from actors.run_actor import RunActor
from actors.settings import WorkerSettings
from actors.tasks import stop, supervise
from actors.webhook_policy import WebhookPolicy
from actors.webhooks import Webhooks
from actors.worker_slot import WorkerSlot
from persistence import runs
from persistence.engine import Database
from persistence.errors import PersistenceError, Unavailable
from persistence.settings import DatabaseSettings

log = structlog.get_logger(__name__)

LEASE_SECONDS = 7 * 24 * 3600.0
"""A process that stands at a breakpoint prolongs nothing, and nobody else may take its runs."""

_POLL_SECONDS = 1.0
_RETRY_SECONDS = 1.0
_LAST_SECONDS = 2.0


def worker_settings(**given: Any) -> WorkerSettings:
    """The settings from the environment, where in-process mode leaves a choice."""
    fixed: Mapping[str, Any] = {
        "redis_url": None,
        "worker_count": 1,
        "bg_job_max_retries": 0,
        "lease_duration_seconds": LEASE_SECONDS,
        "postgres_poll_interval_seconds": _POLL_SECONDS,
    }
    return WorkerSettings(**{**fixed, **given})


class LocalDispatcher:
    """The gateway's ``Dispatcher`` and the worker behind it, in one.

    Opened and closed with the gateway: opening starts the work, closing hands back what runs.
    """

    def __init__(
        self,
        graphs: Graphs,
        database: Database,
        database_settings: DatabaseSettings,
        events: MemoryEventLog,
        settings: WorkerSettings,
        store: StoreConfig | None = None,
        webhooks: WebhookPolicy = WebhookPolicy(),  # noqa: B008  # frozen
    ) -> None:
        """graphs: imported already. database: opened before this. events: also the gateway's."""
        self._db = database
        self._webhooks = Webhooks(database, webhooks)
        self._database_url = database_settings.url
        self._events = events
        self._settings = settings
        self._executor = InProcessExecutor(
            graphs, events, settings, database_settings, self._on_room, store
        )
        self._poll = Poll(
            database,
            self._executor,
            self._perform,
            settings.postgres_poll_interval_seconds,
            messages_flow=lambda: False,  # so that every freed slot looks
        )
        self._performing: set[asyncio.Task[None]] = set()
        self._duties: list[asyncio.Task[None]] = []
        self._stopping = False

    async def open(self) -> None:
        """Takes a slot of this host and starts to work."""
        self._worker_slot = WorkerSlot(self._database_url, self._settings.worker_slot)
        await self._executor.open()
        self._leases = Leases(self._db, self._executor, self._worker_slot.owner, self._settings)
        self._actor = RunActor(self._leases, self._executor, self._events, self)
        duties = (
            self._leases.keep,
            self._poll.run,
            self._heal,
            self._fire_crons,
            self._webhooks.run,
        )
        self._duties = [asyncio.create_task(supervise(duty)) for duty in duties]

    async def close(self) -> None:
        """Stops what runs and leaves it pending: it goes on when the server is started again."""
        self._stopping = True
        self._executor.hand_back()
        if self._performing:
            patience = 2 * self._settings.cancel_grace_seconds + _LAST_SECONDS
            await asyncio.wait(self._performing, timeout=patience)
        await stop(*self._duties)
        try:
            async with asyncio.timeout(_LAST_SECONDS):
                await runs.retire(self._db, self._worker_slot.owner)
        except (PersistenceError, TimeoutError) as error:
            log.warning("instance could not be signed off", error=str(error))
        await self._executor.close()
        self._worker_slot.release()

    async def run(self, run_id: UUID | str, *, awaited: bool = False) -> None:
        """Starts the run if a slot is free; if not, the next free slot finds the oldest one."""
        if self._stopping:
            return
        if self._executor.reserve():
            self._start(UUID(str(run_id)))
        else:
            self._poll.nudge()

    async def cancel(self, run_id: UUID | str) -> None:
        """Looks at the wishes in the rows of what runs here, now."""
        self._leases.look()

    async def over(self, *run_ids: UUID) -> None:
        """See ``Dispatcher.over``."""
        for run_id in run_ids:
            self._events.over(run_id)

    async def inspect(self, op: str, args: dict[str, Any], timeout: float) -> tuple[int, bytes]:
        """See ``Dispatcher.inspect``."""
        try:
            async with asyncio.timeout(timeout):
                question = orjson.dumps(args, option=orjson.OPT_NON_STR_KEYS)
                status, body = await self._executor.inspect(op, question)
        except TimeoutError:
            raise InspectorUnavailable("the graphs took too long to answer") from None
        if status == 503:
            raise InspectorUnavailable("the database does not answer")
        return status, body

    async def ping(self) -> bool:
        """Messages are calls: they always arrive."""
        return True

    def _start(self, run_id: UUID) -> None:
        task = asyncio.create_task(self._perform(run_id))
        self._performing.add(task)
        task.add_done_callback(self._performing.discard)

    async def _perform(self, run_id: UUID) -> None:
        """Executes a run for which a slot is reserved, and never raises: nobody would hear it."""
        task = asyncio.current_task()
        if task is not None:  # the poll's tasks are waited for at the end as well
            self._performing.add(task)
            task.add_done_callback(self._performing.discard)
        if self._stopping:
            self._executor.release()
            return
        try:
            await self._actor.perform(run_id)
        except Exception:
            log.exception("run could not be performed", run_id=str(run_id))

    def _on_room(self) -> None:
        self._poll.room()

    async def _heal(self) -> None:
        """Settles what a predecessor left behind, then sweeps from time to time."""
        released = None
        while released is None:
            try:
                released = await runs.take_back(
                    self._db,
                    self._worker_slot.key,
                    self._worker_slot.boot_id,
                    self._settings.bg_job_max_retries,
                )
            except Unavailable as error:
                log.warning("database is not available yet", error=str(error))
                await asyncio.sleep(_RETRY_SECONDS)
        for one in released:
            log.warning("run of a predecessor ended", run_id=str(one.run_id))
            await announce(of_released(one), self._events, self)
        while True:
            try:
                await reaper.sweep(self._db, self, self._events, self._settings)
            except PersistenceError as error:
                log.warning("sweep failed", error=str(error))
            await asyncio.sleep(self._settings.reaper_interval_seconds)

    async def _fire_crons(self) -> None:
        while True:
            try:
                await crons.fire_due(self._db, self)
            except PersistenceError as error:
                log.warning("crons cannot be fired", error=str(error))
            await asyncio.sleep(crons.TICK_SECONDS)

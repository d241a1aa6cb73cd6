"""Heals what died with its owner: leases without a worker, rows without a message, old threads.

One sweep is safe beside any number of others: every statement takes its rows with their locks.
"""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic

import structlog

from actors import left_state, store_sweep
from actors.dispatch import Dispatcher, RedisDispatcher
from actors.ending import announce, of_released
from actors.events import EventEnds
from actors.left_state import Inspect
from actors.settings import WorkerSettings
from actors.webhooks import KEPT_SECONDS
from persistence import runs, threads, webhooks
from persistence.engine import Database
from persistence.ttl import TtlStrategy

log = structlog.get_logger(__name__)

_BATCH = 100
_BATCHES = 200
_SECONDS = 3.0
"""For each kind, in one sweep: leases that run out must not wait for a backlog."""
_RESEND = 1000
_TEMPORARY_GRACE_SECONDS = 15.0
"""How long a stateless run's thread is kept for those who still read its end."""


async def sweep(
    db: Database,
    dispatcher: Dispatcher,
    ends: EventEnds,
    settings: WorkerSettings,
    inspect: Inspect | None = None,
) -> None:
    """One round of healing. Raises Unavailable.

    inspect: asks about graphs, where somebody can tell.
    """
    await expire(db, dispatcher, ends, settings, inspect)
    await send_due(db, dispatcher, settings.reaper_interval_seconds * 2)
    await resend(db, dispatcher, settings.stuck_pending_threshold_seconds)
    await remove_temporary(db)
    await expire_threads(db)
    await forget_runs(db, settings.run_ttl_seconds)
    await webhooks.forget(db, KEPT_SECONDS)
    await _in_batches(lambda: runs.forget_keys(db, limit=_BATCH))
    await store_sweep.sweep(db)


async def expire(
    db: Database,
    dispatcher: Dispatcher,
    ends: EventEnds,
    settings: WorkerSettings,
    inspect: Inspect | None = None,
) -> None:
    """Returns runs whose lease ran out, or ends them when they crashed too often."""
    while True:
        released = await runs.expire(db, settings.bg_job_max_retries, _BATCH)
        if inspect is not None:
            await asyncio.gather(*(left_state.show(db, inspect, one) for one in released))
        for one in released:
            log.warning("lease ran out", run_id=str(one.run_id), status=one.status)
            await announce(of_released(one), ends, dispatcher)
        if len(released) < _BATCH:
            return


async def remove_temporary(db: Database) -> None:
    """Removes the threads of stateless runs that are over."""
    swept = await _in_batches(lambda: threads.sweep_temporary(db, _TEMPORARY_GRACE_SECONDS, _BATCH))
    if swept:
        log.info("temporary threads removed", threads=swept)


async def expire_threads(db: Database) -> None:
    """Applies their strategy to threads whose time is over."""
    if deleted := await _in_batches(lambda: threads.delete_expired(db, _BATCH)):
        log.info("threads expired", strategy=TtlStrategy.DELETE, threads=deleted)
    if pruned := await _in_batches(lambda: threads.prune_expired(db, _BATCH)):
        log.info("threads expired", strategy=TtlStrategy.KEEP_LATEST, threads=pruned)


async def forget_runs(db: Database, older_than_seconds: float | None) -> None:
    """Removes runs that ended long ago; none when they are kept for ever."""
    if older_than_seconds is None:
        return
    if forgotten := await _in_batches(lambda: runs.forget(db, older_than_seconds, _BATCH)):
        log.info("finished runs removed", runs=forgotten)


async def _in_batches(remove: Callable[[], Awaitable[int]]) -> int:
    """Removes batch by batch until one comes back short, or it is enough; returns how many."""
    removed, enough_at = 0, monotonic() + _SECONDS
    for _ in range(_BATCHES):
        batch = await remove()
        removed += batch
        if batch < _BATCH or monotonic() > enough_at:
            break
    return removed


async def resend(db: Database, dispatcher: Dispatcher, older_than_seconds: float) -> None:
    """Sends runs again that nobody started although they could.

    While messages wait in the queue theirs may be among them, and workers are merely busy.
    """
    if isinstance(dispatcher, RedisDispatcher) and await dispatcher.backlog() != 0:
        return
    stuck = await runs.claimable(db, _RESEND, older_than_seconds)
    for run_id in stuck:
        await dispatcher.run(run_id)
    if stuck:
        log.warning("runs without a message sent again", runs=len(stuck))


async def send_due(db: Database, dispatcher: Dispatcher, within_seconds: float) -> None:
    """Sends delayed runs that fell due within the last so many seconds."""
    for run_id in await runs.due(db, within_seconds):
        await dispatcher.run(run_id)

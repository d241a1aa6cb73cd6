"""Fires the crons that are due. Any number of processes may: each date is fired by one of them."""

import asyncio

import structlog

from actors.dispatch import Dispatcher
from persistence import crons
from persistence.crons import Due
from persistence.engine import Database
from persistence.errors import Unavailable

log = structlog.get_logger(__name__)

TICK_SECONDS = 0.5
"""A cron fires at most so much late."""

_BATCH = 100
_AT_ONCE = 4
"""Many crons are due at the full hour; each takes a database connection for some milliseconds."""


async def fire_due(db: Database, dispatcher: Dispatcher) -> None:
    """Makes and sends a run for each cron whose date has come. Raises Unavailable."""
    while True:
        due = await crons.due(db, _BATCH)
        for first in range(0, len(due), _AT_ONCE):
            some = due[first : first + _AT_ONCE]
            await asyncio.gather(*(_fire(db, dispatcher, one) for one in some))
        if len(due) < _BATCH:
            return


async def _fire(db: Database, dispatcher: Dispatcher, one: Due) -> None:
    try:
        created = await crons.fire(db, one)
    except Unavailable:
        raise
    except Exception:
        log.exception("cron cannot be fired", cron_id=str(one.cron_id))
        await crons.pass_over(db, one)
        return
    if created is None:
        return
    run_id = created.run.run_id
    log.info("cron fired", cron_id=str(one.cron_id), run_id=str(run_id))
    for superseded in created.cancel:
        await dispatcher.cancel(superseded)
    await dispatcher.over(*created.withdrawn, *created.deleted)
    await dispatcher.run(run_id)

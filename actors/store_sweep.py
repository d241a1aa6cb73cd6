"""Removes items of the long-term store whose time is over; nobody can read them any more.

Small batches, each a statement of its own: no lock is held for long, and any number may sweep.
"""

import structlog

from persistence import store
from persistence.engine import Database

log = structlog.get_logger(__name__)

_BATCH = 500
_BATCHES = 20
"""In one sweep at most; the next one goes on."""


async def sweep(db: Database) -> None:
    """One round. Raises Unavailable."""
    removed = 0
    for _ in range(_BATCHES):
        batch = await store.sweep(db, _BATCH)
        removed += batch
        if batch < _BATCH:
            break
    if removed:
        log.info("expired items of the store removed", items=removed)

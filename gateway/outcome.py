"""What ``wait`` and ``join`` answer: the run's own outcome, not what the thread holds by now."""

from uuid import UUID

import orjson

from persistence import runs
from persistence.engine import Database
from persistence.lifecycle import RunStatus

_NOTHING = b"{}"
"""The answer for a run that was rolled back, deleted, or stopped before it had any state."""


async def outcome(database: Database, run_id: UUID) -> bytes:
    """The body for a run that has ended: its output, or ``{"__error__": …}`` if it failed."""
    result = await runs.result(database, run_id)
    if result is None:
        return _NOTHING
    if result.status in (RunStatus.ERROR, RunStatus.TIMEOUT):
        return orjson.dumps({"__error__": result.error})
    return result.output or _NOTHING

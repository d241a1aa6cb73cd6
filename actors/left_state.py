"""What an attempt left that could not say so itself: the inspector reads its checkpoints."""

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

import orjson
import structlog

from actors.errors import InspectorUnavailable
from actors.outcome import Ended
from persistence import threads
from persistence.engine import Database
from persistence.errors import PersistenceError
from persistence.lifecycle import RunStatus
from persistence.runs import Released

log = structlog.get_logger(__name__)

Inspect = Callable[[str, bytes], Awaitable[tuple[int, bytes]]]
"""See ``Executor.inspect``."""

_SECONDS = 1.0
"""How long those may wait who wait for the run's end."""


async def read(inspect: Inspect, thread_id: UUID, graph_id: str) -> Ended:
    """What the thread looks like now; without values when nobody can tell in time."""
    args = {"thread_id": str(thread_id), "graph_id": graph_id}
    try:
        async with asyncio.timeout(_SECONDS):
            status, body = await inspect("values", orjson.dumps(args))
    except (TimeoutError, InspectorUnavailable):
        return Ended()
    if status != 200:
        return Ended()
    state = orjson.loads(body)
    values = state.get("values")
    return Ended(
        values=None if values is None else orjson.dumps(values),
        interrupts=orjson.dumps(state.get("interrupts") or {}),
        next=tuple(state.get("next") or ()),
    )


async def show(db: Database, inspect: Inspect, released: Released) -> None:
    """Lets the thread's row show it when a run has ended with its process or its lease.

    Never raises: if nobody can tell, the row shows what it did before the run.
    """
    if released.status in (None, RunStatus.PENDING):
        return
    ended = await read(inspect, released.thread_id, released.graph_id)
    if ended.values is None:
        return
    try:
        await threads.show_left(
            db, released.run_id, values=ended.values, interrupts=ended.interrupts
        )
    except PersistenceError as error:
        log.warning("state is not shown", thread_id=str(released.thread_id), error=str(error))

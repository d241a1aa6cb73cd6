"""What an attempt left that could not say so itself: the inspector reads its checkpoints."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
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
_PATIENCE_SECONDS = 60.0
"""How long an inspector is waited for, as while it is started; then the row stays as it was."""

_later: set[asyncio.Task[None]] = set()


async def read(inspect: Inspect, thread_id: UUID, graph_id: str) -> Ended:
    """What the thread looks like now; without values when nobody can tell in time."""
    return await _ask(inspect, thread_id, graph_id) or Ended()


async def show(db: Database, inspect: Inspect, released: Released) -> None:
    """Lets the thread's row show it when a run has ended with its process or its lease.

    Returns when it does, or soon: it is tried on meanwhile. Never raises.
    """
    if released.status in (None, RunStatus.PENDING):
        return
    task = asyncio.create_task(_show(db, inspect, released), name=f"left by {released.run_id}")
    _later.add(task)
    task.add_done_callback(_later.discard)
    await asyncio.wait({task}, timeout=_SECONDS)


async def _show(db: Database, inspect: Inspect, released: Released) -> None:
    run_id, until = released.run_id, monotonic() + _PATIENCE_SECONDS
    while monotonic() < until:
        ended = await _ask(inspect, released.thread_id, released.graph_id)
        try:
            if ended is not None:
                if ended.values is not None:  # else it came to no checkpoint
                    values, interrupts = ended.values, ended.interrupts
                    await threads.show_left(db, run_id, values=values, interrupts=interrupts)
                return
        except PersistenceError as error:
            log.warning("state is not shown yet", run_id=str(run_id), error=str(error))
        await asyncio.sleep(_SECONDS)


async def _ask(inspect: Inspect, thread_id: UUID, graph_id: str) -> Ended | None:
    """None when nobody can tell."""
    args = {"thread_id": str(thread_id), "graph_id": graph_id}
    try:
        async with asyncio.timeout(_SECONDS):
            status, body = await inspect("values", orjson.dumps(args))
    except (TimeoutError, InspectorUnavailable):
        return None
    if status == 503:
        return None
    if status != 200:  # the project cannot say, now or later
        return Ended()
    state = orjson.loads(body)
    values = state.get("values")
    return Ended(
        values=None if values is None else orjson.dumps(values),
        interrupts=orjson.dumps(state.get("interrupts") or {}),
        next=tuple(state.get("next") or ()),
    )

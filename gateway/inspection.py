"""Questions to the inspector, which has the compiled graphs that the gateway never imports."""

from typing import Any
from uuid import UUID

import orjson
import structlog

from gateway.context import Context
from persistence import threads
from persistence.threads import ThreadRow

log = structlog.get_logger()


async def ask(context: Context, op: str, args: dict[str, Any]) -> tuple[int, bytes]:
    """Status and JSON body of the inspector's answer. Raises InspectorUnavailable."""
    return await context.dispatcher.inspect(op, args, context.settings.inspect_timeout_seconds)


def graph_id_of(thread: ThreadRow) -> str | None:
    """The graph whose state the thread holds; None when no run and no client has said so."""
    graph_id = orjson.loads(thread.metadata).get("graph_id")
    return graph_id if isinstance(graph_id, str) else None


async def remember_state(context: Context, thread_id: UUID, graph_id: str) -> None:
    """Lets the thread's row show the state that it has now, after an update by no run."""
    args = {"thread_id": str(thread_id), "graph_id": graph_id}
    status, body = await ask(context, "values", args)
    if status != 200:
        log.warning("state updated, but not readable", thread_id=str(thread_id), status=status)
        return
    state = orjson.loads(body)
    await threads.record_state(
        context.database,
        thread_id,
        values=orjson.dumps(state.get("values")),
        interrupts=orjson.dumps(state.get("interrupts") or {}),
        next_nodes=bool(state.get("next")),
    )

"""Questions to the inspector, which has the compiled graphs that the gateway never imports."""

from typing import Any
from uuid import UUID

import orjson
import structlog

from actors.dispatch import PROJECT_FAILED, InspectorUnavailable
from gateway.auth.user import stamps
from gateway.context import Context
from gateway.errors import ProjectFailed
from gateway.routing import Call
from persistence import threads
from persistence.errors import PersistenceError
from persistence.threads import ThreadHead, ThreadRow

log = structlog.get_logger()

_LEFT_SECONDS = 1.0
"""How long who cancels a run waits for what it has left."""


async def ask(call: Call, op: str, args: dict[str, Any]) -> tuple[int, bytes]:
    """Status and JSON body of the inspector's answer. Raises InspectorUnavailable, ProjectFailed.

    A factory makes the graph for the caller, as it does for a run of the caller's.
    """
    if call.user is not None:
        config: dict[str, Any] = args.get("config") or {}
        configurable = {**(config.get("configurable") or {}), **stamps(call.user)}
        args = {**args, "config": {**config, "configurable": configurable}}
    context = call.context
    patience = context.settings.inspect_timeout_seconds
    status, body = await context.dispatcher.inspect(op, args, patience)
    if status == PROJECT_FAILED:
        raise ProjectFailed(orjson.loads(body)["detail"])
    return status, body


def graph_id_of(thread: ThreadHead | ThreadRow) -> str | None:
    """The graph whose state the thread holds; None when no run and no client has said so."""
    graph_id = orjson.loads(thread.metadata).get("graph_id")
    return graph_id if isinstance(graph_id, str) else None


async def remember_state(call: Call, thread_id: UUID, graph_id: str) -> None:
    """Lets the thread's row show the state that it has now, after an update by no run.

    If nobody can read it the row stays as it was: the update is done all the same.
    """
    read = await _read(call, "values", {"thread_id": str(thread_id), "graph_id": graph_id})
    if read is None:
        return
    state = orjson.loads(read)
    await threads.record_state(
        call.context.database,
        thread_id,
        values=orjson.dumps(state.get("values")),
        interrupts=orjson.dumps(state.get("interrupts") or {}),
        next_nodes=bool(state.get("next")),
    )


async def show_left(context: Context, thread_id: UUID, run_id: UUID) -> None:
    """Lets the thread show what a run has left that ends with no attempt to say so.

    If nobody can tell soon the row shows what it did before the run.
    """
    try:
        graph_id = graph_id_of(await threads.head(context.database, thread_id))
        args = {"thread_id": str(thread_id), "graph_id": graph_id}
        status, body = await context.dispatcher.inspect("values", args, _LEFT_SECONDS)
        state = orjson.loads(body) if status == 200 else {}
        if state.get("values") is not None:
            await threads.show_left(
                context.database,
                run_id,
                values=orjson.dumps(state["values"]),
                interrupts=orjson.dumps(state.get("interrupts") or {}),
            )
    except (InspectorUnavailable, PersistenceError) as error:  # the run is stopped all the same
        log.warning("state is not shown", thread_id=str(thread_id), error=str(error))


async def tell_followers(call: Call, thread_id: UUID, graph_id: str) -> None:
    """Tells those who follow the thread that its state has changed, by no run."""
    args = {"thread_id": str(thread_id), "graph_id": graph_id, "checkpoint": {}, "subgraphs": False}
    state = await _read(call, "state", args)
    if state is not None:
        told = b'{"state":%b,"thread_id":"%b"}' % (state, str(thread_id).encode())
        await call.context.events.note_update(thread_id, told)


async def _read(call: Call, op: str, args: dict[str, Any]) -> bytes | None:
    """What was asked for; None when it cannot be had, and the log says why."""
    try:
        status, body = await ask(call, op, args)
    except (InspectorUnavailable, ProjectFailed) as error:
        status, body = 503, str(error).encode()
    if status == 200:
        return body
    log.warning(
        "state updated, but not readable", thread_id=args["thread_id"], status=status, reason=body
    )
    return None

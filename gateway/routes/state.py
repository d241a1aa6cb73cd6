"""State and history of threads, which take compiled graphs to read: the inspector answers."""

from typing import Any
from uuid import UUID

from aiohttp import web

from actors.dispatch import NO_STATE
from gateway.errors import BadRequest, Conflict, Unprocessable
from gateway.inspection import ask, graph_id_of, remember_state, tell_followers
from gateway.routing import Call, Routes
from gateway.wire.answers import answer, relay
from gateway.wire.state import (
    HistoryRead,
    HistorySearch,
    StateAt,
    StateRead,
    StateUpdate,
    ThreadState,
    Updated,
)
from persistence import threads
from persistence.lifecycle import ThreadStatus

routes = Routes()

_LONGEST_HISTORY = 1000
_UNREADABLE = "The graph does not take what the state is"


@routes.get(
    "/threads/{thread_id}/state",
    on="threads.read",
    responses={200: ThreadState, 400: _UNREADABLE, 404: "No such thread"},
)
async def get_state(call: Call, thread_id: UUID, query: StateRead) -> web.Response:
    """Shows the latest state of a thread."""
    return await _state(call, thread_id, {}, query.subgraphs)


@routes.get(
    "/threads/{thread_id}/state/{checkpoint_id}",
    on="threads.read",
    responses={200: ThreadState, 400: _UNREADABLE, 404: "No such thread or checkpoint"},
)
async def get_state_at(
    call: Call, thread_id: UUID, checkpoint_id: str, query: StateRead
) -> web.Response:
    """Shows the state of a thread at a checkpoint."""
    return await _state(call, thread_id, {"checkpoint_id": checkpoint_id}, query.subgraphs)


@routes.post(
    "/threads/{thread_id}/state/checkpoint",
    on="threads.read",
    responses={200: ThreadState, 400: _UNREADABLE, 404: "No such thread or checkpoint"},
)
async def get_state_at_checkpoint(call: Call, thread_id: UUID, body: StateAt) -> web.Response:
    """Shows the state of a thread, or of one of its subgraphs, at a checkpoint."""
    return await _state(call, thread_id, body.checkpoint, body.subgraphs)


@routes.post(
    "/threads/{thread_id}/state",
    on="threads.update",
    responses={
        200: Updated,
        400: "The graph does not take this",
        404: "No such thread or checkpoint",
        409: "A run is in flight",
    },
)
async def update_state(call: Call, thread_id: UUID, body: StateUpdate) -> web.Response:
    """Writes to the state of a thread as if a node had done it."""
    thread = await threads.head(call.context.database, thread_id, allowed=call.allowed)
    graph_id = graph_id_of(thread)
    if graph_id is None:
        raise BadRequest(
            f"Thread '{thread_id}' has no assigned graph ID. It gets one with its first run, or "
            "from metadata.graph_id when it is created."
        )
    if thread.status is ThreadStatus.BUSY:
        raise Conflict(
            "Thread has runs in flight. Wait for them to finish, or cancel them, before you "
            "update its state."
        )
    checkpoint = dict(body.checkpoint)
    if body.checkpoint_id is not None:
        checkpoint["checkpoint_id"] = body.checkpoint_id
    args = {
        "thread_id": str(thread_id),
        "graph_id": graph_id,
        "values": body.values,
        "as_node": body.as_node,
        "checkpoint": checkpoint,
    }
    status, updated = await ask(call, "update_state", args)
    if status == 200:
        await remember_state(call, thread_id, graph_id)
        call.context.background.start(tell_followers(call, thread_id, graph_id))
    return relay(updated, status=status)


@routes.get(
    "/threads/{thread_id}/history",
    on="threads.read",
    responses={200: list[ThreadState], 400: _UNREADABLE, 404: "No such thread"},
)
async def get_history(call: Call, thread_id: UUID, query: HistoryRead) -> web.Response:
    """Lists checkpoints of a thread, newest first."""
    if not 0 <= query.limit <= _LONGEST_HISTORY:
        raise Unprocessable(f"Invalid limit {query.limit}")
    return await _history(
        call, thread_id, HistorySearch.model_construct(), query.limit, query.before
    )


@routes.post(
    "/threads/{thread_id}/history",
    on="threads.read",
    responses={200: list[ThreadState], 400: _UNREADABLE, 404: "No such thread"},
)
async def search_history(call: Call, thread_id: UUID, body: HistorySearch) -> web.Response:
    """Lists checkpoints of a thread or of one of its subgraphs, newest first."""
    return await _history(call, thread_id, body, body.limit, body.before)


async def _state(
    call: Call, thread_id: UUID, checkpoint: dict[str, Any], subgraphs: bool
) -> web.Response:
    graph_id = graph_id_of(
        await threads.head(call.context.database, thread_id, allowed=call.allowed)
    )
    if graph_id is None:
        return answer(NO_STATE)
    args = {
        "thread_id": str(thread_id),
        "graph_id": graph_id,
        "checkpoint": checkpoint,
        "subgraphs": subgraphs,
    }
    status, state = await ask(call, "state", args)
    return relay(state, status=status)


async def _history(
    call: Call, thread_id: UUID, body: HistorySearch, limit: int, before: str | None
) -> web.Response:
    graph_id = graph_id_of(
        await threads.head(call.context.database, thread_id, allowed=call.allowed)
    )
    if graph_id is None or limit == 0:
        return answer([])
    args = {
        "thread_id": str(thread_id),
        "graph_id": graph_id,
        "limit": limit,
        "before": before,
        "metadata": body.metadata,
        "checkpoint": body.checkpoint,
    }
    status, states = await ask(call, "history", args)
    return relay(states, status=status)

"""Runs of a thread: create, follow, wait for, list, read, stop, delete."""

from typing import Any
from uuid import UUID

from aiohttp import web

from gateway import following, stopping
from gateway.admission import admit, asked_run
from gateway.errors import NotFound
from gateway.following import place
from gateway.responses import FOLLOWED, PLACE, Response, events, list_of
from gateway.routing import Call, Routes
from gateway.waiting import wait_for_end
from gateway.wire.answers import answer, no_content, selected
from gateway.wire.runs import (
    Cancel,
    Join,
    JoinStream,
    Run,
    RunCreate,
    RunList,
    SelectedRun,
    show_run,
)
from persistence import runs, threads
from persistence.errors import RunNotFound
from persistence.lifecycle import CancelAction

routes = Routes()

_REFUSED = {
    400: "Both configurable and context",
    404: "No such thread or assistant",
    409: "The thread is busy, or the Idempotency-Key stands for another request",
}
_RESULT = Response("The result, once there is one.", Any, headers=FOLLOWED)

_ENDED = (
    "No matching runs to cancel. Please verify the thread ID and run IDs are correct, and the "
    "runs haven't been deleted or completed."
)


@routes.post(
    "/threads/{thread_id}/runs",
    on="threads.create_run",
    value=asked_run,
    responses={200: Response("The run.", Run, headers=PLACE)} | _REFUSED,
)
async def create(call: Call, thread_id: UUID, body: RunCreate) -> web.Response:
    """Creates a run and answers at once."""
    run = await admit(call, body, thread_id, awaited=False)
    return answer(show_run(run), headers={"Content-Location": place(run)})


@routes.post(
    "/threads/{thread_id}/runs/stream",
    on="threads.create_run",
    value=asked_run,
    responses={200: events(**FOLLOWED)} | _REFUSED,
)
async def create_and_stream(call: Call, thread_id: UUID, body: RunCreate) -> web.StreamResponse:
    """Creates a run and streams its events."""
    return await following.create_and_stream(call, body, thread_id)


@routes.post(
    "/threads/{thread_id}/runs/wait",
    on="threads.create_run",
    value=asked_run,
    responses={200: _RESULT} | _REFUSED,
)
async def create_and_wait(call: Call, thread_id: UUID, body: RunCreate) -> web.StreamResponse:
    """Creates a run and answers with its result."""
    return await following.create_and_wait(call, body, thread_id)


@routes.get(
    "/threads/{thread_id}/runs",
    on="threads.read",
    responses={200: list_of(SelectedRun), 404: "No such thread"},
)
async def list_runs(call: Call, thread_id: UUID, query: RunList) -> web.Response:
    """Lists the runs of a thread, newest first."""
    rows = await runs.list_for_thread(
        call.context.database,
        thread_id,
        status=query.status,
        limit=query.limit,
        offset=query.offset,
        allowed=call.allowed,
    )
    if not rows:
        await threads.head(call.context.database, thread_id, allowed=call.allowed)
    return answer([selected(show_run(row), query.select) for row in rows])


@routes.get(
    "/threads/{thread_id}/runs/{run_id}",
    on="threads.read",
    responses={200: Run, 404: "No such thread or run"},
)
async def get(call: Call, thread_id: UUID, run_id: UUID) -> web.Response:
    """Shows a run."""
    try:
        run = await runs.get(call.context.database, thread_id, run_id, allowed=call.allowed)
    except RunNotFound:
        await threads.head(call.context.database, thread_id, allowed=call.allowed)
        raise NotFound("Not Found") from None
    return answer(show_run(run))


@routes.delete(
    "/threads/{thread_id}/runs/{run_id}",
    on="threads.delete",
    responses={204: "Deleted", 404: "No such run"},
)
async def delete(call: Call, thread_id: UUID, run_id: UUID) -> web.Response:
    """Deletes a run and its checkpoints. A running one is stopped, and goes when it has ended."""
    await stopping.delete(call.context, thread_id, run_id, allowed=call.allowed)
    return no_content()


@routes.get(
    "/threads/{thread_id}/runs/{run_id}/join",
    on="threads.read",
    responses={200: _RESULT, 404: "No such run"},
)
async def join(call: Call, thread_id: UUID, run_id: UUID, query: Join) -> web.StreamResponse:
    """Answers with a run's result as soon as there is one."""
    run = await runs.get(call.context.database, thread_id, run_id, allowed=call.allowed)
    return await following.join(call, run, query)


@routes.get(
    "/threads/{thread_id}/runs/{run_id}/stream",
    on="threads.read",
    responses={200: events(**FOLLOWED), 404: "No such run"},
)
async def join_stream(
    call: Call, thread_id: UUID, run_id: UUID, query: JoinStream
) -> web.StreamResponse:
    """Streams a run's events, from now on or after ``Last-Event-ID``."""
    run = await runs.get(call.context.database, thread_id, run_id, allowed=call.allowed)
    return await following.join_stream(call, run, query)


@routes.post(
    "/threads/{thread_id}/runs/{run_id}/cancel",
    on="threads.update",
    responses={200: _RESULT, 202: "Asked to stop", 404: "No such run, or it has ended"},
)
async def cancel(call: Call, thread_id: UUID, run_id: UUID, query: Cancel) -> web.StreamResponse:
    """Stops a run; with ``wait`` answers only when it has stopped."""
    action = CancelAction(query.action)
    try:
        requested = await stopping.stop(
            call.context, thread_id, run_id, action, allowed=call.allowed
        )
    except RunNotFound:
        raise NotFound("No runs found to cancel.") from None
    if requested.kind == "finished":
        raise NotFound(_ENDED)
    if not query.wait:
        return web.Response(status=202)
    path = f"/threads/{thread_id}/runs/{run_id}"
    headers = {"Location": f"{path}/join", "Content-Location": path}
    return await wait_for_end(call, run_id, _stopped, headers=headers)


async def _stopped() -> bytes:
    return b"{}"

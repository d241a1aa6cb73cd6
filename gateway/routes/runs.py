"""Runs of a thread: create, follow, wait for, list, read, stop, delete."""

from uuid import UUID

from aiohttp import web

from gateway import following, stopping
from gateway.admission import admit
from gateway.errors import NotFound
from gateway.following import place
from gateway.routing import Call, Routes
from gateway.waiting import wait_for_end
from gateway.wire.answers import answer, no_content, selected
from gateway.wire.runs import Cancel, Join, JoinStream, RunCreate, RunList, show_run
from persistence import runs, threads
from persistence.errors import RunNotFound
from persistence.lifecycle import CancelAction

routes = Routes()

_ENDED = (
    "No matching runs to cancel. Please verify the thread ID and run IDs are correct, and the "
    "runs haven't been deleted or completed."
)


@routes.post("/threads/{thread_id}/runs")
async def create(call: Call, thread_id: UUID, body: RunCreate) -> web.Response:
    """Creates a run and answers at once."""
    run = await admit(call.context, body, thread_id)
    return answer(show_run(run), headers={"Content-Location": place(run)})


@routes.post("/threads/{thread_id}/runs/stream")
async def create_and_stream(call: Call, thread_id: UUID, body: RunCreate) -> web.StreamResponse:
    """Creates a run and streams its events."""
    return await following.create_and_stream(call, body, thread_id)


@routes.post("/threads/{thread_id}/runs/wait")
async def create_and_wait(call: Call, thread_id: UUID, body: RunCreate) -> web.StreamResponse:
    """Creates a run and answers with its result."""
    return await following.create_and_wait(call, body, thread_id)


@routes.get("/threads/{thread_id}/runs")
async def list_runs(call: Call, thread_id: UUID, query: RunList) -> web.Response:
    """Lists the runs of a thread, newest first."""
    rows = await runs.list_for_thread(
        call.context.database,
        thread_id,
        status=query.status,
        limit=query.limit,
        offset=query.offset,
    )
    if not rows:
        await threads.get(call.context.database, thread_id)
    return answer([selected(show_run(row), query.select) for row in rows])


@routes.get("/threads/{thread_id}/runs/{run_id}")
async def get(call: Call, thread_id: UUID, run_id: UUID) -> web.Response:
    """Shows a run."""
    try:
        run = await runs.get(call.context.database, thread_id, run_id)
    except RunNotFound:
        await threads.get(call.context.database, thread_id)
        raise NotFound("Not Found") from None
    return answer(show_run(run))


@routes.delete("/threads/{thread_id}/runs/{run_id}")
async def delete(call: Call, thread_id: UUID, run_id: UUID) -> web.Response:
    """Deletes a run and its checkpoints. A running one is stopped, and goes when it has ended."""
    await stopping.delete(call.context, thread_id, run_id)
    return no_content()


@routes.get("/threads/{thread_id}/runs/{run_id}/join")
async def join(call: Call, thread_id: UUID, run_id: UUID, query: Join) -> web.StreamResponse:
    """Answers with a run's result as soon as there is one."""
    run = await runs.get(call.context.database, thread_id, run_id)
    return await following.join(call, run, query)


@routes.get("/threads/{thread_id}/runs/{run_id}/stream")
async def join_stream(
    call: Call, thread_id: UUID, run_id: UUID, query: JoinStream
) -> web.StreamResponse:
    """Streams a run's events, from now on or after ``Last-Event-ID``."""
    run = await runs.get(call.context.database, thread_id, run_id)
    return await following.join_stream(call, run, query)


@routes.post("/threads/{thread_id}/runs/{run_id}/cancel")
async def cancel(call: Call, thread_id: UUID, run_id: UUID, query: Cancel) -> web.StreamResponse:
    """Stops a run; with ``wait`` answers only when it has stopped."""
    action = CancelAction(query.action)
    try:
        requested = await stopping.stop(call.context, thread_id, run_id, action)
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

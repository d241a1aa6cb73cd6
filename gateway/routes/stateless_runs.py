"""Runs without a thread of the client's: each gets one of its own, which goes with it."""

import asyncio
import contextlib
from typing import Annotated, Any
from uuid import UUID

from aiohttp import web
from pydantic import Field

from gateway import following
from gateway.admission import admit, asked_many, asked_run, create_all, prepare
from gateway.errors import NotFound
from gateway.responses import FOLLOWED, PLACE, Response, events
from gateway.routing import Call, Routes
from gateway.stopping import stop
from gateway.wire.answers import answer, no_content
from gateway.wire.runs import Cancel, CancelMany, Join, JoinStream, Run, RunCreate, show_run
from persistence import runs
from persistence.errors import RunNotFound
from persistence.lifecycle import ACTIVE, CancelAction, RunStatus
from persistence.runs import RunRow

routes = Routes()

_REFUSED = {
    400: "Both configurable and context, or an answer",
    404: "No such assistant",
    409: "The Idempotency-Key stands for another request, or for a run that is gone",
}
_RESULT = Response("The result, once there is one.", Any, headers=FOLLOWED)


@routes.post(
    "/runs",
    on="threads.create_run",
    value=asked_run,
    responses={200: Response("The run.", Run, headers=PLACE)} | _REFUSED,
)
async def create_run(call: Call, body: RunCreate) -> web.Response:
    """Creates a run and answers at once."""
    run = await admit(call, body, None, awaited=False)
    return answer(show_run(run), headers={"Content-Location": f"/runs/{run.run_id}"})


@routes.post(
    "/runs/stream",
    on="threads.create_run",
    value=asked_run,
    responses={200: events(**FOLLOWED)} | _REFUSED,
)
async def create_and_stream(call: Call, body: RunCreate) -> web.StreamResponse:
    """Creates a run and streams its events."""
    return await following.create_and_stream(call, body, None)


@routes.post(
    "/runs/wait", on="threads.create_run", value=asked_run, responses={200: _RESULT} | _REFUSED
)
async def create_and_wait(call: Call, body: RunCreate) -> web.StreamResponse:
    """Creates a run and answers with its result."""
    return await following.create_and_wait(call, body, None)


@routes.post(
    "/runs/batch", on="threads.create_run", value=asked_many, responses={200: list[Run]} | _REFUSED
)
async def create_batch(
    call: Call, body: Annotated[list[RunCreate], Field(min_length=1)]
) -> web.Response:
    """Creates several runs, all or none."""
    asked = zip(body, call.grants, strict=True)
    new = [await prepare(call, item, None, grant) for item, grant in asked]
    creation = call.context.background.spawn(create_all(call.context, new))
    return answer([show_run(run) for run in await asyncio.shield(creation)])


@routes.post(
    "/runs/cancel", on="threads.update", responses={204: "Asked to stop", 404: "No such runs"}
)
async def cancel_many(call: Call, body: CancelMany, query: Cancel) -> web.Response:
    """Stops many runs; unknown and finished ones are skipped.

    One by one, so that no thread waits for the others; asking again stops what is left.
    """
    statuses = tuple(ACTIVE) if body.status in (None, "all") else (RunStatus(body.status),)
    found = await runs.active(
        call.context.database, statuses, body.thread_id, body.run_ids, allowed=call.allowed
    )
    if not found:
        raise NotFound("No runs found to cancel.")
    for thread_id, run_id in found:
        with contextlib.suppress(RunNotFound):
            await stop(
                call.context, thread_id, run_id, CancelAction(query.action), allowed=call.allowed
            )
    return no_content()


@routes.get("/runs/{run_id}/join", on="threads.read", responses={200: _RESULT, 404: "No such run"})
async def join(call: Call, run_id: UUID, query: Join) -> web.StreamResponse:
    """Answers with a run's result as soon as there is one."""
    return await following.join(call, await _find(call, run_id), query)


@routes.get(
    "/runs/{run_id}/stream",
    on="threads.read",
    responses={200: events(**FOLLOWED), 404: "No such run"},
)
async def join_stream(call: Call, run_id: UUID, query: JoinStream) -> web.StreamResponse:
    """Streams a run's events, from now on or after ``Last-Event-ID``."""
    return await following.join_stream(call, await _find(call, run_id), query)


async def _find(call: Call, run_id: UUID) -> RunRow:
    """A run by its id alone."""
    result = await runs.result(call.context.database, run_id)
    if result is None:
        raise RunNotFound(run_id)
    return await runs.get(call.context.database, result.thread_id, run_id, allowed=call.allowed)

"""Threads: create, find, read, change, copy, delete."""

import uuid
from uuid import UUID

from aiohttp import web

from gateway.errors import Conflict, NotFound
from gateway.routing import Call, Routes
from gateway.wire.answers import answer, no_content, page, selected
from gateway.wire.ids import uuid7
from gateway.wire.threads import (
    ThreadCount,
    ThreadCreate,
    ThreadPatch,
    ThreadPrune,
    ThreadSearch,
    show_thread,
)
from persistence import threads
from persistence.errors import ThreadNotFound
from persistence.lifecycle import ThreadStatus
from persistence.threads import Deleted

routes = Routes()


@routes.post("/threads")
async def create(call: Call, body: ThreadCreate) -> web.Response:
    """Creates a thread."""
    thread = await threads.create(
        call.context.database, body.thread_id or uuid7(), body.metadata, body.if_exists
    )
    return answer(show_thread(thread))


@routes.post("/threads/search")
async def search(call: Call, body: ThreadSearch) -> web.Response:
    """Finds threads, by default those changed last first."""
    rows = await threads.search(
        call.context.database,
        ids=body.ids,
        metadata=body.metadata,
        values=body.values,
        status=_status(body),
        limit=body.limit + 1,
        offset=body.offset,
        sort_by=body.sort_by or "updated_at",
        sort_order=(body.sort_order or "desc") if body.sort_by else "desc",
        select=body.select,
    )
    shown = [selected(show_thread(row), body.select) for row in rows]
    return page(shown, body.limit, body.offset)


@routes.post("/threads/count")
async def count(call: Call, body: ThreadCount) -> web.Response:
    """Counts threads."""
    return answer(
        await threads.count(
            call.context.database,
            metadata=body.metadata,
            values=body.values,
            status=_status(body),
        )
    )


@routes.post("/threads/prune")
async def prune(call: Call, body: ThreadPrune) -> web.Response:
    """Deletes many threads at once."""
    deleted = await threads.delete_many(call.context.database, body.thread_ids)
    await _tell(call, deleted)
    return answer({"pruned_count": deleted.count})


@routes.get("/threads/{thread_id}")
async def get(call: Call, thread_id: UUID) -> web.Response:
    """Shows a thread."""
    return answer(show_thread(await threads.get(call.context.database, thread_id)))


@routes.patch("/threads/{thread_id}")
async def patch(call: Call, thread_id: UUID, body: ThreadPatch) -> web.Response:
    """Merges metadata into a thread's."""
    try:
        thread = await threads.patch(call.context.database, thread_id, body.metadata)
    except ThreadNotFound:
        raise NotFound("Not Found") from None
    if "return=minimal" in call.request.headers.get("Prefer", ""):
        return no_content()
    return answer(show_thread(thread))


@routes.delete("/threads/{thread_id}")
async def delete(call: Call, thread_id: UUID) -> web.Response:
    """Deletes a thread with all that is of it; what runs on it is stopped."""
    await _tell(call, await threads.delete(call.context.database, thread_id))
    return no_content()


@routes.post("/threads/{thread_id}/copy")
async def copy(call: Call, thread_id: UUID) -> web.Response:
    """Copies a thread with its history, without its runs."""
    try:
        thread = await threads.copy(call.context.database, thread_id, uuid.uuid4())
    except ThreadNotFound:
        raise Conflict("Conflict") from None
    return answer(show_thread(thread))


async def _tell(call: Call, deleted: Deleted) -> None:
    """Their leases are void already; told, the workers need not find out by a heartbeat."""
    for run_id in deleted.running:
        await call.context.dispatcher.cancel(run_id)


def _status(body: ThreadCount) -> ThreadStatus | None:
    return None if body.status is None else ThreadStatus(body.status)

"""Threads: create, find, read, change, copy, delete."""

import uuid
from typing import Any
from uuid import UUID

import orjson
from aiohttp import web

from actors.dispatch import InspectorUnavailable
from gateway import stopping
from gateway.errors import BadRequest, Conflict, NotFound, ProjectFailed
from gateway.inspection import ask, graph_id_of, remember_state
from gateway.responses import Problem, page_of
from gateway.routing import Call, Routes
from gateway.wire.answers import answer, no_content, page, selected
from gateway.wire.threads import (
    Pruned,
    SelectedThread,
    Thread,
    ThreadCount,
    ThreadCreate,
    ThreadPatch,
    ThreadPrune,
    ThreadRead,
    ThreadSearch,
    ThreadStorage,
    extracted,
    show_storage,
    show_thread,
    show_ttl,
)
from persistence import checkpoints, threads
from persistence import errors as persistence
from persistence.errors import ThreadNotFound
from persistence.lifecycle import ThreadStatus
from persistence.threads import ThreadRow

routes = Routes()


@routes.post(
    "/threads",
    on="threads.create",
    responses={
        200: Thread,
        201: Problem,
        400: "The supersteps cannot be applied",
        409: "The id is taken",
    },
)
async def create(call: Call, body: ThreadCreate) -> web.Response:
    """Creates a thread, with a state when ``supersteps`` are given; none if those are refused."""
    database, thread_id = call.context.database, body.thread_id
    ttl = (None if body.ttl is None else body.ttl.meant()) or call.context.thread_ttl
    try:
        thread = await threads.create(database, thread_id, body.metadata, ttl=ttl)
    except persistence.Conflict as taken:
        if body.if_exists == "raise":
            raise
        try:
            return answer(show_thread(await threads.get(database, thread_id, allowed=call.allowed)))
        except ThreadNotFound:
            raise taken from None
    if body.supersteps:
        try:
            problem = await _apply(call, thread, body.supersteps)
        except BadRequest:
            await threads.delete_many(database, [thread_id])
            raise
        if problem:
            return answer({"detail": problem}, status=201)
        thread = await threads.get(database, thread_id)
    return answer(show_thread(thread))


async def _apply(call: Call, thread: ThreadRow, supersteps: list[dict[str, Any]]) -> str | None:
    """Makes a checkpoint of each superstep; returns why there are none. Raises BadRequest."""
    created = f"Thread {thread.thread_id} was created, but there were problems updating the state: "
    graph_id = graph_id_of(thread)
    if graph_id is None:
        return created + "it has no metadata.graph_id, which says whose state it is."
    place = {"thread_id": str(thread.thread_id), "graph_id": graph_id}
    try:
        status, body = await ask(call, "update_state", {**place, "supersteps": supersteps})
    except InspectorUnavailable:
        return created + "no worker can answer for the graph at present."
    except ProjectFailed as failed:
        return created + failed.detail
    if status == 404:
        return created + str(orjson.loads(body)["detail"])
    if status != 200:
        raise BadRequest(str(orjson.loads(body)["detail"]))
    await remember_state(call, thread.thread_id, graph_id)
    return None


@routes.post("/threads/search", on="threads.search", responses={200: page_of(SelectedThread)})
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
        select=[*body.select, *(root for root, _ in body.extract.values())]
        if body.select
        else None,
        allowed=call.allowed,
    )
    shown = [selected(show_thread(row), body.select) for row in rows]
    if body.extract:
        for item, row in zip(shown, rows, strict=True):
            item["extracted"] = extracted(row, body.extract)
    return page(shown, body.limit, body.offset)


@routes.post("/threads/count", on="threads.search", responses={200: int})
async def count(call: Call, body: ThreadCount) -> web.Response:
    """Counts threads."""
    return answer(
        await threads.count(
            call.context.database,
            ids=body.ids,
            metadata=body.metadata,
            values=body.values,
            status=_status(body),
            allowed=call.allowed,
        )
    )


@routes.post(
    "/threads/prune",
    on="threads.delete",
    responses={200: Pruned, 409: "The latest state of one is made of its history"},
)
async def prune(call: Call, body: ThreadPrune) -> web.Response:
    """Deletes many threads at once, or all of their history but the latest state; all or none.

    The history of a thread on which something runs stays.
    """
    if body.strategy == "keep_latest":
        count = await threads.keep_latest(
            call.context.database, body.thread_ids, allowed=call.allowed
        )
        return answer({"pruned_count": count})
    deleted = await threads.delete_many(
        call.context.database, body.thread_ids, allowed=call.allowed
    )
    await stopping.tell_of_deleted(call.context, deleted)
    return answer({"pruned_count": deleted.count})


@routes.get(
    "/threads/{thread_id}", on="threads.read", responses={200: Thread, 404: "No such thread"}
)
async def get(call: Call, thread_id: UUID, query: ThreadRead) -> web.Response:
    """Shows a thread, with its lifetime when ``include`` is ``ttl``."""
    thread = await threads.get(call.context.database, thread_id, allowed=call.allowed)
    ttl = {"ttl": show_ttl(thread)} if "ttl" in query.include else {}
    return answer(show_thread(thread) | ttl)


@routes.get(
    "/threads/{thread_id}/storage",
    on="threads.read",
    responses={200: ThreadStorage, 404: "No such thread"},
)
async def get_storage(call: Call, thread_id: UUID) -> web.Response:
    """Shows what a thread's history takes."""
    await threads.head(call.context.database, thread_id, allowed=call.allowed)
    return answer(
        show_storage(thread_id, await checkpoints.storage(call.context.database, thread_id))
    )


@routes.patch(
    "/threads/{thread_id}",
    on="threads.update",
    responses={200: Thread, 204: "Done, with Prefer: return=minimal", 404: "No such thread"},
)
async def patch(call: Call, thread_id: UUID, body: ThreadPatch) -> web.Response:
    """Merges metadata into a thread's, and sets its lifetime."""
    try:
        thread = await threads.patch(
            call.context.database,
            thread_id,
            body.metadata,
            ttl=None if body.ttl is None else body.ttl.meant(),
            allowed=call.allowed,
        )
    except ThreadNotFound:
        raise NotFound("Not Found") from None
    if "return=minimal" in call.request.headers.get("Prefer", ""):
        return no_content()
    return answer(show_thread(thread))


@routes.delete(
    "/threads/{thread_id}", on="threads.delete", responses={204: "Deleted", 404: "No such thread"}
)
async def delete(call: Call, thread_id: UUID) -> web.Response:
    """Deletes a thread with all that is of it; what runs on it is stopped."""
    deleted = await threads.delete(call.context.database, thread_id, allowed=call.allowed)
    await stopping.tell_of_deleted(call.context, deleted)
    return no_content()


@routes.post(
    "/threads/{thread_id}/copy", on="threads.read", responses={200: Thread, 409: "No such thread"}
)
async def copy(call: Call, thread_id: UUID) -> web.Response:
    """Copies a thread with its history, without its runs."""
    target = uuid.uuid4()
    creation = await call.authorize("threads.create", {"thread_id": target, "metadata": {}})
    try:
        thread = await threads.copy(
            call.context.database,
            thread_id,
            target,
            metadata=creation.metadata,
            allowed=call.allowed,
        )
    except ThreadNotFound:
        raise Conflict("Conflict") from None
    return answer(show_thread(thread))


def _status(body: ThreadCount) -> ThreadStatus | None:
    return None if body.status is None else ThreadStatus(body.status)

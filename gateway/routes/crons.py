"""Crons: requests that are run again and again, on a thread or each time on a new one."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import orjson
from aiohttp import web
from pydantic import TypeAdapter

from gateway.admission import TOO_DEEP, check_resume, check_webhook, find_assistant, requested
from gateway.auth.grant import Grant, Value
from gateway.errors import BadRequest, NotFound, Unprocessable
from gateway.responses import page_of
from gateway.routing import Call, Routes
from gateway.wire.answers import answer, no_content, page, selected
from gateway.wire.body import checked
from gateway.wire.crons import (
    Cron,
    CronChange,
    CronCount,
    CronCreate,
    CronSearch,
    NewCron,
    SelectedCron,
    show_cron,
)
from persistence import crons
from persistence.crons import CronContent, CronRow
from persistence.errors import AssistantNotFound, CronNotFound
from persistence.ids import uuid7
from persistence.run_request import TooDeep
from persistence.schedule import BadSchedule
from persistence.visibility import Filter

routes = Routes()

_CREATE: TypeAdapter[CronCreate] = TypeAdapter(CronCreate)
_REFUSED = {
    400: "Both configurable and context, or an answer without a thread",
    404: "No such assistant or thread",
}


def _asked(call: Call, arguments: Mapping[str, Any]) -> Value:
    """What authorization is asked about when a cron is made or changed (``ValueOf``)."""
    body = arguments["body"]
    return {
        "cron_id": arguments.get("cron_id") or uuid7(),
        "thread_id": arguments.get("thread_id"),
        "user_id": call.user.identity if call.user else None,
        "schedule": body.get("schedule"),
        "end_time": body.get("end_time"),
        "payload": dict(body),
        "metadata": dict(body.get("metadata", {})),
    }


@routes.post("/runs/crons", on="crons.create", value=_asked, responses={200: Cron} | _REFUSED)
async def create_stateless(call: Call, body: NewCron) -> web.Response:
    """Creates a cron each of whose firings makes a thread."""
    return await _create(call, body, None)


@routes.post(
    "/threads/{thread_id}/runs/crons",
    on="crons.create",
    value=_asked,
    responses={200: Cron} | _REFUSED,
)
async def create(call: Call, thread_id: UUID, body: NewCron) -> web.Response:
    """Creates a cron that runs on a thread."""
    return await _create(call, body, thread_id)


@routes.post("/runs/crons/search", on="crons.search", responses={200: page_of(SelectedCron)})
async def search(call: Call, body: CronSearch) -> web.Response:
    """Finds crons, by default the newest first."""
    rows = await crons.search(
        call.context.database,
        assistant_id=body.assistant_id,
        thread_id=body.thread_id,
        enabled=body.enabled,
        metadata=body.metadata,
        limit=body.limit + 1,
        offset=body.offset,
        sort_by=body.sort_by or "created_at",
        sort_order=(body.sort_order or "desc") if body.sort_by else "desc",
        **await _visible(call),
    )
    return page([selected(show_cron(row), body.select) for row in rows], body.limit, body.offset)


@routes.post("/runs/crons/count", on="crons.search", responses={200: int})
async def count(call: Call, body: CronCount) -> web.Response:
    """Counts crons."""
    return answer(
        await crons.count(
            call.context.database,
            assistant_id=body.assistant_id,
            thread_id=body.thread_id,
            enabled=body.enabled,
            metadata=body.metadata,
            **await _visible(call),
        )
    )


async def _visible(call: Call) -> dict[str, Filter | None]:
    """Which crons the caller may see: its own filter's, on threads that it may see."""
    on_threads = await call.authorize("threads.search", {})
    return {"allowed": call.allowed, "allowed_threads": on_threads.allowed}


@routes.get("/runs/crons/{cron_id}", on="crons.read", responses={200: Cron, 404: "No such cron"})
async def get(call: Call, cron_id: UUID) -> web.Response:
    """Shows a cron."""
    try:
        row = await crons.get(call.context.database, cron_id, **await _visible(call))
    except CronNotFound:
        raise NotFound("Not Found") from None
    return answer(show_cron(row))


@routes.patch(
    "/runs/crons/{cron_id}",
    on="crons.update",
    value=_asked,
    responses={200: Cron, 400: "Nothing to change, or no sense in it", 404: "No such cron"},
)
async def patch(call: Call, cron_id: UUID, body: CronChange) -> web.Response:
    """Changes a cron and reckons its next date anew."""
    if not body:
        raise BadRequest("Request body cannot be empty")
    await check_webhook(call.context, body.get("webhook"))

    def change(row: CronRow) -> CronContent:
        # The assistant stays; the cron's own id in the config is ours and comes again.
        payload = _without_stamp(orjson.loads(row.payload)) | body
        payload["assistant_id"] = str(row.assistant_id)
        content = _content(call, payload, row.cron_id, row.thread_id)
        metadata = orjson.loads(row.metadata) | call.grant.metadata
        return replace(content, metadata=metadata)

    try:
        seen = await _visible(call)
        return answer(show_cron(await crons.update(call.context.database, cron_id, change, **seen)))
    except CronNotFound:
        raise NotFound(f"Cron '{cron_id}' not found") from None
    except BadSchedule as error:
        raise Unprocessable(str(error)) from None
    except TooDeep:
        raise Unprocessable(TOO_DEEP) from None


@routes.delete(
    "/runs/crons/{cron_id}", on="crons.delete", responses={204: "Deleted", 404: "No such cron"}
)
async def delete(call: Call, cron_id: UUID) -> web.Response:
    """Deletes a cron; its runs stay."""
    try:
        await crons.delete(call.context.database, cron_id, **await _visible(call))
    except CronNotFound:
        raise NotFound("Not Found") from None
    return no_content()


async def _create(call: Call, body: dict[str, Any], thread_id: UUID | None) -> web.Response:
    context, cron_id, name = call.context, call.grant.value["cron_id"], body["assistant_id"]
    await check_webhook(context, body.get("webhook"))
    missing = NotFound(f"Assistant '{name}' not found")
    try:
        assistant = await find_assistant(call, name)
    except (NotFound, Unprocessable):
        raise missing from None
    payload = body | {"assistant_id": str(assistant.assistant_id)}
    on_thread = Grant()
    if thread_id is not None:
        on_thread = await call.authorize("threads.read", {"thread_id": thread_id})
    try:
        row = await crons.create(
            context.database,
            cron_id,
            assistant.assistant_id,
            thread_id,
            replace(_content(call, payload, cron_id, thread_id), metadata=call.grant.metadata),
            allowed_threads=on_thread.allowed,
        )
    except AssistantNotFound:
        raise missing from None
    except BadSchedule as error:
        raise Unprocessable(str(error)) from None
    except TooDeep:
        raise Unprocessable(TOO_DEEP) from None
    return answer(show_cron(row))


def _content(
    call: Call, payload: dict[str, Any], cron_id: UUID, thread_id: UUID | None
) -> CronContent:
    """What the payload means: read by the model that creates runs, so every firing can make one."""
    body = checked(payload, _CREATE)
    request, stamp = requested(call, body), {"cron_id": str(cron_id)}
    check_resume(request, thread_id)
    configurable = request.config.get("configurable", {}) | stamp
    config = payload.get("config", {})
    shown = payload | {"config": config | {"configurable": config.get("configurable", {}) | stamp}}
    try:
        encoded = orjson.dumps(shown)
    except TypeError:
        raise TooDeep from None
    return CronContent(
        schedule=body.schedule,
        timezone=body.timezone,
        end_time=body.end_time,
        payload=encoded,
        request=replace(
            request,
            config=request.config | {"configurable": configurable},
            context=request.context | stamp,
        ),
        metadata=body.metadata,
        on_run_completed=body.on_run_completed if thread_id is None else None,
        enabled=body.enabled,
    )


def _without_stamp(payload: dict[str, Any]) -> dict[str, Any]:
    config = payload["config"]
    configurable = {k: v for k, v in config["configurable"].items() if k != "cron_id"}
    return payload | {"config": config | {"configurable": configurable}}

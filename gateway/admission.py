"""From the body of a request to an accepted run: checks, merges, the row, and the message.

Nothing is created when a check fails, and what was created is dispatched even if the client leaves
in between.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from actors import webhook_policy
from actors.webhook_policy import WebhookRefused
from gateway.auth.grant import Grant, Value
from gateway.auth.user import stamps
from gateway.context import Context
from gateway.errors import BadRequest, NotFound, Unprocessable
from gateway.idempotency import request_key
from gateway.routing import Call
from gateway.stopping import stop_abandoned
from gateway.wire.assistants import mirrored
from gateway.wire.runs import RunCreate
from persistence import assistants, runs
from persistence.assistants import AssistantRow
from persistence.errors import AssistantNotFound, ThreadNotFound
from persistence.ids import uuid7
from persistence.run_request import RunRequest, TooDeep, compose
from persistence.runs import Created, NewRun, RunRow

_NOT_FOUND = "Thread or assistant not found."
TOO_DEEP = "JSON in request body is nested too deeply"


def asked_run(call: Call, arguments: Mapping[str, Any]) -> Value:
    """What authorization is asked about when a run is to be created (``ValueOf`` of its routes)."""
    return _asked(call, arguments["body"], arguments.get("thread_id"))


def asked_many(call: Call, arguments: Mapping[str, Any]) -> list[Value]:
    """The same of a batch: each of its runs is asked for by itself."""
    return [_asked(call, body, None) for body in arguments["body"]]


async def permit(call: Call, body: RunCreate, thread_id: UUID | None) -> Grant:
    """Asks for the right to a run that the route itself does not stand for. Raises Denied."""
    return await call.authorize("threads.create_run", _asked(call, body, thread_id))


async def admit(
    call: Call,
    body: RunCreate,
    thread_id: UUID | None,
    *,
    awaited: bool,
    grant: Grant | None = None,
    stop_if_abandoned: bool = False,
) -> RunRow:
    """Creates and dispatches the run that the request asks for.

    thread_id: None for a stateless run, which gets a thread of its own.
    awaited: whether the client waits for what the run says, as in ``Dispatcher.run``.
    grant: what ``permit`` answered; by default what the route was granted, a run's: of such a
        request, ``Idempotency-Key`` is heeded.
    stop_if_abandoned: whether to stop the run again when the client leaves before it is created.
    Raises RequestError.
    """
    context = call.context
    new = await prepare(call, body, thread_id, grant or call.grant)
    if grant is None:
        new = replace(new, asked=await request_key(call, thread_id))
    creation = context.background.spawn(create(context, new, awaited=awaited))
    try:
        return await asyncio.shield(creation)
    except asyncio.CancelledError:
        if stop_if_abandoned:
            context.background.start(_stop_when_created(context, creation))
        raise


async def _stop_when_created(context: Context, creation: "asyncio.Task[RunRow]") -> None:
    run = await creation
    await stop_abandoned(context, run.thread_id, run.run_id)


def assistant_id_of(context: Context, name: str) -> UUID:
    """The id that is meant: itself, or a graph's name. Raises Unprocessable."""
    try:
        return assistants.system_id(name) if name in context.graph_ids else UUID(name)
    except ValueError:
        graphs = ", ".join(sorted(context.graph_ids))
        raise Unprocessable(
            f"Invalid assistant: '{name}'. Must be either:\n"
            f"- A valid assistant UUID, or\n- One of the registered graphs: {graphs}"
        ) from None


async def find_assistant(call: Call, name: str) -> AssistantRow:
    """The assistant with this id, or the one that the graph of this name has from the start.

    The latter are everybody's, as on the reference: nobody owns them, so a filter by owner would
    leave a project with authorization without a graph to run. Others must be allowed to be read.
    Raises RequestError.
    """
    context, assistant_id = call.context, assistant_id_of(call.context, name)
    reading = Grant()
    if assistant_id not in map(assistants.system_id, context.graph_ids):
        reading = await call.authorize(
            "assistants.read", {"assistant_id": assistant_id, "metadata": {}}
        )
    try:
        assistant = await assistants.get(context.database, assistant_id, allowed=reading.allowed)
    except AssistantNotFound:
        raise NotFound(_NOT_FOUND) from None
    if assistant.graph_id not in context.graph_ids:
        raise NotFound(f"Graph '{assistant.graph_id}' of this assistant is not served any more")
    return assistant


async def create(context: Context, new: NewRun, *, awaited: bool) -> RunRow:
    """Creates the run, and tells who is concerned of it and of those that it supersedes.

    awaited: as in ``Dispatcher.run``.
    """
    try:
        created = await runs.create(context.database, new)
    except ThreadNotFound:
        raise NotFound(_NOT_FOUND) from None
    return await _told(context, new, created, awaited=awaited)


async def create_all(context: Context, new: list[NewRun]) -> list[RunRow]:
    """Creates all of the runs or none. They are stateless: each makes a thread of its own."""
    created = await runs.create_all(context.database, new)
    both = zip(new, created, strict=True)
    return [await _told(context, *one, awaited=False) for one in both]


async def _told(context: Context, new: NewRun, created: Created, *, awaited: bool) -> RunRow:
    for run_id in created.cancel:
        await context.dispatcher.cancel(run_id)
    await context.dispatcher.over(*created.withdrawn, *created.deleted)
    if new.after_seconds <= 0:
        await context.dispatcher.run(created.run.run_id, awaited=awaited)
    return created.run


async def prepare(call: Call, body: RunCreate, thread_id: UUID | None, grant: Grant) -> NewRun:
    """The run that the request asks for, checked, with its assistant's config under its own.

    grant: the right to it; what authorization changed in the request is in it.
    Raises RequestError.
    """
    assistant = await find_assistant(call, body.assistant_id)
    await check_webhook(call.context, body.webhook)
    request = _changed(requested(call, body), grant)
    check_resume(request, thread_id)
    try:
        new = compose(request, assistant, thread_id, run_id=grant.value["run_id"])
    except TooDeep:
        raise Unprocessable(TOO_DEEP) from None
    return replace(new, allowed=grant.allowed)


def _asked(call: Call, body: RunCreate, thread_id: UUID | None) -> Value:
    """As ``langgraph_sdk.auth.types.RunsCreate``. Raises RequestError."""
    request = requested(call, body)
    configurable = {**request.config.get("configurable", {}), **request.caller}
    return {
        "thread_id": thread_id,
        "assistant_id": assistant_id_of(call.context, body.assistant_id),
        "run_id": uuid7(),
        "status": "pending",
        "metadata": dict(request.metadata),
        "prevent_insert_if_inflight": request.multitask_strategy == "reject",
        "multitask_strategy": request.multitask_strategy,
        "if_not_exists": "create" if thread_id is None else request.if_not_exists,
        "after_seconds": request.after_seconds,
        "kwargs": {
            "input": request.input,
            "command": request.command,
            "config": {**request.config, "configurable": configurable},
            "context": dict(request.context),
            "stream_mode": list(request.stream_mode),
            "interrupt_before": request.interrupt_before,
            "interrupt_after": request.interrupt_after,
            "webhook": request.webhook,
            "feedback_keys": request.feedback_keys,
            "temporary": thread_id is None and not request.keep_thread,
            "subgraphs": request.stream_subgraphs,
            "resumable": request.stream_resumable,
        },
    }


def _changed(request: RunRequest, grant: Grant) -> RunRequest:
    """The request with what authorization changed in it; who the caller is, nobody changes."""
    kwargs = grant.value["kwargs"]
    return replace(
        request,
        metadata=grant.metadata,
        input=kwargs["input"],
        command=kwargs["command"],
        config=kwargs["config"],
        context=kwargs["context"],
    )


async def check_webhook(context: Context, url: str | None) -> None:
    """Raises Unprocessable for a URL to which nothing would be sent."""
    if url is not None:
        try:
            await webhook_policy.check(context.webhooks, url)
        except WebhookRefused as refused:
            raise Unprocessable(str(refused)) from None


def check_resume(request: RunRequest, thread_id: UUID | None) -> None:
    """Raises BadRequest for an answer to a thread that is yet to be made."""
    if thread_id is None and "resume" in (request.command or {}):
        raise BadRequest("An answer goes to the thread that asked: a stateless run has no such one")


def requested(call: Call, body: RunCreate) -> RunRequest:
    """The request without its forms of writing, and who makes it. Raises BadRequest."""
    context = call.context
    headers = context.http.configurable_headers.of(list(call.request.headers.items()))
    config, values = mirrored(body.config, body.context)
    checkpoint_id = {"checkpoint_id": str(body.checkpoint_id)} if body.checkpoint_id else {}
    return RunRequest(
        input=body.input,
        command=body.command,
        config=config,
        context=values,
        context_provided=bool(body.context),
        metadata=body.metadata,
        place={**body.checkpoint, **checkpoint_id},
        stream_mode=list(body.stream_mode),
        stream_subgraphs=body.stream_subgraphs,
        stream_resumable=body.stream_resumable,
        interrupt_before=body.interrupt_before,
        interrupt_after=body.interrupt_after,
        multitask_strategy=body.multitask_strategy,
        if_not_exists=body.if_not_exists,
        keep_thread=body.on_completion == "keep",
        after_seconds=body.after_seconds,
        durability=body.durability or ("exit" if body.checkpoint_during is False else "async"),
        checkpoint_during=body.checkpoint_during is not False,
        webhook=body.webhook,
        notify=not context.http.disable_webhooks,
        feedback_keys=body.feedback_keys,
        ttl=context.thread_ttl,
        caller={**headers, **stamps(call.user)},
    )

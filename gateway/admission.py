"""From the body of a request to an accepted run: checks, merges, the row, and the message.

Nothing is created when a check fails, and what was created is dispatched even if the client leaves
in between.
"""

import asyncio
from uuid import UUID

from actors import webhook_policy
from actors.webhook_policy import WebhookRefused
from gateway.context import Context
from gateway.errors import NotFound, Unprocessable
from gateway.stopping import stop_abandoned
from gateway.wire.assistants import mirrored
from gateway.wire.runs import RunCreate
from persistence import assistants, runs
from persistence.assistants import AssistantRow
from persistence.errors import AssistantNotFound, ThreadNotFound
from persistence.run_request import RunRequest, TooDeep, compose
from persistence.runs import NewRun, RunRow

_NOT_FOUND = "Thread or assistant not found."
TOO_DEEP = "JSON in request body is nested too deeply"


async def admit(
    context: Context, body: RunCreate, thread_id: UUID | None, *, stop_if_abandoned: bool = False
) -> RunRow:
    """Creates and dispatches the run that the request asks for.

    thread_id: None for a stateless run, which gets a thread of its own.
    stop_if_abandoned: whether to stop the run again when the client leaves before it is created.
    Raises RequestError.
    """
    new = await prepare(context, body, thread_id)
    creation = context.background.spawn(create(context, new))
    try:
        return await asyncio.shield(creation)
    except asyncio.CancelledError:
        if stop_if_abandoned:
            context.background.start(_stop_when_created(context, creation))
        raise


async def _stop_when_created(context: Context, creation: "asyncio.Task[RunRow]") -> None:
    run = await creation
    await stop_abandoned(context, run.thread_id, run.run_id)


async def find_assistant(context: Context, name: str) -> AssistantRow:
    """The assistant with this id, or the one that the graph of this name has from the start."""
    try:
        assistant_id = assistants.system_id(name) if name in context.graph_ids else UUID(name)
    except ValueError:
        graphs = ", ".join(sorted(context.graph_ids))
        raise Unprocessable(
            f"Invalid assistant: '{name}'. Must be either:\n"
            f"- A valid assistant UUID, or\n- One of the registered graphs: {graphs}"
        ) from None
    try:
        assistant = await assistants.get(context.database, assistant_id)
    except AssistantNotFound:
        raise NotFound(_NOT_FOUND) from None
    if assistant.graph_id not in context.graph_ids:
        raise NotFound(f"Graph '{assistant.graph_id}' of this assistant is not served any more")
    return assistant


async def create(context: Context, new: NewRun) -> RunRow:
    """Creates the run, and tells workers of it and of those that it supersedes."""
    try:
        created = await runs.create(context.database, new)
    except ThreadNotFound:
        raise NotFound(_NOT_FOUND) from None
    for run_id in created.cancel:
        await context.dispatcher.cancel(run_id)
    if new.after_seconds <= 0:
        await context.dispatcher.run(created.run.run_id)
    return created.run


async def prepare(context: Context, body: RunCreate, thread_id: UUID | None) -> NewRun:
    """The run that the request asks for, checked, with its assistant's config under its own.

    Raises RequestError.
    """
    assistant = await find_assistant(context, body.assistant_id)
    await check_webhook(context, body.webhook)
    try:
        return compose(requested(context, body), assistant, thread_id)
    except TooDeep:
        raise Unprocessable(TOO_DEEP) from None


async def check_webhook(context: Context, url: str | None) -> None:
    """Raises Unprocessable for a URL to which nothing would be sent."""
    if url is not None:
        try:
            await webhook_policy.check(context.webhooks, url)
        except WebhookRefused as refused:
            raise Unprocessable(str(refused)) from None


def requested(context: Context, body: RunCreate) -> RunRequest:
    """The request without its forms of writing. Raises BadRequest."""
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
        notify=not context.webhooks.disabled,
        feedback_keys=body.feedback_keys,
        ttl=context.thread_ttl,
    )

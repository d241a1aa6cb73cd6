"""From the body of a request to an accepted run: checks, merges, the row, and the message.

Nothing is created when a check fails, and what was created is dispatched even if the client leaves
in between.
"""

import asyncio
import time
import uuid
from typing import Any
from uuid import UUID

import orjson

from gateway.context import Context
from gateway.errors import NotFound, Unprocessable
from gateway.stopping import stop_abandoned
from gateway.wire.assistants import mirrored
from gateway.wire.body import encode
from gateway.wire.ids import uuid7
from gateway.wire.runs import RunCreate
from persistence import assistants, runs
from persistence.assistants import AssistantRow
from persistence.errors import AssistantNotFound, ThreadNotFound
from persistence.lifecycle import MultitaskStrategy
from persistence.runs import NewRun, RunRow

_NOT_FOUND = "Thread or assistant not found."

_STAMPED_BY_LANGGRAPH = "__pregel_"
"""Keys in ``configurable`` with this prefix steer LangGraph from inside; no client may set them."""


async def admit(
    context: Context, body: RunCreate, thread_id: UUID | None, *, stop_if_abandoned: bool = False
) -> RunRow:
    """Creates and dispatches the run that the request asks for.

    thread_id: None for a stateless run, which gets a thread of its own.
    stop_if_abandoned: whether to stop the run again when the client leaves before it is created.
    Raises RequestError.
    """
    new = compose(body, await find_assistant(context, body.assistant_id), thread_id)
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


def compose(body: RunCreate, assistant: AssistantRow, thread_id: UUID | None) -> NewRun:
    """The run that the request asks for, with its assistant's config under its own.

    Pure, but for ids and the time.

    Raises BadRequest for both ``configurable`` and ``context``, Unprocessable for what is nested
    too deeply to be stored.
    """
    run_id, run_thread_id = uuid7(), thread_id or uuid7()
    is_temporary = thread_id is None and body.on_completion == "delete"
    given, given_context = mirrored(body.config, body.context)
    base, base_context = orjson.loads(assistant.config), orjson.loads(assistant.context)
    base_metadata, config_metadata = orjson.loads(assistant.metadata), given.get("metadata", {})
    config = {
        **base,
        **given,
        "configurable": {
            **_own(base.get("configurable", {})),
            **_own(given.get("configurable", {})),
            **body.checkpoint,
            **({"checkpoint_id": str(body.checkpoint_id)} if body.checkpoint_id else {}),
            **({"__context_provided__": True} if body.context else {}),
            "langgraph_auth_user": None,
            "langgraph_auth_user_id": "",
            "langgraph_auth_permissions": [],
            "langgraph_request_id": str(uuid.uuid4()),
            "__request_start_time_ms__": time.time_ns() // 1_000_000,
            "__after_seconds__": body.after_seconds,
            "run_id": str(run_id),
            "thread_id": str(run_thread_id),
            "graph_id": assistant.graph_id,
            "assistant_id": str(assistant.assistant_id),
            "user_id": "",
        },
        "metadata": {
            **base_metadata,
            "graph_id": assistant.graph_id,
            "assistant_id": str(assistant.assistant_id),
            **config_metadata,
            **body.metadata,
        },
    }
    durability = body.durability or ("exit" if body.checkpoint_during is False else "async")
    kwargs = {
        "input": body.input,
        "command": body.command,
        "config": config,
        "context": {**base_context, **given_context},
        "stream_mode": body.stream_mode,
        "interrupt_before": body.interrupt_before,
        "interrupt_after": body.interrupt_after,
        "webhook": body.webhook,
        "feedback_keys": body.feedback_keys,
        "temporary": is_temporary,
        "subgraphs": body.stream_subgraphs,
        "resumable": body.stream_resumable,
        "checkpoint_during": body.checkpoint_during is not False,
        "durability": durability,
    }
    return NewRun(
        run_id=run_id,
        thread_id=run_thread_id,
        assistant_id=assistant.assistant_id,
        graph_id=assistant.graph_id,
        kwargs=encode(kwargs),
        metadata=body.metadata,
        base_metadata=base_metadata,
        config_metadata=config_metadata,
        config=_remembered(body.config),
        multitask_strategy=MultitaskStrategy(body.multitask_strategy),
        if_not_exists="create" if thread_id is None else body.if_not_exists,
        after_seconds=body.after_seconds,
        temporary=is_temporary,
        resumable=body.stream_resumable,
    )


def _own(configurable: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in configurable.items()
        if not key.startswith(_STAMPED_BY_LANGGRAPH)
    }


def _remembered(config: dict[str, Any]) -> dict[str, Any]:
    """What the thread shows of a run's config: not ``configurable``, which may hold secrets."""
    shown = {key: value for key, value in config.items() if key != "metadata"}
    return {**shown, "configurable": {}}

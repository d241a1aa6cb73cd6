"""Executes one attempt of a run: from a compiled graph and the run's kwargs to events and an end.

    result = await run(start, graph, saver, store, emit)

The story: stamp the config (run_config.py), decide what a second attempt still has to do
(resumption.py), stream the graph, shape its parts into events (frames.py), and say how it ended.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

from langchain_core.runnables import RunnableConfig
from langgraph.channels import BinaryOperatorAggregate, DeltaChannel, LastValue
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.constants import TAG_HIDDEN
from langgraph.pregel import Pregel
from langgraph.store.base import BaseStore
from langgraph.types import StateSnapshot

from actors.child import event_streaming, resumption, run_config
from actors.child.frames import INTERRUPT, Frames, identify
from actors.child.masking import masked
from actors.child.serialize import dumps
from actors.child.stop import Stopped, as_failure
from actors.child.thread_state import interrupts_by_task

_log = logging.getLogger(__name__)

Compiled = Pregel[Any, Any, Any, Any]
Saver = BaseCheckpointSaver[Any]
Emit = Callable[[str, bytes], Awaitable[None]]
"""Takes an event's name and its data; makes the graph wait when readers or Redis are slow."""

STATE_SECONDS = 5.0
"""How long the end of an attempt that failed waits for the checkpointer."""
STOPPED_STATE_SECONDS = 2.0
"""The same for one that was stopped: somebody waits for the stop."""


@dataclass(frozen=True, slots=True)
class Start:
    """An attempt, as its start frame has it.

    attempt: number of the attempt, the fencing token. kwargs: the wire's ``kwargs`` object of the
    run. metadata: of the run, the assistant and the thread, merged; what ``config.metadata`` gets.
    credential: what the run's code shows when it calls the API itself.
    unfinished: whether the run before it on the thread left something to do.
    """

    run_id: str
    thread_id: str
    assistant_id: str
    graph_id: str
    attempt: int
    kwargs: dict[str, Any]
    metadata: dict[str, Any] = field(default_factory=dict)
    credential: str = ""
    unfinished: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """How an attempt ended, and what the thread looks like after it.

    end: "succeeded" also at an interrupt or breakpoint; "cancelled" when its task was cancelled.
    error, message: only of a failure, masked.
    next: the nodes left to do.
    parts: JSON bytes by name: ``values`` (the root state's; absent when they could not be read),
        ``interrupts`` (``{task_id: [{"id","value"}]}``), and ``result``, what wait and join answer
        (absent when it equals ``values``).
    """

    end: Literal["succeeded", "failed", "cancelled"]
    next: tuple[str, ...] = ()
    parts: dict[str, bytes] = field(default_factory=dict)
    error: str | None = None
    message: str | None = None


async def run(
    start: Start, graph: Compiled, saver: Saver, store: BaseStore | None, emit: Emit
) -> Result:
    """Executes the attempt on a graph of its own, whose checkpointer and store it sets.

    Emits every event but the final ``error``, which belongs after the settled row. Never raises for
    what the graph does. Cancelling the task stops the graph and returns "cancelled", with the
    values so far if they can be read quickly; a second cancellation does not wait for them.
    """
    graph.checkpointer, graph.store, graph.name = saver, store or graph.store, start.graph_id
    frames = _frames(start, graph)
    try:
        await emit("metadata", dumps({"run_id": start.run_id, "attempt": start.attempt}))
        plan = await resumption.plan(start, graph, saver)
        if plan.is_over:
            await _repeat_stop(start, graph, frames, emit)
        else:
            async with aclosing(_stream(start, graph, plan, frames)) as parts:
                async for namespace, mode, payload in parts:
                    identify(mode, payload)
                    for name, data in frames.shape(namespace, mode, payload):
                        await emit(name, data)
        return await _succeeded(start, graph, frames)
    except (asyncio.CancelledError, Stopped):
        return await _cancelled(start, graph, frames)
    except BaseException as error:  # noqa: BLE001  # SystemExit of a node ends its run, not all runs
        return await _failed(start, graph, frames, as_failure(error))


def _frames(start: Start, graph: Compiled) -> Frames:
    if not event_streaming.is_asked_for(start.kwargs):
        return Frames(start.kwargs)
    return event_streaming.ProtocolFrames(start.kwargs, graph)


async def _stream(
    start: Start, graph: Compiled, plan: resumption.Plan, frames: Frames
) -> AsyncGenerator[tuple[tuple[str, ...], str, Any]]:
    """What the graph streams, as (namespace, mode, payload), whatever way it is asked."""
    kwargs = start.kwargs
    subgraphs = bool(kwargs.get("subgraphs"))
    options: dict[str, Any] = {
        "context": run_config.context(graph, kwargs),
        "output_keys": graph.output_channels,
        "interrupt_before": kwargs.get("interrupt_before"),
        "interrupt_after": kwargs.get("interrupt_after"),
        "durability": run_config.durability(kwargs),
    }
    if event_streaming.is_asked_for(kwargs):
        told = event_streaming.stream(graph, plan.input, plan.config, **options)
        async with aclosing(told):
            async for named in told:
                yield named
        return
    options |= {"stream_mode": frames.graph_modes, "subgraphs": subgraphs}
    if not frames.wants_events:
        async for part in graph.astream(plan.input, plan.config, **options):
            yield _part(part, subgraphs)
        return
    root = UUID(start.run_id)
    # What LangGraph does for itself (choosing an edge, say) is tagged so, and nobody's to see.
    options |= {"version": "v2", "exclude_tags": [TAG_HIDDEN]}
    async for event in graph.astream_events(plan.input, plan.config, **options):
        if event["event"] == "on_chain_stream" and event["run_id"] == str(root):
            yield _part(event["data"]["chunk"], subgraphs)
        else:
            yield (), "events", event


def _part(part: Any, subgraphs: bool) -> tuple[tuple[str, ...], str, Any]:
    return part if subgraphs else ((), *part)


async def _repeat_stop(start: Start, graph: Compiled, frames: Frames, emit: Emit) -> None:
    """For readers of an attempt that has nothing left to do: where the one before it stopped."""
    snapshot = await _state(start, graph)
    for mode, payload in (("values", snapshot.values), ("updates", {INTERRUPT: ()})):
        for name, data in frames.shape((), mode, payload):
            await emit(name, data)


# Ends


async def _succeeded(start: Start, graph: Compiled, frames: Frames) -> Result:
    """The exact end. A run that came to it without a stop needs no read: it has streamed it."""
    if (
        frames.values is not None
        and not frames.is_interrupted
        and _outputs_whole_state(graph)
        and _keeps_what_it_streams(graph)
    ):
        return Result("succeeded", parts={"values": frames.values, "interrupts": b"{}"})
    snapshot = await _state(start, graph)
    return Result("succeeded", snapshot.next, _parts(snapshot, graph))


async def _failed(start: Start, graph: Compiled, frames: Frames, error: BaseException) -> Result:
    _log.warning(
        "run failed",
        extra={"run_id": start.run_id, "attempt": start.attempt},
        exc_info=(type(error), error, error.__traceback__),
    )
    shown = masked(error)
    next_nodes, parts = await _last_seen(start, graph, frames, STATE_SECONDS)
    return Result("failed", next_nodes, parts, shown["error"], shown["message"])


async def _cancelled(start: Start, graph: Compiled, frames: Frames) -> Result:
    next_nodes, parts = await _last_seen(start, graph, frames, STOPPED_STATE_SECONDS)
    return Result("cancelled", next_nodes, parts)


async def _last_seen(
    start: Start, graph: Compiled, frames: Frames, seconds: float
) -> tuple[tuple[str, ...], dict[str, bytes]]:
    """The state, from the checkpointer when it answers in time, else as it was last streamed."""
    try:
        async with asyncio.timeout(seconds):
            snapshot = await _state(start, graph)
        return snapshot.next, _parts(snapshot, graph)
    except (asyncio.CancelledError, Stopped):
        reason = "stopped again"
    except Exception as error:  # noqa: BLE001  # the database is away, or the state cannot be read
        reason = f"{type(error).__name__}: {error}"
    _log.warning("state not read", extra={"run_id": start.run_id, "reason": reason})
    return (), {} if frames.values is None else {"values": frames.values}


async def _state(start: Start, graph: Compiled) -> StateSnapshot:
    config: RunnableConfig = {"configurable": {"thread_id": start.thread_id, "checkpoint_ns": ""}}
    return await graph.aget_state(config)


def _parts(snapshot: StateSnapshot, graph: Compiled) -> dict[str, bytes]:
    """The end as JSON. A thread that was never written has no values."""
    if snapshot.created_at is None:
        return {"interrupts": b"{}"}
    values, interrupts = snapshot.values, interrupts_by_task(snapshot)
    parts = {"values": dumps(values), "interrupts": dumps(interrupts)}
    result = values
    if not _outputs_whole_state(graph) and isinstance(values, dict):
        result = {key: values[key] for key in graph.output_channels if key in values}
    if asked := snapshot.interrupts:
        result = {**(result if isinstance(result, dict) else {}), INTERRUPT: asked}
    if result is not values:
        parts["result"] = dumps(result)
    return parts


def _outputs_whole_state(graph: Compiled) -> bool:
    """Whether what the graph gives out is all of its state."""
    output, state = graph.output_channels, graph.stream_channels_asis
    if isinstance(output, str) or isinstance(state, str):
        return output == state
    return set(output) == set(state)


def _keeps_what_it_streams(graph: Compiled) -> bool:
    """Whether the last values stay the state: some kinds of channels are emptied without a word."""
    return all(
        isinstance(graph.channels[key], (LastValue, BinaryOperatorAggregate, DeltaChannel))
        for key in graph.stream_channels_list
    )

"""Event streaming v2: what a run made for the thread protocol streams, and as which events.

A client that starts a run with ``run.start`` sets ``__event_streaming_v2`` and hears of everything:
every mode, every subgraph, chat models as content blocks, and where subgraphs begin and end.
LangGraph has all of it; here its stream is led through its own transformers (the graph's too), and
what comes out is written under the names that every other run uses:

    values|ns  updates|ns     as everywhere, but messages without their empty fields
    tasks|ns  tools|ns  custom|ns
    checkpoints|ns            ``{id, parent_id, step, source}``, right before the values they hold
    messages|ns               ``message-start``, ``content-block-…``, ``message-finish``;
                              below ``tools:<id of a call>`` what that has returned, when the
                              graph wants its tools told of, as those of ``create_agent`` do
    lifecycle|ns              ``started`` and an end, of each subgraph

The envelopes of the protocol are the gateway's.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from typing import Any, cast

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.pregel import Pregel
from langgraph.stream import LifecycleTransformer, ProtocolEvent
from langgraph.stream._convert import convert_to_protocol_event
from langgraph.stream._mux import StreamMux

from actors.child.frames import Frames
from actors.child.serialize import dumps, dumps_brief

Compiled = Pregel[Any, Any, Any, Any]
Part = tuple[tuple[str, ...], str, Any]

FLAG = "__event_streaming_v2"
"""Key of ``configurable`` that asks for this."""
MODES: tuple[Any, ...] = (
    *("values", "updates", "messages", "tools", "custom", "tasks", "checkpoints"),
)

_CONTENT_BLOCKS = "__pregel_stream_messages_v2"
"""LangGraph's key for streaming chat models as content blocks."""
_HOLD_SECONDS = 0.05
"""A step's checkpoint follows its values at once, if there is one: so long the values wait."""
_BRIEF = frozenset({"values", "updates"})


def is_asked_for(kwargs: Mapping[str, Any]) -> bool:
    """Whether the run was made for the thread protocol."""
    return bool(((kwargs.get("config") or {}).get("configurable") or {}).get(FLAG))


async def stream(
    graph: Compiled, graph_input: Any, config: RunnableConfig, **options: Any
) -> AsyncGenerator[Part]:
    """What the graph streams, as (namespace, mode, payload), its transformers applied.

    options: of ``astream``, without modes and subgraphs: here it is all of them.
    """
    configurable = {**config["configurable"], _CONTENT_BLOCKS: True}
    parts = graph.astream(
        graph_input,
        cast("RunnableConfig", {**config, "configurable": configurable}),
        stream_mode=list(MODES),
        subgraphs=True,
        version="v2",
        **options,
    )
    mux = StreamMux(factories=[_Lifecycle, *(graph.stream_transformers or ())], is_async=True)
    async with aclosing(_checkpoints_first(parts)) as ordered:

        async def pump() -> bool:
            """Leads one part through the transformers; False when there are no more."""
            try:
                part = await anext(ordered)
            except StopAsyncIteration:
                await mux.aclose()
                return False
            except Exception as error:  # noqa: BLE001  # the log of events raises it to its reader
                await mux.afail(error)
                return False
            await mux.apush(convert_to_protocol_event(cast("Any", part)))
            return True

        mux.bind_apump(pump)
        async for event in mux._events:
            yield _part(event)


class _Lifecycle(LifecycleTransformer):
    """Tells where subgraphs begin and end, and leaves the tasks that it tells by in the stream."""

    def process(self, event: ProtocolEvent) -> bool:
        super().process(event)
        return True


def _part(event: ProtocolEvent) -> Part:
    method, params = event["method"], event["params"]
    namespace, payload = tuple(params["namespace"]), params["data"]
    if method == "lifecycle":
        return tuple(payload["namespace"]), method, payload
    kind, _, name = method.partition(":")
    if kind == "custom" and name:
        return namespace, kind, {"name": name, "payload": payload}
    if kind in MODES:
        return namespace, kind, payload
    return namespace, "custom", {"name": method, "payload": payload}


async def _checkpoints_first(parts: AsyncIterator[Any]) -> AsyncGenerator[Any]:
    """Puts a step's checkpoint before its values: clients mark messages with what came before."""
    ahead: asyncio.Future[Any] | None = None
    try:
        while True:
            part = await (anext(parts) if ahead is None else ahead)
            ahead = None
            if part["type"] != "values":
                yield part
                continue
            ahead = asyncio.ensure_future(anext(parts))
            await asyncio.wait({ahead}, timeout=_HOLD_SECONDS)
            if _is_checkpoint_of(part, ahead):
                yield ahead.result()
                ahead = None
            yield part
    except StopAsyncIteration:
        return
    finally:
        if ahead is not None:
            ahead.cancel()
            await asyncio.wait({ahead})
            if not ahead.cancelled():
                ahead.exception()  # seen, or asyncio complains; the run ends for another reason
        await cast("AsyncGenerator[Any]", parts).aclose()


def _is_checkpoint_of(values: Any, ahead: "asyncio.Future[Any]") -> bool:
    if not ahead.done() or ahead.cancelled() or ahead.exception() is not None:
        return False
    part = ahead.result()
    return bool(part["type"] == "checkpoints" and part["ns"] == values["ns"])


class ProtocolFrames(Frames):
    """Shapes the stream of one attempt for the thread protocol."""

    def __init__(self, kwargs: Mapping[str, Any], graph: Compiled) -> None:
        """Graphs with transformers may change the values that they stream, and tell of tools."""
        super().__init__(kwargs)
        transformers = graph.stream_transformers or ()
        self._watch_values = not transformers
        self._tools_speak = any(
            "tools" in getattr(one, "required_stream_modes", ()) for one in transformers
        )
        self._names: dict[tuple[str, ...], str] = {}

    def shape(
        self, namespace: tuple[str, ...], mode: str, payload: Any
    ) -> Iterator[tuple[str, bytes]]:
        """The events of one part, names and data."""
        if not namespace and (mode != "values" or self._watch_values):
            self._watch(mode, payload, None)
        match mode:
            case "messages":
                # Whole messages, which no model streamed, are seen in the values.
                data = payload[0] if isinstance(payload[0], dict) else None
            case "checkpoints":
                data = _place(payload)
            case "lifecycle":
                data = self._with_name(namespace, payload)
            case _:
                data = payload
        if data is None and mode in ("messages", "checkpoints"):
            return
        write = dumps_brief if mode in _BRIEF else dumps
        yield "|".join((mode, *namespace)), write(data)
        if mode == "tools" and payload["event"] == "tool-finished" and self._tools_speak:
            name = "|".join(("messages", *namespace, f"tools:{payload['tool_call_id']}"))
            for piece in _spoken(payload["tool_call_id"], payload.get("output")):
                yield name, dumps(piece)

    def _with_name(self, namespace: tuple[str, ...], payload: dict[str, Any]) -> dict[str, Any]:
        """The end of a subgraph names it as its beginning did."""
        name = self._names.setdefault(namespace, payload.get("graph_name") or "")
        if payload["event"] == "started":
            return payload
        told = {"event": payload["event"], "graph_name": name}
        return {**told, "error": payload["error"]} if "error" in payload else told


def _spoken(call_id: str, output: Any) -> Iterator[dict[str, Any]]:
    """What a tool returned, as a message: pages show it where they list what the call has said.

    A command that it returned says nothing here; its messages are seen in the values.
    """
    message_id, text = f"tool-{call_id}", ""
    if isinstance(output, ToolMessage):
        message_id = output.id or message_id
        text = output.content if isinstance(output.content, str) else dumps(output.content).decode()
    block = {"type": "text", "text": text}
    yield {"event": "message-start", "role": "tool", "id": message_id, "tool_call_id": call_id}
    yield {"event": "content-block-start", "index": 0, "content": {"type": "text", "text": ""}}
    delta = {"type": "text-delta", "text": text}
    yield {"event": "content-block-delta", "index": 0, "delta": delta}
    yield {"event": "content-block-finish", "index": 0, "content": block}
    yield {"event": "message-finish", "metadata": {}}


def _place(checkpoint: Mapping[str, Any]) -> dict[str, Any] | None:
    """What names a checkpoint; its values come as values."""
    place = (checkpoint.get("config") or {}).get("configurable") or {}
    parent = (checkpoint.get("parent_config") or {}).get("configurable") or {}
    if not place.get("checkpoint_id"):
        return None
    metadata = checkpoint.get("metadata") or {}
    named = {"id": place["checkpoint_id"]}
    if parent.get("checkpoint_id"):
        named["parent_id"] = parent["checkpoint_id"]
    return {**named, "step": metadata.get("step"), "source": metadata.get("source")}

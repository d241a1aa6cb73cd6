"""A graph's stream parts as events: names and JSON as the protocol has them."""

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

from langchain_core.messages import (
    BaseMessage,
    BaseMessageChunk,
    ToolMessage,
    message_chunk_to_message,
)

from actors.child.run_config import secret_keys, without_keys
from actors.child.serialize import dumps
from actors.child.thread_state import place

INTERRUPT = "__interrupt__"

_NOTHING = object()
_SAME = ("values", "updates", "custom", "checkpoints", "tasks", "debug", "tools")


class Frames:
    """Shapes the stream of one attempt, and remembers what its end needs.

    is_interrupted: an interrupt or breakpoint has stopped the graph.
    """

    def __init__(self, kwargs: Mapping[str, Any]) -> None:
        """kwargs: of the run; ``stream_mode`` says what its readers want."""
        modes = kwargs.get("stream_mode") or ["values"]
        self._wanted = frozenset({modes} if isinstance(modes, str) else modes)
        self._secret_keys = secret_keys(kwargs)
        self._messages = _Messages("messages-tuple" in self._wanted)
        self._values: Any = _NOTHING
        self._values_data: bytes | None = None
        self.is_interrupted = False

    @property
    def wants_events(self) -> bool:
        """Whether somebody wants LangChain's own events."""
        return "events" in self._wanted

    @property
    def graph_modes(self) -> list[str]:
        """What to ask the graph for: the end is read off ``values`` and ``updates``."""
        modes = {mode for mode in _SAME if mode in self._wanted} | {"values", "updates"}
        if not self._wanted.isdisjoint(("messages", "messages-tuple")):
            modes.add("messages")
        return sorted(modes)

    @property
    def values(self) -> bytes | None:
        """The root graph's values as last streamed; None before any were."""
        if self._values_data is None and self._values is not _NOTHING:
            self._values_data = dumps(self._values)
        return self._values_data

    def shape(
        self, namespace: tuple[str, ...], mode: str, payload: Any
    ) -> Iterator[tuple[str, bytes]]:
        """The events of one part, names and data: none when no reader asked for it."""
        if mode == "events":
            yield mode, dumps(payload)
            return
        if mode == "messages":
            yield from self._messages.shape(namespace, *payload)
            return
        if mode == "checkpoints":
            payload = self._without_secrets(payload)
        elif mode == "debug" and payload["type"] == "checkpoint":
            told = self._without_secrets(payload["payload"])
            payload = {**payload, "payload": _with_places(told)}
        data = dumps(payload) if mode in self._wanted else None
        if not namespace:
            self._watch(mode, payload, data)
        if data is not None:
            yield "|".join((mode, *namespace)), data

    def _without_secrets(self, checkpoint: dict[str, Any]) -> dict[str, Any]:
        """A checkpoint as it is told: the configs that name it and its parent hold the context."""
        if not self._secret_keys:
            return checkpoint
        parent = checkpoint["parent_config"]
        return {
            **checkpoint,
            "config": without_keys(checkpoint["config"], self._secret_keys),
            "parent_config": parent and without_keys(parent, self._secret_keys),
        }

    def _watch(self, mode: str, payload: Any, data: bytes | None) -> None:
        if mode not in ("values", "updates"):
            return
        if isinstance(payload, dict) and INTERRUPT in payload:
            self.is_interrupted = True
        elif mode == "values":
            self._values, self._values_data = payload, data


def identify(mode: str, payload: Any) -> None:
    """Gives what a tool returned its id, before anybody hears of it.

    Left to LangGraph it gets one in the state only; so clients find there what they were told of.
    """
    output = None
    if mode == "tools":
        output = payload.get("output")
    elif mode == "events" and payload["event"] == "on_tool_end":
        output = payload["data"].get("output")
    if isinstance(output, ToolMessage) and output.id is None:
        output.id = str(uuid4())


class _Messages:
    """Messages for the two kinds of readers: as they come, or grown from their chunks."""

    def __init__(self, as_tuples: bool) -> None:
        """as_tuples: also when both kinds were asked for."""
        self._as_tuples = as_tuples
        self._grown: dict[str | None, BaseMessageChunk] = {}
        self._introduced: set[str | None] = set()

    def shape(
        self, namespace: tuple[str, ...], message: BaseMessage, metadata: dict[str, Any]
    ) -> Iterator[tuple[str, bytes]]:
        if self._as_tuples:
            yield "|".join(("messages", *namespace)), dumps((message, metadata))
            return
        if message.id not in self._introduced:
            self._introduced.add(message.id)
            yield "messages/metadata", dumps({message.id: {"metadata": metadata}})
        if not isinstance(message, BaseMessageChunk):
            yield "messages/complete", dumps([message])
            return
        before = self._grown.get(message.id)
        grown = message if before is None else before + message
        self._grown[message.id] = grown
        yield "messages/partial", dumps([message_chunk_to_message(grown)])


def _with_places(payload: dict[str, Any]) -> dict[str, Any]:
    """A debug checkpoint with the places where states are: its own, its parent's, subgraphs'."""
    return {
        **payload,
        "tasks": [_with_subgraph_place(task) for task in payload["tasks"]],
        "checkpoint": place(payload["config"]),
        "parent_checkpoint": place(payload["parent_config"]),
    }


def _with_subgraph_place(task: dict[str, Any]) -> dict[str, Any]:
    state = task.get("state")
    if not isinstance(state, dict):
        return task
    rest = {key: value for key, value in task.items() if key != "state"}
    return {**rest, "checkpoint": state["configurable"]}

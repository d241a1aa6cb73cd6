"""A graph whose state holds whatever Python has; what of it reaches clients is JSON."""

import collections
import dataclasses
import datetime
import decimal
import enum
import ipaddress
import pathlib
import re
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    HumanMessageChunk,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.config import get_store, get_stream_writer
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from pydantic import BaseModel, Field
from typing_extensions import TypedDict


class Colour(enum.Enum):
    RED = "red"


class Point(BaseModel):
    at: datetime.datetime
    price: decimal.Decimal = Field(alias="cost")
    model_config = {"populate_by_name": True}


@dataclasses.dataclass
class Pair:
    left: Any
    right: Any


Named = collections.namedtuple("Named", "x y")

MOMENT = datetime.datetime(2026, 1, 2, 3, 4, 5, 600, tzinfo=datetime.timezone.utc)  # noqa: UP017
TEN_DEEP: Any = "bottom"
for _ in range(600):
    TEN_DEEP = [TEN_DEEP]

KINDS: dict[str, Callable[[], Any]] = {
    "human": lambda: HumanMessage("hi", id="1", name="ann"),
    "ai": lambda: AIMessage(
        "",
        id="2",
        tool_calls=[{"name": "add", "args": {"a": 1}, "id": "c", "type": "tool_call"}],
        usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
    ),
    "blocks": lambda: HumanMessage([{"type": "text", "text": "a"}, {"type": "image", "url": "u"}]),
    "system": lambda: SystemMessage("be brief"),
    "tool": lambda: ToolMessage("3", tool_call_id="c", artifact=Pair(1, {2})),
    "function": lambda: FunctionMessage("f", name="f"),
    "chat": lambda: ChatMessage("c", role="critic"),
    "remove": lambda: RemoveMessage(id="9"),
    "ai_chunk": lambda: AIMessageChunk("part", id="3"),
    "human_chunk": lambda: HumanMessageChunk("part"),
    "document": lambda: Document("text", metadata={"page": 1}),
    "model": lambda: Point(at=MOMENT, cost=decimal.Decimal("1.50")),
    "dataclass": lambda: Pair(1, Pair("a", None)),
    "named": lambda: Named(1, 2),
    "enum": lambda: Colour.RED,
    "decimal": lambda: decimal.Decimal("12345678901234567890.5"),
    "datetime": lambda: MOMENT,
    "date": lambda: datetime.date(2026, 1, 2),
    "time": lambda: datetime.time(1, 2, 3),
    "timedelta": lambda: datetime.timedelta(minutes=1),
    "set": lambda: {"one"},
    "frozenset": lambda: frozenset({"one"}),
    "tuple": lambda: (1, "a"),
    "deque": lambda: collections.deque([1, 2]),
    "bytes": lambda: b"\x00\xff",
    "array": lambda: np.arange(6, dtype=np.int32).reshape(2, 3),
    "strided": lambda: np.arange(6)[::2],
    "words": lambda: np.array(["a", "b"]),
    "objects": lambda: np.array([{"a": 1}, None], dtype=object),
    "np_int": lambda: np.int64(5),
    "np_float": lambda: np.float32(0.5),
    "np_bool": lambda: np.bool_(True),
    "nan": lambda: float("nan"),
    "infinity": lambda: float("inf"),
    "nans": lambda: {"list": [float("nan"), 1.0], "np": np.array([np.nan, 2.0])},
    "huge": lambda: 2**70,
    "huges": lambda: [2**70, -(2**70)],
    "uuid": lambda: uuid.UUID(int=5),
    "path": lambda: pathlib.PurePosixPath("/a/b"),
    "address": lambda: ipaddress.ip_address("::1"),
    "pattern": lambda: re.compile("a+"),
    "keys": lambda: {1: "int", None: "none", MOMENT: "time"},
    "nul": lambda: "a\0b",
    "nuls": lambda: {"k\0": ["a\0", "\\u0000"]},
    "surrogate": lambda: "a\ud800",
    "emoji": lambda: "😀",
    "deep": lambda: TEN_DEEP,
    "empty": lambda: {"none": None, "text": "", "list": [], "dict": {}},
}

State = TypedDict(
    "State",
    {"names": list[str], "ask": bool, "keep": bool, **dict.fromkeys(KINDS, Any)},
    total=False,
)  # type: ignore[misc]  # made from the table


def make(state: State) -> State:
    values = {name: KINDS[name]() for name in state["names"]}
    get_stream_writer()(values)
    if state.get("keep"):
        for name, value in values.items():
            get_store().put(("kinds",), name, {"value": value})
    return values  # type: ignore[return-value]


def ask(state: State) -> State:
    if state.get("ask"):
        interrupt({name: KINDS[name]() for name in state["names"]})
    return {}


graph = (
    StateGraph(State)
    .add_node("make", make)
    .add_node("ask", ask)
    .add_edge(START, "make")
    .add_edge("make", "ask")
    .compile()
)

"""What states may hold comes back from a checkpoint, read by us or by LangGraph."""

import collections
import dataclasses
import pathlib
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Interrupt, Send
from pydantic import BaseModel

from actors.child.state_serde import StateSerializer

STOCK = JsonPlusSerializer()
OURS = StateSerializer()


@dataclasses.dataclass
class Pair:
    left: Any
    right: Any


class Model(BaseModel):
    number: Any


Named = collections.namedtuple("Named", "x")


def back(value: Any) -> Any:
    packed = OURS.dumps_typed(value)
    ours, theirs = OURS.loads_typed(packed), STOCK.loads_typed(packed)
    assert type(ours) is type(theirs)
    return ours


@pytest.mark.parametrize(
    "value",
    [
        np.int64(5),
        np.uint8(5),
        np.float32(0.5),
        np.bool_(True),
        np.complex64(1 + 2j),
        np.datetime64("2026-01-02"),
        pathlib.PurePosixPath("/a/b"),
        1 + 2j,
        {"a": [np.int64(1), {"b": np.float32(2)}], 3: "c"},
        {np.int64(1)},
        [2**70, -(2**70), {"a": 10**5000}, 2**63],
        collections.deque([np.int64(1)]),
        Pair(np.int8(1), Pair({np.int16(2)}, None)),
        Model(number=np.int64(1)),
        Named(np.int64(1)),
        Send("node", {"n": np.int64(1)}),
        Interrupt({"n": np.int64(1)}, id="i"),
        AIMessage("", additional_kwargs={"score": np.float32(0.5)}),
        [Decimal("1.5"), np.int64(1), b"x", None],
    ],
    ids=lambda value: repr(value)[:40] if not isinstance(value, list) else "list",
)
def test_values_that_langgraph_refuses(value: Any) -> None:
    with pytest.raises(TypeError):
        STOCK.dumps_typed(value)
    found = back(value)
    assert type(found) is type(value)
    assert found == value if isinstance(value, list) else repr(found) == repr(value)


def test_arrays_of_objects_become_lists_instead_of_nothing() -> None:
    objects = np.array([{"a": 1}, None, np.int64(2)], dtype=object)
    assert STOCK.loads_typed(STOCK.dumps_typed(objects)) is None
    assert back(objects) == [{"a": 1}, None, 2]
    assert back({"deep": Pair(objects, 0)}) == {"deep": Pair([{"a": 1}, None, 2], 0)}
    records = np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f4")])
    assert back(records) == [[1, 2.0]]
    assert [str(day) for day in back(np.array(["2026-01-02"], dtype="M8[D]"))] == ["2026-01-02"]


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"x",
        {"a": [1, 2.5, "x", None]},
        "a text with |V in it, and |O",
        AIMessage("hi", id="1"),
        Pair(1, 2),
    ],
    ids=repr,
)
def test_other_values_are_packed_as_ever(value: Any) -> None:
    assert OURS.dumps_typed(value) == STOCK.dumps_typed(value)
    assert back(value) == value


def test_keys_are_plain() -> None:
    assert back({np.int64(1): np.int64(2)}) == {1: 2}
    with pytest.raises(TypeError):
        OURS.dumps_typed({2**70: 1})


def test_arrays_of_numbers_stay_arrays() -> None:
    found = back({"a": np.arange(6).reshape(2, 3), "b": np.int64(1)})
    assert isinstance(found["a"], np.ndarray)
    assert found["a"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_what_nobody_can_pack_fails_with_a_reason() -> None:
    with pytest.raises(TypeError, match="not msgpack serializable"):
        OURS.dumps_typed({"lock": object()})
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(TypeError, match="Recursion"):
        OURS.dumps_typed(deep)

"""Everything a graph may hold has a form, and what cannot be said in JSON costs nothing else."""

import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import ipaddress
import json
import pathlib
import re
import types
import uuid
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AIMessageChunk, RemoveMessage, ToolMessage
from langgraph.types import Command, Interrupt, PregelTask, Send, StateSnapshot
from pydantic import BaseModel, ValidationError
from pydantic.v1 import BaseModel as BaseModelV1

from actors.child import masking
from actors.child.masking import masked
from actors.child.serialize import MAX_DEPTH, dumps
from actors.child.user import User


class Colour(enum.Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: int


class Model(BaseModel):
    at: datetime.datetime
    size: decimal.Decimal


class OldModel(BaseModelV1):
    a: int


class OwnDump(BaseModel):
    a: int

    def model_dump(self) -> dict[str, Any]:  # type: ignore[override]  # users write such
        return {"own": self.a}


class Broken(BaseModel):
    def model_dump(self, **_: Any) -> dict[str, Any]:
        raise ValueError("no")

    def __repr__(self) -> str:
        raise ValueError("no either")


@dataclasses.dataclass
class Pair:
    left: Any
    right: Any


NOON = datetime.datetime(2024, 1, 2, 12, 0, 0, 5, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (
            Model(at=NOON, size=decimal.Decimal("1.5")),
            {"at": "2024-01-02T12:00:00.000005+00:00", "size": 1.5},
        ),
        (OldModel(a=1), {"a": 1}),
        (OwnDump(a=1), {"own": 1}),
        (Broken(), "<Broken>"),
        (Pair(1, {2}), {"left": 1, "right": [2]}),
        (Point(1, 2), {"x": 1, "y": 2}),
        (Colour.RED, "red"),
        ({Colour.RED: 1, 2: 3, None: 4, (5, 6): 7}, {"red": 1, "2": 3, "null": 4, "(5, 6)": 7}),
        (NOON.date(), "2024-01-02"),
        (NOON.time(), "12:00:00.000005"),
        (datetime.timedelta(minutes=1, milliseconds=500), 60.5),
        (frozenset({1}), [1]),
        (collections.deque([1, 2]), [1, 2]),
        (range(3), [0, 1, 2]),
        ({"a": 1}.keys(), ["a"]),
        (collections.ChainMap({"a": 1}), {"a": 1}),
        (types.MappingProxyType({"a": 1}), {"a": 1}),
        (types.SimpleNamespace(a=1), {"a": 1}),
        (collections.UserString("text"), "text"),
        (b"\xff\x00", "/wA="),
        (memoryview(b"ab"), "YWI="),
        (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (pathlib.PurePosixPath("/a"), "/a"),
        (ipaddress.ip_address("::1"), "::1"),
        (ipaddress.ip_network("10.0.0.0/8"), "10.0.0.0/8"),
        (re.compile("a+"), "a+"),
        (1 + 2j, "(1+2j)"),
        (datetime.UTC, "UTC"),
        (Colour, "test_serialize.Colour"),
        (len, "<built-in function len>"),
        (range(10**12), "range(0, 1000000000000)"),
        (2**64, 2**64),
        ([-(2**70), {"deep": [2**80]}], [-(2**70), {"deep": [2**80]}]),
        (Pair(2**70, Colour.RED), {"left": 2**70, "right": "red"}),
        ("a\0b", "a\0b"),
        ("a\ud800b", "a\ufffdb"),
        ("\ud83d\ude00", "\U0001f600"),
        ({"\ud800": "\ud800"}, {"\ufffd": "\ufffd"}),
        (float("nan"), None),
        (decimal.Decimal("NaN"), None),
        (
            User({"identity": "me", "token": "secret"}),
            {
                "identity": "me",
                "is_authenticated": True,
                "display_name": "me",
                "permissions": [],
            },
        ),
        (ValueError("text"), {"error": "ValueError", "message": "text"}),
        (OSError("secret"), {"error": "OSError", "message": masking.HIDDEN}),
        (Interrupt("why?", id="i"), {"value": "why?", "id": "i", "response_schema": None}),
        (Send("node", {"a": 1}), {"node": "node", "args": {"a": 1}}),
        (
            Command(update={"a": 1}, goto="b"),
            {"graph": None, "update": {"a": 1}, "resume": None, "goto": "b"},
        ),
        (
            PregelTask("id", "name", ("path", 1), None, (), None, None),
            {"id": "id", "name": "name", "path": ["path", 1], "error": None}
            | {"interrupts": [], "state": None, "result": None},
        ),
    ],
    ids=lambda value: None,
)
def test_a_value_has_this_form(value: Any, form: Any) -> None:
    found = json.loads(dumps(value))
    if isinstance(value, type):
        assert found.endswith(".Colour")
    else:
        assert found == form


def test_a_snapshot_has_its_fields() -> None:
    snapshot = StateSnapshot({"a": {1}}, ("b",), {"configurable": {}}, None, None, None, (), ())
    assert json.loads(dumps(snapshot))["values"] == {"a": [1]}


@pytest.mark.parametrize(
    ("message", "type_"),
    [
        (AIMessage("a", id="1", tool_calls=[{"name": "t", "args": {"x": 1}, "id": "c"}]), "ai"),
        (AIMessageChunk("a", id="1"), "AIMessageChunk"),
        (ToolMessage("r", tool_call_id="c"), "tool"),
        (RemoveMessage(id="1"), "remove"),
    ],
)
def test_messages_are_what_model_dump_says(message: Any, type_: str) -> None:
    found = json.loads(dumps({"messages": [message]}))["messages"][0]
    assert found == json.loads(json.dumps(message.model_dump()))
    assert found["type"] == type_


@pytest.mark.parametrize(
    "text", ["0.1234567890123456789", "1E+30", "-0", "10", "1.50", "1234567890123456789012345"]
)
def test_a_decimal_keeps_every_digit(text: str) -> None:
    for value in (decimal.Decimal(text), [decimal.Decimal(text), 2**70]):
        found = json.loads(dumps(value), parse_float=decimal.Decimal, parse_int=decimal.Decimal)
        assert (found[0] if isinstance(value, list) else found) == decimal.Decimal(text)


def test_a_value_inside_itself_is_said_so() -> None:
    inside: list[Any] = [1]
    inside.append(inside)
    held: dict[str, Any] = {"left": collections.UserList()}
    held["left"] += [held["left"], held["left"]]
    assert json.loads(dumps(inside)) == [1, "[circular]"]
    assert json.loads(dumps(held)) == {"left": ["[circular]", "[circular]"]}


def test_twice_the_same_value_is_not_circular() -> None:
    twice = [2**70]
    assert json.loads(dumps([twice, twice])) == [[2**70], [2**70]]


@pytest.mark.parametrize("depth", [200, 300, MAX_DEPTH, 100_000])
def test_depth_is_no_danger(depth: int) -> None:
    deep = functools.reduce(lambda inner, _: [inner], range(depth), 1)
    found = json.loads(dumps(deep))
    for _ in range(min(depth, MAX_DEPTH)):
        (found,) = found
    assert found == (1 if depth <= MAX_DEPTH else "<list of 1, nested too deeply>")


def test_a_number_that_python_will_not_write_is_still_there() -> None:
    assert json.loads(dumps({"n": 10**5000})) == {"n": hex(10**5000)}


def test_a_broken_part_costs_no_other_part() -> None:
    class Odd:
        def __repr__(self) -> str:
            return "x" * 100_000

    found = json.loads(dumps({"fine": 1, "odd": Odd(), "broken": Broken(), "big": 2**70}))
    assert (found["fine"], found["broken"], found["big"]) == (1, "<Broken>", 2**70)
    assert len(found["odd"]) < 20_000


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(exclude_categories=[]))
        | st.decimals()
        | st.datetimes()
        | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    )
)
def test_anything_is_json_on_one_line(value: Any) -> None:
    text = dumps(value)
    assert b"\n" not in text
    json.loads(text)


def test_both_ways_say_the_same() -> None:
    value = {"p": Point(1, 2), "m": AIMessage("a"), "d": Pair(NOON, b"x"), "e": {Colour.RED: (1,)}}
    long_way = json.loads(dumps({**value, "big": 2**70}))
    assert long_way == {**json.loads(dumps(value)), "big": 2**70}


class TestNumpy:
    """Arrays and scalars, in both ways of writing."""

    @pytest.mark.parametrize("huge", [1, 2**70])
    def test_all_kinds(self, huge: int) -> None:
        import numpy as np

        values = {
            "plain": (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
            "strided": (np.arange(6).reshape(2, 3).T, [[0, 3], [1, 4], [2, 5]]),
            "text": (np.array(["a", "b"]), ["a", "b"]),
            "structured": (np.array([(1, "a")], dtype=[("x", "i4"), ("y", "U1")]), [[1, "a"]]),
            "object": (np.array([1, "a", None], dtype=object), [1, "a", None]),
            "complex": (np.array([1 + 2j]), ["(1+2j)"]),
            "int": (np.int64(3), 3),
            "float": (np.float32(1.5), 1.5),
            "bool": (np.bool_(True), True),
            "date": (np.datetime64("2020-01-02"), "2020-01-02T00:00:00"),
        }
        found = json.loads(dumps([{name: value for name, (value, _) in values.items()}, huge]))
        assert found == [{name: form for name, (_, form) in values.items()}, huge]


class TestMasking:
    """Which texts of exceptions reach clients."""

    @pytest.mark.parametrize(
        "kind", [ValueError, TypeError, AttributeError, RuntimeError, TimeoutError, RecursionError]
    )
    def test_open_classes(self, kind: type[Exception]) -> None:
        assert masked(kind("text")) == {"error": kind.__name__, "message": "text"}
        own = type("Own", (kind,), {})
        assert masked(own("text")) == {"error": "Own", "message": "text"}

    @pytest.mark.parametrize("kind", [Exception, OSError, AssertionError, ConnectionError])
    def test_hidden_classes(self, kind: type[Exception]) -> None:
        assert masked(kind("secret")) == {"error": kind.__name__, "message": masking.HIDDEN}

    def test_langgraphs_own_and_pydantics(self) -> None:
        from langgraph.errors import EmptyInputError, InvalidUpdateError

        for error in (EmptyInputError("text"), InvalidUpdateError("text")):
            assert masked(error)["message"] == "text"
        with pytest.raises(ValidationError) as caught:
            Model(at="never", size=1)
        assert "never" in masked(caught.value)["message"]

    def test_a_key_keeps_its_quotes(self) -> None:
        assert masked(KeyError("missing-thing"))["message"] == "'missing-thing'"

    def test_groups_show_their_first_member(self) -> None:
        inner = ExceptionGroup("inner", [ValueError("first"), OSError("second")])
        outer = BaseExceptionGroup("outer", [inner, KeyboardInterrupt()])
        assert masked(outer) == {"error": "ValueError", "message": "first"}

    def test_a_text_that_cannot_be_had(self) -> None:
        class Mute(ValueError):
            def __str__(self) -> str:
                raise RuntimeError("no text")

        assert masked(Mute()) == {"error": "Mute", "message": masking.HIDDEN}

    def test_a_huge_text_is_cut_and_nul_replaced(self) -> None:
        message = masked(ValueError("\0" + "x" * 50_000_000))["message"]
        assert message.startswith("\ufffdxxx")
        assert message.endswith("… (49983617 more characters)")

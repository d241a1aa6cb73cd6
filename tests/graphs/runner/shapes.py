"""Small graphs, one a feature: what the runner's and the inspector's tests run."""

import operator
import os
import time
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.channels import EphemeralValue
from langgraph.config import get_stream_writer
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from langgraph.runtime import Runtime
from langgraph.types import Command, Send, interrupt
from pydantic import AliasChoices, AliasPath, BaseModel, Field


class Trail(TypedDict, total=False):
    """State of most graphs here: who has been there, in order."""

    trail: Annotated[list[str], operator.add]
    note: str


def _leave(name: str) -> Any:
    def node(state: Trail) -> Trail:
        return {"trail": [name]}

    return node


def _line(*names: str, before: list[str] | None = None) -> Any:
    """A graph whose nodes run one after the other and leave their names."""
    builder = StateGraph(Trail)
    for name in names:
        builder.add_node(name, _leave(name))
    for source, target in zip((START, *names), (*names, END), strict=True):
        builder.add_edge(source, target)
    return builder


steps = _line("a", "b", "c").compile()
breakpoint_inside = _line("a", "b", "c").compile(interrupt_before=["b"])


def _ask(state: Trail) -> Trail:
    answer = interrupt({"question": "go on?"})
    return {"trail": [f"answer:{answer}"]}


def _ask_twice(state: Trail) -> Trail:
    first = interrupt("first?")
    second = interrupt("second?")
    return {"trail": [f"{first}+{second}"]}


_asking = StateGraph(Trail)
_asking.add_node("prepare", _leave("prepare"))
_asking.add_node("ask", _ask)
_asking.add_node("finish", _leave("finish"))
_asking.add_edge(START, "prepare")
_asking.add_edge("prepare", "ask")
_asking.add_edge("ask", "finish")
ask = _asking.compile()

_asking_both = StateGraph(Trail)
_asking_both.add_node("left", _ask)
_asking_both.add_node("right", _ask)
_asking_both.add_edge(START, "left")
_asking_both.add_edge(START, "right")
ask_both = _asking_both.compile()

_asking_twice = StateGraph(Trail)
_asking_twice.add_node("ask", _ask_twice)
_asking_twice.add_edge(START, "ask")
ask_twice = _asking_twice.compile()


class _Unmapped(Exception):
    """A user's own exception class: clients never see its text."""


def _fail(state: Trail) -> Trail:
    match state.get("note"):
        case "value":
            raise ValueError("not that one")
        case "key":
            return {"note": {}["missing-thing"]}
        case "own":
            raise _Unmapped("secret text")
        case "group":
            raise ExceptionGroup("several", [RuntimeError("the first"), ValueError("the second")])
        case "assert":
            raise AssertionError("assertion text")
        case _:
            return {"trail": ["survived"]}


_failing = StateGraph(Trail)
_failing.add_node("a", _leave("a"))
_failing.add_node("fail", _fail)
_failing.add_edge(START, "a")
_failing.add_edge("a", "fail")
fails = _failing.compile()


# Chat: tokens, whole messages and tool results


class Chat(TypedDict):
    """A conversation."""

    messages: Annotated[list[AnyMessage], add_messages]


def _model() -> GenericFakeChatModel:
    return GenericFakeChatModel(messages=iter([AIMessage("one two three")]))


async def _speak(state: Chat) -> Chat:
    return {"messages": [await _model().ainvoke(state["messages"])]}


def _answer_whole(state: Chat) -> Chat:
    return {
        "messages": [
            AIMessage(
                "whole",
                id="whole-1",
                tool_calls=[{"name": "look", "args": {"at": "sky"}, "id": "call-1"}],
            )
        ]
    }


def _use_tool(state: Chat) -> Chat:
    return {"messages": [ToolMessage("blue", tool_call_id="call-1", id="tool-1", name="look")]}


_chatting = StateGraph(Chat)
_chatting.add_node("speak", _speak)
_chatting.add_node("whole", _answer_whole)
_chatting.add_node("tool", _use_tool)
_chatting.add_edge(START, "speak")
_chatting.add_edge("speak", "whole")
_chatting.add_edge("whole", "tool")
chat = _chatting.compile()

_speaking = StateGraph(Chat)
_speaking.add_node("speak", _speak)
_speaking.add_edge(START, "speak")
_chat_parent = StateGraph(Chat)
_chat_parent.add_node("inner", _speaking.compile())
_chat_parent.add_edge(START, "inner")
chat_inside = _chat_parent.compile()


# Graphs in graphs

_grandchild = StateGraph(Trail)
_grandchild.add_node("leaf", _leave("leaf"))
_grandchild.add_node("leaf_ask", _ask)
_grandchild.add_edge(START, "leaf")
_grandchild.add_edge("leaf", "leaf_ask")
_child = StateGraph(Trail)
_child.add_node("twig", _leave("twig"))
_child.add_node("grandchild", _grandchild.compile())
_child.add_edge(START, "twig")
_child.add_edge("twig", "grandchild")
_parent = StateGraph(Trail)
_parent.add_node("root", _leave("root"))
_parent.add_node("child", _child.compile())
_parent.add_edge(START, "root")
_parent.add_edge("root", "child")
nested = _parent.compile()


# What a graph is given


@dataclass
class Settings:
    """A context schema that takes only what it knows."""

    model: str = "default"
    depth: int = 1


class Given(TypedDict, total=False):
    """What a node found in its configuration."""

    seen: dict[str, Any]


def _report(state: Given, config: RunnableConfig, runtime: Runtime[Any]) -> Given:
    context = runtime.context
    if isinstance(context, Settings):
        context = {"model": context.model, "depth": context.depth}
    return {
        "seen": {
            "configurable": {
                key: value
                for key, value in config["configurable"].items()
                if not key.startswith("__pregel")
            },
            "metadata": dict(config["metadata"]),
            "tags": list(config.get("tags", [])),
            "recursion_limit": config.get("recursion_limit"),
            "context": context,
        }
    }


_reporting = StateGraph(Given, context_schema=Settings)
_reporting.add_node("report", _report)
_reporting.add_edge(START, "report")
given = _reporting.compile()

_reporting_plain = StateGraph(Given)
_reporting_plain.add_node("report", _report)
_reporting_plain.add_edge(START, "report")
given_plain = _reporting_plain.compile()


# Custom events, sends, schemas, functions


async def _tick(state: Trail) -> Trail:
    write = get_stream_writer()
    for number in range(3):
        write({"tick": number})
    write("text")
    return {"trail": ["ticked"]}


_ticking = StateGraph(Trail)
_ticking.add_node("tick", _tick)
_ticking.add_edge(START, "tick")
ticks = _ticking.compile()


def _each(state: Any) -> Trail:
    return {"trail": [f"each:{state['note']}"]}


def _route(state: Trail) -> list[Send]:
    return [Send("each", {"note": "x"}), Send("each", {"note": "y"})]


_sending = StateGraph(Trail)
_sending.add_node("a", _leave("a"))
_sending.add_node("each", _each)
_sending.add_edge(START, "a")
_sending.add_conditional_edges("a", _route, ["each"])
sends = _sending.compile()

_choosing = StateGraph(Trail)
_choosing.add_node("each", _each)
_choosing.add_conditional_edges(START, _route, ["each"])
chooses = _choosing.compile()


class Narrow(TypedDict):
    """The part of the state that counts as output."""

    note: str


def _note(state: Trail) -> Trail:
    return {"note": "done", "trail": ["noted"]}


_narrowing = StateGraph(Trail, output_schema=Narrow)
_narrowing.add_node("note", _note)
_narrowing.add_edge(START, "note")
narrow = _narrowing.compile()


def _silent(state: Trail) -> None:
    return None


_silence = StateGraph(Trail)
_silence.add_node("silent", _silent)
_silence.add_edge(START, "silent")
silent = _silence.compile()


@task
def _double(number: int) -> int:
    return number * 2


@entrypoint()
async def function(number: int) -> int:
    """A graph written as a function."""
    return await _double(number)


# Graphs that die under the run


def _marks(name: str) -> Any:
    """A node that appends its name to the file ``note`` and so proves each of its executions."""

    def node(state: Trail) -> Trail:
        with open(state["note"], "a") as file:
            file.write(f"{name}\n")
        return {"trail": [name]}

    return node


def _hang(state: Trail) -> Trail:
    """Waits for ever, unless the file ``note``.go exists."""
    with open(state["note"], "a") as file:
        file.write("hang\n")
    while not os.path.exists(state["note"] + ".go"):
        time.sleep(0.01)
    return {"trail": ["hang"]}


async def _wait(state: Trail) -> Trail:
    """Waits for ever in the event loop, unless the file ``note``.go exists."""
    import asyncio

    with open(state["note"], "a") as file:
        file.write("wait\n")
    while not os.path.exists(state["note"] + ".go"):
        await asyncio.sleep(0.01)
    return {"trail": ["wait"]}


_waiting = StateGraph(Trail)
_waiting.add_node("a", _marks("a"))
_waiting.add_node("wait", _wait)
_waiting.add_node("b", _marks("b"))
_waiting.add_edge(START, "a")
_waiting.add_edge("a", "wait")
_waiting.add_edge("wait", "b")
waits = _waiting.compile()


async def _choose_slowly(state: Trail) -> str:
    await _wait(state)
    return "b"


_choosing_slowly = StateGraph(Trail)
_choosing_slowly.add_node("a", _marks("a"))
_choosing_slowly.add_node("b", _marks("b"))
_choosing_slowly.add_edge(START, "a")
_choosing_slowly.add_conditional_edges("a", _choose_slowly, ["b"])
chooses_slowly = _choosing_slowly.compile()


def _ask_then(state: Trail) -> Command[Any]:
    """Asks, waits, and asks again: answers must not wander to later questions."""
    return Command(update={"trail": [f"one:{interrupt('one?')}"]}, goto="wait")


_long_inner = StateGraph(Trail)
_long_inner.add_node("one", _ask_then)
_long_inner.add_node("wait", _wait)
_long_inner.add_node("two", lambda state: {"trail": [f"two:{interrupt('two?')}"]})
_long_inner.add_edge(START, "one")
_long_inner.add_edge("wait", "two")
_long_outer = StateGraph(Trail)
_long_outer.add_node("inner", _long_inner.compile())
_long_outer.add_edge(START, "inner")
asks_inside = _long_outer.compile()
asks_in_turn = _long_inner.compile()


def _ask_and_hang(state: Trail) -> Trail:
    answer = interrupt("once?")
    _hang(state)
    return {"trail": [answer]}


_asking_then_waiting = StateGraph(Trail)
_asking_then_waiting.add_node("ask", _ask_and_hang)
_asking_then_waiting.add_edge(START, "ask")
asks_then_waits = _asking_then_waiting.compile()


class Opaque:
    """A type that no schema can describe."""


class Unspeakable(TypedDict, total=False):
    """A state of which one part has no schema."""

    fine: str
    opaque: Opaque


_speechless = StateGraph(Unspeakable)
_speechless.add_node("silent", _silent)
_speechless.add_edge(START, "silent")
unspeakable = _speechless.compile()


def _refuse(old: list[str], new: list[str]) -> list[str]:
    raise _Unmapped("secret text")


class Picky(TypedDict, total=False):
    """A state that takes nothing."""

    trail: Annotated[list[str], _refuse]


_refusing = StateGraph(Picky)
_refusing.add_node("a", lambda state: None)
_refusing.add_edge(START, "a")
picky = _refusing.compile()


class Passing(TypedDict, total=False):
    """A state with a part that lives for one step."""

    kept: str
    passing: Annotated[str, EphemeralValue]


_passing = StateGraph(Passing)
_passing.add_node("write", lambda state: {"kept": "k", "passing": "p"})
_passing.add_node("silent", lambda state: None)
_passing.add_edge(START, "write")
_passing.add_edge("write", "silent")
passing = _passing.compile()


@tool
def look(at: str) -> str:
    """Looks at something."""
    return f"saw {at}"


async def _look(state: Trail) -> Trail:
    return {"trail": [await look.ainvoke({"at": "sky"})]}


_looking = StateGraph(Trail)
_looking.add_node("look", _look)
_looking.add_edge(START, "look")
looks = _looking.compile()


_tooling = StateGraph(Chat)
_tooling.add_node("use", ToolNode([look]))
_tooling.add_edge(START, "use")
uses_tools = _tooling.compile()


class Counted(BaseModel):
    """A state that judges its values itself."""

    number: int


_counting = StateGraph(Counted)
_counting.add_node("count", lambda state: {"number": state.number + 1})
_counting.add_node("again", lambda state: {"number": state.number + 1})
_counting.add_edge(START, "count")
_counting.add_edge("count", "again")
counts = _counting.compile()


class Place(BaseModel):
    """A context schema that judges its values itself."""

    model: str = "default"


class StrictPlace(Place, extra="forbid"):
    """One that takes nothing else."""


class OpenPlace(Place, extra="allow"):
    """One that takes anything."""


class AliasedPlace(BaseModel):
    """One whose values are sent by other names than its own."""

    model: str = Field(alias="Model")
    depth: int = Field(default=1, validation_alias=AliasChoices("deep", AliasPath("sizes", 0)))


class KeyedPlace(TypedDict, total=False):
    """One that is a plain mapping."""

    model: str


def _placing(schema: type[Any]) -> StateGraph[Given, Any]:
    def place(state: Given, config: RunnableConfig, runtime: Runtime[Any]) -> Given:
        found = runtime.context
        return {
            "seen": {
                "context": found.model_dump() if isinstance(found, BaseModel) else found,
                "unknown": config["configurable"].get("unknown"),
            }
        }

    placing = StateGraph(Given, context_schema=schema)
    placing.add_node("place", place)
    placing.add_edge(START, "place")
    return placing


given_model = _placing(Place).compile()
given_strict = _placing(StrictPlace).compile()
given_open = _placing(OpenPlace).compile()
given_aliased = _placing(AliasedPlace).compile()
given_keyed = _placing(KeyedPlace).compile()

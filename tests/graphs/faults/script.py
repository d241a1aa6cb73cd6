"""One scriptable graph for every fault: the input says, step by step, what its nodes do.

Input ``{"script": [[verb, argument], …]}``: each pair is one superstep. ``{"log": path}`` names a
file to which every step appends one JSON line ``{run, node, attempt, pid, at}`` before it acts, so
that a test sees which side effects happened, in which attempt and in which process.
"""

import asyncio
import json
import operator
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt


class State(TypedDict, total=False):
    script: list[list[Any]]
    log: str
    at: int
    done: Annotated[list[str], operator.add]
    blob: str


class Unpicklable(Exception):
    """Holds what cannot be pickled, as exceptions of clients hold their connections."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock = threading.Lock()


class Unspeakable(Exception):
    """Fails when it is to be told."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


STRANGE: dict[str, Callable[[], BaseException]] = {
    "unpicklable": lambda: Unpicklable("cannot be pickled"),
    "unspeakable": Unspeakable,
    "NUL": lambda: ValueError("a\0b"),
    "surrogate": lambda: ValueError("a\ud800b"),
    "huge": lambda: ValueError("x" * 50_000_000),
    "group": lambda: ExceptionGroup("two", [ValueError("one"), Unpicklable("other")]),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "StopIteration": StopIteration,
}


def _log(state: State, config: RunnableConfig, step: str) -> None:
    if not (path := state.get("log")):
        return
    configurable = config["configurable"]
    line = {
        "run": configurable.get("run_id"),
        "node": step,
        "attempt": config["metadata"].get("run_attempt"),
        "pid": os.getpid(),
        "at": time.time(),
    }
    with Path(path).open("a") as log:
        log.write(json.dumps(line) + "\n")


def _spin(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def _hold_gil(letters: int) -> None:
    """A catastrophic regex: one C call that keeps the GIL, twice as long for each letter more."""
    re.match(r"(a+)+$", "a" * letters + "b")


def _call(called: "asyncio.Future[None]", seconds: float) -> None:
    """As a callback of the loop, which is no step of anybody's."""
    time.sleep(seconds)
    called.set_result(None)


def _sync(verb: str, argument: Any) -> None:
    match verb:
        case "block":
            time.sleep(argument)
        case "hold":
            while not Path(argument).exists():
                time.sleep(0.01)
        case "spin":
            _spin(argument)
        case "gil":
            _hold_gil(argument)
        case "raise":
            raise RuntimeError(argument)
        case "exit":
            sys.exit(argument)
        case "_exit":
            os._exit(argument)
        case "kill":
            os.kill(os.getpid(), getattr(signal, argument))
        case "strange":
            raise STRANGE[argument]()
        case "fork":
            # A grandchild that holds all that it inherited, the pipe to the worker too.
            if os.fork() == 0:
                time.sleep(argument)
                os._exit(0)
        case "daemon":
            threading.Thread(target=time.sleep, args=(argument,), daemon=True).start()
        case "thread":
            threading.Thread(target=time.sleep, args=(argument,)).start()
        case "print":
            print(argument, flush=True)
            sys.stderr.write(f"{argument}\n")
            os.write(1, b"\0\xff" * 100)
        case "chatter":
            for n in range(argument):
                print("line", n)
        case "flood":
            write = get_stream_writer()
            for n in range(argument):
                write({"tick": n})
        case _:
            raise ValueError(f"unknown verb {verb}")


async def _async(verb: str, argument: Any, state: State) -> None:
    match verb:
        case "sleep":
            await asyncio.sleep(argument)
        case "ablock":
            time.sleep(argument)
        case "stutter":
            for _ in range(argument[0]):
                time.sleep(argument[1])
                await asyncio.sleep(0)
        case "callback":
            called = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(_call, called, argument)
            await called
        case "aspin":
            _spin(argument)
        case "agil":
            _hold_gil(argument)
        case "tick":
            write = get_stream_writer()
            for n in range(argument[0]):
                write({"tick": n})
                await asyncio.sleep(argument[1])
        case "stubborn":
            end = time.monotonic() + argument
            while time.monotonic() < end:
                try:
                    await asyncio.sleep(argument)
                except asyncio.CancelledError:
                    continue
        case "await":
            while not Path(argument).exists():
                await asyncio.sleep(0.01)
        case "once":
            # Does the inner step only if the marker file is not there yet: a fault that heals.
            marker, (inner, inner_argument) = argument
            if not Path(marker).exists():
                Path(marker).touch()
                _sync(inner, inner_argument)
        case "big":
            get_stream_writer()({"big": "x" * argument})
        case _:
            await asyncio.to_thread(_sync, verb, argument)


_ON_THE_LOOP = {
    "sleep",
    "ablock",
    "stutter",
    "callback",
    "aspin",
    "agil",
    "tick",
    "stubborn",
    "await",
    "once",
    "big",
}


async def act(state: State, config: RunnableConfig) -> State:
    at = state.get("at", 0)
    verb, argument = state["script"][at]
    _log(state, config, f"{at}:{verb}")
    if verb == "ask":
        answer = interrupt(argument)
        return {"at": at + 1, "done": [f"{at}:ask:{answer}"]}
    await _async(verb, argument, state)
    return {"at": at + 1, "done": [f"{at}:{verb}"]}


def act_in_thread(state: State, config: RunnableConfig) -> State:
    """The same as a sync node, which LangGraph runs in a thread."""
    at = state.get("at", 0)
    verb, argument = state["script"][at]
    _log(state, config, f"{at}:{verb}")
    if verb == "blob":
        return {"at": at + 1, "done": [f"{at}:blob"], "blob": "x" * argument}
    _sync(verb, argument)
    return {"at": at + 1, "done": [f"{at}:{verb}"]}


def _route(state: State) -> str:
    at = state.get("at", 0)
    if at >= len(state.get("script") or []):
        return END
    verb = state["script"][at][0]
    return "act" if verb in _ON_THE_LOOP or verb == "ask" else "act_in_thread"


def _begin(state: State) -> State:
    """A new input starts its script from the first step."""
    return {"at": 0}


def build() -> StateGraph:
    builder = StateGraph(State)
    builder.add_node("begin", _begin)
    builder.add_node("act", act)
    builder.add_node("act_in_thread", act_in_thread)
    builder.add_edge(START, "begin")
    for node in ("begin", "act", "act_in_thread"):
        builder.add_conditional_edges(node, _route, ["act", "act_in_thread", END])
    return builder


graph = build().compile()


async def _slow(state: State, config: RunnableConfig) -> State:
    _log(state, config, "slow")
    await _async(*state["script"][0], state)
    return {"done": ["slow"]}


beside = StateGraph(State)
beside.add_node("quick", lambda state: {"done": ["quick"]})
beside.add_node("slow", _slow)
for node in ("quick", "slow"):
    beside.add_edge(START, node)
    beside.add_edge(node, END)
beside = beside.compile()


class Answer(TypedDict, total=False):
    question: str
    answer: Any


def _ask(state: Answer) -> Answer:
    return {"answer": interrupt({"question": state.get("question", "sure?")})}


def _say(state: Answer) -> Answer:
    return {"question": state.get("question", "")}


ask = StateGraph(Answer).add_node("ask", _ask).add_edge(START, "ask").add_edge("ask", END).compile()
echo = (
    StateGraph(Answer).add_node("say", _say).add_edge(START, "say").add_edge("say", END).compile()
)

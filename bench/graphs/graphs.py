"""What the benchmarks run: nothing to speak of, CPU in a thread, CPU on the loop, and waiting; and
code that ends only when it is stopped."""

import asyncio
import re
import time
from typing import TypedDict

from langgraph.graph import START, StateGraph


class Count(TypedDict):
    """How many nodes have run."""

    n: int


class Seconds(TypedDict):
    """How long to go on."""

    seconds: float


async def step(state: Count) -> Count:
    """Does nothing but count."""
    return {"n": state["n"] + 1}


def spin(seconds: float) -> None:
    """Burns CPU until this thread has had ``seconds`` of it, however many share the core."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        for _ in range(1000):
            pass


def burn_in_thread(state: Seconds) -> None:
    """Plain CPU-bound code, as people write it: LangGraph runs it in a thread."""
    spin(state["seconds"])


async def burn_on_loop(state: Seconds) -> None:
    """The mistake: CPU-bound code in an async node stops the event loop it runs on."""
    spin(state["seconds"])


async def sleep(state: Seconds) -> None:
    """Waits, as for a model's answer."""
    await asyncio.sleep(state["seconds"])


class Clock(TypedDict):
    """When the last node ended, on this machine's clock."""

    seconds: float
    ended_at: float


async def pause(state: Clock) -> Clock:
    """Long enough for a client to begin to wait."""
    await asyncio.sleep(state["seconds"])
    return {**state, "ended_at": time.time()}


class Stuck(TypedDict):
    """What the last node does (see ``ENDLESS``), and whether it does it on the loop."""

    what: str
    on_loop: bool


def loop_endlessly() -> None:
    """Plain Python: an exception can stop it between two bytecodes."""
    while True:
        pass


ENDLESS = {
    "loop": loop_endlessly,
    "sleep": lambda: time.sleep(86_400),
    "regex": lambda: re.match(r"(a+)+$", "a" * 60 + "b"),  # one C call, which keeps the GIL
}


async def breathe(state: Stuck) -> None:
    """Long enough for the event of the node before to be on its way."""
    await asyncio.sleep(0.2)


async def get_stuck(state: Stuck) -> None:
    """Does not come back: on the loop, or in a thread."""
    if state["on_loop"]:
        ENDLESS[state["what"]]()
    else:
        await asyncio.to_thread(ENDLESS[state["what"]])


async def begin(state: Stuck) -> Stuck:
    """Is told to the client as soon as it has ended."""
    return state


_trivial = StateGraph(Count)
for _before, _name in ((START, "a"), ("a", "b"), ("b", "c")):
    _trivial.add_node(_name, step)
    _trivial.add_edge(_before, _name)
trivial = _trivial.compile()

burn = StateGraph(Seconds).add_node("burn", burn_in_thread).add_edge(START, "burn").compile()
stall = StateGraph(Seconds).add_node("stall", burn_on_loop).add_edge(START, "stall").compile()
clock = StateGraph(Clock).add_node("pause", pause).add_edge(START, "pause").compile()
stuck = (
    StateGraph(Stuck).add_sequence([begin, breathe, get_stuck]).add_edge(START, "begin").compile()
)
wait = StateGraph(Seconds).add_node("wait", sleep).add_edge(START, "wait").compile()

"""What the benchmarks run: nothing to speak of, CPU in a thread, CPU on the loop, and waiting."""

import asyncio
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


_trivial = StateGraph(Count)
for _before, _name in ((START, "a"), ("a", "b"), ("b", "c")):
    _trivial.add_node(_name, step)
    _trivial.add_edge(_before, _name)
trivial = _trivial.compile()

burn = StateGraph(Seconds).add_node("burn", burn_in_thread).add_edge(START, "burn").compile()
stall = StateGraph(Seconds).add_node("stall", burn_on_loop).add_edge(START, "stall").compile()
clock = StateGraph(Clock).add_node("pause", pause).add_edge(START, "pause").compile()
wait = StateGraph(Seconds).add_node("wait", sleep).add_edge(START, "wait").compile()

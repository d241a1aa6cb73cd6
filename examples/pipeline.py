"""A pipeline of slow steps, to see recovery: each step tells which process does it.

    curl -N localhost:2024/runs/stream \
      -d '{"assistant_id": "pipeline", "input": {"steps": 20}, "stream_mode": ["custom"]}'

Kill the process named in an event (``kill -9 PID``): within moments the run goes on elsewhere, from
the step where it was, in the same stream; ``done`` has every step once.
"""

import asyncio
import operator
import os
from typing import Annotated

from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict


class Request(TypedDict, total=False):
    """What is asked."""

    steps: int
    seconds: float


class State(Request, total=False):
    """The steps that are done, in order."""

    done: Annotated[list[str], operator.add]


async def step(state: State) -> State:
    """One piece of work."""
    name = f"step {len(state.get('done') or []) + 1}"
    get_stream_writer()({"begins": name, "process": os.getpid()})
    await asyncio.sleep(state.get("seconds", 1.0))
    return {"done": [name]}


def next_step(state: State) -> str:
    """Again, until there are as many as were asked for."""
    return "step" if len(state.get("done") or []) < state.get("steps", 10) else END


builder = StateGraph(State, input_schema=Request)
builder.add_node("step", step)
builder.add_edge(START, "step")
builder.add_conditional_edges("step", next_step, ["step", END])
graph = builder.compile().with_config(recursion_limit=1000)

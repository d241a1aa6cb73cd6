"""CPU-bound work: estimates pi by throwing darts, in plain Python, and reports its progress.

    curl -N localhost:2024/runs/stream \
      -d '{"assistant_id": "pi", "input": {"darts": 5000000}, "stream_mode": "custom"}'

It never yields to anybody. Elsewhere this would freeze a server; here it has a process to itself,
other runs go on, and a cancel stops it in the middle of the loop.
"""

import random

from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

REPORTS = 20


class Request(TypedDict, total=False):
    """What is asked."""

    darts: int
    seed: int


class State(Request, total=False):
    """What is known at the end."""

    pi: float


def estimate(state: State) -> State:
    """Throws the darts, one report after each twentieth of them."""
    darts = state.get("darts", 2_000_000)
    numbers, write, inside = random.Random(state.get("seed", 1)), get_stream_writer(), 0
    share = max(1, darts // REPORTS)
    for thrown in range(1, darts + 1):
        x, y = numbers.random(), numbers.random()
        inside += x * x + y * y <= 1.0
        if thrown % share == 0:
            write({"done": round(thrown / darts, 2), "pi": 4 * inside / thrown})
    return {"pi": 4 * inside / max(1, darts)}


builder = StateGraph(State, input_schema=Request)
builder.add_node("estimate", estimate)
builder.add_edge(START, "estimate")
builder.add_edge("estimate", END)
graph = builder.compile()

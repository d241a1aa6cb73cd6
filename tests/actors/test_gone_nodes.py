"""Threads that wait before a node which the project's graph, deployed anew, does not have."""

import uuid
from collections.abc import AsyncIterator
from typing import Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Send, interrupt
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from actors.child.saver import BatchingSaver
from tests.actors.golden_runs import Executed
from tests.graphs.runner import shapes


class State(TypedDict, total=False):
    answer: Any
    done: bool


def ask(state: State) -> State:
    return {"answer": interrupt("sure?")}


def end(state: State) -> State:
    return {"done": True}


def plain(name: str) -> CompiledStateGraph[Any, Any, Any, Any]:
    graph = StateGraph(State).add_node(name, ask).add_node("end", end)
    return graph.add_edge(START, name).add_edge(name, "end").compile()


def nested(name: str) -> CompiledStateGraph[Any, Any, Any, Any]:
    graph = StateGraph(State).add_node("inner", plain(name)).add_node("end", end)
    return graph.add_edge(START, "inner").add_edge("inner", "end").compile()


def sent(name: str) -> CompiledStateGraph[Any, Any, Any, Any]:
    graph = StateGraph(State).add_node(name, ask).add_node("end", end).add_edge(name, "end")
    return graph.add_conditional_edges(START, lambda _: [Send(name, {})], [name]).compile()


@pytest.fixture
async def thread(monkeypatch: pytest.MonkeyPatch, database_url: str) -> AsyncIterator[Any]:
    class Deployed(Executed):
        def deploy(self, graph: CompiledStateGraph[Any, Any, Any, Any]) -> None:
            monkeypatch.setattr(shapes, self.graph_id, graph, raising=False)

    async with AsyncConnectionPool(
        database_url,
        min_size=1,
        open=False,
        kwargs={"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row},
    ) as pool:
        saver = BatchingSaver(pool)
        yield Deployed("deployed", saver)
        await saver.aclose()


@pytest.mark.parametrize("made", [plain, nested, sent])
async def test_an_answer_is_refused_and_heard_when_the_node_is_back(thread: Any, made: Any) -> None:
    thread.deploy(made("ask"))
    await thread.run({"input": {}})
    thread.deploy(made("question"))
    [*_, (name, error)] = await thread.run({"command": {"resume": "yes"}})
    assert (name, error["error"], "'ask'" in error["message"]) == ("error", "NodeGone", True)
    thread.deploy(made("ask"))
    frames = await thread.run({"command": {"resume": "yes"}})
    assert frames[-1] == ["values", {"answer": "yes", "done": True}]


async def test_a_run_goes_on_neither_from_a_breakpoint_nor_in_another_attempt(thread: Any) -> None:
    thread.deploy(plain("ask"))
    run_id = str(uuid.uuid4())
    await thread.run({"input": {}, "interrupt_before": ["ask"]}, run_id)
    thread.deploy(plain("question"))
    assert (await thread.run({"input": None}))[-1][1]["error"] == "NodeGone"
    assert (await thread.run({"input": {}}, run_id, attempt=2))[-1][1]["error"] == "NodeGone"


async def test_elsewhere_the_thread_goes_on(thread: Any) -> None:
    thread.deploy(plain("ask"))
    await thread.run({"input": {}})
    thread.deploy(plain("question"))
    frames = await thread.run({"command": {"goto": "end", "update": {"answer": "no"}}})
    assert frames[-1] == ["values", {"answer": "no", "done": True}]
    await thread.run({"input": {}})
    frames = await thread.run({"command": {"resume": "yes"}})
    assert frames[-1] == ["values", {"answer": "yes", "done": True}]

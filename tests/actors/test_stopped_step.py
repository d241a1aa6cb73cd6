"""What is kept of a step that was stopped, when the thread gets a new input."""

import asyncio
import operator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import InvalidUpdateError
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

from actors.child import stopped_step

CONFIG: RunnableConfig = {
    "configurable": {"thread_id": "t"},
    "metadata": {"run_id": "next", "graph_id": "g"},
}


class State(TypedDict, total=False):
    said: Annotated[list[str], operator.add]
    one: str


class Stop:
    """Nodes side by side: some are done, others wait without end."""

    def __init__(self) -> None:
        self.waits = asyncio.Event()

    async def wait(self, state: State) -> State:
        self.waits.set()
        await asyncio.Event().wait()
        return {}


def beside(**nodes: Any) -> Any:
    builder = StateGraph(State)
    for name, node in nodes.items():
        builder.add_node(name, node)
        builder.add_edge(START, name)
        builder.add_edge(name, END)
    return builder.compile(checkpointer=InMemorySaver())


def says(word: str) -> Any:
    return lambda state: {"said": [word]}


async def stopped(graph: Any, stop: Stop) -> None:
    run = asyncio.create_task(graph.ainvoke({"said": ["first"]}, CONFIG))
    await stop.waits.wait()
    while not (await graph.aget_state(CONFIG)).values["said"][1:]:
        await asyncio.sleep(0)
    run.cancel()
    await asyncio.wait([run])


async def test_what_was_done_stays_and_is_not_the_next_runs(caplog: Any) -> None:
    stop = Stop()
    graph = beside(quick=says("quick"), slow=stop.wait)
    await stopped(graph, stop)
    for _ in range(2):  # once it is applied there is nothing left
        await stopped_step.settle(graph, graph.checkpointer, CONFIG)
    kept, before, *_ = [state async for state in graph.aget_state_history(CONFIG)]
    assert kept.values == {"said": ["first", "quick"]}
    assert kept.next == ()
    assert kept.metadata["graph_id"] == "g"
    assert "run_id" not in kept.metadata
    assert kept.metadata["before_run_id"] == "next", "it goes when that is rolled back"
    assert before.next == ("quick", "slow")
    assert not caplog.records


async def test_a_state_that_is_no_dictionary_keeps_it_too() -> None:
    stop = Stop()

    async def wait(state: list[str]) -> list[str]:
        return await stop.wait({}) and []

    builder = StateGraph(Annotated[list[str], operator.add])
    for name, node in {"quick": lambda state: ["quick"], "slow": wait}.items():
        builder.add_node(name, node)
        builder.add_edge(START, name)
    graph = builder.compile(checkpointer=InMemorySaver())
    run = asyncio.create_task(graph.ainvoke(["first"], CONFIG))
    await stop.waits.wait()
    while not (await graph.aget_state(CONFIG)).values[1:]:
        await asyncio.sleep(0)
    run.cancel()
    await asyncio.wait([run])
    await stopped_step.settle(graph, graph.checkpointer, CONFIG)
    assert (await graph.aget_state(CONFIG)).values == ["first", "quick"]


async def test_a_task_that_was_sent_counts_too() -> None:
    stop = Stop()
    builder = StateGraph(State)
    builder.add_node("quick", says("quick"))
    builder.add_node("slow", stop.wait)
    builder.add_conditional_edges(
        START, lambda state: [Send("quick", {}), Send("slow", {})], ["quick", "slow"]
    )
    graph = builder.compile(checkpointer=InMemorySaver())
    await stopped(graph, stop)
    await stopped_step.settle(graph, graph.checkpointer, CONFIG)
    assert (await graph.aget_state(CONFIG)).values == {"said": ["first", "quick"]}


async def test_a_question_and_a_failure_beside_it_are_dropped_as_ever() -> None:
    def fail(state: State) -> State:
        raise ValueError("x")

    graph = beside(quick=says("quick"), ask=lambda state: {"one": interrupt("?")})
    await graph.ainvoke({"said": ["first"]}, CONFIG)
    await stopped_step.settle(graph, graph.checkpointer, CONFIG)
    state = await graph.aget_state(CONFIG)
    assert (state.values, state.interrupts) == ({"said": ["first", "quick"]}, ())

    graph = beside(quick=says("quick"), fail=fail)
    with pytest.raises(ValueError, match="x"):
        await graph.ainvoke({"said": ["first"]}, CONFIG)
    await stopped_step.settle(graph, graph.checkpointer, CONFIG)
    assert (await graph.aget_state(CONFIG)).values == {"said": ["first", "quick"]}


async def test_a_step_of_which_nothing_is_done_is_left_as_it_is() -> None:
    graph = beside(ask=lambda state: {"one": interrupt("?")})
    await graph.ainvoke({"said": ["first"]}, CONFIG)
    await stopped_step.settle(graph, graph.checkpointer, CONFIG)
    assert (await graph.ainvoke(Command(resume="yes"), CONFIG))["one"] == "yes"
    await stopped_step.settle(graph, graph.checkpointer, CONFIG)
    assert len([state async for state in graph.aget_state_history(CONFIG)]) == 3
    await stopped_step.settle(graph, InMemorySaver(), CONFIG)  # a new thread


async def test_what_cannot_be_applied_keeps_nobody_from_going_on() -> None:
    graph = beside(a=lambda state: {"one": "a"}, b=lambda state: {"one": "b"})
    with pytest.raises(InvalidUpdateError):
        await graph.ainvoke({"said": ["first"]}, CONFIG)
    await stopped_step.settle(graph, graph.checkpointer, CONFIG)
    await graph.aupdate_state(CONFIG, {"said": ["still there"]}, as_node="a")

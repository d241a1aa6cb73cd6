"""Graphs of every kind leave the same history with the batching saver as with LangGraph's own."""

import operator
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any, Literal, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.types import TASKS
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, Durability, Send, interrupt
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from psycopg_pool import AsyncConnectionPool

from actors.child.saver import BatchingSaver

Graph = CompiledStateGraph[Any, Any, Any, Any]
Saver = BaseCheckpointSaver[str]
Scenario = Callable[[Saver, RunnableConfig, Durability], Awaitable[Graph]]

SCENARIOS: list[Scenario] = []
TABLES = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")


def scenario(function: Scenario) -> Scenario:
    SCENARIOS.append(function)
    return function


class State(TypedDict, total=False):
    n: int
    log: Annotated[list[Any], operator.add]
    items: list[int]


def add(name: str) -> Callable[[State], Awaitable[State]]:
    async def node(state: State) -> State:
        return {"n": state.get("n", 0) + 1, "log": [name]}

    return node


def line(*names: str) -> StateGraph[State]:
    graph = StateGraph(State)
    for before, name in zip((START, *names), names, strict=False):
        graph.add_node(name, add(name))
        graph.add_edge(before, name)
    return graph


async def history(graph: Graph, config: RunnableConfig) -> list[Any]:
    """All states of the thread, newest first; of the newest one also those of its subgraphs."""
    states = [state async for state in graph.aget_state_history(config)]
    return [await graph.aget_state(config, subgraphs=True), *states]


def normalised(states: list[Any]) -> str:
    """The text of the states, each id replaced by the place of its first appearance, no times."""
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", "TIME", "\n".join(map(repr, states)))
    places: dict[str, str] = {}
    ids = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{32}\b"
    return re.sub(ids, lambda found: places.setdefault(found[0], f"#{len(places)}"), text)


@scenario
async def linear(saver: Saver, config: RunnableConfig, durability: Durability) -> Graph:
    app = line("a", "b", "c").compile(checkpointer=saver)
    await app.ainvoke({"n": 0, "log": []}, config, durability=durability)
    await app.ainvoke({"n": 10}, config, durability=durability)
    return app


@scenario
async def fan_out(saver: Saver, config: RunnableConfig, durability: Durability) -> Graph:
    graph = StateGraph(State)

    async def work(arg: dict[str, int]) -> State:
        return {"log": [arg["item"] * 10]}

    graph.add_node("work", work)
    graph.add_node("join", add("join"))
    graph.add_conditional_edges(
        START, lambda state: [Send("work", {"item": item}) for item in state["items"]], ["work"]
    )
    graph.add_edge("work", "join")
    app = graph.compile(checkpointer=saver)
    await app.ainvoke({"items": list(range(7)), "log": []}, config, durability=durability)
    return app


@scenario
async def interrupts(saver: Saver, config: RunnableConfig, durability: Durability) -> Graph:
    graph = StateGraph(State)

    def ask(name: str) -> Callable[[State], State]:
        def node(state: State) -> State:
            return {"log": [(name, interrupt({"who": name}), interrupt("again"))]}

        return node

    for name in ("left", "right"):
        graph.add_node(name, ask(name))
        graph.add_edge(START, name)
    app = graph.compile(checkpointer=saver)
    await app.ainvoke({"log": []}, config, durability=durability)
    while pending := (await app.aget_state(config)).interrupts:
        answers = {one.id: f"answer to {one.value}" for one in pending}
        await app.ainvoke(Command(resume=answers), config, durability=durability)
    return app


@scenario
async def breakpoints(saver: Saver, config: RunnableConfig, durability: Durability) -> Graph:
    app = line("a", "b", "c").compile(
        checkpointer=saver, interrupt_before=["b"], interrupt_after=["b"]
    )
    given: dict[str, int] | None = {"n": 1}
    while True:
        await app.ainvoke(given, config, durability=durability)
        if not (await app.aget_state(config)).next:
            return app
        given = None


@scenario
async def subgraphs(saver: Saver, config: RunnableConfig, durability: Durability) -> Graph:
    inner = StateGraph(State)
    inner.add_node("ask", lambda state: {"log": [interrupt("inner")]})
    inner.add_node("after", add("after"))
    inner.add_edge(START, "ask")
    inner.add_edge("ask", "after")
    outer = line("first")
    outer.add_node("inner", inner.compile())
    outer.add_edge("first", "inner")
    app = outer.compile(checkpointer=saver)
    await app.ainvoke({"log": []}, config, durability=durability)
    await app.ainvoke(Command(resume="yes"), config, durability=durability)
    await app.ainvoke({"log": ["again"]}, config, durability=durability)
    return app


@scenario
async def subgraph_with_memory(
    saver: Saver, config: RunnableConfig, durability: Durability
) -> Graph:
    inner = line("x", "y").compile(checkpointer=True)
    outer = StateGraph(State)

    async def call(state: State) -> State:
        first = await inner.ainvoke({"log": ["call"]})
        return {"log": [len(first["log"])]}

    outer.add_node("call", call)
    outer.add_edge(START, "call")
    app = outer.compile(checkpointer=saver)
    await app.ainvoke({"log": []}, config, durability=durability)
    await app.ainvoke({"log": []}, config, durability=durability)
    return app


@scenario
async def failures(saver: Saver, config: RunnableConfig, durability: Durability) -> Graph:
    broken = [True]
    graph = line("a")

    def fragile(state: State) -> State:
        if broken:
            raise ValueError("broken")
        return {"log": ["mended"]}

    graph.add_node("fragile", fragile)
    graph.add_node("sibling", add("sibling"))
    graph.add_edge("a", "fragile")
    graph.add_edge("a", "sibling")
    app = graph.compile(checkpointer=saver)
    with pytest.raises(ValueError, match="broken"):
        await app.ainvoke({"log": []}, config, durability=durability)
    assert (await app.aget_state(config)).next
    broken.clear()
    await app.ainvoke(None, config, durability=durability)
    return app


@scenario
async def updates_of_state(saver: Saver, config: RunnableConfig, durability: Durability) -> Graph:
    app = line("a", "b", "c").compile(checkpointer=saver)
    await app.aupdate_state(config, {"n": 5, "log": ["before the first run"]}, as_node="a")
    await app.ainvoke(None, config, durability=durability)
    await app.aupdate_state(config, {"log": ["after"]})
    await app.aupdate_state(config, None, as_node=END)
    await app.ainvoke({"n": 1}, config, durability=durability)
    return app


@scenario
async def time_travel(saver: Saver, config: RunnableConfig, durability: Durability) -> Graph:
    app = line("a", "b", "c").compile(checkpointer=saver)
    await app.ainvoke({"n": 0, "log": []}, config, durability="sync")
    past = [state async for state in app.aget_state_history(config)]
    await app.ainvoke(None, past[2].config, durability=durability)
    forked = await app.aupdate_state(past[2].config, {"n": 100})
    await app.ainvoke(None, forked, durability=durability)
    return app


@scenario
async def conversation(saver: Saver, config: RunnableConfig, durability: Durability) -> Graph:
    class Messages(TypedDict):
        messages: Annotated[list[AnyMessage], add_messages]

    async def answer(state: Messages) -> dict[str, Any]:
        calls = [{"name": "look", "args": {"at": "π"}, "id": "call-1"}]
        return {"messages": [AIMessage(f"to {state['messages'][-1].content}", tool_calls=calls)]}

    async def forget(state: Messages) -> dict[str, Any]:
        first = state["messages"][0].id
        return {"messages": [RemoveMessage(id=str(first))] if len(state["messages"]) > 2 else []}

    graph = StateGraph(Messages)
    graph.add_node("answer", answer)
    graph.add_node("forget", forget)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", "forget")
    app = graph.compile(checkpointer=saver)
    for text in ("one", "two"):
        await app.ainvoke({"messages": [HumanMessage(text)]}, config, durability=durability)
    return app


@scenario
async def large_values(saver: Saver, config: RunnableConfig, durability: Durability) -> Graph:
    graph = line("a")
    graph.add_node("grow", lambda state: {"log": [bytes([i]) * 200_000 for i in range(3)]})
    graph.add_edge("a", "grow")
    app = graph.compile(checkpointer=saver)
    await app.ainvoke({"items": list(range(20_000))}, config, durability=durability)
    return app


@scenario
async def primitives(saver: Saver, config: RunnableConfig, durability: Durability) -> Graph:
    class Primitives(TypedDict, total=False):
        text: str
        number: int
        share: float
        flag: bool
        nothing: None

    graph = StateGraph(Primitives)
    graph.add_node(
        "set", lambda state: {"text": "ü\\u0000", "number": 2**60, "share": 0.1, "nothing": None}
    )
    graph.add_node("switch", lambda state: {"flag": True})
    graph.add_edge(START, "set")
    graph.add_edge("set", "switch")
    app = graph.compile(checkpointer=saver)
    await app.ainvoke({"text": "start"}, config, durability=durability)
    return app


def extend(state: list[Any], writes: Any) -> list[Any]:
    return [*state, *(item for write in writes for item in write)]


@scenario
async def delta_channels(saver: Saver, config: RunnableConfig, durability: Durability) -> Graph:
    class Delta(TypedDict):
        log: Annotated[list[Any], DeltaChannel(extend, snapshot_frequency=3)]

    def node(name: str) -> Callable[[Delta], dict[str, Any]]:
        return lambda state: {"log": [(name, len(state["log"]))]}

    graph = StateGraph(Delta)
    for before, name in ((START, "a"), ("a", "b"), ("b", "c")):
        graph.add_node(name, node(name))
        graph.add_edge(before, name)
    app = graph.compile(checkpointer=saver)
    for _ in range(3):
        await app.ainvoke({"log": ["start"]}, config, durability=durability)
    return app


@scenario
async def reads_while_running(
    saver: Saver, config: RunnableConfig, durability: Durability
) -> Graph:
    """A sync node, hence a worker thread, and an async one look at their own thread's state."""
    holder: list[Graph] = []

    def look(state: State, config: RunnableConfig) -> State:
        found = holder[0].get_state(config)
        return {"log": [found.next, len(list(holder[0].get_state_history(config)))]}

    async def alook(state: State, config: RunnableConfig) -> State:
        return {"log": [(await holder[0].aget_state(config)).values.get("n")]}

    graph = line("a", "b")
    graph.add_node("look", look)
    graph.add_node("alook", alook)
    graph.add_edge("b", "look")
    graph.add_edge("look", "alook")
    holder.append(graph.compile(checkpointer=saver))
    await holder[0].ainvoke({"n": 0, "log": []}, config, durability=durability)
    return holder[0]


@scenario
async def command_goto(saver: Saver, config: RunnableConfig, durability: Durability) -> Graph:
    graph = StateGraph(State)

    async def route(state: State) -> Command[Literal["route", "last"]]:
        target: Literal["route", "last"] = "route" if state["n"] < 3 else "last"
        return Command(update={"n": state["n"] + 1}, goto=target)

    graph.add_node("route", route)
    graph.add_node("last", add("last"))
    graph.add_edge(START, "route")
    app = graph.compile(checkpointer=saver)
    await app.ainvoke({"n": 0}, config, durability=durability)
    await app.ainvoke(Command(goto="last", update={"n": 9}), config, durability=durability)
    return app


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[AsyncConnectionPool[Any]]:
    async with AsyncConnectionPool(
        database_url,
        min_size=1,
        max_size=4,
        open=False,
        kwargs={"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row},
    ) as pool:
        yield pool


async def row_counts(pool: AsyncConnectionPool[Any], thread_id: str) -> list[int]:
    async with pool.connection() as connection:
        return [
            (
                await (
                    await connection.execute(
                        f"SELECT count(*) AS n FROM {table} WHERE thread_id = %s", [thread_id]
                    )
                ).fetchone()
            )["n"]
            for table in TABLES
        ]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("play", SCENARIOS, ids=lambda play: play.__name__)
async def test_same_history_same_rows_readable_by_the_other(
    pool: AsyncConnectionPool[Any], play: Scenario, durability: Durability
) -> None:
    stock = AsyncPostgresSaver(pool)
    batching = BatchingSaver(pool)
    seen: list[tuple[str, list[int]]] = []
    for saver, other in ((stock, batching), (batching, stock)):
        config: RunnableConfig = {
            "configurable": {"thread_id": str(uuid.uuid4())},
            "metadata": {"run_id": "r1", "score": 0.5},
        }
        graph = await play(saver, config, durability)
        states = await history(graph, config)
        graph.checkpointer = other
        assert await history(graph, config) == states
        thread_id = config["configurable"]["thread_id"]
        seen.append((normalised(states), await row_counts(pool, thread_id)))
    assert len(seen[0][0]) > 100
    assert seen[0] == seen[1]
    await batching.aclose()


async def test_pending_sends_of_old_checkpoints_are_read_as_the_stock_saver_reads_them(
    pool: AsyncConnectionPool[Any],
) -> None:
    batching, stock = BatchingSaver(pool), AsyncPostgresSaver(pool)
    versions = {"log": "00000000000000000000000000000002.1"}
    kind, blob = stock.serde.dumps_typed(Send("work", {"item": 1}))
    async with pool.connection() as connection:
        for checkpoint_id, parent in (("c1", None), ("c2", "c1")):
            old = {
                "v": 3,
                "id": checkpoint_id,
                "ts": "2024-01-01T00:00:00+00:00",
                "channel_values": {"log": "x"},
                "channel_versions": versions,
                "versions_seen": {},
            }
            await connection.execute(
                "INSERT INTO checkpoints VALUES ('t', '', %s, %s, NULL, %s, '{}')",
                [checkpoint_id, parent, Jsonb(old)],
            )
        await connection.execute(
            "INSERT INTO checkpoint_writes VALUES ('t', '', 'c1', 'task', 0, %s, %s, %s, '')",
            [TASKS, kind, blob],
        )
    config: RunnableConfig = {"configurable": {"thread_id": "t"}}
    found = await batching.aget_tuple(config)
    assert found is not None
    assert found.checkpoint["channel_values"][TASKS] == [Send("work", {"item": 1})]
    assert found == await stock.aget_tuple(config)
    listed = [one async for one in batching.alist(config)]
    assert listed == [one async for one in stock.alist(config)]
    assert listed[0] == found

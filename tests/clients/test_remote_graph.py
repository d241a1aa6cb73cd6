"""``RemoteGraph``: a graph of the server as if it were one of this process."""

from typing import Any, TypedDict, cast
from uuid import uuid4

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.pregel.remote import RemoteException, RemoteGraph
from langgraph.types import Command
from langgraph_sdk import get_client, get_sync_client

from tests.contract.conftest import Callboard

pytestmark = pytest.mark.topology


@pytest.fixture
async def chat(callboard: Callboard) -> Any:
    async with get_client(url=callboard.url) as client:
        with get_sync_client(url=callboard.url) as sync_client:
            yield RemoteGraph("chat", client=client, sync_client=sync_client)


@pytest.fixture
def config() -> RunnableConfig:
    return {"configurable": {"thread_id": str(uuid4())}}


HELLO = {"messages": [{"role": "user", "content": "hello"}]}
ASK = {"messages": [{"role": "user", "content": "ask"}]}


def said(values: Any) -> list[str]:
    return [message["content"] for message in values["messages"]]


async def test_invoke(chat: RemoteGraph, config: RunnableConfig) -> None:
    assert said(await chat.ainvoke(HELLO)) == ["hello", "You said: hello"]
    assert said(await chat.ainvoke(HELLO, config)) == ["hello", "You said: hello"]
    assert len(said(chat.invoke(HELLO, config))) == 4, "the thread goes on"
    with pytest.raises(RemoteException, match="told to"):
        await chat.ainvoke({"messages": "fail"})


async def test_stream_with_subgraphs(chat: RemoteGraph, config: RunnableConfig) -> None:
    parts: list[Any] = [
        part
        async for part in chat.astream(
            HELLO, config, stream_mode=["updates", "custom", "messages"], subgraphs=True
        )
    ]
    assert [data for _, mode, data in parts if mode == "custom"] == [{"heard": "hello"}]
    updates = [(ns, next(iter(data))) for ns, mode, data in parts if mode == "updates"]
    assert [node for _, node in updates] == ["listen", "say", "speak"]
    assert [len(ns) for ns, _ in updates] == [0, 1, 0]
    assert updates[1][0][0].startswith("speak:")
    chunks = [data[0]["content"] for _, mode, data in parts if mode == "messages"]
    assert "".join(chunks) == "You said: hello"
    assert len(chunks) > 2, "word by word"


async def test_state_history_and_update(chat: RemoteGraph, config: RunnableConfig) -> None:
    await chat.ainvoke(HELLO, config)
    state = await chat.aget_state(config)
    assert said(state.values) == ["hello", "You said: hello"]
    assert state.next == ()
    history = [one async for one in chat.aget_state_history(config)]
    assert [one.metadata and one.metadata.get("step") for one in history] == [2, 1, 0, -1]
    assert history[0].parent_config == history[1].config
    past = await chat.aget_state(history[2].config)
    assert past.values["messages"][0]["content"] == "hello"
    assert past.next == ("listen",)

    changed = await chat.aupdate_state(config, {"answer": "mine"}, as_node="ask")
    state = chat.get_state(changed)
    assert (state.values["answer"], state.next) == ("mine", ("speak",))
    assert said(chat.invoke(None, config))[-1] == "You said: mine"
    assert len(list(chat.get_state_history(config))) > len(history)


async def test_interrupt_and_resume(chat: RemoteGraph, config: RunnableConfig) -> None:
    values = cast("dict[str, Any]", await chat.ainvoke(ASK, config))
    assert values["__interrupt__"][0]["value"] == {"question": "ask"}
    state = await chat.aget_state(config)
    assert state.next == ("ask",)
    assert [task.interrupts[0].value for task in state.tasks] == [{"question": "ask"}]
    assert said(await chat.ainvoke(Command(resume="yes"), config))[-1] == "You said: yes"


async def test_drawing(chat: RemoteGraph) -> None:
    drawing = await chat.aget_graph(xray=True)
    assert {"listen", "ask", "speak:say"} <= set(drawing.nodes)
    assert "listen" in drawing.draw_mermaid()
    assert set(chat.get_graph().nodes) >= {"listen", "speak"}


class State(TypedDict, total=False):
    messages: list[Any]
    answer: str


@pytest.fixture
def around(chat: RemoteGraph) -> Any:
    """A graph of this process, with the remote one as a node."""
    graph = StateGraph(State)
    graph.add_node("remote", chat)
    graph.add_edge(START, "remote")
    return graph.compile(checkpointer=InMemorySaver())


async def test_a_node_of_another_graph(around: Any, config: RunnableConfig) -> None:
    assert said(await around.ainvoke(HELLO, config))[-1] == "You said: hello"
    parts = [
        part async for part in around.astream(HELLO, config, stream_mode="custom", subgraphs=True)
    ]
    assert [data for ns, data in parts] == [{"heard": "hello"}]


async def test_an_interrupt_in_a_node_interrupts_the_graph_around(
    around: Any, config: RunnableConfig
) -> None:
    await around.ainvoke(ASK, config)
    state = await around.aget_state(config)
    assert state.next == ("remote",)
    assert state.tasks[0].interrupts[0].value == {"question": "ask"}

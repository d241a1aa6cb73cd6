"""A graph that calls another one of its server through ``RemoteGraph``, on a thread of its own."""

from typing import Annotated, Any, TypedDict

from langchain_core.messages import BaseMessage
from langgraph.graph import START, StateGraph, add_messages
from langgraph.pregel.remote import RemoteGraph
from langgraph_sdk import get_client, get_sync_client

chat = RemoteGraph("chat", client=get_client(), sync_client=get_sync_client())


class State(TypedDict):
    messages: Annotated[list[BaseMessage], add_messages]


async def there(state: State) -> Any:
    return {"messages": (await chat.ainvoke({"messages": state["messages"]}))["messages"]}


def there_sync(state: State) -> Any:
    return {"messages": chat.invoke({"messages": state["messages"]})["messages"]}


graph = StateGraph(State)
graph.add_node(there)
graph.add_node(there_sync)
graph.add_edge(START, "there")
graph.add_edge("there", "there_sync")

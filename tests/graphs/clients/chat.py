"""A conversation for clients: tokens, custom events, a subgraph, a question, work without end.

What is done is in the last message: "ask …" asks back, "wait" works until it is stopped, "fail"
fails; anything else is answered word by word.
"""

import asyncio
import time
from collections.abc import Iterator
from typing import Annotated, Any

from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGenerationChunk
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph, add_messages
from langgraph.types import interrupt
from typing_extensions import TypedDict


class SlowModel(GenericFakeChatModel):
    """Speaks slowly enough for its words to be seen one by one."""

    def _stream(self, *arguments: Any, **options: Any) -> Iterator[ChatGenerationChunk]:
        for chunk in super()._stream(*arguments, **options):
            yield chunk
            time.sleep(0.05)


class State(TypedDict, total=False):
    messages: Annotated[list[BaseMessage], add_messages]
    answer: str


def _last(state: State) -> str:
    return state["messages"][-1].text


def listen(state: State) -> dict[str, Any]:
    get_stream_writer()({"heard": _last(state)})
    return {}


def route(state: State) -> str:
    first = _last(state).split()[0]
    return first if first in ("ask", "wait", "fail") else "speak"


def ask(state: State) -> dict[str, Any]:
    return {"answer": interrupt({"question": _last(state)})}


async def wait(state: State) -> None:
    write = get_stream_writer()
    for n in range(10_000):
        write({"waited": n})
        await asyncio.sleep(0.1)


def fail(state: State) -> None:
    raise ValueError("told to")


async def say(state: State) -> dict[str, Any]:
    text = f"You said: {state.get('answer') or _last(state)}"
    model = SlowModel(messages=iter([AIMessage(text)]))
    return {"messages": [await model.ainvoke(state["messages"])]}


speech = StateGraph(State)
speech.add_node(say)
speech.add_edge(START, "say")

graph = StateGraph(State)
graph.add_node(listen)
graph.add_node(ask)
graph.add_node(wait)
graph.add_node(fail)
graph.add_node("speak", speech.compile())
graph.add_edge(START, "listen")
graph.add_conditional_edges("listen", route, ["ask", "wait", "fail", "speak"])
graph.add_edge("ask", "speak")
graph.add_edge("wait", END)
graph.add_edge("fail", END)
graph.add_edge("speak", END)

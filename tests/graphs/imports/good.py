"""A graph like any other, beside such that cannot be imported."""

from typing import TypedDict

from langgraph.graph import END, START, StateGraph


class State(TypedDict, total=False):
    question: str


def say(state: State) -> State:
    return {"question": state.get("question", "")}


graph = StateGraph(State).add_node("say", say).add_edge(START, "say").add_edge("say", END).compile()

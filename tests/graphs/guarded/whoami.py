"""Graphs that say who runs them."""

from typing import TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime


class State(TypedDict, total=False):
    node: dict
    maker: str


def built(maker: str):
    def look(state: State, config: RunnableConfig, runtime: Runtime) -> State:
        configurable = config["configurable"]
        user = configurable["langgraph_auth_user"]
        return {
            "maker": maker,
            "node": {
                "identity": user.identity,
                "team": user["team"],
                "id": configurable["langgraph_auth_user_id"],
                "permissions": configurable["langgraph_auth_permissions"],
                "runtime": runtime.server_info.user.identity,
            },
        }

    graph = StateGraph(State)
    graph.add_node("look", look)
    graph.add_edge(START, "look")
    graph.add_edge("look", END)
    return graph.compile()


graph = built("")


def make_graph(config: RunnableConfig):
    return built(config["configurable"]["langgraph_auth_user"]["identity"])

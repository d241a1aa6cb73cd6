"""Graphs that say who runs them."""

from typing import TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime


class State(TypedDict, total=False):
    node: dict
    maker: str
    known: list[str]


class Context(TypedDict, total=False):
    token: str


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


def use(state: State, config: RunnableConfig, runtime: Runtime[Context]) -> State:
    """Finds secrets where they may be, and says how they end."""
    secrets = (
        runtime.context["token"],
        config["configurable"]["token"],
        config["configurable"]["langgraph_auth_user"]["key"],
    )
    return {"known": [secret.removeprefix("CANARY-of-") for secret in secrets]}


trusted = StateGraph(State, context_schema=Context)
trusted.add_node("use", use)
trusted.add_edge(START, "use")
trusted.add_edge("use", END)
trusted = trusted.compile()


def make_graph(config: RunnableConfig):
    return built(config["configurable"]["langgraph_auth_user"]["identity"])

"""Graphs that use the store: from coroutines, from threads, and from loops of their own."""

import asyncio
from typing import Any

from langgraph.config import get_store
from langgraph.graph import START, StateGraph
from langgraph.store.base import BaseStore
from typing_extensions import TypedDict


class Wish(TypedDict, total=False):
    """What to do with the store, and what came of it."""

    put: dict[str, Any]
    """Key → value, for the namespace ("from", "graph")."""
    query: str
    found: list[Any]
    threaded: Any


async def remember(wish: Wish, *, store: BaseStore) -> Wish:
    for key, value in wish.get("put", {}).items():
        await store.aput(("from", "graph"), key, value)
    found = await store.asearch((), query=wish.get("query"), limit=100)
    return {"found": [[list(item.namespace), item.key, item.value] for item in found]}


def in_a_thread(wish: Wish) -> Wish:
    """A sync node: it is executed in a thread, and may have a loop of its own."""
    store = get_store()
    store.put(("from", "thread"), "sync", {"here": True})

    async def elsewhere() -> Any:
        await store.aput(("from", "thread"), "own loop", {"here": True})
        return await store.aget(("from", "thread"), "sync")

    item = asyncio.run(elsewhere())
    listed = store.list_namespaces(prefix=("from",))
    return {"threaded": [item.value, sorted(list(namespace) for namespace in listed)]}


graph = (
    StateGraph(Wish)
    .add_node("remember", remember)
    .add_node("in_a_thread", in_a_thread)
    .add_edge(START, "remember")
    .add_edge("remember", "in_a_thread")
    .compile()
)

"""Calls the server that it runs in, as ``op`` says. The client is made at import, used in runs."""

import threading
from typing import Any, TypedDict

import httpx
from langgraph.config import get_config, get_stream_writer
from langgraph.graph import START, StateGraph
from langgraph_sdk import get_client, get_sync_client
from langgraph_sdk.errors import ConflictError

client = get_client()
sync_client = get_sync_client()

WAIT: Any = {"messages": "wait"}


class State(TypedDict, total=False):
    op: str
    out: Any


async def converse(_: State) -> Any:
    """Streams another graph, and stops it when its first news have come."""
    thread = await client.threads.create()
    news = []
    async for part in client.runs.stream(
        thread["thread_id"], "chat", input=WAIT, stream_mode="custom", on_disconnect="cancel"
    ):
        news.append(part.data)
        if part.event == "custom" and "waited" in part.data:
            break
    run_id = news[0]["run_id"]
    await client.runs.cancel(thread["thread_id"], run_id, wait=True)
    run = await client.runs.get(thread["thread_id"], run_id)
    return {"news": news[1:], "status": run["status"]}


def converse_sync(_: State) -> Any:
    thread = sync_client.threads.create()
    news = []
    for part in sync_client.runs.stream(
        thread["thread_id"], "chat", input=WAIT, stream_mode="custom", on_disconnect="cancel"
    ):
        news.append(part.data)
        if part.event == "custom" and "waited" in part.data:
            break
    run_id = news[0]["run_id"]
    sync_client.runs.cancel(thread["thread_id"], run_id, wait=True)
    run = sync_client.runs.get(thread["thread_id"], run_id)
    return {"news": news[1:], "status": run["status"]}


async def follow(_: State) -> Any:
    """Streams a graph that never ends, and says which run that is."""
    thread = await client.threads.create()
    write = get_stream_writer()
    async for part in client.runs.stream(
        thread["thread_id"], "chat", input=WAIT, stream_mode="updates", on_disconnect="cancel"
    ):
        if part.event == "metadata":
            write({"thread_id": thread["thread_id"], "run_id": part.data["run_id"]})


def follow_sync(_: State) -> Any:
    thread = sync_client.threads.create()
    write = get_stream_writer()
    for part in sync_client.runs.stream(
        thread["thread_id"], "chat", input=WAIT, stream_mode="updates", on_disconnect="cancel"
    ):
        if part.event == "metadata":
            write({"thread_id": thread["thread_id"], "run_id": part.data["run_id"]})


async def look(_: State) -> Any:
    """What the caller of this run can see, by both clients."""
    mine = await client.threads.search(limit=100)
    assert [t["thread_id"] for t in mine] == [
        t["thread_id"] for t in await get_client().threads.search(limit=100)
    ]
    return [thread["thread_id"] for thread in mine]


def elsewhere(_: State) -> Any:
    """The same from a thread of its own, which knows nothing of the run."""
    found: list[Any] = []

    def search() -> None:
        try:
            found.append([thread["thread_id"] for thread in sync_client.threads.search(limit=100)])
        except Exception as error:
            found.append(str(error))

    thread = threading.Thread(target=search)
    thread.start()
    thread.join()
    return found[0]


async def wait_for_itself(_: State) -> Any:
    """Asks for a run behind this one, and waits for it."""
    mine = get_config()["configurable"]["thread_id"]
    try:
        async for _ in client.runs.stream(mine, "chat", input=WAIT):
            pass
    except ConflictError as error:
        return str(error)


async def credential(_: State) -> Any:
    """What this run shows, for those who would use it after the run."""
    shown: list[str] = []

    async def note(answer: httpx.Response) -> None:
        shown.append(answer.request.headers["X-Callboard-Run"])

    one = get_client()
    one.http.client.event_hooks["response"].append(note)
    await one.threads.count()
    return shown[0]


OPS = {
    "converse": converse,
    "follow": follow,
    "look": look,
    "credential": credential,
    "wait_for_itself": wait_for_itself,
}
SYNC_OPS = {
    "converse_sync": converse_sync,
    "follow_sync": follow_sync,
    "elsewhere": elsewhere,
}


async def call(state: State) -> State:
    return {"out": await OPS[state["op"]](state)}


def call_sync(state: State) -> State:
    return {"out": SYNC_OPS[state["op"]](state)}


graph = StateGraph(State)
graph.add_node(call)
graph.add_node(call_sync)
graph.add_conditional_edges(
    START, lambda state: "call" if state["op"] in OPS else "call_sync", ["call", "call_sync"]
)

"""The store as the official clients use it, and as graphs do, over one index."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langgraph_sdk import get_client, get_sync_client
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import APIStatusError, BadRequestError

from tests.contract.conftest import Callboard

pytestmark = pytest.mark.topology


@pytest.fixture
async def client(store_callboard: Callboard) -> AsyncIterator[LangGraphClient]:
    async with get_client(url=store_callboard.url) as client:
        yield client


async def test_items_of_the_asynchronous_client(client: LangGraphClient) -> None:
    store = client.store
    await store.put_item(["sdk", "ann"], "prefs", {"text": "likes tea", "age": 30})
    await store.put_item(["sdk", "bob"], "prefs", {"text": "likes coffee", "age": 50}, ttl=5)
    await store.put_item(["sdk", "bob"], "hidden", {"text": "tea"}, index=False)
    item = await store.get_item(["sdk", "ann"], "prefs")
    assert item["namespace"] == ["sdk", "ann"]
    assert item["value"] == {"text": "likes tea", "age": 30}
    assert await store.get_item(["sdk", "ann"], "missing", refresh_ttl=True) is None

    older = await store.search_items(["sdk"], filter={"age": {"$gt": 40}})
    assert [found["namespace"] for found in older["items"]] == [["sdk", "bob"]]
    near = await store.search_items(["sdk"], query="tea", limit=1000)
    assert [(found["namespace"][1], found["key"]) for found in near["items"]] == [
        ("ann", "prefs"),
        ("bob", "prefs"),
        ("bob", "hidden"),
    ]
    scores = [found["score"] for found in near["items"]]
    assert scores[0] > scores[1]
    assert scores[2] is None
    only = await store.search_items(["sdk"], query="coffee", filter={"age": 30}, limit=1)
    assert [found["namespace"][1] for found in only["items"]] == ["ann"]

    assert (await store.list_namespaces(prefix=["sdk"]))["namespaces"] == [
        ["sdk", "ann"],
        ["sdk", "bob"],
    ]
    listed = await store.list_namespaces(prefix=["sdk"], max_depth=1)
    assert listed["namespaces"] == [["sdk"]]
    await store.delete_item(["sdk", "ann"], "prefs")
    assert await store.get_item(["sdk", "ann"], "prefs") is None
    near = await store.search_items(["sdk"], query="tea")
    assert near["items"][0]["namespace"] == ["sdk", "bob"]
    with pytest.raises(BadRequestError, match="Namespace cannot be empty"):
        await store.put_item([], "k", {})
    with pytest.raises(BadRequestError, match="Unsupported operator"):
        await store.search_items(["sdk"], query="tea", filter={"age": {"$about": 1}})


async def test_what_cannot_be_embedded_is_not_written(client: LangGraphClient) -> None:
    await client.store.put_item(["bad"], "k", {"text": "good"})
    with pytest.raises(APIStatusError, match=r"of store.index failed: .* cannot embed") as written:
        await client.store.put_item(["bad"], "k", {"text": "indigestible"})
    with pytest.raises(APIStatusError, match="cannot embed this") as asked:
        await client.store.search_items(["bad"], query="indigestible")
    for refused in (written.value, asked.value):
        assert refused.status_code == 503
        assert "Retry-After" in refused.response.headers
    assert (await client.store.get_item(["bad"], "k"))["value"] == {"text": "good"}
    assert (await client.store.search_items(["bad"], query="good"))["items"][0]["score"] > 0.5


def test_items_of_the_synchronous_client(store_callboard: Callboard) -> None:
    with get_sync_client(url=store_callboard.url) as client:
        _use(client.store)


def _use(store: Any) -> None:
    store.put_item(["sync"], "k", {"text": "a green tree"})
    assert store.get_item(["sync"], "k")["value"] == {"text": "a green tree"}
    found = store.search_items(["sync"], query="tree")["items"]
    assert found[0]["score"] == pytest.approx(0.577, abs=0.01)
    assert store.list_namespaces(suffix=["sync"])["namespaces"] == [["sync"]]
    store.delete_item(["sync"], "k")
    assert store.search_items(["sync"])["items"] == []


async def test_graphs_and_clients_share_it(client: LangGraphClient) -> None:
    """Also from threads, and with many runs in one process at once."""
    await client.store.put_item(["shared"], "by client", {"text": "a walrus"})

    async def run(number: int) -> Any:
        text = f"penguin{number} on the ice"
        return await client.runs.wait(
            None,
            "store",
            input={"put": {f"by graph {number}": {"text": text}}, "query": "walrus"},
        )

    ends = await asyncio.gather(*(run(number) for number in range(10)))
    for end in ends:
        assert end["found"][0] == [["shared"], "by client", {"text": "a walrus"}]
        assert end["threaded"] == [{"here": True}, [["from", "graph"], ["from", "thread"]]]
    for number in range(10):
        near = await client.store.search_items(["from"], query=f"penguin{number}", limit=1)
        assert near["items"][0]["key"] == f"by graph {number}"
    item = await client.store.get_item(["from", "thread"], "own loop")
    assert item["value"] == {"here": True}

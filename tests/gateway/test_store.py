"""The store over HTTP: forms, statuses, and what is left to the inspector."""

import asyncio
from typing import Any

import pytest

from actors.dispatch import PROJECT_FAILED
from gateway.auth.grant import asked
from gateway.routes import store as routes
from gateway.wire.store import StoreGet, StoreNamespaces, StorePut, StoreSearch
from persistence.store import StoreConfig, sweep
from tests.gateway.conftest import Client, House, Stage

INDEXED = StoreConfig(vector_dims=4)


async def put(client: Client, namespace: list[str], key: str, value: Any, **more: Any) -> Any:
    body = {"namespace": namespace, "key": key, "value": value, **more}
    return await client.ask("PUT", "/store/items", body)


async def get(client: Client, namespace: str, key: str, **more: str) -> Any:
    query = "&".join(f"{name}={value}" for name, value in more.items())
    return (await client.get(f"/store/items?namespace={namespace}&key={key}&{query}")).json


async def found(client: Client, **body: Any) -> list[str]:
    answer = await client.post("/store/items/search", body)
    assert answer.status == 200, answer.body
    return [item["key"] for item in answer.json["items"]]


async def test_an_item_from_its_first_writing_to_its_end(client: Client) -> None:
    written = await put(client, ["users", "ann"], "prefs", {"theme": "dark"})
    assert (written.status, written.body) == (204, b"")
    first = await get(client, "users.ann", "prefs")
    assert first == {
        "namespace": ["users", "ann"],
        "key": "prefs",
        "value": {"theme": "dark"},
        "created_at": first["created_at"],
        "updated_at": first["updated_at"],
    }
    assert first["created_at"].endswith("+00:00")
    await put(client, ["users", "ann"], "prefs", {"theme": "light"})
    second = await get(client, "users.ann", "prefs")
    assert second["value"] == {"theme": "light"}
    assert second["created_at"] == first["created_at"]
    assert second["updated_at"] > first["updated_at"]
    for _ in range(2):  # also when it is gone already
        gone = await client.ask(
            "DELETE", "/store/items", {"namespace": ["users", "ann"], "key": "prefs"}
        )
        assert (gone.status, gone.body) == (204, b"")
    missing = await client.get("/store/items?namespace=users.ann&key=prefs")
    assert (missing.status, missing.body) == (200, b"null")


WRITES: list[tuple[int, Any]] = [
    (400, {"namespace": [], "key": "k", "value": {}}),
    (400, {"namespace": ["langgraph", "x"], "key": "k", "value": {}}),
    (422, {"namespace": ["a.b"], "key": "k", "value": {}}),
    (422, {"namespace": [""], "key": "k", "value": {}}),
    (422, {"namespace": ["a\0"], "key": "k", "value": {}}),
    (422, {"namespace": "a", "key": "k", "value": {}}),
    (422, {"namespace": [1], "key": "k", "value": {}}),
    (422, {"key": "k", "value": {}}),
    (422, {"namespace": ["a"], "value": {}}),
    (422, {"namespace": ["a"], "key": None, "value": {}}),
    (422, {"namespace": ["a"], "key": "k\0", "value": {}}),
    (422, {"namespace": ["a"], "key": "k"}),
    (422, {"namespace": ["a"], "key": "k", "value": None}),
    (422, {"namespace": ["a"], "key": "k", "value": []}),
    (422, {"namespace": ["a"], "key": "k", "value": {}, "index": True}),
    (422, {"namespace": ["a"], "key": "k", "value": {}, "index": "x"}),
    (422, {"namespace": ["a"], "key": "k", "value": {}, "ttl": "x"}),
    (422, {"namespace": ["a"], "key": "k", "value": {}, "ttl": True}),
    (422, {"namespace": ["a"], "key": "k", "value": {}, "ttl": 0}),
    (422, {"namespace": ["a"], "key": "k", "value": {}, "ttl": 1e300}),
    (204, {"namespace": ["a"], "key": "", "value": {}}),
    (204, {"namespace": ["a"], "key": "k", "value": {}, "index": None, "ttl": None}),
    (204, {"namespace": ["a"], "key": "k", "value": {}, "index": ["x"], "ttl": 0.5}),
    (204, {"namespace": ["a"], "key": "k", "value": {}, "index": False, "unknown": 1}),
]


async def test_what_may_be_written(client: Client) -> None:
    for status, body in WRITES:
        answer = await client.ask("PUT", "/store/items", body)
        assert answer.status == status, body
        if status != 204:
            assert isinstance(answer.json["detail"], str)
    assert set(await found(client)) == {"", "k"}
    assert (await client.post("/store/namespaces")).json == {"namespaces": [["a"]]}


async def test_values_that_are_refused_change_nothing(client: Client) -> None:
    deep = b"[" * 300 + b"]" * 300
    for value in (b'"\\ud800"', b"NaN", b"1e400", deep):
        raw = b'{"namespace":["a"],"key":"k","value":{"x":' + value + b"}}"
        answer = await client.ask("PUT", "/store/items", raw=raw)
        assert answer.status == 422, value
        assert isinstance(answer.json["detail"], str)
    assert await found(client) == []


async def test_values_that_are_cleaned_or_rounded(client: Client) -> None:
    raw = b'{"namespace":["a"],"key":"k","value":{"nul":"a\\u0000b","huge":1' + b"0" * 30 + b"}}"
    assert (await client.ask("PUT", "/store/items", raw=raw)).status == 204
    assert (await get(client, "a", "k"))["value"] == {"nul": "a\ufffdb", "huge": 1e30}


READS: list[tuple[int, str]] = [
    (422, ""),
    (422, "key=k"),
    (422, "namespace=&key=k"),
    (422, "namespace=a..b&key=k"),
    (422, "namespace=.&key=k"),
    (400, "namespace=a"),
    (400, "namespace=a&key="),
    (200, "namespace=langgraph&key=k"),
    (200, "namespace=a&key=k&refresh_ttl=maybe"),
    (200, "namespace=a%00&key=k%00"),
]


async def test_what_may_be_read(client: Client) -> None:
    for status, query in READS:
        answer = await client.get(f"/store/items?{query}")
        assert answer.status == status, query
        if status == 200:
            assert answer.body == b"null"
        else:
            assert isinstance(answer.json["detail"], str)
        if status == 400:
            assert answer.json["error"] == "Key is required"


DELETIONS: list[tuple[int, Any]] = [
    (204, {"key": "k"}),
    (204, {"namespace": [], "key": "k"}),
    (204, {"namespace": ["langgraph"], "key": ""}),
    (422, {"namespace": ["a"]}),
    (422, {"namespace": ["a.b"], "key": "k"}),
    (422, {"namespace": None, "key": "k"}),
    (422, {"namespace": ["a"], "key": 3}),
    (422, None),
]


async def test_what_may_be_deleted(client: Client) -> None:
    for status, body in DELETIONS:
        assert (await client.ask("DELETE", "/store/items", body)).status == status, body


async def test_a_namespace_is_the_same_to_all(client: Client) -> None:
    """Whoever decides by it, an authorization handler say, sees one form in every verb."""
    seen = [
        asked({"body": StorePut(namespace=["a", "b"], key="k", value={})}),
        asked({"query": StoreGet.model_validate({"namespace": ["a.b"], "key": "k"})}),
        asked({"body": StoreSearch(namespace_prefix=["a", "b"])}),
        asked({"body": StoreNamespaces(prefix=["a", "b"])}),
    ]
    assert [value["namespace"] for value in seen] == [("a", "b")] * 4
    for dotted in (["a.b"], ["a", ""]):  # as a handler might write it
        with pytest.raises(routes.BadRequest):
            routes._namespace(dotted)
    await put(client, ["a", "b"], "k", {})
    assert await get(client, "a.b", "k")
    assert await found(client, namespace_prefix=["a"]) == ["k"]
    await client.ask("DELETE", "/store/items", {"namespace": ["a", "b"], "key": "k"})
    assert await found(client) == []


async def test_search(client: Client) -> None:
    for number, key in enumerate(("one", "two", "three")):
        await put(client, ["d", key], key, {"n": number, "at": {"deep": number}})
    await put(client, ["dd"], "beside", {})
    assert await found(client, namespace_prefix=["d"]) == ["three", "two", "one"]
    assert await found(client) == ["beside", "three", "two", "one"]
    assert await found(client, namespace_prefix=None, filter=None, query=None) == [
        *("beside", "three", "two", "one")
    ]
    assert await found(client, namespace_prefix=["d"], limit=1, offset=1) == ["two"]
    assert await found(client, filter={"n": {"$gt": 0}}) == ["three", "two"]
    assert await found(client, filter={"at": {"deep": {"$lte": 0}}}) == ["one"]
    assert await found(client, query="no index: a listing", limit=1000) == [
        *("beside", "three", "two", "one")
    ]
    item = (await client.post("/store/items/search", {"limit": 1})).json["items"][0]
    assert item["score"] is None
    refused: list[tuple[int, dict[str, Any]]] = [
        (400, {"filter": {"n": {"$like": "x"}}}),
        (400, {"filter": {"n": {"$gt": 1, "x": 2}}}),
        (422, {"filter": []}),
        (422, {"limit": 0}),
        (422, {"limit": 1001}),
        (422, {"offset": -1}),
        (422, {"namespace_prefix": ["a.b"]}),
        (422, {"namespace_prefix": "d"}),
        (422, {"query": 5}),
        (422, {"refresh_ttl": "x"}),
    ]
    for status, body in refused:
        answer = await client.post("/store/items/search", body)
        assert answer.status == status, body
        assert isinstance(answer.json["detail"], str)
    deep: Any = 1
    for _ in range(60):
        deep = {"x": deep}
    assert await found(client, filter=deep) == []
    for _ in range(60):
        deep = [deep]
    assert (await client.post("/store/items/search", {"filter": {"n": deep}})).status == 422


async def test_namespaces(client: Client) -> None:
    for namespace in (["a", "b", "c"], ["a", "b"], ["b"], ["a", "x", "c"]):
        await put(client, namespace, "k", {})

    async def listed(**body: Any) -> Any:
        answer = await client.post("/store/namespaces", body)
        assert answer.status == 200, answer.body
        return answer.json["namespaces"]

    assert await listed() == [["a", "b"], ["a", "b", "c"], ["a", "x", "c"], ["b"]]
    assert await listed(prefix=["a"], max_depth=2) == [["a", "b"], ["a", "x"]]
    assert await listed(prefix=["a", "*", "c"]) == [["a", "b", "c"], ["a", "x", "c"]]
    assert await listed(suffix=["c"], limit=1, offset=1) == [["a", "x", "c"]]
    for body in ({"prefix": None}, {"prefix": ["a.b"]}, {"max_depth": 0}, {"limit": 1001}):
        assert (await client.post("/store/namespaces", body)).status == 422


async def test_time_to_live(house: House, stage: Stage) -> None:
    client = await house.gateway(
        store_config=StoreConfig(default_ttl_minutes=1, refresh_on_read=False)
    )

    async def age(minutes: float) -> None:
        await stage.database.execute(
            "UPDATE store SET expires_at = expires_at - %s * interval '1 minute'", [minutes]
        )

    await put(client, ["a"], "default", {})
    await put(client, ["a"], "long", {}, ttl=2.5)
    await put(client, ["a"], "endless", {}, ttl=None)
    await age(0.6)
    assert await get(client, "a", "default")  # does not begin it anew
    await age(0.6)
    assert await get(client, "a", "default") is None
    assert await found(client) == ["endless", "long"]
    assert await found(client, refresh_ttl=True) == ["endless", "long"]
    await age(2)
    assert await get(client, "a", "long", refresh_ttl="true")
    await age(2)
    assert await found(client) == ["endless", "long"]
    await age(1)
    assert await found(client) == ["endless"]
    assert await sweep(stage.database, 1) == 1
    assert await sweep(stage.database, 10) == 1
    assert await sweep(stage.database, 10) == 0
    rows = await stage.database.fetch_all("SELECT key FROM store")
    assert [row["key"] for row in rows] == ["endless"]


async def test_what_embeds_is_left_to_the_inspector(house: House, stage: Stage) -> None:
    client = await house.gateway(store_config=INDEXED)

    async def asked_for(ask: Any, status: int, body: Any) -> Any:
        answering = asyncio.create_task(stage.inspect(status, body))
        answer = await ask
        return answer, await answering

    answer, (op, args) = await asked_for(
        put(client, ["a"], "k", {"text": "x"}, index=["text"], ttl=5), 200, None
    )
    assert (answer.status, answer.body) == (204, b"")
    assert op == "store_put"
    assert args == {
        "namespace": ["a"],
        "key": "k",
        "value": {"text": "x"},
        "index": ["text"],
        "ttl": 5,
    }
    failed = {"detail": "the embedding failed"}
    for ask in (put(client, ["a"], "k", {}), client.post("/store/items/search", {"query": "x"})):
        answer, _ = await asked_for(ask, PROJECT_FAILED, failed)
        assert (answer.status, answer.json) == (503, failed)
        assert "Retry-After" in answer.headers
    answer, (op, args) = await asked_for(
        client.post("/store/items/search", {"query": "words", "filter": {"n": 1}}),
        200,
        {"items": []},
    )
    assert (answer.status, answer.json) == (200, {"items": []})
    assert op == "store_search"
    assert args == {
        "namespace_prefix": [],
        "query": "words",
        "filter": {"n": 1},
        "limit": 10,
        "offset": 0,
        "refresh_ttl": True,
    }
    # The rest needs nobody.
    assert await found(client, filter={"n": 1}) == []
    refused = await client.post("/store/items/search", {"query": "x", "filter": {"n": {"$x": 1}}})
    assert refused.status == 400

"""The store inside graphs, and that the gateway means the same by the same rows."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.base import InvalidNamespaceError, Item, PutOp
from langgraph.store.postgres import AsyncPostgresStore
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool
from pydantic import BaseModel

from actors.child.loader import Graphs
from actors.child.store import GraphStore
from actors.child.store_config import EmbeddingFailed, Index, StoreConfig
from persistence import migrate, store
from persistence.engine import Database
from persistence.settings import DatabaseSettings
from tests.actors.pools import returned

ROOT = Path(__file__).parents[1] / "graphs" / "store"
DIMS = 256
NS = ("docs", "ann")


def project(**index: Any) -> dict[str, Any]:
    section = {"embed": "./embedding.py:embed", "dims": DIMS, "fields": ["text"], **index}
    return {"root": str(ROOT), "graphs": {}, "store": {"index": section}}


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[..., StoreConfig]:
    """The configuration of a project, as a graph process loads it."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def loaded(**index: Any) -> StoreConfig:
        described = project(**index)
        Graphs.import_all(described)
        return StoreConfig.load(described)

    return loaded


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[AsyncConnectionPool[Any]]:
    kwargs = {"autocommit": True, "row_factory": dict_row}
    async with AsyncConnectionPool(
        database_url, min_size=1, max_size=4, open=False, kwargs=kwargs
    ) as pool:
        yield pool


@pytest.fixture
async def plain(pool: AsyncConnectionPool[Any]) -> GraphStore:
    """A store of a project that says nothing about it."""
    return GraphStore(pool)


@pytest.fixture
async def indexed(
    database_url: str, pool: AsyncConnectionPool[Any], load: Callable[..., StoreConfig]
) -> GraphStore:
    await asyncio.to_thread(migrate.upgrade, database_url, vector_dims=DIMS)
    return GraphStore(pool, load())


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with Database(DatabaseSettings(url=database_url)) as database:
        yield database


def keys(items: Any) -> list[str]:
    return [item.key for item in items]


VALUES: dict[str, dict[str, Any]] = {
    "one": {"n": 1, "s": "x", "day": "2026-01-05"},
    "ten": {"n": 10, "s": "y", "day": "2026-02-01"},
    "text": {"n": "7", "list": [1, {"a": 2}], "object": {"p": 1, "q": {"r": 2}}},
    "null": {"n": None, "flag": True, "$odd": 1},
}

FILTERS: list[tuple[dict[str, Any], set[str]]] = [
    ({}, {"one", "ten", "text", "null"}),
    ({"n": 1}, {"one"}),
    ({"n": 1.0}, {"one"}),
    ({"n": "1"}, set()),
    ({"n": None}, {"null"}),
    ({"s": None}, {"text", "null"}),
    ({"n": {"$eq": 10}}, {"ten"}),
    ({"n": {"$ne": 1}}, {"ten", "text", "null"}),
    ({"missing": {"$ne": 1}}, {"one", "ten", "text", "null"}),
    ({"n": {"$gt": 5}}, {"ten", "text"}),
    ({"n": {"$gt": "5"}}, {"ten", "text"}),
    ({"n": {"$gte": 10}}, {"ten"}),
    ({"n": {"$lt": 10}}, {"one", "text"}),
    ({"n": {"$lte": 1}}, {"one"}),
    ({"n": {"$gt": 0, "$lt": 5}}, {"one"}),
    ({"n": {"$gte": None}}, set()),
    ({"n": {"$gt": [1]}}, set()),
    ({"missing": {"$gt": 1}}, set()),
    ({"missing": {"$lte": 1}}, set()),
    ({"list": {"$gt": 0}}, set()),
    ({"day": {"$gte": "2026-01-31"}}, {"ten"}),
    ({"day": {"$lt": "2026-01-31"}}, {"one"}),
    ({"n": {"$gt": 5}, "s": "y"}, {"ten"}),
    ({"object": {"p": 1}}, {"text"}),
    ({"object": {}}, {"text"}),
    ({"object": {"p": {"$gt": 0}, "q": {"r": 2}}}, {"text"}),
    ({"object": {"p": 2}}, set()),
    ({"object": {"$eq": {"p": 1}}}, set()),
    ({"object": {"$eq": {"p": 1, "q": {"r": 2}}}}, {"text"}),
    ({"list": [1, {"a": 2}]}, {"text"}),
    ({"list": [1, {"a": {"$lt": 3}}]}, {"text"}),
    ({"list": [1]}, set()),
    ({"list": 1}, set()),
    ({"flag": True}, {"null"}),
    ({"$odd": 1}, {"null"}),
    ({"a'b\\\"%": 1}, set()),
    ({"n": {"$gt": 1e30}}, set()),
]


@pytest.fixture
async def filled(plain: GraphStore) -> GraphStore:
    for key, value in VALUES.items():
        await plain.aput(NS, key, value)
    return plain


async def test_a_filter_means_the_same_to_graphs_and_gateway(
    filled: GraphStore, database: Database
) -> None:
    for wanted, expected in FILTERS:
        by_graph = await filled.asearch(NS, filter=wanted, limit=100)
        assert set(keys(by_graph)) == expected, wanted
        by_gateway = await store.search(
            database, NS, wanted=wanted, limit=100, offset=0, refresh=False
        )
        assert keys(by_gateway) == keys(by_graph), wanted


async def test_an_unknown_operator_fails_its_own_search_only(filled: GraphStore) -> None:
    wrong, right = await asyncio.gather(
        filled.asearch(NS, filter={"n": {"$like": "x"}}),
        filled.asearch(NS, filter={"n": {"$gt": 5}}),
        return_exceptions=True,
    )
    assert isinstance(wrong, ValueError)
    assert str(wrong) == "Unsupported operator: $like"
    assert keys(right) == ["text", "ten"]
    for wanted in ({"n": {"$gt": 1, "x": 1}}, {"n": {"a": {"$in": [1]}}}, {"n": [{"$in": 1}]}):
        assert store.unsupported_operator(wanted) in ("x", "$in")
        with pytest.raises(ValueError, match="Unsupported"):
            await filled.asearch(NS, filter=wanted)


async def test_the_newest_update_comes_first_and_creation_is_remembered(plain: GraphStore) -> None:
    for key in ("a", "b", "c"):
        await plain.aput(NS, key, {"version": 1})
    first = await plain.aget(NS, "a")
    await plain.aput(NS, "a", {"version": 2})
    again = await plain.aget(NS, "a")
    assert first is not None
    assert again is not None
    assert again.value == {"version": 2}
    assert again.created_at == first.created_at
    assert again.updated_at > first.updated_at
    assert keys(await plain.asearch(NS)) == ["a", "c", "b"]
    assert keys(await plain.asearch(NS, limit=1, offset=1)) == ["c"]


async def test_namespaces_hold_what_is_below_them_and_nothing_beside(
    plain: GraphStore, database: Database
) -> None:
    for namespace in (("a",), ("a", "b"), ("a", "b", "c"), ("ab",), ("a-b",), ("a_", "b"), ("Z",)):
        await plain.aput(namespace, "k", {})

    async def found(*prefix: str) -> set[tuple[str, ...]]:
        return {item.namespace for item in await plain.asearch(prefix, limit=100)}

    assert await found("a") == {("a",), ("a", "b"), ("a", "b", "c")}
    assert await found("a", "b") == {("a", "b"), ("a", "b", "c")}
    assert await found("a%") == set()
    assert len(await found()) == 7

    async def listed(**how: Any) -> list[tuple[str, ...]]:
        by_graph = await plain.alist_namespaces(**how)
        filling: dict[str, Any] = {"prefix": (), "suffix": (), "max_depth": None}
        by_gateway = await store.namespaces(
            database, **{**filling, "limit": 100, "offset": 0, **how}
        )
        assert [tuple(namespace) for namespace in by_gateway] == by_graph
        return by_graph

    everything = await listed()
    assert everything == sorted(everything)
    assert len(everything) == 7
    assert await listed(prefix=("a",)) == [("a",), ("a", "b"), ("a", "b", "c")]
    assert await listed(prefix=("a", "*")) == [("a", "b"), ("a", "b", "c")]
    assert await listed(prefix=("*", "b")) == [("a", "b"), ("a", "b", "c"), ("a_", "b")]
    assert await listed(suffix=("b",)) == [("a", "b"), ("a_", "b")]
    assert await listed(suffix=("*", "c")) == [("a", "b", "c")]
    assert await listed(prefix=("a",), suffix=("c",)) == [("a", "b", "c")]
    assert await listed(prefix=("a",), max_depth=2) == [("a",), ("a", "b")]
    assert await listed(max_depth=1, limit=2, offset=1) == [("a",), ("a-b",)]


async def test_time_to_live(plain: GraphStore, pool: AsyncConnectionPool[Any]) -> None:
    async def age(minutes: float) -> None:
        async with pool.connection() as connection:
            await connection.execute(
                "UPDATE store SET expires_at = expires_at - %s * interval '1 minute'", [minutes]
            )

    await plain.aput(NS, "mortal", {"n": 1}, ttl=0.5)
    await plain.aput(NS, "immortal", {})
    await age(0.4)
    assert await plain.aget(NS, "mortal", refresh_ttl=False)
    assert await plain.aget(NS, "mortal")  # begins anew
    await age(0.4)
    assert keys(await plain.asearch(NS, filter={"n": 1}))  # and again
    await age(0.4)
    assert keys(await plain.asearch(NS, refresh_ttl=False)) == ["immortal", "mortal"]
    await age(0.2)
    assert await plain.aget(NS, "mortal") is None
    assert keys(await plain.asearch(NS)) == ["immortal"]
    assert await plain.alist_namespaces() == [NS]
    await plain.aput(("gone",), "k", {}, ttl=1)
    await age(2)
    assert await plain.alist_namespaces() == [NS]
    # What has expired is no older version of what is written now.
    created = (await _row(pool, "mortal"))["created_at"]
    await plain.aput(NS, "mortal", {})
    assert (await _row(pool, "mortal"))["created_at"] > created


async def _row(pool: AsyncConnectionPool[Any], key: str) -> dict[str, Any]:
    async with pool.connection() as connection:
        cursor = await connection.execute("SELECT * FROM store WHERE key = %s", [key])
        row = await cursor.fetchone()
    assert row is not None
    return dict(row)


async def test_the_projects_time_to_live(pool: AsyncConnectionPool[Any]) -> None:
    ttl: Any = {"default_ttl": 3, "refresh_on_read": False}
    own = GraphStore(pool, StoreConfig(ttl=ttl))
    await own.aput(NS, "default", {})
    await own.aput(NS, "own", {}, ttl=None)
    assert (await _row(pool, "default"))["ttl_minutes"] == 3
    assert (await _row(pool, "own"))["expires_at"] is None
    before = (await _row(pool, "default"))["expires_at"]
    await own.aget(NS, "default")
    assert (await _row(pool, "default"))["expires_at"] == before
    await own.aget(NS, "default", refresh_ttl=True)
    assert (await _row(pool, "default"))["expires_at"] > before


async def test_values_that_postgres_would_refuse(plain: GraphStore) -> None:
    class Model(BaseModel):
        name: str

    await plain.aput(
        NS,
        "odd",
        {
            "nul": "a\0b",
            "surrogate": "\ud800",
            "nan": float("nan"),
            "huge": 2**80,
            "when": datetime(2026, 1, 2),  # noqa: DTZ001  # a user's
            "model": Model(name="m"),
            "set": {1},
            "decimal": Decimal("1.5"),
            "bytes": b"x",
            5: "key",
        },
    )
    item = await plain.aget(NS, "odd")
    assert item is not None
    assert item.value == {
        "nul": "a\ufffdb",
        "surrogate": "\ufffd",
        "nan": None,
        "huge": 2**80,
        "when": "2026-01-02T00:00:00",
        "model": {"name": "m"},
        "set": [1],
        "decimal": 1.5,
        "bytes": "eA==",
        "5": "key",
    }


async def test_bad_places_are_refused(plain: GraphStore) -> None:
    for namespace in ((), ("a.b",), ("",), ("langgraph",)):
        with pytest.raises(InvalidNamespaceError):
            await plain.aput(namespace, "k", {})


async def test_a_batch_writes_all_or_nothing_and_the_last_write_counts(
    indexed: GraphStore, plain: GraphStore
) -> None:
    await plain.abatch([PutOp(NS, "a", {"n": 1}), PutOp(NS, "b", {}), PutOp(NS, "a", {"n": 2})])
    assert {item.key: item.value for item in await plain.asearch(NS)} == {"a": {"n": 2}, "b": {}}
    with pytest.raises(EmbeddingFailed, match="cannot embed this"):
        await indexed.abatch(
            [PutOp(NS, "a", None), PutOp(NS, "c", {"text": "something indigestible"})]
        )
    assert set(keys(await plain.asearch(NS))) == {"a", "b"}


async def test_threads_and_other_loops_may_call_it(plain: GraphStore) -> None:
    def in_thread() -> Item | None:
        plain.put(NS, "thread", {"n": 1})

        async def in_own_loop() -> Item | None:
            await plain.aput(NS, "loop", {"n": 2})
            return await plain.aget(NS, "thread")

        return asyncio.run(in_own_loop())

    with ThreadPoolExecutor() as executor:
        item = await asyncio.get_running_loop().run_in_executor(executor, in_thread)
    assert item is not None
    assert item.value == {"n": 1}
    assert keys(await plain.asearch(NS)) == ["loop", "thread"]
    with pytest.raises(asyncio.InvalidStateError, match=r"await store\.aget"):
        plain.get(NS, "thread")


async def test_semantic_search(indexed: GraphStore) -> None:
    await indexed.aput(NS, "fruit", {"text": "a red apple"})
    await indexed.aput(NS, "tree", {"text": "a green apple tree in the garden"})
    await indexed.aput(NS, "car", {"text": "a blue car"})
    await indexed.aput(NS, "unseen", {"text": "a red apple"}, index=False)
    await indexed.aput(NS, "other", {"title": "apple", "text": "boat"}, index=["title"])
    found = await indexed.asearch(NS, query="apple")
    assert keys(found)[0] == "other"
    assert keys(found)[1:3] == ["fruit", "tree"]
    assert keys(found)[-1] == "unseen"  # found last: it has no vector
    scores = [item.score for item in found]
    assert scores[0] == pytest.approx(1.0)
    assert scores[-1] is None
    assert scores[:-1] == sorted((score for score in scores if score is not None), reverse=True)
    assert keys(await indexed.asearch(NS, query="apple", limit=1, offset=1)) == ["fruit"]
    filtered = await indexed.asearch(NS, query="apple", filter={"text": {"$gt": "a g"}})
    assert keys(filtered) == ["other", "fruit", "tree", "unseen"]
    assert keys(await indexed.asearch(("docs",), query="a blue car", limit=1)) == ["car"]
    assert await indexed.asearch(("elsewhere",), query="apple") == []


async def test_an_overwritten_item_is_found_by_what_it_says_now(indexed: GraphStore) -> None:
    await indexed.aput(NS, "note", {"text": ["apple", "pear", "plum"]}, index=["text[*]"])
    assert (await indexed.asearch(NS, query="plum"))[0].score == pytest.approx(1.0)
    await indexed.aput(NS, "note", {"text": ["apple"]}, index=["text[*]"])
    assert (await indexed.asearch(NS, query="plum"))[0].score == pytest.approx(0.0)
    await indexed.aput(NS, "note", {"text": "plum"}, index=False)
    assert (await indexed.asearch(NS, query="apple"))[0].score is None
    await indexed.aput(NS, "empty", {"text": ""})  # a vector without a direction
    await indexed.aput(NS, "plum", {"text": "plum"})
    assert keys(await indexed.asearch(NS, query="plum"))[0] == "plum"
    await indexed.adelete(NS, "plum")
    assert "plum" not in keys(await indexed.asearch(NS, query="plum"))


async def test_a_slow_or_broken_embedding_is_its_callers_alone(
    indexed: GraphStore, pool: AsyncConnectionPool[Any]
) -> None:
    import embedding  # type: ignore[import-not-found]  # the project's own

    embedding.held.clear()
    try:
        slow = asyncio.create_task(indexed.aput(NS, "slow", {"text": "slowly"}))
        broken = indexed.aput(NS, "broken", {"text": "indigestible"})
        plain = [indexed.aput(NS, f"quick {n}", {"text": "quick"}) for n in range(10)]
        ended = await asyncio.gather(broken, *plain, return_exceptions=True)
        assert isinstance(ended[0], EmbeddingFailed)
        assert ended[1:] == [None] * 10
        assert await indexed.aget(NS, "quick 3")
        assert not slow.done()
        # It waits without a connection of the pool that all runs share.
        await returned(pool)
    finally:
        embedding.held.set()
    await slow
    assert await indexed.aget(NS, "slow")
    assert await indexed.aget(NS, "broken") is None


async def test_many_runs_at_once(indexed: GraphStore) -> None:
    async def run(number: int) -> list[str]:
        own = ("runs", str(number))
        for step in range(5):
            await indexed.aput(own, str(step), {"text": f"word{number}", "step": step})
            await indexed.aput(("shared",), "counter", {"by": number})
        return keys(await indexed.asearch(own, query=f"word{number}", limit=100))

    ends = await asyncio.gather(*(run(number) for number in range(10)))
    assert all(sorted(end) == ["0", "1", "2", "3", "4"] for end in ends)


async def test_langgraphs_own_store_reads_what_was_written_and_writes_what_is_read(
    indexed: GraphStore, pool: AsyncConnectionPool[Any], load: Callable[..., StoreConfig]
) -> None:
    index = load().index
    assert index is not None
    described: Any = {"dims": DIMS, "embed": index.embeddings, "fields": ["text"]}
    stock = AsyncPostgresStore(pool, index=described)
    await indexed.aput(NS, "ours", {"text": "red apple"}, ttl=0.5)
    await stock.aput(NS, "theirs", {"text": "red apple"}, ttl=2)
    for either in (indexed, stock):
        found = await either.asearch(NS, query="red apple")
        assert {item.key: item.score for item in found} == {
            "ours": pytest.approx(1.0),
            "theirs": pytest.approx(1.0),
        }
    assert (await _row(pool, "ours"))["ttl_minutes"] == 0.5


@pytest.mark.parametrize("embed", ["./embedding.py:embed_async", "embedding:embed"])
async def test_forms_of_embeddings(
    embed: str, indexed: GraphStore, pool: AsyncConnectionPool[Any], load: Any
) -> None:
    other = GraphStore(pool, load(embed=embed))
    await other.aput(NS, "k", {"text": "word"})
    assert (await other.asearch(NS, query="word"))[0].score == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ({"embed": "./embedding.py:missing"}, "has no variable 'missing'"),
        ({"embed": "./missing.py:embed"}, "no file"),
        ({"embed": "openai:text-embedding-3-small"}, "langchain"),
        (
            {"embed": "embedding:missing"},
            "has no variable 'missing', and is no provider .*langchain",
        ),
        ({"embed": "./embedding.py:embed_short"}, "a vector of 1 numbers"),
    ],
)
async def test_what_cannot_embed_says_so_and_leaves_the_rest(
    index: Any, reason: str, indexed: GraphStore, pool: AsyncConnectionPool[Any], load: Any
) -> None:
    other = GraphStore(pool, load(**index))
    with pytest.raises(EmbeddingFailed, match=reason):
        await other.aput(NS, "k", {"text": "word"})
    with pytest.raises(EmbeddingFailed, match=reason):
        await other.asearch(NS, query="word")
    assert await other.aget(NS, "k") is None
    await other.aput(NS, "k", {"text": "word"}, index=False)
    assert keys(await other.asearch(NS)) == ["k"]


async def test_texts_to_embed() -> None:
    index = Index(1, ("$",))
    assert index.texts({"b": 1, "a": "ä"}, None) == {"$": '{"a": "ä", "b": 1}'}
    value = {"title": "t", "notes": [{"text": "x"}, {"text": "y"}]}
    assert index.texts(value, ["title", "notes[*].text", "missing"]) == {
        "title": "t",
        "notes[*].text.0": "x",
        "notes[*].text.1": "y",
    }

"""The long-term store inside graphs: LangGraph's interface over this process' connections.

The rows are LangGraph's, what they mean is in functions of the database (``store_tables.py`` of
persistence), and the gateway uses both too. LangGraph's own ``AsyncPostgresStore`` is not used: all
runs of a process would share one queue in it, so that a slow embedding of one run would hold up
every read of the others, and an operation that fails would fail those that came with it. Here each
call stands for itself, without a lock, and takes a connection when its vectors are there.
"""

import asyncio
import concurrent.futures
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    validate_op_namespace,
)
from psycopg import AsyncConnection
from psycopg.rows import DictRow
from psycopg_pool import AsyncConnectionPool

from actors.child.checkpoint_writer import CONNECTION_WAIT_SECONDS, Patience
from actors.child.serialize import dumps
from actors.child.storable import without_nul
from actors.child.store_config import StoreConfig

OPERATORS = frozenset({"$eq", "$ne", "$gt", "$gte", "$lt", "$lte"})
"""How a filter may compare a field, beside being equal."""

_PATIENCE_SECONDS = 30.0
"""How long an operation outlives an outage of the database, as a checkpoint does."""
_HEARING_SECONDS = 0.1
"""A thread that waits for the loop looks up so often, for a stop to reach it."""

Connection = AsyncConnection[DictRow]
Vectors = dict[str, str]
"""Vectors of an item by the path of their text, as Postgres reads them."""


class GraphStore(BaseStore):
    """The store of one process. Belongs to an event loop; other threads and loops may call it."""

    supports_ttl = True

    def __init__(self, pool: AsyncConnectionPool[Any], config: StoreConfig | None = None) -> None:
        """pool: of autocommit connections whose rows are dicts. To be made on the loop."""
        config = config or StoreConfig()
        self._pool = pool
        self._patience = Patience(_PATIENCE_SECONDS)
        self._index = config.index
        self._loop = asyncio.get_running_loop()
        self.ttl_config = config.ttl

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """For threads. Raises InvalidStateError on the loop, which would wait for itself."""
        if _running_loop() is self._loop:
            raise asyncio.InvalidStateError(
                "the store was called synchronously in a coroutine, which would block the loop"
                " for ever; use its asynchronous methods: await store.aget(…), store.aput(…)"
            )
        work = asyncio.run_coroutine_threadsafe(self._perform(list(ops)), self._loop)
        try:
            while not concurrent.futures.wait({work}, _HEARING_SECONDS).done:
                pass
        except BaseException:
            work.cancel()
            raise
        return work.result()

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Several operations over one connection: reads first; all writes take effect, or none."""
        if _running_loop() is self._loop:
            return await self._perform(list(ops))
        work = asyncio.run_coroutine_threadsafe(self._perform(list(ops)), self._loop)
        return await asyncio.wrap_future(work)

    async def _perform(self, ops: list[Op]) -> list[Result]:
        for op in ops:
            validate_op_namespace(op)
            if isinstance(op, SearchOp):
                _check_filter(op.filter or {})
        writes = _writes(ops)
        vectors = await self._vectors(writes)
        questions = await self._questions(ops)

        async def perform() -> list[Result]:
            async with self._pool.connection(timeout=CONNECTION_WAIT_SECONDS) as connection:
                results = [
                    await _read(connection, op, question)
                    for op, question in zip(ops, questions, strict=True)
                ]
                async with AsyncExitStack() as stack:
                    if len(writes) > 1 or self._index is not None:
                        await stack.enter_async_context(connection.transaction())
                    for op, own in zip(writes, vectors, strict=True):
                        await _write(connection, op, own, has_index=self._index is not None)
            return results

        return await self._patience.see_through(perform)

    async def _vectors(self, writes: Sequence[PutOp]) -> list[Vectors]:
        """The vectors of each write; none where nothing is embedded."""
        if self._index is None:
            return [{} for _ in writes]
        texts = [
            {} if op.value is None or op.index is False else self._index.texts(op.value, op.index)
            for op in writes
        ]
        made = iter(await self._index.embed([text for own in texts for text in own.values()]))
        return [{path: next(made) for path in own} for own in texts]

    async def _questions(self, ops: Sequence[Op]) -> list[str | None]:
        """The vector of each operation that asks in words."""
        return [
            await self._index.embed_query(op.query)
            if self._index is not None and isinstance(op, SearchOp) and op.query
            else None
            for op in ops
        ]


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _writes(ops: Sequence[Op]) -> list[PutOp]:
    """The last write to each place, in one order everywhere, so that two batches cannot lock each
    other out."""
    last = {(op.namespace, op.key): op for op in ops if isinstance(op, PutOp)}
    return [last[place] for place in sorted(last)]


def _check_filter(wanted: Mapping[str, Any]) -> None:
    """Raises ValueError for an operator that there is not."""
    pending = list(wanted.values())
    while pending:
        test = pending.pop()
        if isinstance(test, (list, tuple)):
            pending.extend(test)
        elif isinstance(test, Mapping):
            if any(str(name).startswith("$") for name in test):
                if unknown := next((name for name in test if name not in OPERATORS), None):
                    raise ValueError(f"Unsupported operator: {unknown}")
            else:
                pending.extend(test.values())


# Statements

_ITEM = "prefix, key, value, created_at, updated_at"

_GET = f"SELECT {_ITEM} FROM store_get(%(prefix)s, %(key)s, %(refresh)s)"

_SEARCH = f"""
SELECT {_ITEM}, ttl_minutes, NULL::float8 AS score FROM store_found(%(under)s, %(wanted)s::jsonb)
ORDER BY updated_at DESC, prefix, key LIMIT %(limit)s OFFSET %(offset)s
"""

# What is not embedded is found last. Every vector below the namespace is compared: exact, also with
# a filter. A vector of zeros has no direction: NaN, which would come first.
_SEARCH_LIKE = f"""
SELECT {_ITEM}, ttl_minutes, (
    SELECT max(nullif(1 - (vectors.embedding <=> %(question)s::vector), 'NaN'))
    FROM store_vectors AS vectors
    WHERE vectors.prefix = found.prefix AND vectors.key = found.key
) AS score
FROM store_found(%(under)s, %(wanted)s::jsonb) AS found
ORDER BY score DESC NULLS LAST, updated_at DESC, prefix, key LIMIT %(limit)s OFFSET %(offset)s
"""

_REFRESH = "SELECT store_refresh(%(prefixes)s, %(keys)s)"

_NAMESPACES = """
SELECT labels FROM store_namespaces(%(first)s, %(last)s, %(max_depth)s) AS labels
ORDER BY labels COLLATE "C" LIMIT %(limit)s OFFSET %(offset)s
"""

_PUT = "SELECT store_put(%(prefix)s, %(key)s, %(value)s::jsonb, %(ttl)s)"

_DELETE = "DELETE FROM store WHERE prefix = %(prefix)s AND key = %(key)s"

_DELETE_VECTORS = "DELETE FROM store_vectors WHERE prefix = %(prefix)s AND key = %(key)s"

_PUT_VECTORS = """
INSERT INTO store_vectors (prefix, key, field_name, embedding)
SELECT %(prefix)s, %(key)s, path, embedding::vector
FROM unnest(%(paths)s::text[], %(vectors)s::text[]) AS made (path, embedding)
"""


async def _read(connection: Connection, op: Op, question: str | None) -> Result:
    match op:
        case GetOp():
            return await _get(connection, op)
        case SearchOp():
            return await _search(connection, op, question)
        case ListNamespacesOp():
            return await _namespaces(connection, op)
        case PutOp():
            return None


async def _get(connection: Connection, op: GetOp) -> Item | None:
    params = {"prefix": _text(op.namespace), "key": op.key, "refresh": op.refresh_ttl}
    row = await (await connection.execute(_GET, params)).fetchone()
    return None if row is None else Item(**_fields(row))


async def _search(connection: Connection, op: SearchOp, question: str | None) -> list[SearchItem]:
    params = {
        "under": _text(op.namespace_prefix),
        "wanted": without_nul(dumps(op.filter or {})).decode(),
        "question": question,
        "limit": op.limit,
        "offset": op.offset,
    }
    statement = _SEARCH if question is None else _SEARCH_LIKE
    rows = await (await connection.execute(statement, params)).fetchall()
    mortal = [row for row in rows if row["ttl_minutes"] is not None]
    if op.refresh_ttl and mortal:
        read = {name: [row[name] for row in mortal] for name in ("prefix", "key")}
        await connection.execute(_REFRESH, {"prefixes": read["prefix"], "keys": read["key"]})
    return [SearchItem(**_fields(row), score=row["score"]) for row in rows]


async def _namespaces(connection: Connection, op: ListNamespacesOp) -> list[tuple[str, ...]]:
    paths: dict[str, list[str]] = {"prefix": [], "suffix": []}
    for condition in op.match_conditions or ():
        paths[condition.match_type] = list(condition.path)
    params = {
        "first": paths["prefix"],
        "last": paths["suffix"],
        "max_depth": op.max_depth,
        "limit": op.limit,
        "offset": op.offset,
    }
    rows = await (await connection.execute(_NAMESPACES, params)).fetchall()
    return [tuple(row["labels"]) for row in rows]


async def _write(connection: Connection, op: PutOp, vectors: Vectors, *, has_index: bool) -> None:
    place = {"prefix": _text(op.namespace), "key": op.key}
    if op.value is None:
        await connection.execute(_DELETE, place)
        return
    value = without_nul(dumps(dict(op.value))).decode()
    await connection.execute(_PUT, {**place, "value": value, "ttl": op.ttl})
    if has_index:
        # What was embedded of the value before may not be in it any more.
        await connection.execute(_DELETE_VECTORS, place)
    if vectors:
        made = {"paths": list(vectors), "vectors": list(vectors.values())}
        await connection.execute(_PUT_VECTORS, {**place, **made})


def _text(namespace: tuple[str, ...]) -> str:
    return ".".join(namespace)


def _fields(row: DictRow) -> dict[str, Any]:
    return {
        "namespace": tuple(row["prefix"].split(".")),
        "key": row["key"],
        "value": row["value"],
        "created_at": row["created_at"],
        "updated_at": row["updated_at"],
    }

"""The long-term store as the gateway uses it: what needs no embedding. Graphs use the same rows.

A namespace is a tuple of labels without dots. What the functions mean: see store_tables.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from persistence.engine import Database, JsonText, Row
from persistence.text import dumps

Namespace = tuple[str, ...]

OPERATORS = frozenset({"$eq", "$ne", "$gt", "$gte", "$lt", "$lte"})
"""How a filter may compare a field, beside being equal."""


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """What a project says about its store.

    vector_dims: length of the embeddings; None: nothing is embedded. default_ttl_minutes: how long
    items live that come without a time of their own. refresh_on_read: reading begins it anew.
    """

    vector_dims: int | None = None
    default_ttl_minutes: float | None = None
    refresh_on_read: bool = True


@dataclass(frozen=True, slots=True)
class Item:
    """An item as it is read; ``value`` is JSON text."""

    namespace: Namespace
    key: str
    value: str
    created_at: datetime
    updated_at: datetime


_ITEM = "prefix, key, value::text, created_at, updated_at"

_GET = f"SELECT {_ITEM} FROM store_get(%(prefix)s, %(key)s, %(refresh)s)"


async def get(db: Database, namespace: Namespace, key: str, *, refresh: bool) -> Item | None:
    """The item, or None. refresh: begin its time to live anew."""
    params = {"prefix": _text(namespace), "key": key, "refresh": refresh}
    row = await db.fetch_one(_GET, params)
    return None if row is None else _item(row)


_PUT = "SELECT store_put(%(prefix)s, %(key)s, %(value)s::jsonb, %(ttl)s)"
_DELETE_VECTORS = "DELETE FROM store_vectors WHERE prefix = %(prefix)s AND key = %(key)s"


async def put(
    db: Database,
    namespace: Namespace,
    key: str,
    value: Mapping[str, Any],
    *,
    ttl_minutes: float | None,
    has_index: bool,
) -> None:
    """Writes the item without embedding it. has_index: other items are embedded, as it may be."""
    params = {
        "prefix": _text(namespace),
        "key": key,
        "value": JsonText(dumps(value)),
        "ttl": ttl_minutes,
    }
    if not has_index:
        await db.execute(_PUT, params)
        return
    async with db.transaction() as connection:
        await connection.execute(_PUT, params)
        await connection.execute(_DELETE_VECTORS, params)


_DELETE = "DELETE FROM store WHERE prefix = %(prefix)s AND key = %(key)s"


async def delete(db: Database, namespace: Namespace, key: str) -> None:
    """Removes the item, if it is there."""
    await db.execute(_DELETE, {"prefix": _text(namespace), "key": key})


_SEARCH = f"""
SELECT {_ITEM}, ttl_minutes FROM store_found(%(under)s, %(wanted)s::jsonb) AS store
ORDER BY updated_at DESC, prefix, key LIMIT %(limit)s OFFSET %(offset)s
"""
_REFRESH = "SELECT store_refresh(%(prefixes)s, %(keys)s)"


async def search(
    db: Database,
    under: Namespace,
    *,
    wanted: Mapping[str, Any],
    limit: int,
    offset: int,
    refresh: bool,
) -> list[Item]:
    """The items in and below a namespace that a filter lets through, newest update first."""
    params = {
        "under": _text(under),
        "wanted": JsonText(dumps(wanted)),
        "limit": limit,
        "offset": offset,
    }
    rows = await db.fetch_all(_SEARCH, params)
    mortal = [row for row in rows if row["ttl_minutes"] is not None]
    if refresh and mortal:
        read = {name: [row[name] for row in mortal] for name in ("prefix", "key")}
        await db.execute(_REFRESH, {"prefixes": read["prefix"], "keys": read["key"]})
    return [_item(row) for row in rows]


_NAMESPACES = """
SELECT labels FROM store_namespaces(%(first)s, %(last)s, %(max_depth)s) AS labels
ORDER BY labels COLLATE "C" LIMIT %(limit)s OFFSET %(offset)s
"""


async def namespaces(
    db: Database,
    *,
    prefix: Sequence[str],
    suffix: Sequence[str],
    max_depth: int | None,
    limit: int,
    offset: int,
) -> list[list[str]]:
    """The namespaces that begin and end so, sorted; ``*`` stands for any one label.

    max_depth: cut them after so many labels, and name each once.
    """
    params = {
        "first": list(prefix),
        "last": list(suffix),
        "max_depth": max_depth,
        "limit": limit,
        "offset": offset,
    }
    return [row["labels"] for row in await db.fetch_all(_NAMESPACES, params)]


_SWEEP = """
DELETE FROM store USING (
    SELECT prefix, key FROM store WHERE expires_at <= now()
    ORDER BY expires_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
) AS expired
WHERE store.prefix = expired.prefix AND store.key = expired.key
"""


async def sweep(db: Database, limit: int) -> int:
    """Removes items whose time is over, at most ``limit``; returns how many."""
    return await db.execute(_SWEEP, {"limit": limit})


def unsupported_operator(wanted: Mapping[str, Any]) -> str | None:
    """An operator in the filter that there is not, if any."""
    pending: list[Any] = list(wanted.values())
    while pending:
        test = pending.pop()
        if isinstance(test, list):
            pending.extend(test)
        elif isinstance(test, Mapping):
            if any(name.startswith("$") for name in test):
                if unknown := [str(name) for name in test if name not in OPERATORS]:
                    return unknown[0]
            else:
                pending.extend(test.values())
    return None


def _text(namespace: Namespace) -> str:
    return ".".join(namespace)


def _item(row: Row) -> Item:
    return Item(
        tuple(row["prefix"].split(".")),
        row["key"],
        row["value"],
        row["created_at"],
        row["updated_at"],
    )

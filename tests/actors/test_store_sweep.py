"""Expired items of the store go in small batches, beside any number of other sweepers."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from actors import store_sweep
from persistence import store
from persistence.engine import Database
from persistence.settings import DatabaseSettings


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with Database(DatabaseSettings(url=database_url)) as database:
        yield database


async def test_all_that_has_expired_is_removed(database: Database) -> None:
    await database.execute(
        "INSERT INTO store (prefix, key, value, expires_at, ttl_minutes)"
        " SELECT 'a', n::text, '{}', now() - interval '1 second', 1 FROM generate_series(1, 1200) n"
    )
    await store.put(database, ("a",), "alive", {}, ttl_minutes=1, has_index=False)
    await store.put(database, ("a",), "endless", {}, ttl_minutes=None, has_index=False)
    assert await store.sweep(database, 10) == 10
    await asyncio.gather(*(store_sweep.sweep(database) for _ in range(3)))
    await store_sweep.sweep(database)
    rows = await database.fetch_all("SELECT key FROM store ORDER BY key")
    assert [row["key"] for row in rows] == ["alive", "endless"]

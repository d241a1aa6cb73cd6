"""The connections of graph processes over lines that only went silent."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.base import empty_checkpoint
from psycopg_pool import AsyncConnectionPool

from actors.child import connections, dead_lines
from actors.child.saver import BatchingSaver
from actors.child.store import GraphStore
from tests import lines
from tests.lines import Line

LOCK = "SELECT pg_advisory_lock(7)"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks often, and is silent soon."""
    monkeypatch.setattr(dead_lines, "_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(dead_lines, "_SILENCE_SECONDS", 0.3)


@pytest.fixture
def line(database_url: str) -> Iterator[Line]:
    with lines.to_postgres(database_url) as line:
        yield line


@pytest.fixture
async def pool(line: Line) -> AsyncIterator[AsyncConnectionPool[Any]]:
    async with connections.pool(line.url, 4, prepare_threshold=0) as pool:
        yield pool


async def _wait_for_locks(outside: psycopg.AsyncConnection[Any], number: int) -> None:
    """Returns when so many wait for one."""
    while True:
        cursor = await outside.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        if await cursor.fetchone() == (number,):
            return
        await asyncio.sleep(0.01)


async def test_a_statement_whose_answer_will_never_come_is_given_up(
    pool: AsyncConnectionPool[Any], line: Line, database_url: str
) -> None:
    """The server has long done what it was told; nothing of it passes, and nobody hangs up."""
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as outside:
        await outside.execute(LOCK)
        async with asyncio.timeout(60), pool.connection() as connection:
            asking = asyncio.create_task(connection.execute(LOCK))
            await _wait_for_locks(outside, 1)
            line.hold()
            await outside.execute("SELECT pg_advisory_unlock(7)")
            line.mend()
            with pytest.raises(psycopg.OperationalError):
                await asking
        async with asyncio.timeout(60), pool.connection() as connection:
            await connection.execute("SELECT 1")


async def test_a_statement_for_which_the_server_works_is_let_alone(
    pool: AsyncConnectionPool[Any], database_url: str
) -> None:
    """However long: it computes, or waits for a lock."""
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as outside:
        await outside.execute(LOCK)
        async with pool.connection() as one, pool.connection() as other:
            waiting = asyncio.create_task(one.execute(LOCK))
            await other.execute(
                "SELECT count(*) FROM generate_series(1, 10) AS n, pg_sleep(0.3 + n * 0)"
            )
            assert not waiting.done()
            await outside.execute("SELECT pg_advisory_unlock(7)")
            await waiting


async def test_who_cannot_ask_gives_nothing_up(
    pool: AsyncConnectionPool[Any], line: Line, database_url: str
) -> None:
    """No new line passes either: nothing is known, until one does."""
    async with pool.connection() as connection:
        line.hold()
        asking = asyncio.create_task(connection.execute("SELECT 1"))
        await asyncio.wait({asking}, timeout=2)
        assert not asking.done()
        line.mend()
        async with asyncio.timeout(60):
            with pytest.raises(psycopg.OperationalError):
                await asking


async def test_checkpoints_and_the_store_see_it_through(
    pool: AsyncConnectionPool[Any], line: Line, database_url: str
) -> None:
    """What they have asked is done, and asked again since its answer is lost."""
    saver, store = BatchingSaver(pool), GraphStore(pool)
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    checkpoint = empty_checkpoint()
    async with (
        asyncio.timeout(60),
        await psycopg.AsyncConnection.connect(database_url) as outside,
    ):
        await outside.execute("LOCK TABLE checkpoints, store")
        put = asyncio.create_task(saver.aput(config, checkpoint, {}, {}))
        written = asyncio.create_task(store.aput(("a",), "b", {"n": 1}))
        await _wait_for_locks(outside, 2)
        line.hold()
        await outside.commit()
        line.mend()
        await asyncio.gather(put, written)
    stored = await saver.aget_tuple(config)
    assert stored is not None
    assert stored.checkpoint["id"] == checkpoint["id"]
    item = await store.aget(("a",), "b")
    assert item is not None
    assert item.value == {"n": 1}


async def test_a_transaction_that_rests_holds_no_lock_for_long(
    line: Line, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server does not know that the line is dead either."""
    monkeypatch.setattr(connections, "_RESTING_SECONDS", 1)
    async with (
        connections.pool(line.url, 1, prepare_threshold=0) as pool,
        await psycopg.AsyncConnection.connect(database_url, autocommit=True) as outside,
        pool.connection() as connection,
    ):
        with suppress(psycopg.OperationalError):
            async with connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock(7)")
                line.hold()
                async with asyncio.timeout(60):
                    await outside.execute(LOCK)
                line.mend()

"""Threads are made, found, changed and copied."""

from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest
from langgraph.checkpoint.postgres import PostgresSaver
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from persistence import runs, threads
from persistence.engine import Database
from persistence.errors import Conflict, ThreadNotFound
from persistence.lifecycle import SUCCEED, ThreadStatus
from persistence.runs import Settlement
from persistence.settings import DatabaseSettings
from tests.persistence.sample import claim, create
from tests.persistence.test_cancel import write_checkpoints


async def test_made_once(db: Database) -> None:
    made = await threads.create(db, uuid4(), {"title": "a\0b"})
    assert (made.status, made.values, made.interrupts) == (ThreadStatus.IDLE, None, None)
    assert orjson.loads(made.metadata) == {"title": "a\ufffdb"}
    with pytest.raises(Conflict):
        await threads.create(db, made.thread_id, {})
    again = await threads.create(db, made.thread_id, {"x": 1}, if_exists="do_nothing")
    assert again == made == await threads.get(db, made.thread_id)


async def test_patch_merges_the_top_level(db: Database) -> None:
    made = await threads.create(db, uuid4(), {"a": {"b": 1}, "c": 1})
    patched = await threads.patch(db, made.thread_id, {"a": None, "d": "\ud800"})
    assert orjson.loads(patched.metadata) == {"a": None, "c": 1, "d": "\ufffd"}
    assert patched.updated_at > made.updated_at
    for unknown in (threads.get(db, uuid4()), threads.patch(db, uuid4(), {})):
        with pytest.raises(ThreadNotFound):
            await unknown


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, "abcde"),
        ({"flag": True}, "a"),
        ({"flag": 1}, "b"),
        ({"flag": "true"}, "c"),
        ({"deep": {"x": 1}}, "d"),
        ({"deep": {"list": [1, 2]}}, "d"),
        ({"deep": {"list": [1]}}, ""),
        ({"deep": {"list": []}}, ""),
        ({"flag": None}, "e"),
        ({"50%": {"it's": "\0"}}, "e"),
    ],
)
async def test_metadata_matches_by_type_and_lists_as_a_whole(
    db: Database, wanted: dict[str, object], found: str
) -> None:
    stored: dict[str, dict[str, object]] = {
        "a": {"flag": True},
        "b": {"flag": 1},
        "c": {"flag": "true"},
        "d": {"deep": {"x": 1, "y": 2, "list": [1, 2]}},
        "e": {"flag": None, "50%": {"it's": "\ufffd", "z": 0}},
    }
    for name, metadata in stored.items():
        await threads.create(db, uuid4(), metadata | {"name": name})
    rows = await threads.search(db, metadata=wanted)
    assert "".join(sorted(orjson.loads(row.metadata)["name"] for row in rows)) == found
    assert await threads.count(db, metadata=wanted) == len(found)


async def test_pages_of_equal_moments_neither_repeat_nor_miss(db: Database) -> None:
    await db.execute(
        """INSERT INTO threads (thread_id, created_at, updated_at)
        SELECT gen_random_uuid(), now(), now() FROM generate_series(1, 40)"""
    )
    for by in ("thread_id", "status", "created_at", "updated_at", "state_updated_at"):
        for order in ("asc", "desc"):
            seen: list[UUID] = []
            for offset in range(0, 50, 10):
                page = await threads.search(
                    db,
                    sort_by=by,
                    sort_order=order,
                    offset=offset,  # type: ignore[arg-type]
                )
                seen += [row.thread_id for row in page]
            assert seen == sorted(seen, reverse=order == "desc")
            assert len(set(seen)) == 40


async def test_search_by_id_status_and_values(db: Database) -> None:
    idle, busy = await create(db), await create(db)
    await create(db, temporary=True)
    await claim(db, idle.run_id)
    await runs.settle(db, [Settlement(idle.run_id, 1, SUCCEED, values=b'{"n":[1],"m":2}')])
    # Changed last first.
    assert [t.thread_id for t in await threads.search(db)] == [idle.thread_id, busy.thread_id]
    assert await threads.count(db) == 2
    [found] = await threads.search(db, values={"m": 2})
    assert (found.thread_id, found.values) == (idle.thread_id, b'{"m": 2, "n": [1]}')
    assert await threads.count(db, values={"n": [1]}) == 1
    [found] = await threads.search(db, status=ThreadStatus.BUSY)
    assert found.thread_id == busy.thread_id
    [found] = await threads.search(db, ids=[idle.thread_id, uuid4()], select=["interrupts"])
    assert (found.values, found.interrupts) == (None, b"{}")
    assert len(await threads.search(db, ids=[])) == 2


async def test_a_state_update_is_noted(db: Database) -> None:
    made = await threads.create(db, uuid4(), {})
    await threads.record_state(db, made.thread_id, values=b'{"x":"\\u0000"}', next_nodes=True)
    noted = await threads.get(db, made.thread_id)
    assert (noted.status, noted.values) == (ThreadStatus.INTERRUPTED, '{"x": "\ufffd"}'.encode())
    run = await create(db, made.thread_id)
    await threads.record_state(db, made.thread_id, values=None, next_nodes=False)
    noted = await threads.get(db, made.thread_id)
    assert (noted.status, noted.values) == (ThreadStatus.BUSY, '{"x": "\ufffd"}'.encode())
    await runs.delete(db, made.thread_id, run.run_id)
    assert (await threads.get(db, made.thread_id)).status is ThreadStatus.IDLE
    with pytest.raises(ThreadNotFound):
        await threads.record_state(db, uuid4(), values=None, next_nodes=False)


async def test_a_copy_has_the_history_and_no_runs(db: Database, database_url: str) -> None:
    run = await create(db)
    await claim(db, run.run_id)
    written = write_checkpoints(database_url, run.thread_id, run.run_id, run.run_id)
    await runs.settle(db, [Settlement(run.run_id, 1, SUCCEED, values=b"{}", next_nodes=True)])
    copied = await threads.copy(db, run.thread_id, uuid4())
    source = await threads.get(db, run.thread_id)
    assert (copied.status, copied.values, copied.metadata) == (
        source.status,
        source.values,
        source.metadata,
    )
    assert await runs.list_for_thread(db, copied.thread_id) == []
    with PostgresSaver.from_conn_string(database_url) as saver:
        history = list(saver.list({"configurable": {"thread_id": str(copied.thread_id)}}))
    assert [entry.checkpoint["id"] for entry in history] == written[::-1]
    assert history[0].checkpoint["channel_values"] == {"kept": ["k"], "new": [2]}
    with pytest.raises(ThreadNotFound):
        await threads.copy(db, uuid4(), uuid4())
    with pytest.raises(Conflict):
        await threads.copy(db, run.thread_id, copied.thread_id)


class Recorder(Database):
    """Remembers the statement that was read with last."""

    last: Any = None

    async def fetch_all(self, statement: Any, params: Any = None) -> list[dict[str, Any]]:
        self.last = statement
        return await super().fetch_all(statement, params)


@pytest.mark.parametrize("sort_order", ["asc", "desc"])
@pytest.mark.parametrize(
    "sort_by", ["thread_id", "status", "created_at", "updated_at", "state_updated_at"]
)
async def test_pages_come_from_an_index(database_url: str, sort_by: Any, sort_order: Any) -> None:
    recorder = Recorder(DatabaseSettings(url=database_url))
    await recorder.open()
    try:
        await threads.search(recorder, sort_by=sort_by, sort_order=sort_order, limit=1000)
        query = recorder.last.compile(
            dialect=PGDialect_psycopg(), compile_kwargs={"literal_binds": True}
        )
        async with recorder.transaction() as connection:
            # In a table of a few rows nothing pays but reading all of it.
            await connection.execute("SET LOCAL enable_seqscan = off")
            await connection.execute("SET LOCAL enable_bitmapscan = off")
            rows = await (await connection.execute(f"EXPLAIN {query}")).fetchall()
    finally:
        await recorder.close()
    plan = "\n".join(row["QUERY PLAN"] for row in rows)
    assert "Sort" not in plan, plan
    index = "pk_threads" if sort_by == "thread_id" else f"ix_threads_{sort_by}"
    assert f"using {index} " in plan, plan

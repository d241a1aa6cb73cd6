"""Lifetimes: threads that go, threads that lose their history, and those that are in use."""

import asyncio
from typing import Annotated, Any, TypedDict
from uuid import UUID, uuid4

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import StateGraph
from psycopg import AsyncConnection
from psycopg.rows import dict_row

from persistence import checkpoints, runs, threads
from persistence.engine import Database
from persistence.errors import HistoryNeeded, ThreadNotFound, Unavailable
from persistence.lifecycle import SUCCEED
from persistence.runs import Settlement
from persistence.ttl import Ttl, TtlStrategy
from tests.persistence.sample import claim, create, new_run, refuse

SHORT = Ttl(0.0001)
"""Six milliseconds."""
PRUNE = Ttl(0.0001, TtlStrategy.KEEP_LATEST)


class State(TypedDict, total=False):
    said: Annotated[list[str], lambda old, new: old + new]
    step: int


async def converse(url: str, thread_id: UUID, turns: int = 1) -> Any:
    """Lets a graph make history on the thread; returns its latest state."""
    async with await AsyncConnection.connect(
        url, autocommit=True, prepare_threshold=0, row_factory=dict_row
    ) as connection:
        builder = StateGraph(State)
        builder.add_node("node", lambda state: {"said": ["b"], "step": len(state["said"])})
        builder.set_entry_point("node")
        graph = builder.compile(checkpointer=AsyncPostgresSaver(connection))
        config: Any = {"configurable": {"thread_id": str(thread_id)}}
        for _ in range(turns):
            await graph.ainvoke({"said": ["a" * 1000]}, config)
        return (await graph.aget_state(config)).values


async def converse_in_deltas(url: str, thread_id: UUID) -> None:
    """The same with a channel whose value is made of its history."""

    class Log(TypedDict, total=False):
        log: Annotated[list[Any], DeltaChannel(lambda old, new: old + list(new))]

    async with await AsyncConnection.connect(
        url, autocommit=True, prepare_threshold=0, row_factory=dict_row
    ) as connection:
        builder = StateGraph(Log)
        builder.add_node("node", lambda state: {"log": ["b"]})
        builder.set_entry_point("node")
        graph = builder.compile(checkpointer=AsyncPostgresSaver(connection))
        await graph.ainvoke({"log": ["a"]}, {"configurable": {"thread_id": str(thread_id)}})


async def rows_of(db: Database, table: str, thread_id: UUID) -> int:
    row = await db.fetch_one(
        f"SELECT count(*) AS n FROM {table} WHERE thread_id = %s", [str(thread_id)]
    )
    return 0 if row is None else int(row["n"])


async def expired(db: Database, thread_id: UUID) -> None:
    """Waits until the thread's time is over by the database's clock."""
    while not await db.fetch_one(
        "SELECT 1 AS yes FROM threads WHERE thread_id = %s AND expires_at <= clock_timestamp()",
        [thread_id],
    ):
        await asyncio.sleep(0.005)


async def test_a_thread_whose_time_is_over_goes_with_its_history(
    db: Database, database_url: str
) -> None:
    short = await threads.create(db, uuid4(), {}, ttl=SHORT)
    long = await threads.create(db, uuid4(), {}, ttl=Ttl(60))
    endless = await threads.create(db, uuid4(), {})
    await converse(database_url, short.thread_id)
    await expired(db, short.thread_id)
    assert await threads.delete_expired(db) == 1
    with pytest.raises(ThreadNotFound):
        await threads.get(db, short.thread_id)
    for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes"):
        assert await rows_of(db, table, short.thread_id) == 0
    assert (await threads.get(db, long.thread_id)).expires_at is not None
    assert (await threads.get(db, endless.thread_id)).expires_at is None
    assert await threads.delete_expired(db) == 0


async def test_the_time_counts_from_the_last_change(db: Database) -> None:
    thread = await threads.create(db, uuid4(), {}, ttl=Ttl(60))
    assert thread.expires_at is not None
    assert (thread.expires_at - thread.updated_at).total_seconds() == 3600
    changed = await threads.patch(db, thread.thread_id, {"a": 1})
    assert changed.expires_at is not None
    assert changed.expires_at > thread.expires_at
    changed = await threads.patch(db, thread.thread_id, {}, ttl=Ttl(2, TtlStrategy.KEEP_LATEST))
    assert (changed.ttl_minutes, changed.ttl_strategy) == (2, "keep_latest")
    copy = await threads.copy(db, thread.thread_id, uuid4())
    assert (copy.ttl_minutes, copy.ttl_strategy) == (2, "keep_latest")


@pytest.mark.parametrize("ttl", [SHORT, PRUNE])
async def test_a_thread_with_an_active_run_is_left_alone(
    db: Database, database_url: str, ttl: Ttl
) -> None:
    run = await create(db, ttl=ttl)
    await converse(database_url, run.thread_id)
    history = await rows_of(db, "checkpoints", run.thread_id)
    await expired(db, run.thread_id)
    assert await threads.delete_expired(db) == await threads.prune_expired(db) == 0  # pending
    await claim(db, run.run_id)
    assert await threads.delete_expired(db) == await threads.prune_expired(db) == 0  # running
    assert await rows_of(db, "checkpoints", run.thread_id) == history
    await runs.settle(db, [Settlement(run.run_id, 1, SUCCEED, values=b"{}")])
    await expired(db, run.thread_id)
    assert await threads.delete_expired(db) + await threads.prune_expired(db) == 1


async def test_a_run_that_comes_while_a_thread_expires_either_saves_it_or_finds_none(
    db: Database,
) -> None:
    for _ in range(10):
        thread = await threads.create(db, uuid4(), {}, ttl=SHORT)
        await expired(db, thread.thread_id)
        swept, created = await asyncio.gather(
            threads.delete_expired(db),
            runs.create(db, new_run(thread.thread_id, if_not_exists="reject")),
            return_exceptions=True,
        )
        if swept == 1:
            assert isinstance(created, ThreadNotFound)
        else:
            assert (await threads.get(db, thread.thread_id)).status == "busy"


async def test_keep_latest_leaves_the_state_and_nothing_else(
    db: Database, database_url: str
) -> None:
    thread = await threads.create(db, uuid4(), {}, ttl=PRUNE)
    other = await threads.create(db, uuid4(), {})
    for one in (thread, other):
        state = await converse(database_url, one.thread_id, turns=3)
    before = await checkpoints.storage(db, thread.thread_id)
    assert before.checkpoints["count"] == 9
    await expired(db, thread.thread_id)
    assert await threads.prune_expired(db) == 1
    after = await checkpoints.storage(db, thread.thread_id)
    assert after.checkpoints["count"] == 1
    assert after.channels["said"]["versions"] == 1
    assert after.channels["said"]["bytes"] < before.channels["said"]["bytes"]
    assert (await checkpoints.storage(db, other.thread_id)).checkpoints["count"] == 9
    assert await converse(database_url, thread.thread_id, turns=0) == state
    assert await threads.prune_expired(db) == 0  # once, until the thread changes
    await converse(database_url, thread.thread_id)
    await threads.patch(db, thread.thread_id, {})
    await expired(db, thread.thread_id)
    assert await threads.prune_expired(db) == 1
    assert len((await converse(database_url, thread.thread_id, turns=0))["said"]) == 8


@pytest.mark.parametrize("prune", [threads.keep_latest, threads.delete_many])
async def test_what_is_pruned_at_once_is_pruned_whole_or_not_at_all(
    db: Database, database_url: str, prune: Any
) -> None:
    made = [(await threads.create(db, uuid4(), {})).thread_id for _ in range(2)]
    for thread_id in made:
        await converse(database_url, thread_id)
    for over in made:  # one of them is the second
        await refuse(db, "DELETE ON checkpoints", f"OLD.thread_id = '{over}'")
        with pytest.raises(Unavailable):
            await prune(db, made)
        for thread_id in made:
            assert (await threads.get(db, thread_id)).thread_id == thread_id
            assert await rows_of(db, "checkpoints", thread_id) == 3
        await db.execute("DROP TRIGGER refuse ON checkpoints")
    await prune(db, [*made, uuid4()])
    left = [await rows_of(db, "checkpoints", thread_id) for thread_id in made]
    assert left == ([1, 1] if prune is threads.keep_latest else [0, 0])


@pytest.mark.parametrize("by", ["a prune", "a deletion"])
async def test_history_that_others_delete_meanwhile_is_waited_for(
    db: Database, database_url: str, by: str
) -> None:
    thread_id = (await threads.create(db, uuid4(), {})).thread_id
    await converse(database_url, thread_id)
    kept = 1 if by == "a prune" else 0
    async with db.transaction() as other:
        await other.execute(
            "DELETE FROM checkpoints WHERE thread_id = %(id)s AND checkpoint_id NOT IN (SELECT"
            " checkpoint_id FROM checkpoints WHERE thread_id = %(id)s"
            " ORDER BY checkpoint_id DESC LIMIT %(kept)s)",
            {"id": str(thread_id), "kept": kept},
        )
        pruning = asyncio.create_task(threads.keep_latest(db, [thread_id]))
        waits = "SELECT count(*) AS n FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"
        while (await db.fetch_one(waits, [other.info.backend_pid])) != {"n": 1}:
            assert not pruning.done()
            await asyncio.sleep(0.01)
    assert await pruning == 1
    assert await rows_of(db, "checkpoints", thread_id) == kept


async def test_prunes_and_deletions_of_the_same_threads_take_turns(
    db: Database, database_url: str
) -> None:
    made = [(await threads.create(db, uuid4(), {})).thread_id for _ in range(6)]
    for thread_id in made:
        await converse(database_url, thread_id, turns=4)
    await asyncio.gather(
        *(threads.keep_latest(db, made[::order]) for order in (1, -1, 1, -1)),
        threads.delete_many(db, made[2:4]),
        threads.delete(db, made[0]),
    )
    left = [await rows_of(db, "checkpoints", thread_id) for thread_id in made]
    assert left == [0, 1, 0, 0, 1, 1]


async def test_history_that_one_needs_saves_that_of_all(db: Database, database_url: str) -> None:
    first, needing, last = [(await threads.create(db, uuid4(), {})).thread_id for _ in range(3)]
    for thread_id in (first, last):
        await converse(database_url, thread_id)
    await converse_in_deltas(database_url, needing)
    with pytest.raises(HistoryNeeded):
        await threads.keep_latest(db, [first, needing, last])
    for thread_id in (first, last):
        assert await rows_of(db, "checkpoints", thread_id) == 3


async def test_a_sweep_takes_a_small_batch(db: Database) -> None:
    made = [await threads.create(db, uuid4(), {}, ttl=SHORT) for _ in range(3)]
    for thread in made:
        await expired(db, thread.thread_id)
    assert [await threads.delete_expired(db, limit=2) for _ in range(3)] == [2, 1, 0]


async def test_the_search_for_expired_threads_reads_only_those(db: Database) -> None:
    await db.execute(
        """INSERT INTO threads (thread_id, ttl_minutes, ttl_strategy)
        SELECT gen_random_uuid(), CASE WHEN n % 100 = 0 THEN 60 END,
            CASE WHEN n % 100 = 0 THEN 'delete' END FROM generate_series(1, 5000) AS n"""
    )
    await db.execute("ANALYZE threads")
    statement = threads._EXPIRED_TO_DELETE
    plan = await db.fetch_all("EXPLAIN " + statement, {"strategy": "delete", "limit": 100})
    assert "ix_threads_expiry" in str(plan)


async def test_storage_counts_what_is_there(db: Database, database_url: str) -> None:
    thread = await threads.create(db, uuid4(), {})
    assert (await checkpoints.storage(db, thread.thread_id)).channels == {}
    await converse(database_url, thread.thread_id)
    storage = await checkpoints.storage(db, thread.thread_id)
    assert storage.checkpoints["count"] == 3
    assert storage.checkpoints["bytes"] > 100
    assert storage.channels["said"]["versions"] == 2
    assert storage.writes["count"] > 0

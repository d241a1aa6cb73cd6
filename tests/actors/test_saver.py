"""The batching saver: fences against real rows, batches, failures and lost connections."""

import asyncio
import contextlib
import math
import threading
import time
import uuid
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointTuple, empty_checkpoint
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool

from actors.child import checkpoint_writer
from actors.child.checkpoint_rows import FLUSH, to_json
from actors.child.checkpoint_values import is_small
from actors.child.checkpoint_writer import RunRowLocked, WriterClosed
from actors.child.saver import BatchingSaver, PutTooLarge, StaleAttempt
from persistence.lifecycle import RunStatus
from tests.actors.pools import returned

Pool = AsyncConnectionPool[AsyncConnection[DictRow]]


@asynccontextmanager
async def connected(database_url: str) -> AsyncIterator[AsyncConnection[DictRow]]:
    """A connection outside the pool, so that it can block the saver without starving it."""
    async with await AsyncConnection.connect(
        database_url, autocommit=True, row_factory=dict_row
    ) as connection:
        yield connection


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[Pool]:
    async with AsyncConnectionPool(
        database_url,
        min_size=1,
        max_size=4,
        open=False,
        kwargs={"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row},
    ) as pool:
        yield pool


@pytest.fixture
async def saver(pool: Pool) -> AsyncIterator[BatchingSaver]:
    saver = BatchingSaver(pool)
    yield saver
    await saver.aclose()


@pytest.fixture
async def other(database_url: str) -> AsyncIterator[AsyncConnection[DictRow]]:
    async with connected(database_url) as connection:
        yield connection


TAKE_OVER = """
WITH taken AS (SELECT run_id FROM runs WHERE run_id = %s FOR UPDATE)
UPDATE runs SET attempt = attempt + 1 FROM taken WHERE runs.run_id = taken.run_id
"""
"""As all do that end an attempt."""


async def claimed_run(connection: AsyncConnection[DictRow], attempt: int = 1) -> uuid.UUID:
    """The id of a run that is running in the given attempt."""
    thread_id, run_id = uuid.uuid4(), uuid.uuid4()
    await connection.execute("INSERT INTO threads (thread_id) VALUES (%s)", [thread_id])
    await connection.execute(
        """INSERT INTO runs (run_id, thread_id, assistant_id, graph_id, status, kwargs,
        multitask_strategy, attempt, claimed_by, lease_expires_at, started_at)
        VALUES (%s, %s, %s, 'agent', 'running', '{}', 'enqueue', %s, 'host/1/boot',
        clock_timestamp() + interval '1 minute', clock_timestamp())""",
        [run_id, thread_id, uuid.uuid4(), attempt],
    )
    return run_id


def new_checkpoint(**values: Any) -> Checkpoint:
    checkpoint = empty_checkpoint()
    checkpoint["v"] = 4
    checkpoint["channel_values"] = values
    checkpoint["channel_versions"] = {name: f"1.{uuid.uuid4()}" for name in values}
    return checkpoint


async def put(
    saver: BatchingSaver,
    checkpoint: Checkpoint | None = None,
    thread_id: str = "t",
    metadata: Any = None,
    **config: Any,
) -> None:
    checkpoint = new_checkpoint(log=["x"]) if checkpoint is None else checkpoint
    place = {"thread_id": thread_id, "checkpoint_ns": "", **config}
    await saver.aput(
        {"configurable": place}, checkpoint, metadata or {}, checkpoint["channel_versions"]
    )


async def latest(saver: AsyncPostgresSaver, thread_id: str = "t") -> CheckpointTuple:
    found = await saver.aget_tuple({"configurable": {"thread_id": thread_id}})
    assert found is not None
    return found


async def count(connection: AsyncConnection[DictRow], table: str = "checkpoints") -> int:
    row = await (await connection.execute(f"SELECT count(*) AS n FROM {table}")).fetchone()
    assert row is not None
    return int(row["n"])


@asynccontextmanager
async def blocked_flush(
    saver: BatchingSaver, database_url: str, view: BatchingSaver | None = None
) -> AsyncIterator["tuple[asyncio.Task[None], int]"]:
    """A flush that hangs in the database until this context ends, its put, and its backend's pid.

    It waits for an uncommitted row of the same key, after it has passed the fence.
    """
    checkpoint = new_checkpoint(log=["blocked"])
    async with connected(database_url) as blocker, connected(database_url) as watcher:
        async with blocker.transaction(force_rollback=True):
            await blocker.execute(
                "INSERT INTO checkpoints (thread_id, checkpoint_id, checkpoint)"
                " VALUES ('blocked', %s, '{}')",
                [checkpoint["id"]],
            )
            task = asyncio.create_task(put(view or saver, checkpoint, "blocked"))
            pid = await waiting_backend(watcher, blocker.info.backend_pid)
            yield task, pid
        await task


async def waiting_backend(watcher: AsyncConnection[DictRow], blocker: int) -> int:
    """The pid of the backend that waits for ``blocker``, as soon as there is one."""
    async with asyncio.timeout(60):
        while True:
            found = await watcher.execute(
                "SELECT pid FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))", [blocker]
            )
            if row := await found.fetchone():
                return int(row["pid"])
            await asyncio.sleep(0.01)


# Fences


async def test_an_attempt_writes_while_it_owns_its_run(
    saver: BatchingSaver, other: AsyncConnection[DictRow]
) -> None:
    view = saver.for_run(await claimed_run(other, attempt=3), 3)
    await put(view)
    await view.aput_writes(
        {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "c"}},
        [("log", 1)],
        "task",
    )
    assert [await count(other, table) for table in ("checkpoints", "checkpoint_writes")] == [1, 1]


@pytest.mark.parametrize("attempt", [1, 3], ids=["older", "not yet claimed"])
async def test_another_attempt_is_refused_and_leaves_nothing(
    saver: BatchingSaver, other: AsyncConnection[DictRow], attempt: int
) -> None:
    view = saver.for_run(str(await claimed_run(other, attempt=2)), attempt)
    with pytest.raises(StaleAttempt):
        await put(view)
    with pytest.raises(StaleAttempt):
        await view.aput_writes(
            {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "c"}},
            [("log", 1)],
            "task",
        )
    for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes"):
        assert await count(other, table) == 0


@pytest.mark.parametrize("status", sorted(set(RunStatus) - {RunStatus.RUNNING}))
async def test_an_attempt_whose_run_is_not_running_is_refused(
    saver: BatchingSaver, other: AsyncConnection[DictRow], status: RunStatus
) -> None:
    run_id = await claimed_run(other)
    finished = None if status is RunStatus.PENDING else "now"
    await other.execute(
        "UPDATE runs SET status = %s, claimed_by = NULL, lease_expires_at = NULL,"
        " finished_at = %s WHERE run_id = %s",
        [status, finished, run_id],
    )
    with pytest.raises(StaleAttempt):
        await put(saver.for_run(run_id, 1))
    assert await count(other) == 0


async def test_a_run_that_was_deleted_gets_no_checkpoint_again(
    saver: BatchingSaver, other: AsyncConnection[DictRow]
) -> None:
    view = saver.for_run(await claimed_run(other), 1)
    await other.execute("DELETE FROM threads")
    with pytest.raises(StaleAttempt):
        await put(view)
    assert await count(other) == 0


async def test_a_stale_attempt_costs_its_neighbours_in_the_batch_nothing(
    saver: BatchingSaver, other: AsyncConnection[DictRow], database_url: str
) -> None:
    good = [saver.for_run(await claimed_run(other), 1) for _ in range(3)]
    stale = saver.for_run(await claimed_run(other, attempt=2), 1)
    async with blocked_flush(saver, database_url):
        puts = [
            asyncio.create_task(put(view, thread_id=f"t{at}"))
            for at, view in enumerate((good[0], stale, good[1], saver.unfenced(), good[2]))
        ]
        await asyncio.sleep(0)
    results = await asyncio.gather(*puts, return_exceptions=True)
    assert [type(result) for result in results] == [
        type(None), StaleAttempt, type(None), type(None), type(None),
    ]  # fmt: skip
    threads = await (await other.execute("SELECT thread_id FROM checkpoints")).fetchall()
    assert {row["thread_id"] for row in threads} == {"blocked", "t0", "t2", "t3", "t4"}


async def test_a_put_that_meets_an_uncommitted_claim_waits_for_its_outcome_and_is_refused(
    saver: BatchingSaver, other: AsyncConnection[DictRow]
) -> None:
    run_id = await claimed_run(other)
    async with other.transaction():
        await other.execute(TAKE_OVER, [run_id])
        task = asyncio.create_task(put(saver.for_run(run_id, 1)))
        async with asyncio.timeout(60):
            await put(saver, thread_id="neighbour")  # goes in meanwhile
        assert not task.done()
    with pytest.raises(StaleAttempt):
        await task
    assert await count(other) == 1


async def test_puts_and_heartbeats_do_not_wait_for_each_other(
    saver: BatchingSaver, other: AsyncConnection[DictRow], database_url: str
) -> None:
    run_id = await claimed_run(other)
    async with other.transaction(), asyncio.timeout(60):
        await other.execute("UPDATE runs SET updated_at = 'now' WHERE run_id = %s", [run_id])
        await put(saver.for_run(run_id, 1))
    async with blocked_flush(saver, database_url, saver.for_run(run_id, 1)), asyncio.timeout(60):
        await other.execute("UPDATE runs SET updated_at = 'now' WHERE run_id = %s", [run_id])
    assert await count(other) == 2


async def test_a_claim_waits_for_a_flush_that_passed_the_fence_and_then_sees_its_rows(
    saver: BatchingSaver, other: AsyncConnection[DictRow], database_url: str
) -> None:
    run_id = await claimed_run(other)
    async with connected(database_url) as watcher:
        async with blocked_flush(saver, database_url, saver.for_run(run_id, 1)) as (task, pid):
            claim = asyncio.create_task(other.execute(TAKE_OVER, [run_id]))
            assert await waiting_backend(watcher, pid) == other.info.backend_pid
            assert not task.done()
        await claim
    assert (await latest(saver, "blocked")).checkpoint["channel_values"] == {"log": ["blocked"]}


async def test_two_attempts_that_write_without_pause_never_overlap(
    saver: BatchingSaver, other: AsyncConnection[DictRow]
) -> None:
    """Claim after claim while the attempts write: none has a row after its successor's claim."""
    run_id = await claimed_run(other)

    async def write_on(attempt: int) -> None:
        view = saver.for_run(run_id, attempt)
        with contextlib.suppress(StaleAttempt):
            while True:
                await put(view, thread_id=f"attempt {attempt}")

    attempts = []
    for attempt in range(1, 12):
        attempts.append(asyncio.create_task(write_on(attempt)))
        while not await (
            await other.execute(
                "SELECT 1 AS found FROM checkpoints WHERE thread_id = %s", [f"attempt {attempt}"]
            )
        ).fetchone():
            await asyncio.sleep(0)
        await other.execute(TAKE_OVER, [run_id])
        before = await count(other)
        await attempts[-1]
        assert await count(other) == before


async def test_a_row_that_stays_locked_fails_its_put_and_no_other(
    pool: Pool, other: AsyncConnection[DictRow]
) -> None:
    saver = BatchingSaver(pool, patience_seconds=0.2)
    run_id = await claimed_run(other)
    async with other.transaction():
        await other.execute("SELECT FROM runs WHERE run_id = %s FOR UPDATE", [run_id])
        task = asyncio.create_task(put(saver.for_run(run_id, 1)))
        await put(saver, thread_id="neighbour")
        with pytest.raises(RunRowLocked):
            await task


async def test_the_fence_asks_for_the_status_that_the_lifecycle_calls_running() -> None:
    assert f"status = '{RunStatus.RUNNING}'" in FLUSH


# Batches


async def test_what_arrives_during_a_flush_shares_one_transaction(
    saver: BatchingSaver, other: AsyncConnection[DictRow], database_url: str
) -> None:
    async with blocked_flush(saver, database_url):
        puts = [asyncio.create_task(put(saver, thread_id=f"t{at}")) for at in range(20)]
        await asyncio.sleep(0)
        assert not any(one.done() for one in puts)
    await asyncio.gather(*puts)
    query = "SELECT count(DISTINCT xmin::text) AS n FROM checkpoints WHERE thread_id LIKE 't%'"
    row = await (await other.execute(query)).fetchone()
    assert row == {"n": 1}


async def test_rows_of_one_key_in_one_batch_end_as_if_written_in_turn(
    saver: BatchingSaver, database_url: str
) -> None:
    place: RunnableConfig = {
        "configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": "c"}
    }
    checkpoint = new_checkpoint(n=1)
    checkpoint["id"] = "c"
    async with blocked_flush(saver, database_url):
        puts = [
            asyncio.create_task(one)
            for one in (
                put(saver, checkpoint, metadata={"step": 1}),
                put(saver, checkpoint, metadata={"step": 2}),
                saver.aput_writes(place, [("__resume__", "first")], "special"),
                saver.aput_writes(place, [("__resume__", "second")], "special"),
                saver.aput_writes(place, [("log", "first")], "plain"),
                saver.aput_writes(place, [("log", "second")], "plain"),
            )
        ]
        await asyncio.sleep(0)
    await asyncio.gather(*puts)
    found = await latest(saver)
    assert found.metadata == {"step": 2}
    assert found.pending_writes == [
        ("plain", "log", "first"),
        ("special", "__resume__", "second"),
    ]


async def test_one_bad_put_among_good_ones_fails_alone(
    saver: BatchingSaver, other: AsyncConnection[DictRow], database_url: str
) -> None:
    async with blocked_flush(saver, database_url):
        puts = [
            asyncio.create_task(put(saver, thread_id=thread_id))
            for thread_id in ("good 1", "bad\0", "good 2", "bad \ud800", "good 3")
        ]
        await asyncio.sleep(0)
    results = await asyncio.gather(*puts, return_exceptions=True)
    assert [type(result) for result in results] == [
        type(None), psycopg.errors.CharacterNotInRepertoire, type(None), UnicodeEncodeError,
        type(None),
    ]  # fmt: skip
    assert await count(other) == 4


async def test_too_large_a_put_is_refused_with_its_size(
    saver: BatchingSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.child.saver.MAX_PUT_BYTES", 1000)
    with pytest.raises(PutTooLarge, match=r"1000$"):
        await put(saver, new_checkpoint(log=["x" * 1000]))
    await put(saver)


async def test_puts_wait_when_too_many_bytes_are_queued(
    pool: Pool, other: AsyncConnection[DictRow], database_url: str
) -> None:
    saver = BatchingSaver(pool, max_queued_bytes=10_000)
    async with blocked_flush(saver, database_url):
        puts = [
            asyncio.create_task(put(saver, new_checkpoint(log=["x" * 3000]), f"t{at}"))
            for at in range(20)
        ]
        for _ in range(10):
            await asyncio.sleep(0)
        assert 10_000 <= saver._light._queued_bytes < 15_000
    await asyncio.gather(*puts)
    assert await count(other) == 21
    assert saver._light._queued_bytes == 0


async def test_a_large_put_does_not_hold_up_small_ones(
    saver: BatchingSaver, other: AsyncConnection[DictRow], database_url: str
) -> None:
    large = new_checkpoint(log=[b"x" * 1_000_000])
    async with connected(database_url) as watcher, other.transaction(force_rollback=True):
        await other.execute(
            "INSERT INTO checkpoints (thread_id, checkpoint_id, checkpoint) VALUES ('t', %s, '{}')",
            [large["id"]],
        )
        task = asyncio.create_task(put(saver, large))
        await waiting_backend(watcher, other.info.backend_pid)
        async with asyncio.timeout(60):
            await put(saver, thread_id="small")
        assert not task.done()
    await task


async def test_a_cancelled_put_that_was_not_sent_is_dropped(
    saver: BatchingSaver, other: AsyncConnection[DictRow], database_url: str
) -> None:
    async with blocked_flush(saver, database_url):
        task = asyncio.create_task(put(saver))
        await asyncio.sleep(0)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await put(saver, thread_id="next")
    assert await count(other) == 2


async def test_a_flush_does_not_run_in_the_context_of_the_run_that_started_it(
    database_url: str,
) -> None:
    """An interrupt raises in the context of its run; a flush in it would fail for all runs."""
    current: ContextVar[str] = ContextVar("current", default="nobody")
    seen = []

    class Watched(AsyncConnectionPool[Any]):
        def connection(self, timeout: float | None = None) -> Any:
            seen.append(current.get())
            return super().connection(timeout)

    async with Watched(database_url, open=False, kwargs={"autocommit": True}) as pool:
        saver = BatchingSaver(pool)
        current.set("a run")
        await put(saver)
    assert seen == ["nobody"]


async def test_closing_stores_what_is_queued_and_refuses_the_rest(
    pool: Pool, other: AsyncConnection[DictRow]
) -> None:
    saver = BatchingSaver(pool)
    puts = [asyncio.create_task(put(saver, thread_id=f"t{at}")) for at in range(5)]
    await asyncio.sleep(0)
    await saver.aclose()
    await asyncio.gather(*puts)
    assert await count(other) == 5
    with pytest.raises(WriterClosed):
        await put(saver)


# Reads


async def test_a_read_of_a_run_sees_a_put_that_was_begun_but_not_awaited(
    saver: BatchingSaver, other: AsyncConnection[DictRow]
) -> None:
    view = saver.for_run(await claimed_run(other), 1)
    for at in range(5):
        task = asyncio.create_task(put(view, new_checkpoint(log=[at] * 10**at)))
        await asyncio.sleep(0)
        assert (await latest(view)).checkpoint["channel_values"]["log"][0] == at
        await task


async def test_synchronous_calls_work_from_a_thread_and_are_refused_on_the_loop(
    saver: BatchingSaver, other: AsyncConnection[DictRow]
) -> None:
    view = saver.for_run(await claimed_run(other), 1)
    place: RunnableConfig = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}

    def work() -> list[Any]:
        checkpoint = new_checkpoint(log=["x"])
        stored = view.put(place, checkpoint, {}, checkpoint["channel_versions"])
        view.put_writes(stored, [("log", "y")], "task")
        found = view.get_tuple(place)
        assert found is not None
        assert found.pending_writes == [("task", "log", "y")]
        return [found, *view.list(place)]

    first, second = await asyncio.to_thread(work)
    assert first == second
    with pytest.raises(asyncio.InvalidStateError):
        view.get_tuple(place)
    await asyncio.to_thread(view.delete_thread, "t")
    assert await view.aget_tuple(place) is None


async def test_looking_through_a_list_slowly_holds_no_connection(
    pool: Pool, saver: BatchingSaver
) -> None:
    for _ in range(3):
        await put(saver)
    async for _ in saver.alist({"configurable": {"thread_id": "t"}}):
        await returned(pool)


# Values


async def test_nul_and_surrogates_are_kept_in_values_and_replaced_in_metadata(
    saver: BatchingSaver, pool: Pool
) -> None:
    values = {
        "text": "a\0b",
        "list": ["a\0b"],
        "escaped": "\\u0000",
        "surrogate": "a\ud800b",
        "big": 2**80,
    }
    await put(
        saver, new_checkpoint(**values), metadata={"deep": {"k": ["\0", "\ud800", "\\u0000"]}}
    )
    for reader in (saver, AsyncPostgresSaver(pool)):
        found = await latest(reader)
        assert found.checkpoint["channel_values"] == {**values, "surrogate": "a\ufffdb"}
        assert found.metadata == {"deep": {"k": ["\ufffd", "\ufffd", "\\u0000"]}}


async def test_numbers_come_back_as_what_they_were(saver: BatchingSaver, pool: Pool) -> None:
    values = {"nan": math.nan, "inf": -math.inf, "large": 1e22, "tiny": 5e-324, "plain": 1.0}
    await put(saver, new_checkpoint(**values))
    for reader in (saver, AsyncPostgresSaver(pool)):
        found = (await latest(reader)).checkpoint["channel_values"]
        assert {k: repr(v) for k, v in found.items()} == {k: repr(v) for k, v in values.items()}


async def test_a_long_string_that_does_not_change_is_stored_once(
    saver: BatchingSaver, pool: Pool, other: AsyncConnection[DictRow]
) -> None:
    view = saver.for_run(await claimed_run(other), 1)
    text = "x" * 1_000_000
    first = new_checkpoint(text=text, n=0)
    await put(view, first)
    for n in range(1, 20):
        checkpoint = new_checkpoint(text=text, n=n)
        checkpoint["channel_versions"]["text"] = first["channel_versions"]["text"]
        await view.aput(
            {"configurable": {"thread_id": "t", "checkpoint_ns": ""}},
            checkpoint,
            {},
            {"n": checkpoint["channel_versions"]["n"]},
        )
    query = "SELECT sum(length(checkpoint::text)) AS json FROM checkpoints"
    row = await (await other.execute(query)).fetchone()
    assert row is not None
    assert row["json"] < 20 * 1000
    assert await count(other, "checkpoint_blobs") == 1
    for reader in (view, AsyncPostgresSaver(pool)):
        assert (await latest(reader)).checkpoint["channel_values"] == {"text": text, "n": 19}


async def test_a_long_string_that_the_stock_saver_kept_inline_survives_the_next_step(
    saver: BatchingSaver, pool: Pool
) -> None:
    stock = AsyncPostgresSaver(pool)
    first = new_checkpoint(text="x" * 10_000, n=0)
    place: RunnableConfig = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    await stock.aput(place, first, {}, first["channel_versions"])
    second = new_checkpoint(**first["channel_values"])
    second["channel_versions"] = first["channel_versions"]
    await saver.aput(place, second, {}, {})
    for reader in (saver, stock):
        found = await latest(reader)
        assert found.checkpoint["id"] == second["id"]
        assert found.checkpoint["channel_values"] == first["channel_values"]


def test_json_is_what_jsonb_takes() -> None:
    assert to_json({"a": "\0", "b": "\\u0000", "c": "\\\0"}) == (
        rb'{"a":"\ufffd","b":"\\u0000","c":"\\\ufffd"}'
    )
    assert (
        to_json({"\ud800": [2**70, math.nan]})
        == '{"\ufffd": [1180591620717411303424, null]}'.encode()
    )
    with pytest.raises(TypeError):
        to_json({"a": object()})


class Recorder(JsonPlusSerializer):
    """Notes the thread in which each value is serialized."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[str] = []

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        self.threads.append(threading.current_thread().name)
        return super().dumps_typed(obj)


async def test_large_values_leave_the_loop_even_when_neighbours_hold_all_its_threads(
    pool: Pool,
) -> None:
    recorder = Recorder()
    saver = BatchingSaver(pool, serde=recorder)
    release = threading.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    spinning = loop.run_in_executor(None, release.wait)
    await put(saver, new_checkpoint(log=["small"]))
    await put(saver, new_checkpoint(log=list(range(100_000))))
    release.set()
    await spinning
    assert recorder.threads[0] == threading.current_thread().name
    assert recorder.threads[1].startswith("checkpoints")
    await latest(saver)


async def test_a_large_put_that_waits_for_its_events_holds_up_no_other_run(
    saver: BatchingSaver, other: AsyncConnection[DictRow]
) -> None:
    asked, written = asyncio.Event(), asyncio.Event()

    async def told() -> None:
        asked.set()
        await written.wait()

    async def put_of(thread_id: str, told: Any = None) -> None:
        run = await claimed_run(other)
        await put(saver.for_run(run, 1, told), new_checkpoint(log=["x" * 100_000]), thread_id)

    waiting = asyncio.create_task(put_of("waits", told))
    await asyncio.wait_for(asked.wait(), 30)
    await asyncio.wait_for(put_of("goes on"), 30)
    written.set()
    await waiting
    assert [
        len((await latest(saver, name)).checkpoint["channel_values"]["log"][0])
        for name in ("waits", "goes on")
    ] == [100_000] * 2


def test_what_is_small() -> None:
    class Slots:
        __slots__ = ("value",)

    slots = Slots()
    slots.value = "x" * 100_000
    assert is_small([{"a": [1, 2.0, "text", None]}, uuid.uuid4()])
    assert not is_small(["x" * 100_000])
    assert not is_small([[1] * 1000])
    assert not is_small([{"deep": [{"deeper": b"x" * 100_000}]}])
    assert not is_small([slots])
    assert not is_small([iter([])])


# Lost connections


async def test_a_flush_whose_backend_is_killed_is_sent_again(
    saver: BatchingSaver, other: AsyncConnection[DictRow], database_url: str
) -> None:
    view = saver.for_run(await claimed_run(other), 1)
    async with blocked_flush(saver, database_url, view) as (task, pid):
        puts = [asyncio.create_task(put(saver, thread_id=f"t{at}")) for at in range(3)]
        await other.execute("SELECT pg_terminate_backend(%s)", [pid])
        assert await waiting_backend_other_than(other, pid)
        assert not task.done()
    await asyncio.gather(*puts)
    assert await count(other) == 4


async def waiting_backend_other_than(watcher: AsyncConnection[DictRow], pid: int) -> int:
    async with asyncio.timeout(30):
        while True:
            query = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND pid <> %s"
            if row := await (await watcher.execute(query, [pid])).fetchone():
                return int(row["pid"])
            await asyncio.sleep(0.01)


async def test_a_read_survives_a_dead_connection_in_the_pool(
    saver: BatchingSaver, other: AsyncConnection[DictRow]
) -> None:
    await put(saver)
    await other.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    assert (await latest(saver)).checkpoint["channel_values"] == {"log": ["x"]}


async def test_an_outage_reaches_the_put_after_the_patience_and_ends_with_the_outage(
    pool: Pool, database_url: str, postgres_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_writer, "CONNECTION_WAIT_SECONDS", 0.2)
    saver = BatchingSaver(pool, patience_seconds=0.3)
    await put(saver)
    name = urlsplit(database_url).path[1:]
    async with connected(postgres_server) as admin:
        await admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        await admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
        )
        with pytest.raises(psycopg.OperationalError):
            await put(saver, thread_id="lost")
        started = time.monotonic()
        with pytest.raises(psycopg.OperationalError):
            await put(saver, thread_id="lost too")
        assert time.monotonic() - started < 20
        await admin.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
    async with asyncio.timeout(30):
        while True:
            try:
                await put(saver, thread_id="after")
                break
            except psycopg.OperationalError:
                continue
    assert (await latest(saver, "after")).checkpoint["channel_values"] == {"log": ["x"]}


async def test_works_without_prepared_statements_as_behind_a_pooler(database_url: str) -> None:
    async with AsyncConnectionPool(
        database_url, open=False, kwargs={"autocommit": True, "prepare_threshold": None}
    ) as pool:
        saver = BatchingSaver(pool)
        await put(saver)
        assert (await latest(saver)).checkpoint["channel_values"] == {"log": ["x"]}

"""Accepting runs: merging, lines, delays and multitask strategies."""

import asyncio
from datetime import timedelta
from uuid import uuid4

import orjson
import pytest

from persistence import runs
from persistence.engine import Database
from persistence.errors import Conflict, ThreadBusy, ThreadNotFound
from persistence.lifecycle import SUCCEED, CancelAction, MultitaskStrategy, RunStatus
from persistence.runs import Settlement
from tests.persistence.sample import claim, column, create, new_run, thread_status


async def test_metadata_is_merged_in_the_wire_s_order(db: Database) -> None:
    thread_id = uuid4()
    await create(db, thread_id)
    await db.execute(
        """UPDATE threads SET metadata = metadata || '{"a": "thread", "b": "thread"}'"""
    )
    new = new_run(
        thread_id,
        graph_id="other",
        base_metadata={"a": "assistant", "graph_id": "lie", "e": "assistant"},
        config_metadata={"b": "config", "c": "config"},
        metadata={"c": "run"},
    )
    run = (await runs.create(db, new)).run
    assert orjson.loads(run.metadata) == {
        "a": "thread",
        "b": "config",
        "c": "run",
        "e": "assistant",
        "graph_id": "other",
        "assistant_id": str(new.assistant_id),
    }
    assert (await column(db, "thread", "metadata", thread_id))["graph_id"] == "other"


async def test_kwargs_keep_their_order_and_config_is_merged(db: Database) -> None:
    thread_id = uuid4()
    run = await create(db, thread_id, config={"tags": ["x"], "configurable": {"a": 1, "b": 1}})
    assert run.kwargs == b'{"input":{"z":1,"a":2}}'
    await create(db, thread_id, config={"tags": ["y"], "configurable": {"b": 2}})
    assert await column(db, "thread", "config", thread_id) == {
        "tags": ["y"],
        "configurable": {"a": 1, "b": 2},
    }


async def test_a_missing_thread_is_refused_unless_it_may_be_made(db: Database) -> None:
    for strategy in MultitaskStrategy:
        with pytest.raises(ThreadNotFound):
            await create(db, if_not_exists="reject", multitask_strategy=strategy)
    assert await db.fetch_all("SELECT 1 FROM threads") == []
    run = await create(db, temporary=True)
    assert await column(db, "thread", "temporary", run.thread_id) is True
    assert await thread_status(db, run.thread_id) == "busy"


async def test_a_taken_run_id_is_a_conflict(db: Database) -> None:
    run = await create(db)
    with pytest.raises(Conflict):
        await create(db, run_id=run.run_id)


async def test_a_delayed_run_comes_not_early_and_blocks_nobody(db: Database) -> None:
    delayed = await create(db, after_seconds=3600)
    assert delayed.created_at - delayed.updated_at == timedelta(hours=1)
    assert await runs.claim(db, [delayed.run_id], "h/1/a", 30) == []
    prompt = await create(db, delayed.thread_id)
    assert await runs.claimable(db, 10) == [prompt.run_id]
    assert (await claim(db, prompt.run_id)).run_id == prompt.run_id
    assert await runs.due(db, 60) == []
    # As if its hour had passed, while the prompt one still runs.
    await db.execute(
        "UPDATE runs SET available_at = clock_timestamp() WHERE run_id = %s", [delayed.run_id]
    )
    assert await runs.due(db, 60) == []
    [settled] = await runs.settle(db, [Settlement(prompt.run_id, 1, SUCCEED)])
    assert settled.next_run_id == delayed.run_id
    assert await runs.due(db, 60) == [delayed.run_id]


async def test_reject_refuses_while_a_run_waits_or_runs(db: Database) -> None:
    run = await create(db, after_seconds=60)
    for _ in ("pending", "running"):
        with pytest.raises(ThreadBusy):
            await create(db, run.thread_id, multitask_strategy=MultitaskStrategy.REJECT)
        await db.execute("UPDATE runs SET available_at = created_at - interval '1 hour'")
        await runs.claim(db, [run.run_id], "h/1/a", 30)
    await runs.settle(db, [Settlement(run.run_id, 1, SUCCEED)])
    await create(db, run.thread_id, multitask_strategy=MultitaskStrategy.REJECT)


async def test_a_refused_create_is_in_no_claim_s_way(db: Database) -> None:
    """A claim passes over what is locked, and its message is gone then."""
    run = await create(db)
    reject = MultitaskStrategy.REJECT
    async with db.transaction() as connection:
        with pytest.raises(ThreadBusy):
            await runs.create_within(connection, new_run(run.thread_id, multitask_strategy=reject))
        assert (await claim(db, run.run_id)).attempt == 1


@pytest.mark.parametrize("exists", [False, True])
async def test_of_racing_creates_with_reject_one_wins(db: Database, exists: bool) -> None:
    thread_id = uuid4()
    if exists:
        await db.execute("INSERT INTO threads (thread_id) VALUES (%s)", [thread_id])
    outcomes = await asyncio.gather(
        *(create(db, thread_id, multitask_strategy=MultitaskStrategy.REJECT) for _ in range(8)),
        return_exceptions=True,
    )
    assert sum(isinstance(outcome, ThreadBusy) for outcome in outcomes) == 7
    assert len(await db.fetch_all("SELECT 1 FROM runs")) == 1


async def test_interrupt_wishes_the_running_one_stopped_and_ends_the_pending(
    db: Database,
) -> None:
    running = await create(db)
    waiting = await create(db, running.thread_id)
    await claim(db, running.run_id)
    created = await runs.create(
        db, new_run(running.thread_id, multitask_strategy=MultitaskStrategy.INTERRUPT)
    )
    assert created.cancel == (running.run_id,)
    assert created.withdrawn == (waiting.run_id,)
    row = await runs.get(db, running.thread_id, running.run_id)
    assert (row.status, row.cancel_action) == (RunStatus.RUNNING, CancelAction.INTERRUPT)
    ended = await runs.result(db, waiting.run_id)
    assert ended is not None
    assert ended.status is RunStatus.INTERRUPTED
    assert ended.error == {
        "error": "UserInterrupt",
        "message": f"superseded by run {created.run.run_id} (multitask_strategy=interrupt)",
    }
    assert await thread_status(db, running.thread_id) == "busy"
    # The wish may grow, never shrink.
    await create(db, running.thread_id, multitask_strategy=MultitaskStrategy.ROLLBACK)
    await create(db, running.thread_id, multitask_strategy=MultitaskStrategy.INTERRUPT)
    row = await runs.get(db, running.thread_id, running.run_id)
    assert row.cancel_action is CancelAction.ROLLBACK


async def test_rollback_deletes_the_pending_ones(db: Database) -> None:
    waiting = await create(db)
    created = await runs.create(
        db, new_run(waiting.thread_id, multitask_strategy=MultitaskStrategy.ROLLBACK)
    )
    assert created.deleted == (waiting.run_id,)
    assert await runs.result(db, waiting.run_id) is None
    assert await runs.claimable(db, limit=10) == [created.run.run_id]


@pytest.mark.parametrize("strategy", [MultitaskStrategy.INTERRUPT, MultitaskStrategy.ROLLBACK])
async def test_of_racing_creates_that_stop_others_one_is_left(
    db: Database, strategy: MultitaskStrategy
) -> None:
    thread_id = uuid4()
    await asyncio.gather(*(create(db, thread_id, multitask_strategy=strategy) for _ in range(8)))
    assert len(await runs.active(db, thread_id=thread_id)) == 1
    left = await runs.list_for_thread(db, thread_id, limit=100)
    assert len(left) == (8 if strategy is MultitaskStrategy.INTERRUPT else 1)
    # The one that is left is the one that was accepted last.
    assert left[0].status is RunStatus.PENDING

"""Stopping and deleting runs, and what remains of their checkpoints."""

from typing import Any
from uuid import UUID, uuid4

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.postgres import PostgresSaver

from persistence import runs, threads
from persistence.engine import Database
from persistence.errors import RunNotFound, ThreadNotFound
from persistence.lifecycle import INTERRUPT, SUCCEED, CancelAction, RunStatus
from persistence.runs import Settlement
from tests.persistence.sample import OWNER, claim, create, thread_status


def write_checkpoints(
    url: str, thread_id: UUID, *run_ids: UUID, ended_before: bool = False
) -> list[str]:
    """A line of checkpoints with the stock saver, one a run; channel "kept" changes only once.

    ended_before: the second does not belong to its run; it was made for its input.
    """
    written: list[str] = []
    with PostgresSaver.from_conn_string(url) as saver:
        config: Any = {"configurable": {"thread_id": str(thread_id), "checkpoint_ns": ""}}
        for number, run_id in enumerate(run_ids, 1):
            checkpoint = empty_checkpoint()
            versions: dict[str, str | int | float] = {"kept": "1", "new": str(number)}
            checkpoint["channel_versions"] = versions
            checkpoint["channel_values"] = {"kept": ["k"], "new": [number]}
            config = saver.put(
                config,
                checkpoint,
                {
                    "source": "loop",
                    "step": number,
                    "before_run_id" if ended_before and number == 2 else "run_id": str(run_id),  # type: ignore[misc]  # LangGraph puts it there too
                },
                versions if number == 1 else {"new": str(number)},
            )
            saver.put_writes(config, [("new", number)], f"task-{number}")
            written.append(checkpoint["id"])
    return written


async def rows(db: Database, table: str) -> int:
    row = await db.fetch_one(f"SELECT count(*) AS n FROM {table}")
    return 0 if row is None else int(row["n"])


async def test_cancel_of_a_pending_run_ends_it_and_frees_the_thread(db: Database) -> None:
    first = await create(db)
    second = await create(db, first.thread_id)
    requested = await runs.request_cancel(db, first.thread_id, first.run_id, CancelAction.INTERRUPT)
    assert (requested.kind, requested.next_run_id) == ("withdrawn", second.run_id)
    assert await thread_status(db, first.thread_id) == "busy"
    requested = await runs.request_cancel(db, first.thread_id, second.run_id, CancelAction.ROLLBACK)
    assert (requested.kind, requested.next_run_id) == ("withdrawn", None)
    assert await runs.result(db, second.run_id) is None
    assert await thread_status(db, first.thread_id) == "idle"
    ended = await runs.get(db, first.thread_id, first.run_id)
    assert ended.status is RunStatus.INTERRUPTED


async def test_the_thread_rests_as_before_a_run_that_never_started(db: Database) -> None:
    run = await create(db)
    await claim(db, run.run_id)
    await runs.settle(db, [Settlement(run.run_id, 1, SUCCEED, next_nodes=True)])
    run = await create(db, run.thread_id)
    await runs.request_cancel(db, run.thread_id, run.run_id, CancelAction.INTERRUPT)
    assert await thread_status(db, run.thread_id) == "interrupted"


async def test_a_run_that_has_begun_is_stopped_in_the_middle_though_it_waits(db: Database) -> None:
    """A drain has handed it back: its thread stands where the attempt left it."""
    run = await create(db, webhook="https://example.org/hook")
    await claim(db, run.run_id)
    await runs.hand_back(db, OWNER, [(run.run_id, 1)])
    requested = await runs.request_cancel(db, run.thread_id, run.run_id, CancelAction.INTERRUPT)
    assert (requested.kind, requested.left_midway) == ("withdrawn", True)
    thread = await threads.get(db, run.thread_id)
    assert thread.status == "interrupted"
    assert b"UserInterrupt" in (thread.error or b"")
    assert await rows(db, "webhook_deliveries") == 1
    await threads.show_left(db, run.run_id, values=b'{"a":1}', interrupts=b"{}")
    assert (await threads.get(db, run.thread_id)).values == b'{"a": 1}'
    await threads.record_state(db, run.thread_id, values=b'{"a":2}', next_nodes=False)
    await threads.show_left(db, run.run_id, values=b'{"a":1}', interrupts=b"{}")
    assert (await threads.get(db, run.thread_id)).values == b'{"a": 2}', "what is newer stays"


async def test_nothing_is_unfinished_after_a_rollback(db: Database) -> None:
    run = await create(db)
    await claim(db, run.run_id)
    await runs.settle(db, [Settlement(run.run_id, 1, SUCCEED, next_nodes=True)])
    answer = await create(db, run.thread_id)
    assert (await claim(db, answer.run_id)).unfinished
    await runs.request_cancel(db, run.thread_id, answer.run_id, CancelAction.ROLLBACK)
    await runs.settle(db, [Settlement(answer.run_id, 1, INTERRUPT, action=CancelAction.ROLLBACK)])
    assert await thread_status(db, run.thread_id) == "interrupted"
    assert not (await claim(db, (await create(db, run.thread_id)).run_id)).unfinished


async def test_cancel_of_what_is_over_or_unknown(db: Database) -> None:
    run = await create(db)
    await claim(db, run.run_id)
    await runs.settle(db, [Settlement(run.run_id, 1, SUCCEED)])
    requested = await runs.request_cancel(db, run.thread_id, run.run_id, CancelAction.ROLLBACK)
    assert requested.kind == "finished"
    for thread_id, run_id in ((run.thread_id, uuid4()), (uuid4(), run.run_id)):
        with pytest.raises(RunNotFound):
            await runs.request_cancel(db, thread_id, run_id, CancelAction.INTERRUPT)
        with pytest.raises(RunNotFound):
            await runs.get(db, thread_id, run_id)


@pytest.mark.parametrize("ended_before", [False, True])
async def test_rollback_removes_exactly_what_the_run_wrote(
    db: Database, database_url: str, ended_before: bool
) -> None:
    first = await create(db)
    await claim(db, first.run_id)
    await runs.settle(db, [Settlement(first.run_id, 1, SUCCEED, values=b'{"v":1}')])
    run = await create(db, first.thread_id)
    await claim(db, run.run_id)
    other = await create(db)
    kept, _, _ = write_checkpoints(
        database_url,
        first.thread_id,
        *(first.run_id, run.run_id, run.run_id),
        ended_before=ended_before,
    )
    write_checkpoints(database_url, other.thread_id, other.run_id)
    await runs.request_cancel(db, run.thread_id, run.run_id, CancelAction.ROLLBACK)
    stale = Settlement(run.run_id, 4, INTERRUPT, action=CancelAction.ROLLBACK)
    assert [s.ok for s in await runs.settle(db, [stale])] == [False]
    assert await rows(db, "checkpoints") == 4
    [settled] = await runs.settle(
        db, [Settlement(run.run_id, 1, INTERRUPT, action=CancelAction.ROLLBACK)]
    )
    assert (settled.ok, settled.status) == (True, None)
    assert settled.error is not None
    assert settled.error["error"] == "UserRollback"
    assert await runs.result(db, run.run_id) is None
    thread = await threads.get(db, run.thread_id)
    assert (thread.status, thread.values) == ("idle", b'{"v": 1}')
    left = await db.fetch_all(
        "SELECT checkpoint_id FROM checkpoints WHERE thread_id = %s", [str(run.thread_id)]
    )
    assert [row["checkpoint_id"] for row in left] == [kept]
    # Of the first: "kept" and "new" 1; of the other thread's: two more.
    assert await rows(db, "checkpoint_blobs") == 4
    assert await rows(db, "checkpoint_writes") == 2
    with PostgresSaver.from_conn_string(database_url) as saver:
        found = saver.get_tuple({"configurable": {"thread_id": str(run.thread_id)}})
        assert found is not None
        assert found.checkpoint["channel_values"] == {"kept": ["k"], "new": [1]}


async def test_delete_of_a_run(db: Database, database_url: str) -> None:
    run = await create(db)
    await claim(db, run.run_id)
    write_checkpoints(database_url, run.thread_id, run.run_id)
    asked = await runs.delete(db, run.thread_id, run.run_id)
    assert asked.kind == "asked"
    row = await runs.get(db, run.thread_id, run.run_id)
    assert row.cancel_action is CancelAction.ROLLBACK
    await runs.settle(db, [Settlement(run.run_id, 1, SUCCEED)])
    assert (await runs.delete(db, run.thread_id, run.run_id)).kind == "finished"
    assert await rows(db, "checkpoints") == 0
    with pytest.raises(RunNotFound):
        await runs.delete(db, run.thread_id, run.run_id)


async def test_a_deleted_thread_leaves_nothing(db: Database, database_url: str) -> None:
    tables = ("threads", "runs", "checkpoints", "checkpoint_blobs", "checkpoint_writes")
    made = [await create(db) for _ in range(3)]
    for run in made:
        write_checkpoints(database_url, run.thread_id, run.run_id)
        await claim(db, run.run_id)
    await runs.settle(db, [Settlement(made[1].run_id, 1, SUCCEED)])
    deleted = await threads.delete(db, made[0].thread_id)
    assert (deleted.count, deleted.running) == (1, (made[0].run_id,))
    with pytest.raises(ThreadNotFound):
        await threads.delete(db, made[0].thread_id)
    # The attempt whose run is gone has lost its lease.
    assert await runs.heartbeat(db, "host/1/boot-a", 1, 0, [(made[0].run_id, 1)], 30) == []
    [settled] = await runs.settle(db, [Settlement(made[0].run_id, 1, SUCCEED)])
    assert not settled.ok
    deleted = await threads.delete_many(db, [uuid4(), *(run.thread_id for run in made[1:])])
    assert (deleted.count, deleted.running) == (2, (made[2].run_id,))
    assert [await rows(db, table) for table in tables] == [0] * 5


async def test_temporary_threads_are_swept_after_their_run(db: Database, database_url: str) -> None:
    ended = await create(db, temporary=True)
    active = await create(db, temporary=True)
    kept = await create(db)
    for run in (ended, kept):
        write_checkpoints(database_url, run.thread_id, run.run_id)
        claimed = await claim(db, run.run_id)
        assert claimed.temporary is (run is ended)
        await runs.settle(db, [Settlement(run.run_id, 1, SUCCEED)])
    assert await threads.sweep_temporary(db, grace_seconds=3600) == 0
    assert await threads.sweep_temporary(db, grace_seconds=0) == 1
    assert await runs.result(db, ended.run_id) is None
    assert await runs.result(db, active.run_id) is not None
    assert await rows(db, "checkpoints") == 1

"""Attempts that end without an outcome: crashes, expiry, restarts, hand-overs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
import pytest
from psycopg import AsyncConnection

from persistence import runs, threads
from persistence.engine import Database
from persistence.errors import Overtaken
from persistence.lifecycle import INTERRUPT, SUCCEED, CancelAction, RunStatus
from persistence.runs import RunRow, Settlement
from tests.persistence.sample import OWNER, claim, column, create, thread_status

END_OF_LEASE_OF = "UPDATE runs SET lease_expires_at = clock_timestamp() WHERE run_id = %s"
END_OF_LEASE = "UPDATE runs SET lease_expires_at = clock_timestamp() WHERE status = 'running'"


async def test_crashes_are_retried_so_often_and_then_settle_run_and_thread(db: Database) -> None:
    run = await create(db)
    second = await create(db, run.thread_id)
    for attempt in (1, 2, 3):
        claimed = await claim(db, run.run_id)
        assert (claimed.attempt, claimed.crashes) == (attempt, attempt - 1)
        released = await runs.crash(db, run.run_id, attempt, "killed by signal 9", 2)
        assert released is not None
        assert released.retry is (attempt < 3)
        # It goes before the one that was accepted after it.
        assert released.next_run_id == (run.run_id if attempt < 3 else second.run_id)
    assert released.status is RunStatus.ERROR
    assert released.error == {
        "error": "RunCrashed",
        "message": "killed by signal 9 (3 times)",
    }
    assert await thread_status(db, run.thread_id) == "busy"
    await runs.request_cancel(db, run.thread_id, second.run_id, CancelAction.INTERRUPT)
    thread = await threads.get(db, run.thread_id)
    assert (thread.status, orjson.loads(thread.error or b"")) == ("error", released.error)


async def test_handing_back_costs_nothing(db: Database) -> None:
    run = await create(db)
    for _ in range(5):
        claimed = await claim(db, run.run_id)
        [released] = await runs.hand_back(db, OWNER, [(run.run_id, claimed.attempt)])
        assert (released.retry, released.next_run_id) == (True, run.run_id)
    assert await column(db, "run", "crashes", run.run_id) == 0


@asynccontextmanager
async def held_by_others(database_url: str, run: RunRow) -> AsyncIterator[None]:
    """As by who deletes a thread of many checkpoints, or by a step that takes long to be stored."""
    async with await AsyncConnection.connect(database_url) as other:
        await other.execute("SELECT FROM runs WHERE run_id = %s FOR UPDATE", [run.run_id])
        yield


async def test_a_heartbeat_waits_for_no_row(db: Database, database_url: str) -> None:
    locked, free = await create(db), await create(db)
    keys = [((await claim(db, run.run_id)).run_id, 1) for run in (locked, free)]
    async with held_by_others(database_url, locked):
        held = await runs.heartbeat(db, OWNER, 2, 0, keys, 3000)
        assert {one.run_id: one.renewed for one in held} == {
            locked.run_id: False,
            free.run_id: True,
        }
    assert all(one.renewed for one in await runs.heartbeat(db, OWNER, 2, 0, keys, 3000))


async def test_nobody_waits_for_a_neighbour_whose_rows_others_hold(
    db: Database, database_url: str
) -> None:
    locked, *free = [await create(db) for _ in range(4)]
    for run in (locked, *free):
        await claim(db, run.run_id)
    await db.execute(END_OF_LEASE_OF, [locked.run_id])
    async with held_by_others(database_url, locked):
        with pytest.raises(Overtaken):
            await runs.hand_back(db, OWNER, [(locked.run_id, 1), (free[0].run_id, 1)])
        with pytest.raises(Overtaken):
            await runs.crash(db, locked.run_id, 1, "died", 3)
        settled = await runs.settle(
            db, [Settlement(run.run_id, 1, SUCCEED) for run in (locked, free[0])]
        )
        assert [(one.ok, one.busy) for one in settled] == [(False, True), (True, False)]
        [rolled_back] = await runs.settle(
            db, [Settlement(locked.run_id, 1, INTERRUPT, action=CancelAction.ROLLBACK)]
        )
        assert rolled_back.busy
        await db.execute(END_OF_LEASE_OF, [free[1].run_id])
        assert [one.run_id for one in await runs.expire(db, 3)] == [free[1].run_id]
        taken = await runs.take_back(db, OWNER.rpartition("/")[0], "boot-b", 3)
        assert [one.run_id for one in taken] == [free[2].run_id]
        predecessor = (OWNER.rpartition("/")[0], "boot-b")
        assert await runs.left_by_predecessor(db, *predecessor)
    assert not await runs.left_by_predecessor(db, "host/1", OWNER.rpartition("/")[2])
    [released] = await runs.hand_back(db, OWNER, [(locked.run_id, 1)])
    assert released.retry
    assert not await runs.left_by_predecessor(db, *predecessor)


async def test_a_lease_is_expired_only_when_it_ran_out(db: Database) -> None:
    made = [await create(db) for _ in range(3)]
    for run in made:
        await claim(db, run.run_id)
    assert await runs.expire(db, 3) == []
    await db.execute(END_OF_LEASE)
    # The heartbeat may still save what nobody has taken.
    assert len(await runs.heartbeat(db, OWNER, 3, 2, [(made[0].run_id, 1)], 30)) == 1
    assert len(await runs.expire(db, 3, limit=1)) == 1
    assert len(await runs.expire(db, 3)) == 1
    assert await runs.expire(db, 3) == []
    rest = [await column(db, "run", "status", run.run_id) for run in made]
    assert sorted(rest) == ["pending", "pending", "running"]


async def test_a_restarted_worker_takes_back_what_its_predecessor_left(db: Database) -> None:
    owners = [
        "host/1/old",
        "host/1/older",
        "host/1/new",
        "host/10/old",
        "host/1/x/old",
        "other/1/old",
    ]
    made = {owner: await create(db) for owner in owners}
    for owner, run in made.items():
        await claim(db, run.run_id, owner)
        await runs.heartbeat(db, owner, 1, 0, [(run.run_id, 1)], 30)
    released = await runs.take_back(db, "host/1", "new", 3)
    assert {r.run_id for r in released} == {
        made["host/1/old"].run_id,
        made["host/1/older"].run_id,
    }
    assert all(r.retry for r in released)
    assert (await runs.waiting(db)).instances == 4
    assert await runs.take_back(db, "host/1", "new", 3) == []


@pytest.mark.parametrize("action", list(CancelAction))
@pytest.mark.parametrize("how", ["crash", "hand_back", "expire"])
async def test_a_run_that_was_to_be_stopped_is_not_started_again(
    db: Database, action: CancelAction, how: str
) -> None:
    run = await create(db)
    await claim(db, run.run_id)
    await runs.request_cancel(db, run.thread_id, run.run_id, action)
    if how == "crash":
        released = await runs.crash(db, run.run_id, 1, "killed", 3)
    elif how == "hand_back":
        [released] = await runs.hand_back(db, OWNER, [(run.run_id, 1)])
    else:
        await db.execute(END_OF_LEASE)
        [released] = await runs.expire(db, 3)
    assert released is not None
    assert released.next_run_id is None
    if action is CancelAction.ROLLBACK:
        assert released.status is None
        assert await runs.result(db, run.run_id) is None
        assert await thread_status(db, run.thread_id) == "idle"
    else:
        assert released.status is RunStatus.INTERRUPTED
        assert await thread_status(db, run.thread_id) == "interrupted"


async def test_the_state_of_the_queue(db: Database) -> None:
    assert await runs.waiting(db) == runs.Waiting(0, 0, 0, 0)
    run = await create(db)
    await create(db, run.thread_id)
    await create(db, after_seconds=60)
    await db.execute(
        "UPDATE runs SET available_at = available_at - interval '100 s' WHERE run_id = %s",
        [run.run_id],
    )
    await runs.heartbeat(db, "h/1/a", 4, 3, [], 30)
    await runs.heartbeat(db, "h/2/a", 4, 2, [], 30)
    state = await runs.waiting(db)
    assert 100 <= state.oldest_seconds < 200
    assert (state.instances, state.slots, state.free) == (2, 8, 5)
    assert await runs.claimable(db, 10, older_than_seconds=90) == [run.run_id]
    assert await runs.claimable(db, 10, older_than_seconds=300) == []
    await claim(db, run.run_id)
    assert (await runs.waiting(db)).oldest_seconds == 0
    await runs.retire(db, "h/1/a")
    assert (await runs.waiting(db)).instances == 1


async def test_for_how_long_runs_have_been_over(db: Database) -> None:
    over, active = await create(db), await create(db)
    await claim(db, over.run_id)
    await runs.settle(db, [Settlement(over.run_id, 1, SUCCEED)])
    gone = "00000000-0000-7000-8000-000000000000"
    found = await runs.finished(db, [str(over.run_id), str(active.run_id), gone])
    assert found.keys() == {str(over.run_id), str(active.run_id)}
    assert found[str(active.run_id)] is None
    assert found[str(over.run_id)] is not None

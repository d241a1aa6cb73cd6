"""The line on a thread: its order under many creators, and never two of it at once."""

import asyncio
from uuid import UUID, uuid4

from persistence import runs
from persistence.engine import Database
from persistence.lifecycle import SUCCEED
from persistence.runs import Settlement
from tests.persistence.sample import claim, create, new_run

CREATORS = 4
CLAIMERS = 4
EACH = 10


async def test_many_clients_on_one_thread_keep_order_and_never_overlap(db: Database) -> None:
    thread_id = uuid4()
    await create(db, thread_id, run_id=(first := uuid4()))
    done: list[UUID] = []
    running: set[UUID] = set()
    total = 1 + CREATORS * EACH

    async def creates() -> None:
        for _ in range(EACH):
            await runs.create(db, new_run(thread_id))

    async def claims(name: str) -> None:
        while len(done) < total:
            # As the poll does; and all that are active, as messages out of order would.
            ids = [run_id for _, run_id in await runs.active(db, thread_id=thread_id)]
            for claimed in await runs.claim(db, ids[::-1], f"host/{name}/boot", 30):
                assert not running
                running.add(claimed.run_id)
                await asyncio.sleep(0)
                running.remove(claimed.run_id)
                done.append(claimed.run_id)
                [settled] = await runs.settle(db, [Settlement(claimed.run_id, 1, SUCCEED)])
                assert settled.ok

    await asyncio.gather(
        *(creates() for _ in range(CREATORS)), *(claims(str(n)) for n in range(CLAIMERS))
    )
    rows = await db.fetch_all("SELECT run_id FROM runs ORDER BY available_at, queue_seq")
    assert done == [row["run_id"] for row in rows]
    assert done[0] == first
    by_sequence = await db.fetch_all("SELECT run_id FROM runs ORDER BY queue_seq")
    assert by_sequence == rows


async def test_settling_and_creating_at_once_leave_the_thread_true(db: Database) -> None:
    thread_id = uuid4()
    run = await create(db, thread_id)
    for _ in range(15):
        await claim(db, run.run_id)
        [settled], created = await asyncio.gather(
            runs.settle(db, [Settlement(run.run_id, 1, SUCCEED)]),
            runs.create(db, new_run(thread_id)),
        )
        assert settled.next_run_id in (None, created.run.run_id)
        [row] = await db.fetch_all("SELECT status FROM threads")
        assert row["status"] == "busy"
        run = created.run


async def test_a_batch_claims_what_it_can_of_many_threads(db: Database) -> None:
    firsts = [await create(db) for _ in range(3)]
    seconds = [await create(db, run.thread_id) for run in firsts]
    wanted = [run.run_id for run in (*seconds, *firsts)] + [uuid4()]
    batches = await asyncio.gather(*(runs.claim(db, wanted, f"h/{n}/b", 30) for n in range(4)))
    claimed = [run.run_id for batch in batches for run in batch]
    assert sorted(claimed) == sorted(run.run_id for run in firsts)
    assert await runs.claimable(db, 10) == []


async def test_a_unique_violation_leaves_the_others_of_the_batch_claimed(db: Database) -> None:
    """Two claimers took two runs of a thread for the first: what the index is the last word on.

    The statement cannot be made to see this by timing, so the other claimer is a transaction that
    is still open: its running row is invisible to the claim's search, but not to the index.
    """
    contested = await create(db)
    second = await create(db, contested.thread_id)
    free = await create(db)
    async with db.transaction() as other:
        # Out of sight and out of line: as seen by a snapshot taken before it was accepted.
        await db.execute(
            "UPDATE runs SET available_at = now() + interval '1 day' WHERE run_id = %s",
            [contested.run_id],
        )
        await other.execute(
            """UPDATE runs SET status = 'running', attempt = 1, started_at = now(),
            claimed_by = 'h/1/a', lease_expires_at = now() + interval '1 h' WHERE run_id = %s""",
            [contested.run_id],
        )
        claiming = asyncio.create_task(runs.claim(db, [second.run_id, free.run_id], "h/2/b", 30))
        # The claim waits for the index until the other transaction ends.
        while not await db.fetch_all(
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
            " AND wait_event_type = 'Lock'"
        ):
            await asyncio.sleep(0.01)
    assert [run.run_id for run in await claiming] == [free.run_id]

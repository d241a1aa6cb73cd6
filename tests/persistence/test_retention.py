"""Runs that ended long ago go; what they left on their threads stays."""

import asyncio

from actors import reaper
from persistence import runs, threads
from persistence.engine import Database
from persistence.lifecycle import SUCCEED
from persistence.runs import Settlement
from tests.persistence.sample import claim, create

VALUES = b'{"said": "much"}'


async def end(db: Database) -> runs.RunRow:
    run = await create(db)
    await claim(db, run.run_id)
    await runs.settle(db, [Settlement(run.run_id, 1, SUCCEED, values=VALUES)])
    return run


async def ids(db: Database) -> set[object]:
    return {row["run_id"] for row in await db.fetch_all("SELECT run_id FROM runs")}


async def test_old_ends_go_first_and_nothing_else_goes(db: Database) -> None:
    old = [await end(db) for _ in range(5)]
    waiting, working = await create(db), await create(db)
    await claim(db, working.run_id)

    assert await runs.forget(db, 3600) == 0, "it has not been long"
    assert await runs.forget(db, 0, limit=2) == 2
    assert await ids(db) == {run.run_id for run in [*old[2:], waiting, working]}
    await reaper.forget_runs(db, 0)
    assert await ids(db) == {waiting.run_id, working.run_id}

    thread = await threads.get(db, old[0].thread_id)
    assert (thread.status, thread.values) == ("idle", VALUES)


async def test_sweepers_do_not_wait_for_each_other(db: Database) -> None:
    for _ in range(20):
        await end(db)
    counts = await asyncio.gather(*(runs.forget(db, 0, limit=5) for _ in range(8)))
    assert sum(counts) + len(await ids(db)) == 20


async def test_none_goes_unless_it_is_asked_for(db: Database) -> None:
    run = await end(db)
    await reaper.forget_runs(db, None)
    assert await ids(db) == {run.run_id}

"""Workers whose Redis or Postgres goes away, loudly or silently, and comes back."""

import asyncio
import signal

import pytest

from actors.dispatch import RedisDispatcher
from persistence import runs
from persistence.lifecycle import CancelAction
from tests import lines

FOREVER = 600

pytestmark = pytest.mark.faults


@pytest.fixture
def redis_line(redis_url):
    with lines.to_redis(redis_url) as line:
        yield line


@pytest.fixture
def postgres_line(database_url):
    with lines.to_postgres(database_url) as line:
        yield line


async def test_runs_start_and_end_and_can_be_cancelled_while_redis_is_away(
    rows, db, workers, dispatcher, redis_line, side_effects
):
    workers.start(REDIS_URL=redis_line.url, POSTGRES_POLL_INTERVAL_SECONDS="0.3")
    first = await rows.submit(["sleep", 0])
    await dispatcher.run(first)
    await rows.ended(first)
    redis_line.cut()
    many = [await rows.submit(["sleep", 0]) for _ in range(6)]
    for run_id in many:
        assert (await rows.ended(run_id))["status"] == "success"
    long = await rows.submit(["sleep", FOREVER], log=side_effects.path)
    await side_effects.begun("0:sleep")
    await runs.request_cancel(db, await rows.thread_of(long), long, CancelAction.INTERRUPT)
    assert (await rows.ended(long))["status"] == "interrupted"
    redis_line.mend()
    await dispatcher.run(last := await rows.submit(["sleep", 0]))
    assert (await rows.ended(last))["status"] == "success"


async def test_a_redis_connection_that_only_went_silent_is_noticed(
    rows, workers, dispatcher, redis_line
):
    workers.start(REDIS_URL=redis_line.url)
    first = await rows.submit(["sleep", 0])
    await dispatcher.run(first)
    await rows.ended(first)
    redis_line.hold()
    await asyncio.sleep(1)
    redis_line.mend()  # but not for the connections that were open
    second = await rows.submit(["sleep", 0])
    await dispatcher.run(second)
    assert (await rows.ended(second, seconds=60))["status"] == "success"


async def test_a_drain_without_redis_is_orderly_too(
    rows, workers, dispatcher, redis_line, side_effects
):
    worker = workers.start(REDIS_URL=redis_line.url, WORKER_DRAIN_TIMEOUT="0")
    run_id = await rows.submit(["sleep", FOREVER], log=side_effects.path)
    await dispatcher.run(run_id)
    await side_effects.begun("0:sleep")
    redis_line.cut()
    worker.signal(signal.SIGTERM)
    assert await worker.exited() == 0
    assert await rows.status(run_id) == "pending"


async def test_an_outcome_is_written_when_postgres_is_back(
    rows, workers, dispatcher, postgres_line, side_effects, tmp_path
):
    workers.start(DATABASE_URL=postgres_line.url, LEASE_DURATION_SECONDS="600", WORKER_SLOT="here")
    gate = tmp_path / "gate"
    run_id = await rows.submit(["await", str(gate)], log=side_effects.path)
    await dispatcher.run(run_id)
    await side_effects.begun("0:await")
    postgres_line.cut()
    gate.touch()
    await asyncio.sleep(2)
    assert await rows.status(run_id) == "running"
    postgres_line.mend()
    row = await rows.ended(run_id)
    # The graph process may have failed for want of a checkpoint; but the end was not lost.
    assert row["attempt"] == 1


async def test_a_run_whose_lease_cannot_be_renewed_is_stopped_before_it_runs_out(
    rows, workers, dispatcher, postgres_line, side_effects, tmp_path
):
    worker = workers.start(
        DATABASE_URL=postgres_line.url,
        LEASE_DURATION_SECONDS="4",
        POSTGRES_POLL_INTERVAL_SECONDS="0.5",
    )
    gate = tmp_path / "gate"
    run_id = await rows.submit(["await", str(gate)], log=side_effects.path)
    await dispatcher.run(run_id)
    await side_effects.begun("0:await")
    postgres_line.hold()
    while "lease could not be renewed" not in worker.log.read_text():
        await asyncio.sleep(0.05)
    postgres_line.mend()
    gate.touch()
    row = await rows.ended(run_id)
    assert (row["status"], row["crashes"]) == ("success", 0)
    # More when the connections that were held are found out later than so short a lease lasts.
    assert row["attempt"] >= 2


async def test_a_worker_starts_before_its_database_does(rows, workers, postgres_line):
    postgres_line.cut()
    worker = workers.start(DATABASE_URL=postgres_line.url, POSTGRES_POLL_INTERVAL_SECONDS="0.5")
    run_id = await rows.submit(["sleep", 0])
    while "database is not available yet" not in worker.log.read_text():
        await asyncio.sleep(0.05)
    postgres_line.mend()
    assert (await rows.ended(run_id, seconds=60))["status"] == "success"


async def test_a_dispatcher_gives_up_soon_when_redis_is_frozen(redis_line, rows):
    sender = RedisDispatcher(redis_line.url)
    assert await sender.ping()
    redis_line.hold()
    async with asyncio.timeout(8):  # three times what one may take
        await sender.run(await rows.submit())
        await sender.cancel(await rows.submit())
        assert not await sender.ping()
    await sender.close()

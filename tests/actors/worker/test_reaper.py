"""What a sweep heals, and what it leaves alone."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from actors import reaper
from persistence import assistants, crons, runs, threads
from persistence.crons import CronContent
from persistence.run_request import RunRequest
from persistence.ttl import Ttl

OWNER = "host/0/boot"


class Heard:
    """A dispatcher and a log of ends that note what they are told."""

    def __init__(self):
        self.sent = []
        self.ends = []

    async def run(self, run_id):
        self.sent.append(UUID(str(run_id)))

    async def end(self, end):
        self.ends.append((UUID(end.run_id), end.attempt, end.status, end.error))


@pytest.fixture
def heard():
    return Heard()


async def claim(db, run_id, lease_seconds=-1):
    """Takes the run; with a lease that is already over, as a worker would that died long ago."""
    (claimed,) = await runs.claim(db, [run_id], OWNER, lease_seconds)
    return claimed


async def test_a_lease_that_ran_out_costs_a_retry_and_the_run_is_sent_again(
    rows, db, heard, settings
):
    dead, alive = await rows.submit(), await rows.submit()
    await claim(db, dead)
    await claim(db, alive, lease_seconds=600)
    await reaper.sweep(db, heard, heard, settings())
    assert heard.sent == [dead]
    assert heard.ends == []
    row = await rows.row(dead)
    assert (row["status"], row["crashes"], row["claimed_by"]) == ("pending", 1, None)
    assert await rows.status(alive) == "running"


async def test_a_lease_that_ran_out_too_often_ends_the_run_and_starts_the_next(
    rows, db, heard, settings
):
    dead = await rows.submit()
    waiting = await rows.submit(thread_id=await rows.thread_of(dead))
    await claim(db, dead)
    await reaper.sweep(db, heard, heard, settings(bg_job_max_retries=0))
    ((run_id, attempt, status, error),) = heard.ends
    assert (run_id, attempt, status) == (dead, 1, "error")
    assert b"stopped renewing its lease" in error
    assert heard.sent == [waiting]
    assert (await rows.thread(dead))["status"] == "busy"


async def test_a_run_that_waits_too_long_is_sent_again(rows, db, heard, settings):
    stuck, fresh = await rows.submit(), await rows.submit()
    await db.execute(
        "UPDATE runs SET available_at = now() - interval '5 min' WHERE run_id = %s", [stuck]
    )
    await reaper.sweep(db, heard, heard, settings())
    assert heard.sent == [stuck]
    assert fresh not in heard.sent


@pytest.mark.parametrize("awaited", [False, True])
async def test_nothing_is_sent_again_while_messages_wait_for_busy_workers(
    rows, db, dispatcher, awaited
):
    stuck = await rows.submit()
    await db.execute("UPDATE runs SET available_at = now() - interval '5 min'")
    await dispatcher.run(uuid4(), awaited=awaited)
    await reaper.resend(db, dispatcher, 120)
    assert await dispatcher.backlog() == 1
    await dispatcher._redis.flushdb()  # now the message is lost
    await reaper.resend(db, dispatcher, 120)
    assert await dispatcher.backlog() == 1
    assert await rows.status(stuck) == "pending"


async def test_delayed_runs_are_sent_when_they_are_due_and_not_before(rows, db, heard, settings):
    later = await rows.submit(after_seconds=600)
    soon = await rows.submit(after_seconds=0.05)
    await asyncio.sleep(0.1)
    await reaper.send_due(db, heard, 60)
    assert heard.sent == [soon]
    assert await rows.status(later) == "pending"


async def test_threads_of_stateless_runs_are_removed_once_their_end_was_read(
    rows, db, heard, settings
):
    done, busy = await rows.submit(temporary=True), await rows.submit(temporary=True)
    await db.execute(
        "UPDATE runs SET status = 'success', finished_at = now() WHERE run_id = %s", [done]
    )
    await reaper.sweep(db, heard, heard, settings())
    assert await rows.row(done) is not None  # readers may still come
    await db.execute("UPDATE threads SET updated_at = now() - interval '1 min'")
    await reaper.sweep(db, heard, heard, settings())
    assert await rows.row(done) is None
    assert await rows.row(busy) is not None


async def test_one_sweep_removes_all_there_is(rows, db, heard, settings):
    await db.execute(
        "INSERT INTO threads (thread_id, temporary, updated_at)"
        " SELECT gen_random_uuid(), true, now() - interval '1 min' FROM generate_series(1, 1001)"
    )
    await reaper.sweep(db, heard, heard, settings())
    assert await db.fetch_all("SELECT FROM threads") == []


PROGRAM = """
import sys
from actors.scheduler import Scheduler
from actors.settings import WorkerSettings
from persistence.settings import DatabaseSettings
sys.exit(Scheduler(WorkerSettings(), DatabaseSettings()).run())
"""


@pytest.fixture
def schedulers(database_url):
    started = []

    def start(**environment):
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", PROGRAM],
            env={
                **os.environ,
                "PYTHONPATH": str(Path(reaper.__file__).parents[1]),
                "DATABASE_URL": database_url,
                **environment,
            },
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


async def test_without_redis_a_scheduler_sweeps_itself(rows, db, schedulers):
    run_id = await rows.submit()
    await claim(db, run_id)
    process = schedulers(REDIS_URL="", REAPER_INTERVAL_SECONDS="1")
    while await rows.status(run_id) != "pending":
        await asyncio.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait, 60) == 0


async def test_a_scheduler_has_workers_sweep_and_sends_delayed_runs(
    rows, db, schedulers, workers, redis_url
):
    workers.start()
    lost, late = await rows.submit(["sleep", 0]), await rows.submit(["sleep", 0], after_seconds=1)
    await claim(db, lost)
    schedulers(REDIS_URL=redis_url, REAPER_INTERVAL_SECONDS="1")
    assert (await rows.ended(lost))["attempt"] == 2
    row = await rows.ended(late)
    assert row["status"] == "success"
    assert row["started_at"] >= row["available_at"]


async def _cron(db, schedule, **request):
    await assistants.ensure_system(db, frozenset({"script"}))
    content = CronContent(
        schedule=schedule,
        timezone=None,
        end_time=None,
        payload=b"{}",
        request=RunRequest(**request),
        metadata={},
        on_run_completed="keep",
    )
    assistant_id = assistants.system_id("script")
    return await crons.create(db, uuid4(), assistant_id, None, content)


NOTE_DATES = """
CREATE TABLE dates (cron_id uuid, date timestamptz);
CREATE FUNCTION note_date() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO dates VALUES (OLD.cron_id, OLD.next_run_date);
    RETURN NEW;
END $$;
CREATE TRIGGER note_date AFTER UPDATE OF next_run_date ON crons
FOR EACH ROW EXECUTE FUNCTION note_date();
"""


async def test_three_schedulers_fire_each_date_of_each_cron_once(db, schedulers):
    for statement in NOTE_DATES.strip().split(";\nCREATE"):
        await db.execute(statement if statement.startswith("CREATE") else "CREATE" + statement)
    made = [await _cron(db, "* * * * * *") for _ in range(3)]
    for _ in range(3):
        schedulers(REDIS_URL="")

    async def fired():
        return await db.fetch_all("SELECT * FROM runs")

    while len(await fired()) < 4 * len(made):
        await asyncio.sleep(0.05)
    async with db.transaction() as connection:
        # Nothing fires while we compare.
        await connection.execute("LOCK TABLE crons IN EXCLUSIVE MODE")
        dates = await (await connection.execute("SELECT * FROM dates")).fetchall()
        runs_made = await (await connection.execute("SELECT * FROM runs")).fetchall()
    assert len({(date["cron_id"], date["date"]) for date in dates}) == len(dates)
    assert len(dates) == len(runs_made)


async def test_a_cron_fires_through_scheduler_and_worker_and_its_webhook_is_seen_to(
    db, schedulers, workers, rows, redis_url
):
    workers.start()
    schedulers(REDIS_URL=redis_url)
    body = {"script": [["sleep", 0]]}
    await _cron(db, "* * * * * *", input=body, webhook="http://127.0.0.1:9/x")

    async def first():
        return await db.fetch_one("SELECT run_id FROM runs ORDER BY queue_seq LIMIT 1")

    while (found := await first()) is None:
        await asyncio.sleep(0.05)
    assert (await rows.ended(found["run_id"]))["status"] == "success"
    refused = "SELECT error FROM webhook_deliveries WHERE error IS NOT NULL"
    while (row := await db.fetch_one(refused)) is None:
        await asyncio.sleep(0.05)
    assert row["error"] == "Webhook host blocked: loopback IP range"


async def test_a_sweep_applies_lifetimes(rows, db, heard, settings):
    used = await rows.submit(ttl=Ttl(0.0001))
    await threads.create(db, uuid4(), {}, ttl=Ttl(0.0001))
    await asyncio.sleep(0.02)
    await reaper.sweep(db, heard, heard, settings())
    [left] = await db.fetch_all("SELECT thread_id FROM threads")
    assert left["thread_id"] == await rows.thread_of(used)

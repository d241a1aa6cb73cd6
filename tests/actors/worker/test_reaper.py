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
from persistence import runs

OWNER = "host/0/boot"


class Heard:
    """A dispatcher and a log of ends that note what they are told."""

    def __init__(self):
        self.sent = []
        self.ends = []

    async def run(self, run_id):
        self.sent.append(UUID(str(run_id)))

    async def end(self, run_id, attempt, status, error=None):
        self.ends.append((UUID(run_id), attempt, status, error))


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


async def test_nothing_is_sent_again_while_messages_wait_for_busy_workers(
    rows, db, heard, settings, dispatcher, redis_url
):
    stuck = await rows.submit()
    await db.execute("UPDATE runs SET available_at = now() - interval '5 min'")
    await dispatcher.run(uuid4())
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
    assert await asyncio.to_thread(process.wait, 20) == 0


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

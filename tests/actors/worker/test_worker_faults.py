"""Workers that are hurt, and what becomes of their runs."""

import asyncio
import json
import os
import signal

import pytest
import redis.asyncio
from psycopg import AsyncConnection

from persistence import runs
from persistence.lifecycle import CancelAction
from tests.actors.worker.conftest import eventually

FOREVER = 600


def steps_of(side_effects, node):
    return [entry["attempt"] for entry in side_effects.read() if entry["node"] == node]


async def test_a_run_goes_on_from_its_checkpoint_when_its_graph_process_is_killed(
    rows, workers, dispatcher, side_effects, tmp_path
):
    workers.start()
    gate = tmp_path / "gate"
    run_id = await rows.submit(["sleep", 0], ["await", str(gate)], log=side_effects.path)
    await dispatcher.run(run_id)
    os.kill((await side_effects.begun("1:await"))["pid"], signal.SIGKILL)
    await side_effects.begun("1:await", times=2)
    gate.touch()
    row = await rows.ended(run_id)
    assert (row["status"], row["attempt"], row["crashes"]) == ("success", 2, 1)
    assert row["output"]["done"] == ["0:sleep", "1:await"]
    assert len(steps_of(side_effects, "0:sleep")) == 1


async def test_a_run_that_kills_its_process_each_time_ends_with_the_reason(
    rows, workers, dispatcher
):
    workers.start(BG_JOB_MAX_RETRIES="1")
    run_id = await rows.submit(["sleep", 0], ["kill", "SIGKILL"])
    old_question = {"task": [{"id": "of before", "value": "?"}]}
    await rows.db.execute("UPDATE threads SET interrupts = %s::jsonb", [json.dumps(old_question)])
    await dispatcher.run(run_id)
    row = await rows.ended(run_id)
    assert (row["status"], row["attempt"], row["crashes"]) == ("error", 2, 2)
    assert "signal 9" in row["error"]["message"]

    async def shows_what_is_left():
        thread = await rows.thread(run_id)
        return thread["status"] == "error" and thread["interrupts"] == {} and thread["values"]

    values = await eventually(shows_what_is_left, "the thread shows what the run has left")
    assert values["done"] == ["0:sleep"]
    after = await rows.submit(["sleep", 0], thread_id=await rows.thread_of(run_id))
    await dispatcher.run(after)
    assert (await rows.ended(after))["status"] == "success"


async def test_no_run_ends_in_error_because_of_its_neighbour(
    rows, workers, dispatcher, side_effects, tmp_path
):
    """Who died in company gets a last chance, alone: that shows whose fault it was."""
    workers.start(WORKER_COUNT="1", N_JOBS_PER_WORKER="2", BG_JOB_MAX_RETRIES="0")
    fuse, gate = tmp_path / "fuse", tmp_path / "gate"
    innocent = await rows.submit(["await", str(gate)], log=side_effects.path)
    killer = await rows.submit(["await", str(fuse)], ["kill", "SIGKILL"])
    for run_id in (innocent, killer):
        await dispatcher.run(run_id)
        await rows.running(run_id)
    await side_effects.begun("0:await")
    fuse.touch()
    row = await rows.ended(killer)
    assert (row["status"], row["crashes"]) == ("error", 2)
    assert "(2 times)" in row["error"]["message"]
    await side_effects.begun("0:await", 2)
    gate.touch()
    row = await rows.ended(innocent)
    assert (row["status"], row["crashes"]) == ("success", 1)


@pytest.mark.faults
async def test_a_worker_that_is_killed_takes_its_runs_back_when_it_is_started_again(
    rows, workers, dispatcher, side_effects, tmp_path
):
    slow_lease = {"LEASE_DURATION_SECONDS": "600", "HEARTBEAT_INTERVAL_SECONDS": "1"}
    worker = workers.start(WORKER_SLOT="one", **slow_lease)
    gate = tmp_path / "gate"
    run_id = await rows.submit(["await", str(gate)], log=side_effects.path)
    await dispatcher.run(run_id)
    child = (await side_effects.begun("0:await"))["pid"]
    worker.signal(signal.SIGKILL)
    assert await worker.exited() == -signal.SIGKILL
    while os.path.exists(f"/proc/{child}"):  # a graph process dies with its worker
        await asyncio.sleep(0.01)
    workers.start(WORKER_SLOT="one", **slow_lease)
    gate.touch()
    row = await rows.ended(run_id)
    assert (row["status"], row["attempt"], row["crashes"]) == ("success", 2, 1)


async def test_a_drain_lets_runs_end(rows, workers, dispatcher, side_effects, tmp_path):
    worker = workers.start()
    gate = tmp_path / "gate"
    run_id = await rows.submit(["await", str(gate)], log=side_effects.path)
    await dispatcher.run(run_id)
    await side_effects.begun("0:await")
    worker.signal(signal.SIGTERM)
    late = await rows.submit(["sleep", 0])
    await asyncio.sleep(0.5)
    await dispatcher.run(late)
    gate.touch()
    assert await worker.exited() == 0
    assert await rows.status(run_id) == "success"
    assert await rows.status(late) == "pending"
    workers.start()
    assert (await rows.ended(late))["attempt"] == 1


@pytest.mark.faults
async def test_a_drain_hands_back_what_does_not_end_and_costs_no_retry(
    rows, workers, dispatcher, side_effects, tmp_path
):
    worker = workers.start(WORKER_DRAIN_TIMEOUT="0")
    gate = tmp_path / "gate"
    run_id = await rows.submit(["sleep", 0], ["await", str(gate)], log=side_effects.path)
    await dispatcher.run(run_id)
    await side_effects.begun("1:await")
    worker.signal(signal.SIGTERM)
    assert await worker.exited() == 0
    row = await rows.row(run_id)
    assert (row["status"], row["claimed_by"], row["crashes"]) == ("pending", None, 0)
    assert not await rows.db.fetch_all("SELECT * FROM instances")
    workers.start()  # finds the message, without a poll
    gate.touch()
    row = await rows.ended(run_id)
    assert (row["status"], row["attempt"], row["crashes"]) == ("success", 2, 0)
    assert len(steps_of(side_effects, "0:sleep")) == 1


async def test_a_second_signal_hurries_the_drain(rows, workers, dispatcher, side_effects):
    worker = workers.start(WORKER_DRAIN_TIMEOUT="600")
    run_id = await rows.submit(["sleep", FOREVER], log=side_effects.path)
    await dispatcher.run(run_id)
    await side_effects.begun("0:sleep")
    worker.signal(signal.SIGTERM)
    while "worker drains" not in worker.log.read_text():  # two signals at once would be one
        await asyncio.sleep(0.01)
    worker.signal(signal.SIGTERM)
    assert await worker.exited() == 0
    assert await rows.status(run_id) == "pending"


@pytest.mark.faults
async def test_a_frozen_worker_loses_its_run_and_writes_nothing_when_it_thaws(
    rows, workers, dispatcher, side_effects, tmp_path
):
    frozen = workers.start()
    gate = tmp_path / "gate"
    run_id = await rows.submit(["sleep", 0], ["await", str(gate)], log=side_effects.path)
    await dispatcher.run(run_id)
    first = await side_effects.begun("1:await")
    frozen.signal(signal.SIGSTOP)
    workers.start()
    while (await rows.row(run_id))["attempt"] < 2:
        await dispatcher.maintain()
        await asyncio.sleep(0.2)
    second = await side_effects.begun("1:await", times=2)
    assert second["pid"] != first["pid"]
    frozen.signal(signal.SIGCONT)
    # The thawed worker hears that its lease is lost and stops the first attempt.
    while os.path.exists(f"/proc/{first['pid']}") and "lease lost" not in frozen.log.read_text():
        await asyncio.sleep(0.05)
    gate.touch()
    row = await rows.ended(run_id)
    assert (row["status"], row["attempt"]) == ("success", 2)
    await asyncio.sleep(1)
    assert (await rows.row(run_id))["updated_at"] == row["updated_at"]


async def test_a_wish_to_cancel_is_heard_through_the_channel(
    rows, workers, dispatcher, side_effects, db
):
    workers.start(LEASE_DURATION_SECONDS="600", HEARTBEAT_INTERVAL_SECONDS="200")
    run_id = await rows.submit(["sleep", FOREVER], log=side_effects.path)
    await dispatcher.run(run_id)
    await side_effects.begun("0:sleep")
    thread_id = await rows.thread_of(run_id)
    await runs.request_cancel(db, thread_id, run_id, CancelAction.INTERRUPT)
    await dispatcher.cancel(run_id)
    row = await rows.ended(run_id)
    assert row["status"] == "interrupted"
    assert row["error"]["error"] == "UserInterrupt"


async def test_a_wish_to_cancel_that_nobody_published_comes_with_the_heartbeat(
    rows, workers, dispatcher, side_effects, db
):
    workers.start()
    run_id = await rows.submit(["sleep", FOREVER], log=side_effects.path)
    await dispatcher.run(run_id)
    await side_effects.begun("0:sleep")
    thread_id = await rows.thread_of(run_id)
    await runs.request_cancel(db, thread_id, run_id, CancelAction.ROLLBACK)
    while await rows.row(run_id) is not None:
        await asyncio.sleep(0.05)
    left = await db.fetch_one(
        "SELECT count(*) AS n FROM checkpoints WHERE thread_id = %s", [str(thread_id)]
    )
    assert left["n"] == 0


async def test_runs_of_a_thread_start_in_the_order_of_acceptance(
    rows, workers, dispatcher, side_effects
):
    workers.start()
    first = await rows.submit(["sleep", 0.2], log=side_effects.path)
    thread_id = await rows.thread_of(first)
    line = [first]
    for _ in range(4):
        line.append(await rows.submit(["sleep", 0], thread_id=thread_id, log=side_effects.path))
    for run_id in reversed(line):
        await dispatcher.run(run_id)
    for run_id in line:
        assert (await rows.ended(run_id))["status"] == "success"
    assert [entry["run"] for entry in side_effects.read()] == [str(run_id) for run_id in line]


async def test_without_redis_runs_are_found_in_their_rows(rows, workers):
    workers.start(REDIS_URL="", POSTGRES_POLL_INTERVAL_SECONDS="0.3")
    many = [await rows.submit(["sleep", 0]) for _ in range(8)]  # more than there are slots
    for run_id in many:
        assert (await rows.ended(run_id))["status"] == "success"


async def test_lost_messages_are_made_good_by_the_poll(rows, workers, redis_url):
    workers.start(POSTGRES_POLL_INTERVAL_SECONDS="0.3")
    run_id = await rows.submit(["sleep", 0])  # and nobody says so
    assert (await rows.ended(run_id))["status"] == "success"


async def test_messages_are_taken_again_after_redis_cut_every_connection(
    rows, workers, dispatcher, redis_url
):
    workers.start()
    run_id = await rows.submit(["sleep", 0])
    await dispatcher.run(run_id)
    assert (await rows.ended(run_id))["status"] == "success"
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        for _ in range(3):
            await client.client_kill_filter(_type="normal", skipme=True)
            await client.client_kill_filter(_type="pubsub")
    run_id = await rows.submit(["sleep", 0])
    await dispatcher.run(run_id)
    assert (await rows.ended(run_id))["status"] == "success"


async def test_a_question_is_answered_over_redis(rows, workers, dispatcher):
    workers.start()
    run_id = await rows.submit(["sleep", 0])
    await dispatcher.run(run_id)
    await rows.ended(run_id)
    thread_id = await rows.thread_of(run_id)
    status, body = await dispatcher.inspect(
        "state", {"thread_id": str(thread_id), "graph_id": "script", "subgraphs": False}, 30
    )
    assert status == 200
    assert b"0:sleep" in body


@pytest.mark.faults
async def test_a_step_that_takes_longer_than_a_lease_to_be_stored_costs_nobody_anything(
    rows, workers, dispatcher, side_effects, tmp_path, database_url
):
    workers.start(WORKER_COUNT="2", LEASE_DURATION_SECONDS="4", HEARTBEAT_INTERVAL_SECONDS="1")
    gate = tmp_path / "gate"
    neighbour = await rows.submit(["await", str(gate)], log=side_effects.path)
    await dispatcher.run(neighbour)
    await side_effects.begun("0:await")
    slow = await rows.submit(["sleep", 0], ["sleep", 0])
    await rows.db.execute(
        """CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NEW; END $$"""
    )
    await rows.db.execute(
        f"""CREATE TRIGGER hold BEFORE INSERT ON checkpoints FOR EACH ROW
        WHEN (NEW.thread_id = '{await rows.thread_of(slow)}') EXECUTE FUNCTION hold()"""
    )
    held = "SELECT pg_blocking_pids(pid) FROM pg_stat_activity WHERE wait_event = 'advisory'"
    async with await AsyncConnection.connect(database_url, autocommit=True) as other:
        await other.execute("SELECT pg_advisory_lock(1)")
        await dispatcher.run(slow)
        await eventually(lambda: rows.db.fetch_all(held), "the step is being stored")
        kept = "SELECT 1 FROM runs WHERE run_id = %s AND lease_expires_at > started_at + '12 s'"
        for run_id in (slow, neighbour):
            await eventually(lambda of=run_id: rows.db.fetch_one(kept, [of]), "its lease is kept")
    gate.touch()
    for run_id in (slow, neighbour):
        row = await rows.ended(run_id)
        assert (row["status"], row["attempt"]) == ("success", 1)

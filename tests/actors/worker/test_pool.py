"""The pool against real graph processes: what it promises to a run, and to the run's neighbours."""

import asyncio
import os
import signal

import orjson
import pytest

from actors.errors import InspectorUnavailable
from actors.outcome import Cancelled, Crashed, Failed, HandedBack, LeaseLost, Succeeded, TimedOut
from actors.pool.launcher import Launcher
from actors.pool.pool import Pool
from persistence import runs
from persistence.lifecycle import CancelAction

FOREVER = 600
GIL = 60
"""Letters for a regex that would hold the GIL longer than the universe lasts."""


@pytest.fixture
async def pools(settings, project, db):
    """Opens pools and closes them after the test."""
    opened = []

    async def open_pool(**more):
        values = settings(**more)
        pool = Pool(Launcher(values, project, db.settings), values, lambda: None)
        pool.open()
        opened.append(pool)
        while pool.slots < values.slots or pool.spares < values.executor_spares:
            await asyncio.sleep(0.01)
        return pool

    yield open_pool
    for pool in opened:
        await pool.close()


@pytest.fixture
def begin(rows, db):
    """Starts an attempt in a pool; returns the run's id and the task that will know its outcome."""

    async def start(pool, *script, **more):
        run_id = await rows.submit(*script, **more)
        (claimed,) = await runs.claim(db, [run_id], "host/0/boot", 600)
        while not pool.reserve():
            await asyncio.sleep(0.01)
        return run_id, asyncio.create_task(pool.execute(claimed))

    return start


async def until(condition):
    while not condition():
        await asyncio.sleep(0.01)


async def test_a_run_ends_with_its_state(pools, begin):
    pool = await pools()
    _, outcome = await begin(pool, ["sleep", 0.01])
    ended = await outcome
    assert isinstance(ended, Succeeded)
    assert orjson.loads(ended.ended.values)["done"] == ["0:sleep"]
    assert pool.free == pool.slots


async def test_what_a_graph_raises_is_a_failure_and_no_crash(pools, begin):
    pool = await pools()
    _, outcome = await begin(pool, ["raise", "as it was told"])
    ended = await outcome
    assert isinstance(ended, Failed)
    assert (ended.error, ended.message) == ("RuntimeError", "as it was told")


@pytest.mark.parametrize(
    ("graph_id", "reason"), [("broken", "could not be loaded"), ("nowhere", "not served here")]
)
async def test_a_run_on_a_graph_that_is_not_there_fails_with_the_reason(
    pools, begin, graph_id, reason
):
    pool = await pools()
    _, outcome = await begin(pool, graph_id=graph_id)
    ended = await outcome
    assert isinstance(ended, Failed)
    assert reason in ended.message
    assert pool.free == pool.slots


@pytest.mark.parametrize(
    ("death", "reason"), [(["kill", "SIGKILL"], "signal 9"), (["_exit", 7], "exited with code 7")]
)
async def test_a_process_that_dies_is_a_crash_of_its_runs_and_a_spare_serves_at_once(
    pools, begin, side_effects, death, reason
):
    pool = await pools(executor_spares=1)
    _, neighbour = await begin(pool, ["sleep", FOREVER], log=side_effects.path)
    await side_effects.begun("0:sleep")
    _, dying = await begin(pool, death, log=side_effects.path)
    for outcome in (dying, neighbour):
        ended = await outcome
        assert isinstance(ended, Crashed)
        assert reason in ended.reason
    assert pool.slots == 2  # the spare: nothing had to be loaded for it
    _, after = await begin(pool, ["sleep", 0.01], log=side_effects.path)
    assert isinstance(await after, Succeeded)


async def test_runs_spread_over_processes_before_they_share_one(pools, begin, side_effects):
    pool = await pools(worker_count=2)
    outcomes = [(await begin(pool, ["sleep", 0.5], log=side_effects.path))[1] for _ in range(2)]
    await asyncio.gather(*outcomes)
    assert len({entry["pid"] for entry in side_effects.read()}) == 2


async def test_a_cancelled_run_stops_and_leaves_its_state(pools, begin, side_effects):
    pool = await pools()
    run_id, outcome = await begin(
        pool, ["sleep", 0.01], ["sleep", FOREVER], ["sleep", 0], log=side_effects.path
    )
    await side_effects.begun("1:sleep")
    pool.cancel(run_id, CancelAction.INTERRUPT)
    ended = await outcome
    assert isinstance(ended, Cancelled)
    assert orjson.loads(ended.ended.values)["done"] == ["0:sleep"]
    assert pool.free == pool.slots


@pytest.mark.parametrize("step", [["spin", FOREVER], ["aspin", FOREVER], ["stubborn", FOREVER]])
async def test_python_code_that_will_not_listen_is_stopped_inside_its_process(
    pools, begin, side_effects, step
):
    pool = await pools(cancel_grace_seconds=10)
    run_id, outcome = await begin(pool, step, log=side_effects.path)
    entry = await side_effects.begun(f"0:{step[0]}")
    pool.cancel(run_id, CancelAction.INTERRUPT)
    assert isinstance(await outcome, Cancelled)
    os.kill(entry["pid"], 0)  # the process lives


async def test_native_code_is_stopped_with_its_process_and_its_neighbour_is_handed_back(
    pools, begin, side_effects
):
    pool = await pools()
    await pool.inspect("schemas", b'{"graph_id":"script"}')  # the inspector is there
    _, neighbour = await begin(pool, ["sleep", FOREVER], log=side_effects.path)
    await side_effects.begun("0:sleep")
    run_id, outcome = await begin(pool, ["sleep", 0.2], ["gil", GIL], log=side_effects.path)
    await side_effects.begun("1:gil")
    pool.cancel(run_id, CancelAction.INTERRUPT)
    ended = await outcome
    assert isinstance(ended, Cancelled)
    assert ended.ended.values is not None  # the inspector looked
    assert isinstance(await neighbour, HandedBack)


@pytest.mark.faults
async def test_a_neighbour_of_a_run_that_will_not_stop_may_end_where_it_is(
    pools, begin, side_effects, tmp_path
):
    pool = await pools(retire_timeout_seconds=60)
    gate = tmp_path / "gate"
    _, neighbour = await begin(pool, ["await", str(gate)], log=side_effects.path)
    first = await side_effects.begun("0:await")
    run_id, outcome = await begin(pool, ["block", FOREVER], log=side_effects.path)
    await side_effects.begun("0:block")
    pool.cancel(run_id, CancelAction.INTERRUPT)
    assert isinstance(await outcome, Cancelled)
    _, fresh = await begin(pool, ["sleep", 0], log=side_effects.path)
    assert isinstance(await fresh, Succeeded)
    assert (await side_effects.begun("0:sleep"))["pid"] != first["pid"]
    gate.touch()
    assert isinstance(await neighbour, Succeeded)
    # Nothing is left in the retired process but code that would not stop: it ends now.
    await until(lambda: not os.path.exists(f"/proc/{first['pid']}"))


async def test_a_run_that_takes_too_long_is_stopped(pools, begin):
    pool = await pools(bg_job_timeout_secs=0.3)
    _, outcome = await begin(pool, ["block", FOREVER])
    ended = await outcome
    assert isinstance(ended, TimedOut)
    assert ended.limit == 0.3


async def test_a_lost_lease_ends_the_attempt_whatever_it_reports(pools, begin, side_effects):
    pool = await pools()
    run_id, outcome = await begin(pool, ["sleep", FOREVER], log=side_effects.path)
    await side_effects.begun("0:sleep")
    pool.revoke(run_id, 1)
    assert isinstance(await outcome, LeaseLost)


async def test_a_process_whose_loop_is_blocked_offers_no_slot(pools, begin, side_effects):
    pool = await pools()
    _, outcome = await begin(pool, ["ablock", 3], log=side_effects.path)
    await side_effects.begun("0:ablock")
    await until(lambda: pool.free == 0)
    assert not pool.reserve()
    assert isinstance(await outcome, Succeeded)
    await until(lambda: pool.free == 2)


@pytest.mark.faults
@pytest.mark.parametrize("seats", [1, 2])
async def test_a_process_that_is_held_up_is_replaced_where_its_seats_are_missed(
    pools, begin, side_effects, seats
):
    """A full one offers no seat, held up or not: its limit is somebody's wish."""
    pool = await pools(n_jobs_per_worker=seats, executor_spares=1)
    _, outcome = await begin(pool, ["ablock", 8], log=side_effects.path)
    first = await side_effects.begun("0:ablock")
    _, after = await begin(pool, ["sleep", 0], log=side_effects.path)
    assert isinstance(await after, Succeeded)
    assert outcome.done() == (seats == 1)
    second = await side_effects.begun("0:sleep")
    assert (first["pid"] == second["pid"]) == (seats == 1)
    assert isinstance(await outcome, Succeeded)


@pytest.mark.faults
async def test_a_run_that_was_not_taken_up_may_come_back_to_the_same_process(
    pools, begin, side_effects
):
    """Its loop turns now and then: a second start may come before the first is refused."""
    pool = await pools(executor_spares=0)
    _, holder = await begin(pool, ["stutter", [12, 1.5]], log=side_effects.path)
    await side_effects.begun("0:stutter")
    _, late = await begin(pool, ["sleep", 0.01], log=side_effects.path)
    assert [type(await outcome) for outcome in (late, holder)] == [Succeeded, Succeeded]
    assert [entry["node"] for entry in side_effects.read()] == ["0:stutter", "0:sleep"]
    assert pool.free == pool.slots


async def test_a_process_that_ran_enough_is_replaced_and_loses_nothing(pools, begin, side_effects):
    pool = await pools(executor_max_runs=2, retire_timeout_seconds=0)
    outcomes = [(await begin(pool, ["sleep", 0.3], log=side_effects.path))[1] for _ in range(5)]
    assert all(isinstance(ended, Succeeded) for ended in await asyncio.gather(*outcomes))
    assert len({entry["pid"] for entry in side_effects.read()}) >= 3


@pytest.mark.faults
async def test_a_process_that_grew_too_large_is_replaced(pools, begin, side_effects):
    pool = await pools(executor_max_rss_mb=64, retire_timeout_seconds=60)
    _, outcome = await begin(pool, ["sleep", 4], log=side_effects.path)
    ended = await outcome
    # Every process is larger than that: it is over half as much again, or near it.
    assert isinstance(ended, Succeeded | Crashed)
    if isinstance(ended, Crashed):
        assert "EXECUTOR_MAX_RSS_MB is 64" in ended.reason
    entry = await side_effects.begun("0:sleep")
    await until(lambda: not os.path.exists(f"/proc/{entry['pid']}"))
    await until(lambda: pool.slots == 2)


async def test_draining_hands_runs_back(pools, begin, side_effects):
    pool = await pools()
    _, outcome = await begin(pool, ["block", FOREVER], log=side_effects.path)
    await side_effects.begun("0:block")
    pool.drain()
    assert not pool.reserve()
    pool.hand_back()
    assert isinstance(await outcome, HandedBack)


@pytest.mark.faults
async def test_the_inspector_answers_beside_busy_runs_and_is_replaced_when_it_dies(pools, begin):
    pool = await pools()
    _, outcome = await begin(pool, ["spin", 1])
    status, body = await pool.inspect("schemas", b'{"graph_id":"script"}')
    assert status == 200
    assert orjson.loads(body)
    inspector = pool._inspector._process.result()  # to hurt it
    question = asyncio.create_task(pool.inspect("schemas", b'{"graph_id":"script"}'))
    await asyncio.sleep(0)
    os.kill(inspector.pid, signal.SIGKILL)
    with pytest.raises(InspectorUnavailable):
        await question
    status, _ = await pool.inspect("schemas", b'{"graph_id":"script"}')
    assert status == 200
    await outcome


async def test_a_program_that_cannot_start_is_tried_again_with_pauses(settings, project, db):
    values = settings()
    launcher = Launcher(values, {**project, "env": {"PYTHONHOME": "/nowhere"}}, db.settings)
    pool = Pool(launcher, values, lambda: None)
    pool.open()
    await until(lambda: pool.start_failures >= 2)
    assert pool.slots == pool.free == 0
    await pool.close()

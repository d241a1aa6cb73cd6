"""A run that holds its process's loop up, and the runs that share the process with it."""

import asyncio
from typing import Any

import pytest
from langgraph_sdk.client import LangGraphClient

pytestmark = pytest.mark.topology

HOLDING_UP = {
    "time.sleep": ["ablock", 3600],
    "an endless Python loop": ["aspin", 3600],
    "a C call that keeps the GIL": ["agil", 60],
}
RARER = {"an endless Python loop"}


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """One process serves: whatever runs shares it with what holds it up."""
    return {
        "WORKER_COUNT": "1",
        "N_JOBS_PER_WORKER": "6",
        "CANCEL_GRACE_SECONDS": "1",
        "LEASE_DURATION_SECONDS": "3",
        "HEARTBEAT_INTERVAL_SECONDS": "0.5",
        "REAPER_INTERVAL_SECONDS": "1",
        "RETIRE_TIMEOUT_SECONDS": "3",
    }


@pytest.mark.parametrize(
    "what",
    [pytest.param(what, marks=pytest.mark.faults if what in RARER else ()) for what in HOLDING_UP],
)
async def test_neighbours_of_a_run_that_holds_the_loop_up(
    topology: Any, client: LangGraphClient, side_effects: Any, what: str
) -> None:
    async def start(*script: list[Any]) -> dict[str, Any]:
        thread = await client.threads.create()
        values = {"script": list(script), "log": str(side_effects.path)}
        run: Any = await client.runs.create(thread["thread_id"], "script", input=values)
        return {"thread_id": run["thread_id"], "run_id": run["run_id"]}

    before = [await start(*[["sleep", 0.1]] * 40), await start(["sleep", 5], ["sleep", 0.1])]
    if "GIL" not in what:  # who waits for it in a thread cannot be told from who keeps it
        before.append(await start(*[["block", 0.1]] * 40))
    await asyncio.to_thread(side_effects.await_step, "2:sleep")
    holder = await start(HOLDING_UP[what])
    await asyncio.to_thread(side_effects.await_step, f"0:{HOLDING_UP[what][0]}")
    # At once: the process has not been found out yet, and has room.
    after = [await start(["sleep", 0.1]), await start(["block", 0.1])]

    await asyncio.gather(*(client.runs.join(**run) for run in (*before, *after)))
    for run in (*before, *after):
        row = topology.run_row(run["run_id"])
        assert (row["status"], row["crashes"]) == ("success", 0)
    # What was not taken up was not begun, so it need not be begun again.
    assert [topology.run_row(run["run_id"])["attempt"] for run in after] == [1, 1]
    row = topology.run_row(holder["run_id"])
    assert (row["status"], row["attempt"], row["leased"]) == ("running", 1, True)
    pids = {effect["pid"] for effect in side_effects.read() if effect["run"] == after[0]["run_id"]}
    assert side_effects.await_step(f"0:{HOLDING_UP[what][0]}")["pid"] not in pids

    await client.runs.cancel(**holder, wait=True)
    row = topology.run_row(holder["run_id"])
    assert (row["status"], row["attempt"]) == ("interrupted", 1)


async def test_what_holds_the_loop_up_for_a_while_goes_on_to_its_end(
    topology: Any, client: LangGraphClient, side_effects: Any
) -> None:
    """And a neighbour whose wake-up was due meanwhile takes no step when the loop turns again."""

    async def start(*script: list[Any]) -> dict[str, Any]:
        thread = await client.threads.create()
        values = {"script": list(script), "log": str(side_effects.path)}
        run: Any = await client.runs.create(thread["thread_id"], "script", input=values)
        return {"thread_id": run["thread_id"], "run_id": run["run_id"]}

    neighbour = await start(["sleep", 1], ["sleep", 20], ["sleep", 0.1])
    await asyncio.to_thread(side_effects.await_step, "0:sleep")
    holder = await start(["ablock", 8], ["sleep", 1], ["block", 0.1])
    await client.runs.join(**holder)
    row = topology.run_row(holder["run_id"])
    assert (row["status"], row["attempt"]) == ("success", 1)
    await client.runs.join(**neighbour)
    assert topology.run_row(neighbour["run_id"])["status"] == "success"
    steps = [
        (effect["node"], effect["attempt"])
        for effect in side_effects.read()
        if effect["run"] == neighbour["run_id"]
    ]
    assert steps == [("0:sleep", 1), ("0:sleep", 2), ("1:sleep", 2), ("2:sleep", 2)]


@pytest.mark.faults
async def test_who_holds_the_loop_up_unseen_comes_to_an_end_and_so_do_its_neighbours(
    topology: Any, client: LangGraphClient, side_effects: Any
) -> None:
    """No step shows while a callback is executed: whose it is cannot be told."""
    runs = []
    for script in ([["sleep", 0.1]] * 40, [["callback", 8], ["sleep", 0.1]]):
        thread = await client.threads.create()
        values = {"script": script, "log": str(side_effects.path)}
        run = await client.runs.create(thread["thread_id"], "script", input=values)
        runs.append({"thread_id": thread["thread_id"], "run_id": run["run_id"]})
    for run in runs:
        await client.runs.join(**run)
        row = topology.run_row(run["run_id"])
        assert (row["status"], row["crashes"]) == ("success", 0)


async def test_a_neighbour_that_is_cancelled_takes_nobody_with_it(
    topology: Any, client: LangGraphClient, side_effects: Any
) -> None:
    threads = [(await client.threads.create())["thread_id"] for _ in range(2)]
    runs = []
    for thread_id, step in zip(threads, (["sleep", 3600], ["ablock", 6]), strict=True):
        values = {"script": [step], "log": str(side_effects.path)}
        run = await client.runs.create(thread_id, "script", input=values)
        runs.append(run["run_id"])
        await asyncio.to_thread(side_effects.await_step, f"0:{step[0]}")
    await client.runs.cancel(threads[0], runs[0], wait=True)
    assert topology.run_row(runs[0])["status"] == "interrupted"
    await client.runs.join(threads[1], runs[1])
    row = topology.run_row(runs[1])
    assert (row["status"], row["attempt"]) == ("success", 1)

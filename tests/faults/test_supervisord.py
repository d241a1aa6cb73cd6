"""supervisord itself is frozen, or killed: what it started goes on, or ends with it."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

pytestmark = [pytest.mark.topology, pytest.mark.faults, pytest.mark.timeout(300)]


async def test_while_it_is_frozen_all_goes_on_and_what_dies_waits_for_it(
    topology: Any,
    client: LangGraphClient,
    side_effects: Any,
    tmp_path: Path,
    eventually: Callable[..., Any],
) -> None:
    """Nobody reads what the processes say: their pipes are full, and none of them waits."""
    release = tmp_path / "release"
    script = {"script": [["sleep", 0], ["await", str(release)]], "log": str(side_effects.path)}
    thread = (await client.threads.create())["thread_id"]
    run = await client.runs.create(thread, "script", input=script, durability="sync")
    await asyncio.to_thread(side_effects.await_step, "1:await")
    (supervisord,) = topology.processes("supervisord")
    (worker,) = topology.processes("worker")
    (gateway,) = topology.processes("gateway")
    supervisord.suspend()
    try:
        chatter = {"script": [["chatter", 20_000], ["sleep", 0]]}
        result = await client.runs.wait(None, "script", input=chatter)
        assert result["done"] == ["0:chatter", "1:sleep"]
        worker.kill()
        assert (await client.runs.get(thread, run["run_id"]))["status"] == "running"
    finally:
        supervisord.resume()
    await asyncio.to_thread(side_effects.await_step, "1:await", 2)
    release.touch()
    await client.runs.join(thread, run["run_id"])
    row = topology.run_row(run["run_id"])
    assert (row["status"], row["attempt"], row["crashes"]) == ("success", 2, 1)
    assert gateway.is_running()
    steps = [(effect["node"], effect["attempt"]) for effect in side_effects.read()]
    assert steps == [("0:sleep", 1), ("1:await", 1), ("1:await", 2)]


async def test_when_it_is_killed_all_ends_with_it_and_the_next_start_takes_over(
    topology: Any,
    client: LangGraphClient,
    side_effects: Any,
    tmp_path: Path,
) -> None:
    release = tmp_path / "release"
    script = {
        "script": [["sleep", 0], ["await", str(release)], ["sleep", 0]],
        "log": str(side_effects.path),
    }
    thread = (await client.threads.create())["thread_id"]
    run = await client.runs.create(thread, "script", input=script, durability="sync")
    await asyncio.to_thread(side_effects.await_step, "1:await")
    (supervisord,) = topology.processes("supervisord")
    parts = supervisord.children(recursive=True)
    supervisord.send_signal(signal.SIGKILL)
    _gone, alive = await asyncio.to_thread(psutil.wait_procs, parts, 30)
    assert not alive, "nothing outlives it"
    assert await asyncio.to_thread(topology.process.wait, 60) != 0, (
        "callboard up says that it ended"
    )
    await asyncio.to_thread(topology.start)
    await asyncio.to_thread(side_effects.await_step, "1:await", 2)
    release.touch()
    async with get_client(url=topology.url) as again:
        await again.runs.join(thread, run["run_id"])
    row = topology.run_row(run["run_id"])
    assert (row["status"], row["attempt"], row["crashes"]) == ("success", 2, 1)
    steps = [(effect["node"], effect["attempt"]) for effect in side_effects.read()]
    assert steps == [("0:sleep", 1), ("1:await", 1), ("1:await", 2), ("2:sleep", 2)]

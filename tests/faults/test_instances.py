"""Several workers and gateways: frozen, told to stop, killed, restarted. Runs and clients go on."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

pytestmark = pytest.mark.topology


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    return {
        "CALLBOARD_WORKERS": "2",
        "CALLBOARD_GATEWAYS": "2",
        "WORKER_COUNT": "1",
        "N_JOBS_PER_WORKER": "4",
        "CANCEL_GRACE_SECONDS": "1",
        "WORKER_DRAIN_TIMEOUT": "2",
        "LEASE_DURATION_SECONDS": "8",
        "HEARTBEAT_INTERVAL_SECONDS": "2",
        "REAPER_INTERVAL_SECONDS": "1",
        "POSTGRES_POLL_INTERVAL_SECONDS": "1",
    }


def _dead(pid: int) -> bool:
    """Also when a frozen parent has not taken note of it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _steps(effects: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(effect["node"], effect["attempt"]) for effect in effects]


async def _ticks(client: LangGraphClient, thread: str, run: str) -> list[int]:
    """All that a reader sees of a run, from its beginning."""
    stream = client.runs.join_stream(thread, run, stream_mode="custom", last_event_id="-1")
    return [part.data["tick"] async for part in stream if part.event == "custom"]


@pytest.mark.parametrize(
    "whole", [pytest.param(False), pytest.param(True, marks=pytest.mark.faults)]
)
async def test_a_frozen_worker_loses_its_run_and_spoils_nothing_when_it_thaws(
    topology: Any,
    client: LangGraphClient,
    side_effects: Any,
    tmp_path: Path,
    eventually: Callable[..., Any],
    whole: bool,
) -> None:
    """whole: its graph processes are frozen with it, as on a machine that sleeps."""
    release = tmp_path / "release"
    thread = (await client.threads.create())["thread_id"]
    script = [["tick", [2, 0]], ["await", str(release)], ["tick", [3, 0]], ["sleep", 0]]
    run = await client.runs.create(
        thread,
        "script",
        input={"script": script, "log": str(side_effects.path)},
        durability="sync",
        stream_mode="custom",
        stream_resumable=True,
    )
    first = (await asyncio.to_thread(side_effects.await_step, "1:await"))["pid"]
    worker = topology.worker_of(first)
    frozen = [worker, psutil.Process(first)] if whole else [worker]
    for process in frozen:
        process.suspend()
    try:
        again = (await asyncio.to_thread(side_effects.await_step, "1:await", 2))["pid"]
        assert again != first
        if not whole:
            # It ended by itself: its worker was silent for longer than the lease.
            eventually(lambda: _dead(first), "the old graph process is gone")
        release.touch()
        await client.runs.join(thread, run["run_id"])
    finally:
        for process in frozen:
            process.resume()

    assert worker.is_running(), "it goes on working"
    row = topology.run_row(run["run_id"])
    assert (row["status"], row["attempt"], row["crashes"]) == ("success", 2, 1)
    by_second = [node for node, attempt in _steps(side_effects.read()) if attempt == 2]
    assert by_second == ["1:await", "2:tick", "3:sleep"]
    assert await _ticks(client, thread, run["run_id"]) == [0, 1, 0, 1, 2]
    state = await client.threads.get_state(thread)
    assert state["values"]["done"] == ["0:tick", "1:await", "2:tick", "3:sleep"]
    history = await client.threads.get_history(thread, limit=100)
    done = [len(one["values"].get("done") or []) for one in history]
    assert done == sorted(set(done), reverse=True) or done[-1] == done[-2] == 0, done


async def test_a_drain_moves_runs_to_another_worker_at_no_cost(
    topology: Any, client: LangGraphClient, side_effects: Any, tmp_path: Path
) -> None:
    """With a stream and a wait open on what is moved."""
    release = tmp_path / "release"
    script = {
        "script": [["sleep", 0], ["await", str(release)], ["tick", [3, 0]]],
        "log": str(side_effects.path),
    }
    thread = (await client.threads.create())["thread_id"]
    parts: list[Any] = []

    async def read() -> None:
        async for part in client.runs.stream(
            thread, "script", input=script, stream_mode="custom", durability="sync"
        ):
            parts.append(part)

    reader = asyncio.create_task(read())
    pid = (await asyncio.to_thread(side_effects.await_step, "1:await"))["pid"]
    waiter = asyncio.create_task(
        client.runs.wait(None, "script", input={"script": script["script"][1:]})
    )
    topology.worker_of(pid).send_signal(signal.SIGTERM)
    await asyncio.to_thread(side_effects.await_step, "1:await", 2)
    release.touch()
    await reader
    assert (await waiter)["done"] == ["0:await", "1:tick"]
    assert _steps(side_effects.read()) == [
        ("0:sleep", 1),
        ("1:await", 1),
        ("1:await", 2),
        ("2:tick", 2),
    ]
    assert [part.data["tick"] for part in parts if part.event == "custom"] == [0, 1, 2]
    assert not [part for part in parts if part.event == "error"]
    (row,) = topology.query("SELECT status, crashes FROM runs WHERE thread_id = %s", thread)
    assert row == {"status": "success", "crashes": 0}


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGTERM), pytest.param(signal.SIGKILL, marks=pytest.mark.faults)]
)
async def test_streams_go_on_at_another_gateway(
    topology: Any,
    client: LangGraphClient,
    tmp_path: Path,
    eventually: Callable[..., Any],
    number: signal.Signals,
) -> None:
    """A gateway with open streams ends at once; its clients come back with their cursors."""
    release = tmp_path / "release"
    thread = (await client.threads.create())["thread_id"]
    run = await client.runs.create(
        thread,
        "script",
        input={"script": [["tick", [50, 0]], ["await", str(release)], ["tick", [50, 0]]]},
        stream_mode="custom",
        stream_resumable=True,
    )
    seen: list[list[int]] = []

    async def read() -> None:
        mine: list[int] = []
        seen.append(mine)
        async with get_client(url=topology.url) as own:  # a connection of its own
            async for part in own.runs.join_stream(
                thread, run["run_id"], stream_mode="custom", last_event_id="-1"
            ):
                if part.event == "custom":
                    mine.append(part.data["tick"])

    readers = [asyncio.create_task(read()) for _ in range(12)]
    while not (len(seen) == len(readers) and all(len(mine) == 50 for mine in seen)):
        await asyncio.sleep(0.05)
    gateways = topology.processes("gateway")
    for gateway in gateways:  # one after the other, so that there is always one to go to
        gateway.send_signal(number)
        await asyncio.to_thread(gateway.wait, 60)
        eventually(
            lambda: len(topology.processes("gateway")) == len(gateways), "another one is started"
        )
        topology.await_ready()
    release.touch()
    await asyncio.gather(*readers)
    assert all(mine == [*range(50), *range(50)] for mine in seen)


async def test_all_graph_processes_the_inspectors_and_the_scheduler_may_die_at_once(
    topology: Any,
    client: LangGraphClient,
    side_effects: Any,
    tmp_path: Path,
    eventually: Callable[..., Any],
) -> None:
    release = tmp_path / "release"
    thread = (await client.threads.create())["thread_id"]
    run = await client.runs.create(
        thread,
        "script",
        input={"script": [["sleep", 0], ["await", str(release)]], "log": str(side_effects.path)},
        durability="sync",
    )
    delayed = await client.runs.create(
        (await client.threads.create())["thread_id"],
        "echo",
        input={"question": "later?"},
        after_seconds=3,
    )
    await asyncio.to_thread(side_effects.await_step, "1:await")
    victims = topology.processes("child") + topology.processes("scheduler")
    for victim in victims:
        victim.kill()
    await asyncio.to_thread(side_effects.await_step, "1:await", 2)
    release.touch()
    await client.runs.join(thread, run["run_id"])
    row = topology.run_row(run["run_id"])
    assert (row["status"], row["attempt"], row["crashes"]) == ("success", 2, 1)

    def state() -> bool:
        return topology.get(f"/threads/{thread}/state").status_code == 200

    eventually(state, "an inspector answers")
    eventually(
        lambda: topology.run_row(delayed["run_id"])["status"] == "success", "the delayed run ends"
    )
    row = topology.run_row(delayed["run_id"])
    assert row["started_at"] >= row["available_at"]

"""Processes die; runs go on from their last checkpoint."""

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from langgraph_sdk.client import LangGraphClient

pytestmark = pytest.mark.topology


def _ticks(parts: list[Any]) -> list[int]:
    return [part.data["tick"] for part in parts if part.event == "custom"]


async def test_killed_graph_process(
    topology: Any,
    client: LangGraphClient,
    side_effects: Any,
    tmp_path: Any,
    eventually: Callable[..., Any],
) -> None:
    """The run resumes on a fresh process in the same stream; a neighbour elsewhere goes on."""
    eventually(lambda: topology.free_slots() == 8, "all graph processes are ready")
    release = tmp_path / "release"
    neighbour_log = tmp_path / "neighbour"
    neighbour_thread = await client.threads.create()
    thread = await client.threads.create()
    script = [["sleep", 0], ["tick", [3, 0]], ["await", str(release)], ["tick", [3, 0]]]
    parts = []

    async def read() -> None:
        async for part in client.runs.stream(
            thread["thread_id"],
            "script",
            input={"script": script, "log": str(side_effects.path)},
            stream_mode="custom",
            durability="sync",  # a finished step is never done again, whenever the kill comes
        ):
            parts.append(part)

    reader = asyncio.create_task(read())
    victim = (await asyncio.to_thread(side_effects.await_step, "2:await"))["pid"]
    neighbour = await client.runs.create(
        neighbour_thread["thread_id"],
        "script",
        input={"script": [["await", str(release)]], "log": str(neighbour_log)},
    )
    neighbour_effects = type(side_effects)(neighbour_log)
    neighbour_entry = await asyncio.to_thread(neighbour_effects.await_step, "0:await")
    assert neighbour_entry["pid"] != victim, "two processes, two runs: one each"

    os.kill(victim, signal.SIGKILL)
    again = await asyncio.to_thread(side_effects.await_step, "2:await", 2)
    release.touch()
    await reader

    assert again["pid"] != victim
    steps = [(entry["node"], entry["attempt"]) for entry in side_effects.read()]
    assert steps == [
        ("0:sleep", 1),
        ("1:tick", 1),
        ("2:await", 1),
        ("2:await", 2),
        ("3:tick", 2),
    ]
    assert _ticks(parts) == [0, 1, 2, 0, 1, 2]
    attempts = [part.data["attempt"] for part in parts if part.event == "metadata"]
    assert attempts == [1, 2]
    assert not [part for part in parts if part.event == "error"]
    await client.runs.join(neighbour_thread["thread_id"], neighbour["run_id"])
    assert [entry["attempt"] for entry in neighbour_effects.read()] == [1]


async def test_killed_worker(
    topology: Any, client: LangGraphClient, side_effects: Any, tmp_path: Any
) -> None:
    """supervisord restarts the worker, which takes back the leases of its own slot."""
    release = tmp_path / "release"
    thread = await client.threads.create()
    run = await client.runs.create(
        thread["thread_id"],
        "script",
        input={
            "script": [["sleep", 0], ["await", str(release)]],
            "log": str(side_effects.path),
        },
        durability="sync",
    )
    await asyncio.to_thread(side_effects.await_step, "1:await")
    (worker,) = topology.processes("worker")
    worker.send_signal(signal.SIGKILL)
    await asyncio.to_thread(side_effects.await_step, "1:await", 2)
    release.touch()
    await client.runs.join(thread["thread_id"], run["run_id"])
    row = topology.run_row(run["run_id"])
    assert (row["status"], row["attempt"]) == ("success", 2)
    steps = [(entry["node"], entry["attempt"]) for entry in side_effects.read()]
    assert steps == [("0:sleep", 1), ("1:await", 1), ("1:await", 2)]


async def test_a_run_that_always_kills_its_process(
    topology: Any, client: LangGraphClient, side_effects: Any
) -> None:
    """Ends in error after the retries, saying why, and its thread takes the next run."""
    thread = await client.threads.create()
    answer = await client.runs.wait(
        thread["thread_id"],
        "script",
        input={"script": [["kill", "SIGKILL"]], "log": str(side_effects.path)},
        raise_error=False,
    )
    assert "signal 9" in answer["__error__"]["message"]
    assert [entry["attempt"] for entry in side_effects.read()] == [1, 2, 3, 4]
    (run,) = await client.runs.list(thread["thread_id"])
    assert run["status"] == "error"
    assert (await client.threads.get(thread["thread_id"]))["status"] == "error"
    await client.runs.wait(thread["thread_id"], "echo", input={"question": "still there?"})
    assert (await client.threads.get(thread["thread_id"]))["status"] == "idle"


async def test_killed_gateway(
    topology: Any, client: LangGraphClient, tmp_path: Any, eventually: Callable[..., Any]
) -> None:
    """A run outlives the gateway that accepted it."""
    release = tmp_path / "release"
    thread = await client.threads.create()
    run = await client.runs.create(
        thread["thread_id"], "script", input={"script": [["await", str(release)]]}
    )
    eventually(lambda: topology.run_row(run["run_id"])["status"] == "running", "the run is running")
    for gateway in topology.processes("gateway"):
        gateway.send_signal(signal.SIGKILL)
    release.touch()
    eventually(lambda: topology.run_row(run["run_id"])["status"] == "success", "the run ends")
    topology.await_ready()
    assert topology.run_row(run["run_id"])["attempt"] == 1

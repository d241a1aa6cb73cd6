"""What is frozen hears everything, answers nothing, and hangs up on nobody: Postgres, or all."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from langgraph_sdk.client import LangGraphClient

from tests.faults.outages.services import Service
from tests.faults.outages.test_postgres import frozen

pytestmark = pytest.mark.topology

_LEASE_SECONDS = 12
_PATIENCE_SECONDS = 20.0
"""What these requests allow; without a bound of our own none of them is answered."""


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """Leases that do not outlive the outage."""
    return {
        "WORKER_COUNT": "2",
        "N_JOBS_PER_WORKER": "4",
        "CANCEL_GRACE_SECONDS": "1",
        "LEASE_DURATION_SECONDS": str(_LEASE_SECONDS),
        "HEARTBEAT_INTERVAL_SECONDS": "2",
        "REAPER_INTERVAL_SECONDS": "2",
        "POSTGRES_POLL_INTERVAL_SECONDS": "1",
    }


async def test_requests_are_refused_and_runs_stopped_until_it_thaws(
    topology: Any,
    client: LangGraphClient,
    side_effects: Any,
    postgres: Service,
    tmp_path: Path,
    eventually: Callable[..., Any],
) -> None:
    """No request hangs, no run outlives its lease, and none is executed twice at once."""
    release = tmp_path / "release"
    script = {"script": [["await", str(release)]], "log": str(side_effects.path)}
    thread = (await client.threads.create())["thread_id"]
    run = await client.runs.create(thread, "script", input=script)
    first = await asyncio.to_thread(side_effects.await_step, "0:await")

    async with httpx.AsyncClient(base_url=topology.url, timeout=_PATIENCE_SECONDS) as http:

        async def ask(method: str, path: str, body: Any = None) -> None:
            answer = await http.request(method, path, json=body)
            assert answer.status_code == 503, answer.text
            assert "Retry-After" in answer.headers

        with frozen(postgres):
            for _ in range(2):  # before it is noticed, and after
                async with asyncio.TaskGroup() as group:
                    for _ in range(20):
                        group.create_task(ask("GET", f"/threads/{thread}"))
                        group.create_task(ask("POST", "/threads/search", {}))
                        group.create_task(ask("POST", "/threads", {}))
                        group.create_task(ask("POST", "/runs", {"assistant_id": "echo"}))
            logs = topology.folder / "logs"
            await asyncio.to_thread(
                eventually,
                lambda: any(
                    "lease could not be renewed" in log.read_text() for log in logs.glob("*.log")
                ),
                "the run is stopped before its lease is over",
            )
        second = await asyncio.to_thread(side_effects.await_step, "0:await", 2)
    release.touch()
    await client.runs.join(thread, run["run_id"])
    assert (first["attempt"], second["attempt"]) == (1, 2)
    assert len(side_effects.read()) == 2
    assert topology.run_row(run["run_id"])["status"] == "success"


@pytest.mark.faults
async def test_a_machine_that_slept_longer_than_its_leases_goes_on(
    topology: Any,
    client: LangGraphClient,
    side_effects: Any,
    postgres: Service,
    valkey: Service,
    tmp_path: Path,
) -> None:
    """All that runs on it stands still, and thaws in no order; the clock has gone on."""
    release = tmp_path / "release"
    script = {
        "script": [["tick", [3, 0]], ["await", str(release)], ["tick", [3, 0]]],
        "log": str(side_effects.path),
    }
    thread = (await client.threads.create())["thread_id"]
    run = await client.runs.create(
        thread,
        "script",
        input=script,
        stream_mode="custom",
        stream_resumable=True,
        durability="sync",
    )
    delayed = await client.runs.create(
        None, "echo", input={}, after_seconds=5, on_completion="keep"
    )
    await asyncio.to_thread(side_effects.await_step, "1:await")
    everything = [
        *psutil.Process(topology.process.pid).children(recursive=True),
        psutil.Process(topology.process.pid),
        *postgres.family(),
        *valkey.family(),
    ]
    for process in everything:
        process.suspend()
    await asyncio.sleep(_LEASE_SECONDS + 2)
    for process in everything:
        process.resume()
    release.touch()
    await client.runs.join(thread, run["run_id"])
    row = topology.run_row(run["run_id"])
    assert row["status"] == "success"
    # Who was first to look, the reaper or the worker or its guard, nobody can say.
    assert row["crashes"] < row["attempt"] <= 2
    stream = client.runs.join_stream(
        thread, run["run_id"], stream_mode="custom", last_event_id="-1"
    )
    ticks = [part.data["tick"] async for part in stream if part.event == "custom"]
    assert (
        ticks[:3] == ticks[-3:] == [0, 1, 2]
    )  # the last step may have been begun by both attempts
    while topology.run_row(delayed["run_id"])["status"] != "success":
        await asyncio.sleep(0.1)

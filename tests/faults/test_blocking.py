"""Code that blocks, spins or holds the GIL costs nobody else anything, and stops when told."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from langgraph_sdk.client import LangGraphClient

pytestmark = pytest.mark.topology

STUCK = {
    "an endless pure-Python loop in a sync node": ["spin", 3600],
    "an endless pure-Python loop in an async node": ["aspin", 3600],
    "time.sleep in a sync node": ["block", 3600],
    "time.sleep in an async node": ["ablock", 3600],
    "a C call that holds the GIL": ["gil", 40],
    "a node that swallows its cancellation": ["stubborn", 3600],
}


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """A lease so short that a starved heartbeat would lose it within the test."""
    return {
        "WORKER_COUNT": "2",
        "N_JOBS_PER_WORKER": "2",
        "CANCEL_GRACE_SECONDS": "1",
        "LEASE_DURATION_SECONDS": "3",
        "HEARTBEAT_INTERVAL_SECONDS": "0.5",
        "REAPER_INTERVAL_SECONDS": "1",
    }


RARER = {"time.sleep in a sync node", "time.sleep in an async node"}


@pytest.mark.parametrize(
    "what",
    [pytest.param(what, marks=pytest.mark.faults if what in RARER else ()) for what in STUCK],
)
async def test_stuck_code(
    topology: Any,
    client: LangGraphClient,
    side_effects: Any,
    what: str,
    eventually: Callable[..., Any],
) -> None:
    thread = await client.threads.create()
    run = await client.runs.create(
        thread["thread_id"],
        "script",
        input={"script": [STUCK[what]], "log": str(side_effects.path)},
    )
    begun = topology.query("SELECT now() AS at")[0]["at"]
    await asyncio.to_thread(side_effects.await_step, f"0:{STUCK[what][0]}")

    # Others are unaffected for longer than a lease lasts.
    async with httpx.AsyncClient(base_url=topology.url) as http:
        while (topology.query("SELECT now() AS at")[0]["at"] - begun).total_seconds() < 4:
            assert (await http.get("/ok")).status_code == 200
            other = await client.runs.wait(None, "echo", input={"question": "well?"})
            assert other == {"question": "well?"}
            row = topology.run_row(run["run_id"])
            assert (row["status"], row["attempt"], row["leased"]) == ("running", 1, True)

    await client.runs.cancel(thread["thread_id"], run["run_id"], wait=True)
    row = topology.run_row(run["run_id"])
    assert (row["status"], row["attempt"]) == ("interrupted", 1)
    assert len(side_effects.read()) == 1
    # Every slot is free again: as many runs as there are slots meet each other.
    eventually(
        lambda: topology.free_slots() == 4,
        "all slots are free",
    )
    await client.runs.wait(thread["thread_id"], "echo", input={"question": "again"})

"""A wish to stop meets what ends the attempt otherwise: a crash, a drain, the reaper.

The race with a run's own end is in test_graphs.py; who wins a race of statements is tried in
tests/persistence/test_lifecycle_model.py.
"""

import asyncio
import os
import signal
from typing import Any

import pytest
from langgraph_sdk.client import LangGraphClient

pytestmark = [pytest.mark.topology, pytest.mark.faults, pytest.mark.timeout(300)]

LEADS = (-0.05, -0.01, 0.0, 0.01, 0.05)
"""Seconds by which the wish comes before the other thing."""


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    return {
        "CALLBOARD_WORKERS": "2",
        "WORKER_COUNT": "1",
        "N_JOBS_PER_WORKER": "4",
        "CANCEL_GRACE_SECONDS": "1",
        "WORKER_DRAIN_TIMEOUT": "1",
        "LEASE_DURATION_SECONDS": "4",
        "HEARTBEAT_INTERVAL_SECONDS": "1",
        "REAPER_INTERVAL_SECONDS": "1",
        "POSTGRES_POLL_INTERVAL_SECONDS": "1",
    }


class Run:
    """A run that does not end by itself."""

    def __init__(self, topology: Any, client: LangGraphClient, effects: Any) -> None:
        self._topology, self._client, self._effects = topology, client, effects

    async def begin(self) -> int:
        """Returns the process in which it is executed."""
        self.thread = (await self._client.threads.create())["thread_id"]
        script = {"script": [["sleep", 3600]], "log": str(self._effects.path)}
        run = await self._client.runs.create(self.thread, "script", input=script)
        self.id = run["run_id"]
        while not (mine := [entry for entry in self._effects.read() if entry["run"] == self.id]):
            await asyncio.sleep(0.02)
        return int(mine[0]["pid"])

    async def stop(self, delay: float = 0.0) -> None:
        """Returns when the server says that it has stopped."""
        await asyncio.sleep(max(0.0, delay))
        await self._client.runs.cancel(self.thread, self.id, wait=True)

    async def check(self) -> None:
        """It was stopped, and its thread goes on."""
        assert self._topology.run_row(self.id)["status"] == "interrupted"
        assert await self._client.runs.wait(self.thread, "echo", input={"question": "next"})
        assert self._topology.run_row(self.id)["status"] == "interrupted", "and stays so"


async def _send(pid: int, number: signal.Signals, delay: float) -> None:
    await asyncio.sleep(max(0.0, delay))
    os.kill(pid, number)


@pytest.mark.parametrize("lead", LEADS)
async def test_a_crash(
    topology: Any, client: LangGraphClient, side_effects: Any, lead: float
) -> None:
    run = Run(topology, client, side_effects)
    pid = await run.begin()
    await asyncio.gather(_send(pid, signal.SIGKILL, lead), run.stop(-lead))
    await run.check()


@pytest.mark.parametrize("lead", LEADS)
async def test_a_drain(
    topology: Any, client: LangGraphClient, side_effects: Any, lead: float
) -> None:
    run = Run(topology, client, side_effects)
    worker = topology.worker_of(await run.begin())
    # Runs are handed back when the drain's time is over: that is what it races with.
    await asyncio.gather(_send(worker.pid, signal.SIGTERM, lead), run.stop(1 - lead))
    await run.check()
    await asyncio.to_thread(worker.wait, 60)


async def test_the_reaper(topology: Any, client: LangGraphClient, side_effects: Any) -> None:
    """The worker does not hear of it, and thaws when another has seen to it."""
    run = Run(topology, client, side_effects)
    worker = topology.worker_of(await run.begin())
    worker.suspend()
    try:
        await run.stop()
        await run.check()
    finally:
        worker.resume()
    await run.check()
    assert len(side_effects.read()) == 1, "what was to be stopped is not begun again"

"""The power goes, and comes back."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

from tests.faults.outages.services import Service

pytestmark = [pytest.mark.topology, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    "flushed", [pytest.param(False), pytest.param(True, marks=pytest.mark.faults)]
)
async def test_everything_is_killed_at_once_and_started_again(
    topology: Any,
    client: LangGraphClient,
    side_effects: Any,
    postgres: Service,
    valkey: Service,
    tmp_path: Path,
    eventually: Callable[..., Any],
    flushed: bool,
) -> None:
    """Every run that was accepted ends, goes on where it was, and costs at most one retry.

    flushed: Redis comes back empty, as one without persistence does.
    """
    release = tmp_path / "release"
    held = {
        "script": [["sleep", 0], ["await", str(release)], ["tick", [3, 0]]],
        "log": str(side_effects.path),
    }
    accepted: list[tuple[str, str]] = []

    async def accept(graph: str, thread: str | None = None, **given: Any) -> str:
        thread = thread or (await client.threads.create())["thread_id"]
        run = await client.runs.create(thread, graph, **given)
        accepted.append((thread, run["run_id"]))
        return thread

    for _ in range(4):
        thread = await accept("script", input=held, durability="sync")
        await accept("echo", thread, input={"question": "in line"})
    await accept("echo", input={"question": "later"}, after_seconds=2)
    await asyncio.to_thread(side_effects.await_step, "1:await", 4)

    topology.kill()
    postgres.kill()
    valkey.kill()
    if flushed:
        valkey.forget()
    valkey.start()
    postgres.start()
    topology.start()
    release.touch()

    async with get_client(url=topology.url) as again:
        for thread, run_id in accepted:
            await again.runs.join(thread, run_id)
    for _, run_id in accepted:
        row = topology.run_row(run_id)
        assert row["status"] == "success"
        assert row["crashes"] <= 1
    effects = side_effects.read()
    assert [effect["node"] for effect in effects].count("0:sleep") == 4, "done steps are done"
    assert {effect["attempt"] for effect in effects if effect["node"] == "2:tick"} == {2}

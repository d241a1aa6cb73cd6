"""Runs of one thread never overlap and start in the order in which they were accepted."""

import asyncio
import itertools
from typing import Any

import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

pytestmark = pytest.mark.topology

CLIENTS, RUNS_EACH = 8, 6


async def test_one_run_per_thread(topology: Any, client: LangGraphClient) -> None:
    thread = (await client.threads.create())["thread_id"]

    async def hammer() -> None:
        async with get_client(url=topology.url) as own:
            for _ in range(RUNS_EACH):
                await own.runs.create(thread, "script", input={"script": [["sleep", 0.01]]})

    await asyncio.gather(*(hammer() for _ in range(CLIENTS)))
    last = await client.runs.create(thread, "echo", input={"question": "last"})
    await client.runs.join(thread, last["run_id"])
    rows = topology.query("SELECT * FROM runs WHERE thread_id = %s ORDER BY queue_seq", thread)
    assert len(rows) == CLIENTS * RUNS_EACH + 1
    assert {row["status"] for row in rows} == {"success"}
    assert {row["attempt"] for row in rows} == {1}
    for before, after in itertools.pairwise(rows):
        assert before["finished_at"] <= after["started_at"], "they overlap or changed places"


async def test_reject(topology: Any, client: LangGraphClient, tmp_path: Any) -> None:
    """Of many that may not wait, one runs."""
    thread = (await client.threads.create())["thread_id"]
    release = tmp_path / "release"

    async def attempt() -> int:
        async with get_client(url=topology.url) as own:
            try:
                await own.runs.create(
                    thread,
                    "script",
                    input={"script": [["await", str(release)]]},
                    multitask_strategy="reject",
                )
            except Exception as refused:
                return int(refused.response.status_code)  # type: ignore[attr-defined]
            return 200

    answers = await asyncio.gather(*(attempt() for _ in range(8)))
    release.touch()
    assert sorted(answers) == [200] + [409] * 7
    (run,) = await client.runs.list(thread)
    await client.runs.join(thread, run["run_id"])

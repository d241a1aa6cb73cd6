"""Lines that only went silent: nobody hangs up, what is said on them is taken and goes nowhere.

All processes of the topology reach their servers over one proxy for Postgres and one for Redis, as
behind a load balancer that has forgotten its connections.
"""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph_sdk.client import LangGraphClient

from tests import lines
from tests.faults.outages.test_postgres import asked_all_the_time
from tests.lines import Line

pytestmark = [pytest.mark.topology, pytest.mark.faults, pytest.mark.timeout(300)]

AWAY_SECONDS = 8.0
"""Less than a lease lasts, and more than a statement may take without a second look."""


@pytest.fixture(scope="module")
def ways(module_database_url: str, module_redis_url: str) -> Iterator[dict[str, Line]]:
    with (
        lines.to_postgres(module_database_url) as to_postgres,
        lines.to_redis(module_redis_url) as to_redis,
    ):
        yield {"postgres": to_postgres, "redis": to_redis}


@pytest.fixture(scope="module")
def environment(ways: dict[str, Line]) -> dict[str, str]:
    return {
        "DATABASE_URL": ways["postgres"].url,
        "REDIS_URL": ways["redis"].url,
        "WORKER_COUNT": "2",
        "N_JOBS_PER_WORKER": "4",
        "CANCEL_GRACE_SECONDS": "1",
        "POSTGRES_POLL_INTERVAL_SECONDS": "1",
        "REAPER_INTERVAL_SECONDS": "2",
        "HEARTBEAT_INTERVAL_SECONDS": "2",
    }


@pytest.mark.parametrize(
    ("names", "seconds"),
    [
        pytest.param(("postgres",), 0.0, id="postgres, at once"),
        pytest.param(("postgres",), AWAY_SECONDS, id="postgres, later"),
        pytest.param(("redis",), 0.0, id="redis, at once"),
        pytest.param(("redis",), AWAY_SECONDS, id="redis, later"),
        pytest.param(("postgres", "redis"), AWAY_SECONDS, id="both, later"),
    ],
)
async def test_lines_that_fell_silent_cost_no_run_anything(
    topology: Any,
    client: LangGraphClient,
    side_effects: Any,
    ways: dict[str, Line],
    tmp_path: Path,
    eventually: Callable[..., Any],
    names: tuple[str, ...],
    seconds: float,
) -> None:
    """seconds: until new connections pass; those that were open never will."""
    release = tmp_path / "release"
    log = {"log": str(side_effects.path)}
    script = {"script": [["tick", [3, 0]], ["await", str(release)], ["tick", [3, 0]]], **log}
    thread = (await client.threads.create())["thread_id"]
    parts: list[Any] = []

    async def read() -> None:
        async for part in client.runs.stream(
            thread, "script", input=script, stream_mode="custom", stream_resumable=True
        ):
            parts.append(part)

    reader = asyncio.create_task(read())
    await asyncio.to_thread(side_effects.await_step, "1:await")
    waiter = asyncio.create_task(client.runs.wait(None, "script", input=script))
    await asyncio.to_thread(side_effects.await_step, "1:await", 2)
    # Checkpoints and events of these are under way at whatever moment.
    steps = [["tick", [1, 0.02]]] * 60
    busy = [
        asyncio.create_task(
            client.runs.wait(None, "script", input={"script": steps, **log}, durability="sync")
        )
        for _ in range(2)
    ]
    await asyncio.to_thread(side_effects.await_step, "20:tick", 2)
    behind = await client.runs.create(thread, "echo", input={"question": "in line?"})

    async with asked_all_the_time(topology.url) as answers:
        for name in names:
            ways[name].hold()
        await asyncio.sleep(seconds)
        for name in names:
            ways[name].mend()
        release.touch()
        await reader
        assert (await waiter)["done"] == ["0:tick", "1:await", "2:tick"]
        for one in busy:
            assert (await one)["done"] == [f"{at}:tick" for at in range(60)]
        await client.runs.join(thread, behind["run_id"])
    assert set(answers) <= {200, 503}
    assert not [part for part in parts if part.event == "error"]
    assert [part.data["tick"] for part in parts if part.event == "custom"] == [0, 1, 2, 0, 1, 2]
    assert {effect["attempt"] for effect in side_effects.read()} == {1}

    def state() -> Any:
        answer = topology.get(f"/threads/{thread}/state")
        assert answer.status_code in (200, 503)
        return answer.status_code == 200 and answer.json()

    values = (await asyncio.to_thread(eventually, state, "an inspector answers"))["values"]
    assert values == {"question": "in line?"}

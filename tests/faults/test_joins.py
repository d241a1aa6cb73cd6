"""A subscriber may join at any moment and misses nothing."""

import asyncio
import random
from typing import Any

import pytest
from langgraph_sdk.client import LangGraphClient

pytestmark = pytest.mark.topology

EVENTS, JOINS = 1000, 100


async def test_joins_at_random_moments(topology: Any, client: LangGraphClient) -> None:
    thread = (await client.threads.create())["thread_id"]
    run = await client.runs.create(
        thread,
        "script",
        input={"script": [["tick", [EVENTS, 0.005]]]},
        stream_mode="custom",
        stream_resumable=True,
    )
    moments = random.Random(7)

    async def join(since: str | None) -> list[int]:
        await asyncio.sleep(moments.uniform(0, EVENTS * 0.005))
        stream = client.runs.join_stream(
            thread, run["run_id"], stream_mode="custom", last_event_id=since
        )
        return [part.data["tick"] async for part in stream if part.event == "custom"]

    replayed = await asyncio.gather(*(join("-1") for _ in range(JOINS)))
    assert all(seen == list(range(EVENTS)) for seen in replayed)


async def test_live_joins_see_a_suffix(topology: Any, client: LangGraphClient) -> None:
    thread = (await client.threads.create())["thread_id"]
    run = await client.runs.create(
        thread,
        "script",
        input={"script": [["sleep", 0.3], ["tick", [EVENTS // 2, 0.005]]]},
        stream_mode="custom",
    )
    moments = random.Random(8)

    async def join() -> list[int]:
        await asyncio.sleep(moments.uniform(0, 2))
        stream = client.runs.join_stream(thread, run["run_id"], stream_mode="custom")
        return [part.data["tick"] async for part in stream if part.event == "custom"]

    for seen in await asyncio.gather(*(join() for _ in range(20))):
        assert seen == list(range(seen[0], EVENTS // 2))


async def test_cut_streams_go_on(topology: Any, client: LangGraphClient) -> None:
    """Five reconnects with the last event's id: the union is everything, each once."""
    thread = (await client.threads.create())["thread_id"]
    run = await client.runs.create(
        thread,
        "script",
        input={"script": [["tick", [200, 0.005]]]},
        stream_mode="custom",
        stream_resumable=True,
    )
    seen: list[int] = []
    last = "-1"
    for _ in range(5):
        stream = client.runs.join_stream(
            thread, run["run_id"], stream_mode="custom", last_event_id=last
        )
        async for part in stream:
            seen.append(part.data["tick"])
            last = part.id or last
            if len(seen) % 40 == 0:
                break
        await stream.aclose()  # type: ignore[attr-defined]
    stream = client.runs.join_stream(
        thread, run["run_id"], stream_mode="custom", last_event_id=last
    )
    seen += [part.data["tick"] async for part in stream]
    assert seen == list(range(200))

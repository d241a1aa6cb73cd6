"""``GET /threads/{id}/stream``: a thread over several runs."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from persistence import runs
from persistence.lifecycle import SUCCEED, CancelAction
from tests.gateway.conftest import Client, Frame, House, Stage, Stream


@asynccontextmanager
async def followed(
    client: Client, thread_id: str, query: str = "", **headers: str
) -> AsyncIterator[Stream]:
    """A thread stream; nothing that happens from now on is missed."""
    async with client.stream("GET", f"/threads/{thread_id}/stream{query}", **headers) as stream:
        assert stream.response.status == 200
        assert stream.response.content_type == "text/event-stream"
        yield stream


async def take(stream: Stream, count: int) -> list[Frame]:
    async with asyncio.timeout(60):
        frames = [await stream.frame() for _ in range(count)]
    assert None not in frames, "it ended"
    return [frame for frame in frames if frame is not None]


async def until_done(stream: Stream, run_id: str) -> list[Frame]:
    """The frames up to the run's ``run_done``."""
    done = {"status": "run_done", "run_id": run_id}
    frames: list[Frame] = []
    async with asyncio.timeout(60):
        while not frames or frames[-1].data != done:
            frames += await take(stream, 1)
    return frames


def names(frames: list[Frame]) -> list[str | None]:
    return [frame.event for frame in frames]


def numbers(frames: list[Frame]) -> list[tuple[int, int]]:
    ids = [(frame.id or "").partition("-") for frame in frames]
    return [(int(milliseconds), int(number)) for milliseconds, _, number in ids]


async def test_frames_of_run_after_run_each_with_an_id(client: Client, stage: Stage) -> None:
    thread = await client.thread()
    async with followed(client, thread) as stream:
        first, second = await client.run(thread), await client.run(thread)
        await stage.perform(first["run_id"], ("updates", {"a": 1}), ("values", {"x": 1}))
        await stage.perform(second["run_id"], ("values", {"x": 2}))
        frames = await until_done(stream, second["run_id"])
        assert names(frames) == [
            *("metadata", "updates", "values", "metadata"),
            *("metadata", "values", "metadata"),
        ]
        assert frames[0].data == {"run_id": first["run_id"], "attempt": 1}
        assert frames[3].data == {"status": "run_done", "run_id": first["run_id"]}
        assert numbers(frames) == sorted(set(numbers(frames))), "rising, over runs too"
        assert (await stream.any_frame()).comment == "heartbeat"  # type: ignore[union-attr]


async def test_a_failed_run_is_told_with_its_error(client: Client, stage: Stage) -> None:
    thread = await client.thread()
    async with followed(client, thread) as stream:
        run = await client.run(thread)
        error = {"error": "ValueError", "message": "broken"}
        await stage.fail(run["run_id"], error)
        frames = await until_done(stream, run["run_id"])
        assert [(frame.event, frame.data) for frame in frames[:-1]] == [("error", error)]


async def test_what_was_before_is_not_told_without_a_last_event_id(
    client: Client, stage: Stage
) -> None:
    thread = await client.thread()
    ended, running = await client.run(thread, stream_resumable=True), await client.run(thread)
    await stage.perform(ended["run_id"], ("values", {"x": 1}))
    await stage.claim(running["run_id"])
    await stage.emit(running["run_id"], "values", {"x": 2})
    async with followed(client, thread) as stream:
        await stage.emit(running["run_id"], "values", {"x": 3})
        assert [(f.event, f.data) for f in await take(stream, 1)] == [("values", {"x": 3})]


@pytest.mark.parametrize("start", ["0", "-", "0-0"])
async def test_replay_of_what_runs_left_that_can_be_rejoined(
    client: Client, stage: Stage, start: str
) -> None:
    thread = await client.thread()
    plain = await client.run(thread)
    kept = await client.run(thread, stream_resumable=True)
    await stage.perform(plain["run_id"], ("values", {"x": 1}))
    await stage.perform(kept["run_id"], ("values", {"x": 2}))
    async with followed(client, thread, Last_Event_ID=start) as stream:
        frames = await until_done(stream, kept["run_id"])
        assert [frame.data for frame in frames] == [
            {"run_id": kept["run_id"], "attempt": 1},
            {"x": 2},
            {"status": "run_done", "run_id": kept["run_id"]},
        ]


async def test_going_on_after_an_event_at_another_gateway(house: House, stage: Stage) -> None:
    here, there = await house.gateway(), await house.gateway()
    thread = await here.thread()
    run = await here.run(thread, stream_resumable=True)
    await stage.claim(run["run_id"])
    await stage.emit(run["run_id"], "values", {"x": 1})
    seen = await stage.emit(run["run_id"], "values", {"x": 2})
    async with followed(there, thread, Last_Event_ID=seen) as stream:
        await stage.emit(run["run_id"], "values", {"x": 3})
        await stage.settle(run["run_id"])
        frames = await until_done(stream, run["run_id"])
        assert [frame.data for frame in frames[:-1]] == [{"x": 3}]
    async with followed(there, thread, Last_Event_ID=frames[-1].id or "") as stream:
        last = await there.run(thread)
        await stage.perform(last["run_id"])
        assert len(await until_done(stream, last["run_id"])) == 2, "nothing comes twice"


@pytest.mark.parametrize(
    "query",
    [
        "?stream_modes=lifecycle",
        "?stream_mode=lifecycle",
        "?stream_mode=lifecycle,state_update",
        "?stream_mode=lifecycle&stream_mode=state_update",
        '?stream_modes=["lifecycle"]',
    ],
)
async def test_lifecycle_only(client: Client, stage: Stage, query: str) -> None:
    thread = await client.thread()
    async with followed(client, thread, query) as stream:
        run = await client.run(thread)
        await stage.perform(run["run_id"], ("values", {"x": 1}), ("custom", 1))
        frames = await until_done(stream, run["run_id"])
        assert [frame.data.get("attempt") for frame in frames] == [1, None]


async def test_updates_that_no_run_made(house: House, stage: Stage) -> None:
    here, there = await house.gateway(), await house.gateway()
    thread = await here.thread(metadata={"graph_id": "agent"})
    async with followed(there, thread, "?stream_modes=state_update") as stream:
        update = asyncio.create_task(here.post(f"/threads/{thread}/state", {"values": {"x": 1}}))
        assert (await stage.inspect(200, {"checkpoint": {}}))[0] == "update_state"
        assert (await stage.inspect(200, {"values": {"x": 1}, "next": []}))[0] == "values"
        assert (await update).status == 200
        state = {"values": {"x": 1}, "next": [], "tasks": []}
        assert (await stage.inspect(200, state))[0] == "state"
        [frame] = await take(stream, 1)
        assert frame.event == "state_update"
        assert frame.data == {"state": state, "thread_id": thread}
        assert frame.id
    async with followed(
        here, thread, "?stream_modes=state_update,run_modes", Last_Event_ID="0"
    ) as stream:
        assert (await take(stream, 1))[0].data == frame.data
        run = await here.run(thread)
        await stage.perform(run["run_id"], ("values", {"x": 2}))
        assert names(await until_done(stream, run["run_id"])) == ["metadata", "values", "metadata"]


async def test_the_end_is_told_though_it_was_never_written(client: Client, stage: Stage) -> None:
    """The worker settles the row, and dies before it writes the end of the stream."""
    thread = await client.thread()
    async with followed(client, thread) as stream:
        run = await client.run(thread)
        await stage.claim(run["run_id"])
        await stage.emit(run["run_id"], "values", {"x": 1})
        [settled] = await runs.settle(
            stage.database, [runs.Settlement(uuid.UUID(run["run_id"]), 1, SUCCEED)]
        )
        assert settled.ok
        frames = await until_done(stream, run["run_id"])
        assert names(frames) == ["values", "metadata"]
        assert numbers(frames)[1] > numbers(frames)[0]


async def test_a_run_that_is_rolled_back_is_done_too(client: Client, stage: Stage) -> None:
    thread = await client.thread()
    async with followed(client, thread) as stream:
        run = await client.run(thread)
        await stage.claim(run["run_id"])
        await stage.emit(run["run_id"], "values", {"x": 1})
        await client.post(f"/threads/{thread}/runs/{run['run_id']}/cancel?action=rollback")
        await stage.settle(run["run_id"], action=CancelAction.ROLLBACK)
        assert names(await until_done(stream, run["run_id"])) == ["values", "metadata"]


@pytest.mark.parametrize("last", ["-1", "abc", "1-x", "1-2-3", "½"])
async def test_a_last_event_id_that_is_none_is_refused(client: Client, last: str) -> None:
    thread = await client.thread()
    answer = await client.get(
        f"/threads/{thread}/stream", Last_Event_ID=last.encode().decode("latin-1")
    )
    assert answer.status == 422
    assert answer.json == {"detail": "Invalid last-event-id: must be a valid Redis stream ID"}


async def test_what_cannot_be_followed(client: Client) -> None:
    missing: Any = await client.get(f"/threads/{uuid.uuid4()}/stream")
    assert missing.status == 404
    thread = await client.thread()
    for name in ("stream_mode", "stream_modes"):
        answer = await client.get(f"/threads/{thread}/stream?{name}=lifecycle,bogus")
        assert (answer.status, answer.json) == (422, {"detail": "Invalid stream mode: bogus"})
    assert (await client.get("/threads/nope/stream")).status == 422


async def test_the_line_is_cut_when_the_gateway_stops(house: House) -> None:
    """An end would be believed; after a cut line clients come back."""
    client, stop = await house.stoppable()
    thread = await client.thread()
    stopping: asyncio.Task[None] | None = None
    with pytest.raises(Exception, match=r"payload|closed|reset|disconnect"):  # noqa: PT012
        async with followed(client, thread) as stream:
            stopping = asyncio.create_task(stop())
            while await stream.any_frame() is not None:
                pass
    assert stopping is not None
    await stopping

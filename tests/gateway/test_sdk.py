"""The official client against the gateway, where no graph has to run."""

import asyncio
import uuid
from typing import Any

import pytest
from langgraph_sdk import get_client
from langgraph_sdk.errors import ConflictError, NotFoundError, UnprocessableEntityError

from persistence.lifecycle import FAIL, INTERRUPT, CancelAction


@pytest.fixture
async def sdk(client):
    async with get_client(url=client.url, api_key=None) as connected:
        yield connected


async def parts(stream) -> list:
    return [(part.event, part.data) async for part in stream]


async def test_threads(sdk) -> None:
    thread = await sdk.threads.create(metadata={"a": 1})
    assert await sdk.threads.get(thread["thread_id"]) == thread
    with pytest.raises(ConflictError):
        await sdk.threads.create(thread_id=thread["thread_id"])
    patched = await sdk.threads.update(thread["thread_id"], metadata={"b": 2})
    assert patched["metadata"] == {"a": 1, "b": 2}
    assert await sdk.threads.search(metadata={"b": 2}, limit=1000) == [patched]
    assert await sdk.threads.count(status="idle") == 1
    copied = await sdk.threads.copy(thread["thread_id"])
    assert copied["metadata"] == {"a": 1, "b": 2}
    state = await sdk.threads.get_state(thread["thread_id"])
    assert (state["values"], state["next"], state["tasks"]) == ({}, [], [])
    assert await sdk.threads.get_history(thread["thread_id"]) == []
    await sdk.threads.delete(thread["thread_id"])
    with pytest.raises(NotFoundError):
        await sdk.threads.get(thread["thread_id"])


async def test_assistants(sdk) -> None:
    made = await sdk.assistants.create("agent", context={"a": 1}, name="Mine", metadata={"m": 1})
    assert made["config"] == {"configurable": {"a": 1}}
    assert (await sdk.assistants.update(made["assistant_id"], name="New"))["version"] == 2
    versions = await sdk.assistants.get_versions(made["assistant_id"])
    assert [version["version"] for version in versions] == [2, 1]
    assert (await sdk.assistants.set_latest(made["assistant_id"], 1))["name"] == "Mine"
    found = await sdk.assistants.search(graph_id="agent", limit=1, response_format="object")
    assert found["next"] == "1"
    await sdk.assistants.delete(made["assistant_id"])
    with pytest.raises(UnprocessableEntityError):
        await sdk.assistants.create("agent", assistant_id="nope")


async def test_a_stream_and_its_callback(sdk, stage) -> None:
    thread = await sdk.threads.create()
    made = []
    stream = asyncio.create_task(
        parts(
            sdk.runs.stream(
                thread["thread_id"],
                "agent",
                input={"a": 1},
                stream_mode=["values", "messages-tuple"],
                stream_resumable=True,
                on_run_created=made.append,
            )
        )
    )
    run_id = await stage.next_message()
    await stage.perform(run_id, ("messages", [{}, {}]), ("values", {"a": 2}), values={"a": 2})
    assert await stream == [
        ("metadata", {"run_id": run_id, "attempt": 1}),
        ("messages", [{}, {}]),
        ("values", {"a": 2}),
    ]
    assert made == [{"run_id": run_id, "thread_id": thread["thread_id"]}]
    replay = sdk.runs.join_stream(thread["thread_id"], run_id, last_event_id="-1")
    assert len(await parts(replay)) == 3
    values = sdk.runs.join_stream(
        thread["thread_id"], run_id, last_event_id="-1", stream_mode=["values", "updates"]
    )
    assert await parts(values) == [("values", {"a": 2})]


async def test_a_stream_survives_the_stop_of_its_gateway(house, stage) -> None:
    first, stop = await house.stoppable()
    port = int(first.url.rpartition(":")[2])
    async with get_client(url=first.url, api_key=None) as sdk:
        thread = await sdk.threads.create()
        seen: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

        async def follow() -> None:
            async for part in sdk.runs.stream(
                thread["thread_id"], "agent", stream_resumable=True, stream_mode="values"
            ):
                await seen.put((part.event, part.data))

        stream = asyncio.create_task(follow())
        run_id = await stage.next_message()
        await stage.claim(run_id)
        await stage.emit(run_id, "values", 1)
        assert await seen.get() == ("values", 1)
        await house.gateway(port=port)  # the same port: the kernel shares it
        await stop()
        await stage.emit(run_id, "values", 2)
        await stage.settle(run_id, values={})
        await stream
        assert await seen.get() == ("values", 2)
        assert seen.empty()


async def test_waits(sdk, stage) -> None:
    thread = await sdk.threads.create()

    def wait():
        return asyncio.create_task(sdk.runs.wait(thread["thread_id"], "agent", input={}))

    waiting = wait()
    await stage.perform(await stage.next_message(), values={"a": 1})
    assert await waiting == {"a": 1}
    waiting = wait()
    run_id = await stage.next_message()
    await stage.fail(run_id, {"error": "ValueError", "message": "boom"}, FAIL)
    with pytest.raises(Exception, match="boom"):
        await waiting
    joined = await sdk.runs.join(thread["thread_id"], run_id)
    assert joined == {"__error__": {"error": "ValueError", "message": "boom"}}


async def test_background_runs(sdk, stage) -> None:
    thread = await sdk.threads.create()
    run = await sdk.runs.create(thread["thread_id"], "agent", input={"a": 1}, metadata={"m": 1})
    assert await sdk.runs.get(thread["thread_id"], run["run_id"]) == run
    listed = await sdk.runs.list(thread["thread_id"], status="pending", select=["run_id"])
    assert listed == [{"run_id": run["run_id"]}]
    with pytest.raises(ConflictError):
        await sdk.runs.create(thread["thread_id"], "agent", multitask_strategy="reject")
    await stage.claim(run["run_id"])
    cancelling = asyncio.create_task(
        sdk.runs.cancel(thread["thread_id"], run["run_id"], wait=True, action="interrupt")
    )
    async with asyncio.timeout(30):
        while await _wish(stage, run["run_id"]) is None:
            await asyncio.sleep(0.01)
    await stage.settle(run["run_id"], INTERRUPT, {}, action=CancelAction.INTERRUPT)
    await cancelling
    await sdk.runs.delete(thread["thread_id"], run["run_id"])
    with pytest.raises(NotFoundError):
        await sdk.runs.get(thread["thread_id"], run["run_id"])
    with pytest.raises(NotFoundError):
        await sdk.runs.create(str(uuid.uuid4()), "agent")
    batch = await sdk.runs.create_batch([{"assistant_id": "agent", "input": {}}])
    assert [made["status"] for made in batch] == ["pending"]


async def _wish(stage, run_id):
    row = await stage.database.fetch_one(
        "SELECT cancel_action FROM runs WHERE run_id = %s", [run_id]
    )
    return row["cancel_action"]

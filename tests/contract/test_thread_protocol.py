"""The thread protocol as the official client speaks it, with the real topology."""

import asyncio
from collections.abc import Callable
from typing import Any, Literal
from uuid import uuid4

import pytest
from langgraph_sdk import get_sync_client
from langgraph_sdk.client import LangGraphClient

from tests.contract.conftest import Callboard

pytestmark = pytest.mark.topology

Transport = Literal["sse", "websocket"]
HELLO = {"messages": [{"role": "user", "content": "hello"}]}
SUM = {"messages": [{"role": "user", "content": "What is 17 * 23?"}]}
ORDER = {"messages": [{"role": "user", "content": "order 3 lamps"}]}
TRANSPORTS: list[Transport] = ["sse", "websocket"]


async def condition(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_run_with_its_projections(client: LangGraphClient, transport: Transport) -> None:
    thread_id = str((await client.threads.create())["thread_id"])
    async with client.threads.stream(thread_id, assistant_id="chat", transport=transport) as thread:
        states: list[int] = []
        spoken: list[str] = []
        tools: list[tuple[str, Any]] = []

        async def values() -> None:
            async for state in thread.values:
                states.append(len(state.get("messages", [])))

        async def read(message: Any) -> None:
            spoken.append("".join([text async for text in message.text]))

        async def messages() -> None:
            async with asyncio.TaskGroup() as reading:
                async for message in thread.messages:
                    reading.create_task(read(message))

        async def calls() -> None:
            async for call in thread.tool_calls:
                tools.append((call.name, call.input))

        watching = [asyncio.create_task(one()) for one in (values, messages, calls)]
        started = await thread.run.start(input=SUM)
        async with asyncio.timeout(30):
            output: Any = await thread.output
            await asyncio.wait(watching)
        assert [message["type"] for message in output["messages"]] == [
            *("human", "ai", "tool", "ai"),
        ]
        assert states[-1] == 4
        assert spoken[-1].endswith("391")
        assert tools == [("calculate", {"expression": "17 * 23"})]
        run = await client.runs.get(thread_id, started["run_id"])
        assert run["status"] == "success"


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_question_and_its_answer(client: LangGraphClient, transport: Transport) -> None:
    async with client.threads.stream(assistant_id="chat", transport=transport) as thread:
        await thread.run.start(input=ORDER)
        await condition(lambda: thread.interrupted)
        [asked] = thread.interrupts
        assert asked["value"]["question"] == "Order 3 lamps?"
        await thread.run.respond(True)
        async with asyncio.timeout(30):
            output: Any = await thread.output
        assert output["messages"][-1]["content"] == [
            {"type": "text", "text": "The tool place_order says: 3 lamps ordered", "index": 0}
        ]
        assert not thread.interrupted
        with pytest.raises(RuntimeError, match="no outstanding interrupt"):
            await thread.run.respond(True)


async def test_a_late_client_hears_all_of_it(client: LangGraphClient) -> None:
    thread_id = str(uuid4())
    async with client.threads.stream(thread_id, assistant_id="chat") as thread:
        await thread.run.start(input=HELLO)
        async with asyncio.timeout(30):
            await thread.output

    async def heard() -> list[Any]:
        events: list[Any] = []
        async with client.threads.stream(thread_id, assistant_id="chat") as late:
            async with asyncio.timeout(30):
                async for event in late.events:
                    events.append(event)
                    data = event["params"]["data"]
                    if event["method"] == "lifecycle" and data["event"] == "completed":
                        return events
        return events

    first, second = await heard(), await heard()
    assert first == second
    assert {event["method"] for event in first} == {
        *("lifecycle", "values", "updates", "messages", "tasks", "checkpoints"),
    }
    numbers = [event["seq"] for event in first]
    assert numbers == sorted(set(numbers))


async def test_a_run_that_fails(client: LangGraphClient) -> None:
    async with client.threads.stream(assistant_id="chat") as thread:
        await thread.run.start(input={"messages": [{"role": "user", "content": "1 / 0"}]})
        with pytest.raises(RuntimeError, match="Run errored"):
            async with asyncio.timeout(30):
                await thread.output


async def test_following_a_thread_over_runs(client: LangGraphClient) -> None:
    thread_id = str((await client.threads.create())["thread_id"])
    parts: list[Any] = []

    async def follow() -> None:
        async for part in await client.threads.join_stream(thread_id, stream_mode="lifecycle"):
            parts.append(part)

    following = asyncio.create_task(follow())
    async with asyncio.timeout(60):
        while not any("status" in part.data for part in parts):
            # The client does not tell when it is connected: until then runs pass unheard.
            await client.runs.wait(
                thread_id, "pipeline", input={"steps": 1, "seconds": 0}, raise_error=True
            )
        await client.runs.wait(thread_id, "pipeline", input={"steps": 1, "seconds": 0})
        newest = (await client.runs.list(thread_id))[0]["run_id"]
        await condition(
            lambda: bool(parts) and parts[-1].data == {"status": "run_done", "run_id": newest}
        )
    following.cancel()
    assert {part.event for part in parts} == {"metadata"}


def test_the_blocking_client(callboard: Callboard) -> None:
    with (
        get_sync_client(url=callboard.url) as client,
        client.threads.stream(assistant_id="chat") as thread,
    ):
        thread.run.start(input=HELLO)
        for message in thread.messages:
            assert "".join(message.text).startswith("You said: hello")
            break
        output: Any = thread.output
        assert [message["type"] for message in output["messages"]] == ["human", "ai"]

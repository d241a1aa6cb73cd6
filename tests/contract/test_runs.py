"""Runs as the official client makes them: stream, wait, background, join, cancel, resume."""

import asyncio
import os
import shlex
import signal
from typing import Any

import httpx
import pytest
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import ConflictError, NotFoundError
from langgraph_sdk.schema import StreamPart

from tests.contract.conftest import Callboard

pytestmark = pytest.mark.topology

SUM = {"messages": "What is 17 * 23?"}
ORDER = {"messages": "order 3 lamps"}
FOREVER = {"darts": 10**12}
"""Weeks of work for the CPU-bound example."""


def customs(parts: list[StreamPart]) -> list[dict[str, Any]]:
    return [part.data for part in parts if part.event == "custom"]


async def new_thread(client: LangGraphClient) -> str:
    return str((await client.threads.create())["thread_id"])


async def test_every_graph_has_an_assistant(client: LangGraphClient) -> None:
    assistants = await client.assistants.search(metadata={"created_by": "system"})
    graph_ids = sorted(assistant["graph_id"] for assistant in assistants)
    assert graph_ids == ["chat", "pi", "pipeline"]
    assert all(assistant["description"] for assistant in assistants)
    schemas = await client.assistants.get_schemas(assistants[0]["assistant_id"])
    assert schemas["input_schema"]
    drawing = await client.assistants.get_graph(assistants[0]["assistant_id"])
    assert drawing["nodes"]


def test_what_it_says_to_try_works(callboard: Callboard) -> None:
    *curl, body = shlex.split(callboard.await_line(" serves at ").partition("try: ")[2])
    assert curl == ["curl", "-s", f"{callboard.url}/runs/wait", "-d"]
    form = {"Content-Type": "application/x-www-form-urlencoded"}  # as curl says
    answer = httpx.post(curl[2], content=body, headers=form, timeout=120).json()
    assert [message["type"] for message in answer["messages"]] == ["human", "ai"]


async def test_stream_of_a_chat(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    created: list[Any] = []
    parts = [
        part
        async for part in client.runs.stream(
            thread_id,
            "chat",
            input=SUM,
            stream_mode=["messages-tuple", "values", "updates"],
            on_run_created=created.append,
        )
    ]
    assert parts[0].event == "metadata", parts
    run = await client.runs.get(thread_id, parts[0].data["run_id"])
    assert run["status"] == "success"
    assert created[0]["run_id"] == run["run_id"]
    assert created[0]["thread_id"] == thread_id
    assert not [part for part in parts if part.event == "error"]

    chunks = [part.data[0] for part in parts if part.event == "messages"]
    final = [part.data for part in parts if part.event == "values"][-1]["messages"][-1]
    spoken = [chunk for chunk in chunks if chunk["id"] == final["id"]]
    assert len(spoken) > 3, "word by word"
    assert "".join(chunk["content"] for chunk in spoken) == final["content"]
    assert final["content"] == "The tool calculate says: 17 * 23 = 391"
    nodes = [next(iter(part.data)) for part in parts if part.event == "updates"]
    assert nodes == ["agent", "tools", "agent"]

    state = await client.threads.get_state(thread_id)
    assert state["values"]["messages"][-1] == final
    assert state["next"] == []
    assert (await client.threads.get(thread_id))["status"] == "idle"


async def test_wait_answers_the_values_and_raises_for_a_failed_run(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    values: Any = await client.runs.wait(thread_id, "chat", input=SUM)
    assert values["messages"][-1]["content"].endswith("391")
    with pytest.raises(Exception, match="ZeroDivisionError"):
        await client.runs.wait(thread_id, "chat", input={"messages": "1 / 0"})
    runs = await client.runs.list(thread_id)
    assert [run["status"] for run in runs] == ["error", "success"]
    assert (await client.threads.get(thread_id))["status"] == "error"


async def test_background_run_and_join(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    run = await client.runs.create(thread_id, "pipeline", input={"steps": 3, "seconds": 0.01})
    assert run["status"] == "pending"
    values: Any = await client.runs.join(thread_id, run["run_id"])
    assert values["done"] == ["step 1", "step 2", "step 3"]
    assert (await client.runs.get(thread_id, run["run_id"]))["status"] == "success"


async def test_a_stateless_run_leaves_no_thread(client: LangGraphClient) -> None:
    before = await client.threads.count()
    values: Any = await client.runs.wait(None, "pipeline", input={"steps": 1, "seconds": 0})
    assert values["done"] == ["step 1"]
    for _ in range(600):
        if await client.threads.count() <= before:
            break
        await asyncio.sleep(0.1)
    else:
        pytest.fail("the temporary thread is still there")


async def test_joining_a_stream_late_misses_nothing(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    run = await client.runs.create(
        thread_id,
        "pipeline",
        input={"steps": 4, "seconds": 0.05},
        stream_mode="custom",
        stream_resumable=True,
    )
    await client.runs.join(thread_id, run["run_id"])
    stream = client.runs.join_stream(thread_id, run["run_id"], last_event_id="-1")
    parts = [part async for part in stream]
    assert [custom["begins"] for custom in customs(parts)] == [f"step {n}" for n in range(1, 5)]

    third = [part for part in parts if part.event == "custom"][2]
    stream = client.runs.join_stream(thread_id, run["run_id"], last_event_id=third.id)
    assert [custom["begins"] for custom in customs([part async for part in stream])] == ["step 4"]


@pytest.mark.parametrize("graph", ["pipeline", "pi"], ids=["waits", "burns CPU"])
async def test_cancel(client: LangGraphClient, graph: str) -> None:
    thread_id = await new_thread(client)
    begun = asyncio.Event()
    parts: list[StreamPart] = []

    async def read() -> None:
        stream = client.runs.stream(
            thread_id, graph, input={**FOREVER, "steps": 900, "seconds": 1}, stream_mode="custom"
        )
        async for part in stream:
            parts.append(part)
            begun.set()

    reader = asyncio.create_task(read())
    await begun.wait()
    run_id = parts[0].data["run_id"]
    await client.runs.cancel(thread_id, run_id, wait=True)
    assert (await client.runs.get(thread_id, run_id))["status"] == "interrupted"
    await reader
    again: Any = await client.runs.wait(thread_id, "pipeline", input={"steps": 1, "seconds": 0})
    assert again["done"]


async def test_interrupt_and_resume(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    values: Any = await client.runs.wait(thread_id, "chat", input=ORDER)
    (asked,) = values["__interrupt__"]
    assert asked["value"]["question"] == "Order 3 lamps?"

    thread = await client.threads.get(thread_id)
    assert thread["status"] == "interrupted"
    ((noted,),) = thread["interrupts"].values()
    assert noted["id"] == asked["id"]
    state = await client.threads.get_state(thread_id)
    assert state["next"] == ["tools"]
    assert [each["id"] for task in state["tasks"] for each in task["interrupts"]] == [asked["id"]]

    parts = [
        part
        async for part in client.runs.stream(
            thread_id, "chat", command={"resume": True}, stream_mode="values"
        )
    ]
    assert parts[-1].data["messages"][-1]["content"].endswith("3 lamps ordered")
    thread = await client.threads.get(thread_id)
    assert (thread["status"], thread["interrupts"]) == ("idle", {})


async def test_runs_of_a_thread_take_turns(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    runs = [
        await client.runs.create(
            thread_id,
            "pipeline",
            input={"steps": n, "seconds": 0.01},
            multitask_strategy="enqueue",
        )
        for n in (1, 2, 3)
    ]
    await client.runs.join(thread_id, runs[-1]["run_id"])
    assert {run["status"] for run in await client.runs.list(thread_id)} == {"success"}
    values: Any = (await client.threads.get_state(thread_id))["values"]
    assert values["done"] == ["step 1", "step 2", "step 3"]


async def test_a_busy_thread_rejects_or_gives_way_as_told(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    first = await client.runs.create(thread_id, "pi", input=FOREVER)
    with pytest.raises(ConflictError):
        await client.runs.create(thread_id, "pi", input=FOREVER, multitask_strategy="reject")
    second: Any = await client.runs.wait(
        thread_id, "pi", input={"darts": 1000}, multitask_strategy="interrupt"
    )
    assert 2 < second["pi"] < 4
    assert (await client.runs.get(thread_id, first["run_id"]))["status"] == "interrupted"

    third = await client.runs.create(thread_id, "pi", input=FOREVER)
    await client.runs.wait(thread_id, "pi", input={"darts": 1000}, multitask_strategy="rollback")
    with pytest.raises(NotFoundError):
        await client.runs.get(thread_id, third["run_id"])


async def test_a_delayed_run_starts_when_it_is_due_and_can_be_withdrawn(
    client: LangGraphClient,
) -> None:
    thread_id = await new_thread(client)
    far = await client.runs.create(thread_id, "pi", input={"darts": 10}, after_seconds=3600)
    await client.runs.cancel(thread_id, far["run_id"], wait=True)
    assert (await client.runs.get(thread_id, far["run_id"]))["status"] == "interrupted"

    near = await client.runs.create(thread_id, "pi", input={"darts": 10}, after_seconds=1)
    await client.runs.join(thread_id, near["run_id"])
    run = await client.runs.get(thread_id, near["run_id"])
    assert run["status"] == "success"


async def test_a_batch_of_stateless_runs(client: LangGraphClient) -> None:
    payload: Any = {"assistant_id": "pi", "input": {"darts": 10}, "on_completion": "keep"}
    runs = await client.runs.create_batch([payload, payload])
    assert len({run["run_id"] for run in runs}) == 2
    for run in runs:
        values: Any = await client.runs.join(run["thread_id"], run["run_id"])
        assert values["darts"] == 10


async def test_state_can_be_edited_and_has_a_history(client: LangGraphClient) -> None:
    thread_id = await new_thread(client)
    await client.runs.wait(thread_id, "pipeline", input={"steps": 2, "seconds": 0})
    history = await client.threads.get_history(thread_id)
    assert [state["values"].get("done") for state in history[:3]] == [
        ["step 1", "step 2"],
        ["step 1"],
        [],
    ]
    await client.threads.update_state(thread_id, {"done": ["by hand"]}, as_node="step")
    state: Any = await client.threads.get_state(thread_id)
    assert state["values"]["done"] == ["step 1", "step 2", "by hand"]


async def test_threads_are_kept_found_and_forgotten(client: LangGraphClient) -> None:
    thread = await client.threads.create(metadata={"colour": "green", "n": 1})
    thread_id = thread["thread_id"]
    await client.threads.update(thread_id, metadata={"n": 2})
    (found,) = await client.threads.search(metadata={"colour": "green"})
    assert (found["thread_id"], found["metadata"]) == (thread_id, {"colour": "green", "n": 2})
    await client.threads.delete(thread_id)
    with pytest.raises(NotFoundError):
        await client.threads.get(thread_id)


async def test_a_killed_graph_process_costs_no_step(client: LangGraphClient) -> None:
    """What the pipeline example promises to who kills its process."""
    thread_id = await new_thread(client)
    parts: list[StreamPart] = []
    killed = False
    async for part in client.runs.stream(
        thread_id, "pipeline", input={"steps": 6, "seconds": 0.2}, stream_mode=["custom", "values"]
    ):
        parts.append(part)
        if not killed and part.event == "custom" and part.data["begins"] == "step 3":
            os.kill(part.data["process"], signal.SIGKILL)
            killed = True
    assert killed
    assert len({custom["process"] for custom in customs(parts)}) == 2
    values = [part.data for part in parts if part.event == "values"][-1]
    assert values["done"] == [f"step {n}" for n in range(1, 7)]

"""What a run leaves that is taken back or deleted while it runs, and when a delayed one starts."""

from datetime import datetime
from typing import Any

import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import NotFoundError

from tests.contract.conftest import Callboard

pytestmark = pytest.mark.topology

ENDLESS = {"steps": 900, "seconds": 0.05}
"""For the pipeline: a checkpoint every moment, and no end."""


async def kept(client: LangGraphClient, thread_id: str) -> Any:
    """All that a thread shows of its past, but for who stopped its last run."""
    thread: Any = await client.threads.get(thread_id)
    storage = await client.http.get(f"/threads/{thread_id}/storage")
    return {
        "history": await client.threads.get_history(thread_id, limit=1000),
        "state": await client.threads.get_state(thread_id),
        "rows": {
            kind: storage[kind] for kind in ("checkpoints", "channel_values", "pending_writes")
        },
        "thread": {name: thread[name] for name in ("status", "values", "interrupts")},
        "runs": [run["run_id"] for run in await client.runs.list(thread_id)],
    }


async def said_of_the_last_run(client: LangGraphClient, thread_id: str) -> str:
    thread: Any = await client.threads.get(thread_id)
    return str(thread["error"]["error"])


async def with_a_past(client: LangGraphClient) -> tuple[str, Any]:
    """A thread on which a run has ended, and what it shows."""
    thread_id = (await client.threads.create())["thread_id"]
    await client.runs.wait(thread_id, "pipeline", input={"steps": 2, "seconds": 0})
    return thread_id, await kept(client, thread_id)


async def in_the_middle(client: LangGraphClient, thread_id: str) -> str:
    """The id of a new run that has stored steps already and goes on with more."""
    done: list[str] = []
    stream = client.runs.stream(thread_id, "pipeline", input=ENDLESS, stream_mode="checkpoints")
    run_id = ""
    async for part in stream:
        if part.event == "metadata":
            run_id = part.data["run_id"]
        elif part.event == "checkpoints":
            done = part.data["values"].get("done") or []
        if len(done) >= 5:  # two of them are of the run before
            break
    assert len(await client.threads.get_history(thread_id, limit=1000)) > 5
    return run_id


async def test_a_cancel_with_rollback_leaves_exactly_what_was_before(
    client: LangGraphClient,
) -> None:
    thread_id, before = await with_a_past(client)
    run_id = await in_the_middle(client, thread_id)
    await client.runs.cancel(thread_id, run_id, wait=True, action="rollback")
    assert await kept(client, thread_id) == before
    assert await said_of_the_last_run(client, thread_id) == "UserRollback"


async def test_a_run_in_place_of_another_leaves_only_its_own(client: LangGraphClient) -> None:
    thread_id, before = await with_a_past(client)
    first = await in_the_middle(client, thread_id)
    second = await client.runs.create(
        thread_id, "pipeline", input={"steps": 3, "seconds": 0}, multitask_strategy="rollback"
    )
    values: Any = await client.runs.join(thread_id, second["run_id"])
    assert values["done"] == ["step 1", "step 2", "step 3"]
    after = await kept(client, thread_id)
    assert after["runs"] == [second["run_id"], *before["runs"]]
    added = after["history"][: -len(before["history"])]
    assert after["history"][len(added) :] == before["history"]
    assert {state["metadata"]["run_id"] for state in added} == {second["run_id"]}
    assert first not in str(after)


async def test_a_running_run_can_be_deleted(client: LangGraphClient) -> None:
    thread_id, before = await with_a_past(client)
    run_id = await in_the_middle(client, thread_id)
    await client.runs.delete(thread_id, run_id)
    # Whoever waits for it is told when it is gone.
    with pytest.raises(NotFoundError):
        await _joined(client, thread_id, run_id)
    assert await kept(client, thread_id) == before
    assert await said_of_the_last_run(client, thread_id) == "UserRollback"
    again: Any = await client.runs.wait(thread_id, "pipeline", input={"steps": 3, "seconds": 0})
    assert again["done"] == ["step 1", "step 2", "step 3"]


async def _joined(client: LangGraphClient, thread_id: str, run_id: str) -> None:
    while True:
        await client.runs.join(thread_id, run_id)
        await client.runs.get(thread_id, run_id)


async def test_a_delayed_run_starts_by_its_date_and_never_before(
    store_callboard: Callboard,
) -> None:
    """By a message: the worker would not look at the rows for an hour."""
    async with get_client(url=store_callboard.url) as client:
        thread_id = (await client.threads.create())["thread_id"]
        runs = [
            await client.runs.create(thread_id, "store", input={}, after_seconds=seconds)
            for seconds in (2, 0.5)
        ]
        for run in runs:
            await client.runs.join(thread_id, run["run_id"])
        history: Any = await client.threads.get_history(thread_id, limit=1000)
        for run in runs:
            began = [
                datetime.fromisoformat(state["created_at"])
                for state in history
                if state["metadata"]["run_id"] == run["run_id"]
            ]
            assert min(began) >= datetime.fromisoformat(str(run["created_at"]))

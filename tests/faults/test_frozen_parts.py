"""One part is frozen (SIGSTOP) and thaws: what goes on without it, and what becomes of it.

Workers: see test_instances.py; supervisord: test_supervisord.py; services: outages/.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from langgraph_sdk.client import LangGraphClient

pytestmark = [pytest.mark.topology, pytest.mark.faults, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    return {
        "CALLBOARD_GATEWAYS": "2",
        "WORKER_COUNT": "1",
        "N_JOBS_PER_WORKER": "4",
        "CANCEL_GRACE_SECONDS": "1",
        "HEARTBEAT_INTERVAL_SECONDS": "2",
        "POSTGRES_POLL_INTERVAL_SECONDS": "1",
        "INSPECT_TIMEOUT_SECONDS": "5",
    }


@contextmanager
def frozen(process: psutil.Process) -> Iterator[None]:
    process.suspend()
    yield
    if process.is_running():
        process.resume()


async def test_runs_of_a_graph_process_go_on_elsewhere_at_no_cost(
    topology: Any, client: LangGraphClient, side_effects: Any, tmp_path: Path
) -> None:
    """One that is frozen cannot be told from one whose loop is held up: nobody executes code."""
    release = tmp_path / "release"
    script = {"script": [["sleep", 0], ["await", str(release)], ["sleep", 0]]}
    thread = (await client.threads.create())["thread_id"]
    run = await client.runs.create(
        thread, "script", input={**script, "log": str(side_effects.path)}, durability="sync"
    )
    pid = (await asyncio.to_thread(side_effects.await_step, "1:await"))["pid"]
    with frozen(psutil.Process(pid)):
        again = await asyncio.to_thread(side_effects.await_step, "1:await", 2)
        assert again["pid"] != pid
        release.touch()
        await client.runs.join(thread, run["run_id"])
    row = topology.run_row(run["run_id"])
    assert (row["status"], row["attempt"], row["crashes"]) == ("success", 2, 0)
    assert await client.runs.wait(thread, "echo", input={"question": "next"})
    steps = [(effect["node"], effect["attempt"]) for effect in side_effects.read()]
    assert steps == [("0:sleep", 1), ("1:await", 1), ("1:await", 2), ("2:sleep", 2)]


async def test_a_run_of_a_frozen_graph_process_can_be_cancelled(
    topology: Any, client: LangGraphClient, side_effects: Any
) -> None:
    """Though nothing in the process hears it."""
    thread = (await client.threads.create())["thread_id"]
    run = await client.runs.create(
        thread, "script", input={"script": [["block", 3600]], "log": str(side_effects.path)}
    )
    pid = (await asyncio.to_thread(side_effects.await_step, "0:block"))["pid"]
    with frozen(psutil.Process(pid)):
        await client.runs.cancel(thread, run["run_id"], wait=True)
        assert topology.run_row(run["run_id"])["status"] == "interrupted"
        assert await client.runs.wait(thread, "echo", input={"question": "next"})


async def test_questions_to_a_frozen_inspector_are_refused_in_time(
    topology: Any, client: LangGraphClient, eventually: Callable[..., Any]
) -> None:
    thread = (await client.threads.create())["thread_id"]
    given = {"question": "well?"}
    await client.runs.wait(thread, "echo", input=given)

    def state() -> int:
        return int(topology.get(f"/threads/{thread}/state").status_code)

    eventually(lambda: state() == 200, "an inspector answers")
    with ExitStack() as stack:
        for process in topology.processes("child"):  # from outside they all look alike
            stack.enter_context(frozen(process))
        assert await asyncio.to_thread(state) == 503
    eventually(lambda: state() == 200, "an inspector answers again")
    assert await client.runs.wait(thread, "echo", input=given) == given


async def test_delayed_runs_start_without_a_scheduler(
    topology: Any, client: LangGraphClient, eventually: Callable[..., Any]
) -> None:
    (scheduler,) = topology.processes("scheduler")
    with frozen(scheduler):
        thread = (await client.threads.create())["thread_id"]
        run = await client.runs.create(
            thread, "echo", input={"question": "later?"}, after_seconds=2
        )
        await client.runs.join(thread, run["run_id"])
    row = topology.run_row(run["run_id"])
    assert (row["status"], row["attempt"]) == ("success", 1)
    assert row["started_at"] >= row["available_at"]
    assert scheduler.is_running()


async def test_who_meets_a_frozen_gateway_is_answered_when_it_thaws(
    topology: Any, tmp_path: Path
) -> None:
    """The other one answers meanwhile, and runs do not notice."""
    release = tmp_path / "release"
    body = {"assistant_id": "script", "input": {"script": [["await", str(release)]]}}
    first, second = topology.processes("gateway")

    async def create() -> Any:
        async with httpx.AsyncClient(
            base_url=topology.url, timeout=60
        ) as own:  # its own connection
            answer = await own.post("/runs", json={**body, "on_completion": "keep"})
            assert answer.status_code == 200
            return answer.json()["run_id"]

    with frozen(first):
        asked = [asyncio.create_task(create())]
        while not any(one.done() for one in asked):  # whom the kernel gives which, only it knows
            asked.append(asyncio.create_task(create()))
            await asyncio.wait(asked, timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
    runs = await asyncio.gather(*asked)
    release.touch()
    async with httpx.AsyncClient(base_url=topology.url, timeout=60) as http:
        for run in runs:
            thread = topology.run_row(run)["thread_id"]
            assert (await http.get(f"/threads/{thread}/runs/{run}/join")).status_code == 200
    assert first.is_running()
    assert second.is_running()
    assert {topology.run_row(run)["attempt"] for run in runs} == {1}

"""Graphs that end, die, talk, fork and flood in every way; their runs and neighbours."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

pytestmark = pytest.mark.topology


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    return {
        "CALLBOARD_GATEWAYS": "2",
        "WORKER_COUNT": "2",
        "N_JOBS_PER_WORKER": "4",
        "CANCEL_GRACE_SECONDS": "1",
        "BG_JOB_MAX_RETRIES": "1",
        "HEARTBEAT_INTERVAL_SECONDS": "2",
    }


FAILURES = {
    "unpicklable": "Unpicklable",
    "unspeakable": "Unspeakable",
    "NUL": "ValueError",
    "surrogate": "ValueError",
    "huge": "ValueError",
    "group": "ValueError",  # the first of them
    "StopIteration": "RuntimeError",  # Python's own doing: no coroutine may raise it
    "KeyboardInterrupt": "GraphExited",
    "GeneratorExit": "RuntimeError",
}


async def test_whatever_a_graph_raises_ends_its_run_with_words(
    topology: Any, client: LangGraphClient, side_effects: Any, tmp_path: Path
) -> None:
    """Not tried again, and no process dies of it: a neighbour runs through all of them."""
    release = tmp_path / "release"
    neighbour = asyncio.create_task(
        client.runs.wait(None, "script", input={"script": [["await", str(release)]]})
    )
    told = {}
    for kind in FAILURES:
        thread = (await client.threads.create())["thread_id"]
        answer = await client.runs.wait(
            thread,
            "script",
            input={"script": [["strange", kind]], "log": str(side_effects.path)},
            raise_error=False,
        )
        (run,) = await client.runs.list(thread)
        row = topology.run_row(run["run_id"])
        status = (await client.threads.get(thread))["status"]
        told[kind] = (answer["__error__"]["error"], row["status"], row["attempt"], status)
    release.touch()
    assert (await neighbour)["done"] == ["0:await"]
    assert told == {kind: (name, "error", 1, "error") for kind, name in FAILURES.items()}


@pytest.mark.parametrize(
    "ending",
    [
        pytest.param(["_exit", 0]),
        pytest.param(["exit", 3], marks=pytest.mark.faults),
        pytest.param(["kill", "SIGSEGV"], marks=pytest.mark.faults),
        pytest.param(["kill", "SIGTERM"], marks=pytest.mark.faults),
    ],
)
async def test_a_run_that_ends_its_process_ends_in_error_and_alone(
    topology: Any, client: LangGraphClient, side_effects: Any, ending: list[Any]
) -> None:
    """Also one that says that all is well (exit code 0)."""
    thread = (await client.threads.create())["thread_id"]
    neighbours = [
        asyncio.create_task(
            client.runs.wait(
                None, "script", input={"script": [["sleep", 0.2]] * 5}, durability="sync"
            )
        )
        for _ in range(3)
    ]
    answer = await client.runs.wait(
        thread,
        "script",
        input={"script": [ending], "log": str(side_effects.path)},
        raise_error=False,
    )
    assert answer["__error__"]["message"]
    for neighbour in await asyncio.gather(*neighbours):
        assert neighbour["done"] == [f"{at}:sleep" for at in range(5)]
    assert (await client.threads.get(thread))["status"] == "error"
    assert await client.runs.wait(thread, "echo", input={"question": "again"})


async def test_what_a_run_leaves_behind_holds_nobody_up(
    topology: Any, client: LangGraphClient, side_effects: Any, eventually: Callable[..., Any]
) -> None:
    """A grandchild that inherited everything, and threads that go on: the run ends, a crash too."""
    script = [["daemon", 600], ["thread", 600], ["fork", 600], ["print", '{"kind":"outcome"}']]
    answer = await client.runs.wait(
        None, "script", input={"script": script, "log": str(side_effects.path)}
    )
    assert answer["done"] == ["0:daemon", "1:thread", "2:fork", "3:print"]
    pid = side_effects.read()[-1]["pid"]
    os.kill(pid, 9)
    # The grandchild still holds the pipe's other end, and the death is seen all the same.
    eventually(
        lambda: pid not in [process.pid for process in topology.processes("child")], "it is gone"
    )
    assert await client.runs.wait(None, "echo", input={"question": "well?"})
    eventually(lambda: not topology.orphans(), "its grandchild is gone too")


@pytest.mark.parametrize(
    "size", [pytest.param(5_000_000), pytest.param(100_000_000, marks=pytest.mark.faults)]
)
async def test_a_large_result_ends_its_run_one_way_or_another(
    topology: Any, client: LangGraphClient, size: int
) -> None:
    """Stored and answered, or a clear error; neighbours do not notice."""
    thread = (await client.threads.create())["thread_id"]
    run = await client.runs.create(thread, "script", input={"script": [["blob", size]]})
    while topology.run_row(run["run_id"])["finished_at"] is None:
        assert await client.runs.wait(None, "echo", input={"question": "beside"})
    row = topology.run_row(run["run_id"])
    answer = await client.runs.join(thread, run["run_id"])
    if row["status"] == "success":
        assert isinstance(answer, dict)
        assert len(answer["blob"]) == size
        assert len((await client.threads.get_state(thread))["values"]["blob"]) == size
    else:
        assert row["error"]["message"]
        assert size > 50_000_000, "so much must be possible"


@pytest.mark.parametrize(
    "events", [pytest.param(20_000), pytest.param(1_000_000, marks=pytest.mark.faults)]
)
@pytest.mark.timeout(600)
async def test_a_flood_of_events_is_bounded_and_its_gaps_are_told(
    topology: Any, client: LangGraphClient, events: int
) -> None:
    """A reader sees all of it, or is told how much is missing; the end comes in any case."""
    seen, last, gaps = 0, -1, []
    async with get_client(url=topology.url, timeout=600) as patient:
        async for part in patient.runs.stream(
            None,
            "script",
            input={"script": [["flood", events]]},
            stream_mode="custom",
            stream_resumable=True,
        ):
            if part.event == "custom":
                assert part.data["tick"] > last
                last, seen = part.data["tick"], seen + 1
            elif part.event == "callboard/gap":
                gaps.append(part.data["missed"])
            else:
                assert part.event != "error", part
    assert seen + sum(gaps) == events
    for process in topology.processes("gateway"):
        assert process.memory_info().rss < 600e6


async def test_of_two_answers_to_one_question_one_is_taken(
    topology: Any, client: LangGraphClient, side_effects: Any
) -> None:
    """Twenty at the same time, over two gateways."""
    thread = (await client.threads.create())["thread_id"]
    await client.runs.wait(
        thread,
        "script",
        input={"script": [["ask", "sure?"], ["sleep", 0]], "log": str(side_effects.path)},
    )
    assert (await client.threads.get(thread))["status"] == "interrupted"

    async def answer(number: int) -> int:
        async with get_client(url=topology.url) as own:
            try:
                await own.runs.create(thread, "script", command={"resume": number})
            except Exception as refused:
                return int(refused.response.status_code)  # type: ignore[attr-defined]
            return 200

    answers = await asyncio.gather(*(answer(number) for number in range(20)))
    assert sorted(answers) == [200] + [409] * 19
    (run, _asking) = await client.runs.list(thread)
    await client.runs.join(thread, run["run_id"])
    assert [effect["node"] for effect in side_effects.read()].count("1:sleep") == 1


async def test_a_thread_that_is_deleted_under_its_run_stays_deleted(
    topology: Any, client: LangGraphClient, side_effects: Any, tmp_path: Path
) -> None:
    """Nothing that the run still writes brings any of it back."""
    release = tmp_path / "release"
    thread = (await client.threads.create())["thread_id"]
    await client.runs.create(
        thread,
        "script",
        input={
            "script": [["sleep", 0], ["await", str(release)], *[["sleep", 0.05]] * 10],
            "log": str(side_effects.path),
        },
    )
    await asyncio.to_thread(side_effects.await_step, "1:await")
    await client.threads.delete(thread)
    release.touch()
    while topology.free_slots() != topology.slots:
        await asyncio.sleep(0.1)
    for table in ("threads", "runs", "checkpoints", "checkpoint_blobs", "checkpoint_writes"):
        (count,) = topology.query(
            f"SELECT count(*) AS n FROM {table} WHERE thread_id::text = %s", thread
        )
        assert count["n"] == 0, table
    assert topology.get(f"/threads/{thread}").status_code == 404


@pytest.mark.parametrize("action", ["interrupt", "rollback"])
async def test_a_wish_to_stop_that_races_the_end_is_answered_truly(
    topology: Any, client: LangGraphClient, action: str
) -> None:
    """The run succeeded or was stopped, never both, and the thread takes the next."""

    async def race(delay: float) -> None:
        thread = (await client.threads.create())["thread_id"]
        run = await client.runs.create(thread, "script", input={"script": [["sleep", 0.05]]})
        await asyncio.sleep(delay)
        async with httpx.AsyncClient(base_url=topology.url, timeout=60) as http:
            answer = await http.post(
                f"/threads/{thread}/runs/{run['run_id']}/cancel",
                params={"wait": "true", "action": action},
            )
        assert answer.status_code in (200, 202, 204, 404, 409), answer.text
        rows = topology.query("SELECT status FROM runs WHERE run_id = %s", run["run_id"])
        if rows:
            assert rows[0]["status"] in ("success", "interrupted")
        else:
            assert action == "rollback"
        await client.runs.wait(thread, "echo", input={"question": "next"})
        assert (await client.threads.get(thread))["status"] == "idle"

    for group in range(4):
        await asyncio.gather(*(race(0.03 * (group * 6 + n)) for n in range(6)))

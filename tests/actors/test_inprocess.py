"""In-process mode, through the real gateway and with the official client."""

import asyncio
import json
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

from actors import inprocess
from actors.child.loader import Graphs
from actors.event_memory import MemoryEventLog
from actors.inprocess import LocalDispatcher
from gateway.app import create_app
from gateway.server import serve_until
from gateway.settings import GatewaySettings
from persistence.engine import Database
from persistence.settings import DatabaseSettings

_ROOT = Path(__file__).parents[1] / "graphs" / "faults"
_GRAPHS = {"script": "./script.py:graph", "ask": "./script.py:ask", "echo": "./script.py:echo"}
_SECONDS = 60.0


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Graphs:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "script", raising=False)
    graphs = Graphs.import_all({"root": str(_ROOT), "graphs": _GRAPHS, "dependencies": []})
    assert graphs.broken == {}
    return graphs


@asynccontextmanager
async def serving(
    database_url: str, graphs: Graphs, **given: Any
) -> AsyncIterator[LangGraphClient]:
    """A client of a server that lives in this very process."""
    database_settings = DatabaseSettings(url=database_url)
    worker = inprocess.worker_settings(
        **{"n_jobs_per_worker": 4, "cancel_grace_seconds": 1.0, **given}
    )
    database = Database(database_settings)
    events = MemoryEventLog(database)
    settings = GatewaySettings(port=0)
    app = create_app(
        settings,
        database=database,
        dispatcher=LocalDispatcher(graphs, database, database_settings, events, worker),
        events=events,
        graph_ids=frozenset(_GRAPHS),
        version="0",
    )
    stop, port = asyncio.Event(), asyncio.get_running_loop().create_future()
    server = asyncio.create_task(serve_until(app, settings, stop, listening=port.set_result))
    client = get_client(url=f"http://127.0.0.1:{await port}")
    try:
        yield client
    finally:
        await client.aclose()
        stop.set()
        await server


@pytest.fixture
async def client(database_url: str, graphs: Graphs) -> AsyncIterator[LangGraphClient]:
    async with serving(database_url, graphs) as client:
        yield client


async def _thread(client: LangGraphClient) -> str:
    return str((await client.threads.create())["thread_id"])


async def _until(client: LangGraphClient, thread_id: str, run_id: str, *wanted: str) -> str:
    async with asyncio.timeout(_SECONDS):
        while True:
            status = (await client.runs.get(thread_id, run_id))["status"]
            if status in wanted:
                return str(status)
            await asyncio.sleep(0.02)


def _script(*steps: list[Any]) -> dict[str, Any]:
    return {"script": list(steps)}


async def test_a_run_is_streamed_and_its_end_is_in_the_row(client: LangGraphClient) -> None:
    thread_id = await _thread(client)
    parts = [
        part
        async for part in client.runs.stream(
            thread_id,
            "script",
            input=_script(["tick", [3, 0.001]], ["spin", 0.01]),
            stream_mode=["custom", "values"],
        )
    ]
    assert parts[0].event == "metadata"
    assert parts[0].data["attempt"] == 1
    assert [part.data["tick"] for part in parts if part.event == "custom"] == [0, 1, 2]
    assert parts[-1].data["done"] == ["0:tick", "1:spin"]
    run = await client.runs.get(thread_id, parts[0].data["run_id"])
    assert run["status"] == "success"
    state = await client.threads.get_state(thread_id)
    assert state["values"]["done"] == ["0:tick", "1:spin"]
    assert (await client.threads.get(thread_id))["status"] == "idle"


async def test_nodes_run_in_this_very_process(client: LangGraphClient, tmp_path: Path) -> None:
    """Which is what lets a debugger stop in them."""
    log = tmp_path / "log"
    script = {**_script(["sleep", 0], ["spin", 0]), "log": str(log)}
    await client.runs.wait(None, "script", input=script)
    pids = [json.loads(line)["pid"] for line in log.read_text().splitlines()]
    assert pids == [os.getpid()] * 2


async def test_wait_answers_values_and_errors(client: LangGraphClient) -> None:
    thread_id = await _thread(client)
    values: Any = await client.runs.wait(thread_id, "echo", input={"question": "who?"})
    assert values["question"] == "who?"
    failed: Any = await client.runs.wait(
        thread_id, "script", input=_script(["raise", "no"]), raise_error=False
    )
    assert failed["__error__"] == {"error": "RuntimeError", "message": "no"}
    stateless: Any = await client.runs.wait(None, "echo", input={"question": "when?"})
    assert stateless["question"] == "when?"


async def test_an_interrupt_is_resumed(client: LangGraphClient) -> None:
    thread_id = await _thread(client)
    asked: Any = await client.runs.wait(thread_id, "ask", input={"question": "sure?"})
    assert asked["__interrupt__"][0]["value"] == {"question": "sure?"}
    assert (await client.threads.get(thread_id))["status"] == "interrupted"
    answered: Any = await client.runs.wait(thread_id, "ask", command={"resume": "yes"})
    assert answered["answer"] == "yes"


@pytest.mark.parametrize("step", [["sleep", 60], ["spin", 60]], ids=["coroutine", "thread"])
async def test_a_cancel_stops_the_code(client: LangGraphClient, step: list[Any]) -> None:
    thread_id = await _thread(client)
    before = threading.active_count()
    run = await client.runs.create(thread_id, "script", input=_script(step))
    await _until(client, thread_id, run["run_id"], "running")
    async for part in client.runs.join_stream(thread_id, run["run_id"], last_event_id="-1"):
        if part.event == "values":
            break
    async with asyncio.timeout(_SECONDS):
        await client.runs.cancel(thread_id, run["run_id"], wait=True)
    assert (await client.runs.get(thread_id, run["run_id"]))["status"] == "interrupted"
    assert threading.active_count() <= before + 8  # threads of the executor, none of which spins
    values: Any = await client.runs.wait(thread_id, "echo", input={"question": "free?"})
    assert values["question"] == "free?"


async def test_a_rollback_leaves_nothing(client: LangGraphClient) -> None:
    thread_id = await _thread(client)
    await client.runs.wait(thread_id, "echo", input={"question": "before"})
    run = await client.runs.create(thread_id, "script", input=_script(["sleep", 60]))
    await _until(client, thread_id, run["run_id"], "running")
    await client.runs.cancel(thread_id, run["run_id"], wait=True, action="rollback")
    runs = await client.runs.list(thread_id)
    assert run["run_id"] not in {one["run_id"] for one in runs}
    assert (await client.threads.get(thread_id))["status"] == "idle"


async def test_a_blocking_sync_node_holds_nobody_up(
    client: LangGraphClient, tmp_path: Path
) -> None:
    thread_id, go = await _thread(client), tmp_path / "go"
    run = await client.runs.create(thread_id, "script", input=_script(["hold", str(go)]))
    await _until(client, thread_id, run["run_id"], "running")
    values: Any = await client.runs.wait(None, "echo", input={"question": "free?"})
    assert values["question"] == "free?"
    assert (await client.runs.get(thread_id, run["run_id"]))["status"] == "running"
    go.touch()
    assert await _until(client, thread_id, run["run_id"], "success", "error") == "success"


async def test_runs_wait_for_their_thread_a_slot_and_their_time(
    database_url: str, graphs: Graphs, tmp_path: Path
) -> None:
    async with serving(database_url, graphs, n_jobs_per_worker=1) as client:
        thread_id, go = await _thread(client), tmp_path / "go"
        first = await client.runs.create(thread_id, "script", input=_script(["await", str(go)]))
        behind = [
            await client.runs.create(thread_id, "script", input=_script(["spin", 0]))
            for _ in range(3)
        ]
        elsewhere = await client.runs.create(
            await _thread(client), "echo", input={"question": "slot?"}
        )
        later = await client.runs.create(
            await _thread(client), "echo", input={"question": "when?"}, after_seconds=1
        )
        await _until(client, thread_id, first["run_id"], "running")
        go.touch()
        for run in (*behind, elsewhere, later):
            assert await _until(client, run["thread_id"], run["run_id"], "success") == "success"
        rows = sorted(
            await client.runs.list(thread_id, limit=10), key=lambda row: row["updated_at"]
        )
        assert [row["run_id"] for row in rows] == [run["run_id"] for run in (first, *behind)]


async def test_code_that_will_not_stop_does_not_hold_the_answer(
    database_url: str, graphs: Graphs, tmp_path: Path
) -> None:
    async with serving(database_url, graphs, cancel_grace_seconds=0.2) as client:
        thread_id, go, log = await _thread(client), tmp_path / "go", tmp_path / "log"
        script = {**_script(["hold", str(go)]), "log": str(log)}
        run = await client.runs.create(thread_id, "script", input=script)
        while not log.exists():  # which is when the code begins
            await asyncio.sleep(0.01)
        async with asyncio.timeout(_SECONDS):
            await client.runs.cancel(thread_id, run["run_id"], wait=True)
        go.touch()
        assert (await client.runs.get(thread_id, run["run_id"]))["status"] == "interrupted"


async def test_what_ran_when_the_server_stopped_goes_on_at_the_next_start(
    database_url: str, graphs: Graphs, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    script = _script(["spin", 0], ["await", str(go)], ["spin", 0])
    async with serving(database_url, graphs) as client:
        thread_id = await _thread(client)
        run = await client.runs.create(thread_id, "script", input=script)
        await _until(client, thread_id, run["run_id"], "running")
    go.touch()
    async with serving(database_url, graphs) as client:
        assert await _until(client, thread_id, run["run_id"], "success", "error") == "success"
        values = (await client.threads.get_state(thread_id))["values"]
        assert values["done"] == ["0:spin", "1:await", "2:spin"]


async def test_a_run_that_takes_too_long_is_stopped(database_url: str, graphs: Graphs) -> None:
    async with serving(database_url, graphs, bg_job_timeout_secs=0.3) as client:
        thread_id = await _thread(client)
        run = await client.runs.create(thread_id, "script", input=_script(["sleep", 60]))
        assert await _until(client, thread_id, run["run_id"], "timeout", "error") == "timeout"


async def test_questions_about_graphs_are_answered(client: LangGraphClient) -> None:
    found = await client.assistants.search(graph_id="ask")
    schemas = await client.assistants.get_schemas(found[0]["assistant_id"])
    assert schemas["graph_id"] == "ask"
    drawing = await client.assistants.get_graph("ask")
    assert {node["id"] for node in drawing["nodes"]} >= {"ask"}


async def test_crons_fire(client: LangGraphClient) -> None:
    thread_id = await _thread(client)
    await client.crons.create_for_thread(
        thread_id,
        "script",
        schedule="* * * * * *",
        input=_script(["spin", 0.001]),
    )
    async with asyncio.timeout(_SECONDS):
        while not (found := await client.runs.list(thread_id)):
            await asyncio.sleep(0.05)
    assert await _until(client, thread_id, found[-1]["run_id"], "success")


async def _made(client: LangGraphClient, graph_id: str | None, *updates: Any) -> httpx.Response:
    metadata = {} if graph_id is None else {"graph_id": graph_id}
    body = {"metadata": metadata, "supersteps": [{"updates": list(step)} for step in updates]}
    return await client.http.client.post("/threads", json=body)


async def test_supersteps_make_the_state_that_nodes_would(client: LangGraphClient) -> None:
    answer = await _made(
        client,
        "script",
        [{"values": {"script": [["spin", 0]], "done": ["a"]}, "as_node": "__start__"}],
        [{"command": {"update": {"done": ["b"]}}, "as_node": "act"}],
    )
    thread = answer.json()
    assert (answer.status_code, thread["values"]["done"]) == (200, ["a", "b"])
    history = await client.threads.get_history(thread["thread_id"], limit=10)
    assert [state["metadata"]["source"] for state in history] == ["update"] * 2
    assert [state["values"]["done"] for state in history] == [["a", "b"], ["a"]]


async def test_supersteps_that_make_no_sense_are_refused(client: LangGraphClient) -> None:
    update = {"values": {"done": ["a"]}, "as_node": "act"}
    for graph_id, updates, status, detail in (
        (None, [update], 201, "was created, but there were problems updating the state"),
        ("nope", [update], 201, "was created, but there were problems updating the state"),
        ("script", [{**update, "as_node": "zz"}], 400, "Node zz does not exist"),
        ("script", [], 400, "No updates provided"),
    ):
        answer = await _made(client, graph_id, updates)
        assert (answer.status_code, detail in answer.json()["detail"]) == (status, True)


async def test_a_copy_has_the_same_history_and_goes_its_own_way(client: LangGraphClient) -> None:
    thread_id = await _thread(client)
    await client.runs.wait(thread_id, "script", input=_script(["spin", 0], ["spin", 0]))
    copy = str((await client.threads.copy(thread_id))["thread_id"])  # type: ignore[index]  # the SDK says None

    async def history(of: str) -> list[Any]:
        states = await client.threads.get_history(of, limit=20)
        for state in states:
            for place in (state["checkpoint"], state["parent_checkpoint"], state["metadata"]):
                assert place is None or place.pop("thread_id") == of
        return [
            {key: state[key] for key in ("values", "next", "checkpoint", "parent_checkpoint")}
            for state in states
        ]

    before = await history(thread_id)
    assert await history(copy) == before
    await client.runs.wait(copy, "script", input=_script(["spin", 0]))
    assert await history(thread_id) == before
    assert (await history(copy))[-len(before) :] == before
    assert len(await client.runs.list(copy)) == 1

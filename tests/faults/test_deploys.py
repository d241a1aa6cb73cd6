"""A new version is rolled out: parts are told to stop and are started again, under load."""

import asyncio
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

pytestmark = [pytest.mark.topology, pytest.mark.faults, pytest.mark.timeout(300)]

DRAIN_SECONDS = 2


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    return {
        "CALLBOARD_WORKERS": "2",
        "CALLBOARD_GATEWAYS": "2",
        "WORKER_COUNT": "1",
        "N_JOBS_PER_WORKER": "8",
        "CANCEL_GRACE_SECONDS": "1",
        "WORKER_DRAIN_TIMEOUT": str(DRAIN_SECONDS),
        "HEARTBEAT_INTERVAL_SECONDS": "2",
        "POSTGRES_POLL_INTERVAL_SECONDS": "1",
    }


class Clients:
    """SDK clients that work until it is enough. Any exception that one of them sees is a failure:
    reconnecting is the SDK's own business."""

    def __init__(self, url: str, log: Path) -> None:
        self._url, self._log = url, log
        self._over = asyncio.Event()
        self.accepted: list[str] = []

    def _script(self, *steps: list[Any]) -> dict[str, Any]:
        given = {"script": list(steps), "log": str(self._log)}
        return {"assistant_id": "script", "input": given, "durability": "sync"}

    def _accept(self, run: Any) -> None:
        self.accepted.append(run["run_id"])

    async def wait(self, client: LangGraphClient) -> None:
        thread = (await client.threads.create())["thread_id"]
        script = self._script(*[["sleep", 0.2]] * 4)
        result = await client.runs.wait(thread, **script, on_run_created=self._accept)
        assert len(result["done"]) == 4

    async def stream(self, client: LangGraphClient) -> None:
        thread = (await client.threads.create())["thread_id"]
        stream = client.runs.stream(
            thread,
            **self._script(["sleep", 0.5], ["tick", [5, 0.05]]),
            stream_mode="custom",
            stream_resumable=True,
            on_run_created=self._accept,
        )
        ticks = [part.data["tick"] async for part in stream if part.event == "custom"]
        # A step that a drain interrupted is done again, and its ticks with it.
        assert ticks[-5:] == [0, 1, 2, 3, 4]

    async def join(self, client: LangGraphClient) -> None:
        thread = (await client.threads.create())["thread_id"]
        script = self._script(["sleep", 0.3], ["block", 0.3])
        run = await client.runs.create(thread, **script)
        self._accept(run)
        await client.runs.join(thread, run["run_id"])

    async def echo(self, client: LangGraphClient) -> None:
        """Many short requests."""
        given = {"question": "well?"}
        assert (
            await client.runs.wait(None, "echo", input=given, on_run_created=self._accept) == given
        )

    async def _work(self, one: Callable[[LangGraphClient], Any]) -> None:
        async with get_client(url=self._url) as client:
            while not self._over.is_set():
                await one(client)

    async def __aenter__(self) -> "Clients":
        kinds = (self.wait, self.stream, self.join, self.echo) * 2
        self._tasks = [asyncio.create_task(self._work(one)) for one in kinds]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        await asyncio.gather(*self._tasks)


@pytest.mark.filterwarnings("ignore:Request failed, attempting reconnect")
async def test_a_rolling_restart_under_load_loses_nothing(
    topology: Any, side_effects: Any, eventually: Callable[..., Any]
) -> None:
    """Every worker, gateway and scheduler in turn, with SDK clients at work all the time."""
    async with Clients(topology.url, side_effects.path) as clients:
        for kind in ("worker", "gateway", "scheduler"):
            olds = topology.processes(kind)
            for old in olds:
                old.send_signal(signal.SIGTERM)
                await asyncio.to_thread(old.wait, 60)
                known = len(clients.accepted)
                await asyncio.to_thread(
                    eventually,
                    partial(_serves, topology, kind, len(olds)),
                    "the new one serves",
                )
                while len(clients.accepted) < known + 8:
                    await asyncio.sleep(0.05)
    ends = topology.query(
        "SELECT target, crashes, count(*) AS n FROM moves WHERE run_id = ANY(%s::uuid[])"
        " AND target NOT IN ('pending', 'running') GROUP BY 1, 2",
        clients.accepted,
    )
    assert ends == [{"target": "success", "crashes": 0, "n": len(clients.accepted)}]


def _serves(topology: Any, kind: str, number: int) -> bool:
    """Whether there are so many of a kind, and all of them are at work."""
    found = topology.processes(kind)
    if kind == "gateway":
        return number == sum(
            any(line.status == psutil.CONN_LISTEN for line in process.net_connections("tcp"))
            for process in found
        )
    if kind == "worker":
        (row,) = topology.query("SELECT count(*) AS n FROM instances WHERE free > 0")
        return bool(row["n"] == number)
    return len(found) == number


async def _open(
    client: LangGraphClient, script: dict[str, Any], begun: Callable[[int], Any]
) -> Any:
    """A stream and a wait on two runs that do not end by themselves."""

    async def read() -> list[Any]:
        return [part async for part in client.runs.stream(None, "script", **script)]

    tasks = [
        asyncio.create_task(read()),
        asyncio.create_task(client.runs.wait(None, "script", **script)),
    ]
    await asyncio.to_thread(begun, 2)
    return tasks


@pytest.mark.filterwarnings("ignore:Request failed, attempting reconnect")
@pytest.mark.filterwarnings("ignore:Reconnecting without a Last-Event-ID")
async def test_a_drain_ends_in_its_time_though_a_wait_and_a_stream_are_open(
    topology: Any, client: LangGraphClient, side_effects: Any, tmp_path: Path
) -> None:
    """Of the workers one after the other, and then of everything at once."""
    release = tmp_path / "release"
    script = {
        "input": {"script": [["await", str(release)]], "log": str(side_effects.path)},
        "durability": "sync",
    }

    def begun(times: int) -> Any:
        return side_effects.await_step("0:await", times)

    tasks = await _open(client, script, begun)
    for times, worker in enumerate(topology.processes("worker"), 2):
        worker.send_signal(signal.SIGTERM)
        await asyncio.to_thread(worker.wait, DRAIN_SECONDS + 5)
        await asyncio.to_thread(begun, times)
    assert not any(task.done() for task in tasks)
    await asyncio.to_thread(topology.await_ready)

    topology.process.send_signal(signal.SIGTERM)
    # supervisord ends one kind after the other, and looks but once a second whether one has ended.
    await asyncio.to_thread(topology.process.wait, DRAIN_SECONDS + 15)
    topology.start()
    release.touch()
    await asyncio.gather(*tasks, return_exceptions=True)  # clients give up in time
    ends = topology.query("SELECT DISTINCT crashes FROM moves WHERE target = 'success'")
    assert ends == [{"crashes": 0}]

"""Redis goes away in every way it can, under runs, streams, waits and wishes to stop."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from langgraph_sdk.client import LangGraphClient

from tests.faults.outages.services import Service

pytestmark = pytest.mark.topology

Fault = Callable[[Service], Any]
AWAY_SECONDS = 4.0


def _ask(valkey: Service, *command: str) -> None:
    with redis.Redis.from_url(valkey.url) as connection, suppress(redis.ConnectionError):
        connection.execute_command(*command)


@contextmanager
def restarted(valkey: Service) -> Iterator[None]:
    valkey.restart()
    yield


@contextmanager
def stopped(valkey: Service) -> Iterator[None]:
    valkey.stop()
    yield
    valkey.start()


@contextmanager
def killed(valkey: Service) -> Iterator[None]:
    valkey.kill()
    yield
    valkey.start()


@contextmanager
def frozen(valkey: Service) -> Iterator[None]:
    valkey.freeze()
    yield
    valkey.thaw()


@contextmanager
def flushed(valkey: Service) -> Iterator[None]:
    _ask(valkey, "FLUSHALL")
    yield


@contextmanager
def disconnected(valkey: Service) -> Iterator[None]:
    for kind in ("pubsub", "normal"):
        _ask(valkey, "CLIENT", "KILL", "TYPE", kind)
    yield


@contextmanager
def out_of_memory(valkey: Service) -> Iterator[None]:
    _ask(valkey, "CONFIG", "SET", "maxmemory", "1")
    yield
    _ask(valkey, "CONFIG", "SET", "maxmemory", "0")


LASTING = [stopped, killed, frozen, out_of_memory]
FAULTS = [
    pytest.param(stopped),
    pytest.param(flushed),
    pytest.param(frozen, marks=pytest.mark.faults),
    pytest.param(restarted, marks=pytest.mark.faults),
    pytest.param(killed, marks=pytest.mark.faults),
    pytest.param(disconnected, marks=pytest.mark.faults),
    pytest.param(out_of_memory, marks=pytest.mark.faults),
]


@pytest.mark.parametrize("fault", FAULTS)
async def test_an_outage_costs_no_run_anything(
    topology: Any,
    client: LangGraphClient,
    side_effects: Any,
    valkey: Service,
    tmp_path: Path,
    eventually: Callable[..., Any],
    fault: Any,
) -> None:
    """Runs under way go on, streams and waits end rightly, new runs are taken and executed."""
    release = tmp_path / "release"
    script = {
        "script": [["tick", [3, 0]], ["await", str(release)], ["tick", [3, 0]]],
        "log": str(side_effects.path),
    }
    thread = (await client.threads.create())["thread_id"]
    parts: list[Any] = []

    async def read() -> None:
        async for part in client.runs.stream(thread, "script", input=script, stream_mode="custom"):
            parts.append(part)

    reader = asyncio.create_task(read())
    await asyncio.to_thread(side_effects.await_step, "1:await")
    waiter = asyncio.create_task(client.runs.wait(None, "script", input=script))
    await asyncio.to_thread(side_effects.await_step, "1:await", 2)
    behind = await client.runs.create(thread, "echo", input={"question": "in line?"})
    eventually(lambda: len([part for part in parts if part.event == "custom"]) == 3, "ticks come")

    with fault(valkey):
        # Answered without Redis, and executed.
        during = (await client.threads.create())["thread_id"]
        run = await client.runs.create(during, "echo", input={"question": "now?"})
        await client.runs.join(during, run["run_id"])
        if fault in LASTING:
            away = time.monotonic()
            while time.monotonic() < away + AWAY_SECONDS:
                assert (await client.threads.get(thread))["status"] == "busy"
                await asyncio.sleep(0.2)
    release.touch()

    await reader
    assert (await waiter)["done"] == ["0:tick", "1:await", "2:tick"]
    await client.runs.join(thread, behind["run_id"])
    assert not [part for part in parts if part.event == "error"]
    ticks = [part.data["tick"] for part in parts if part.event == "custom"]
    assert ticks == [0, 1, 2, 0, 1, 2]
    attempts = topology.query("SELECT DISTINCT attempt FROM runs WHERE thread_id = %s", thread)
    assert attempts == [{"attempt": 1}]
    await _work_as_before(client, side_effects)


async def _work_as_before(client: LangGraphClient, side_effects: Any) -> None:
    """Runs start, are told to stop, and stop."""
    answer = await client.runs.wait(None, "echo", input={"question": "still there?"})
    assert answer == {"question": "still there?"}
    thread = (await client.threads.create())["thread_id"]
    run = await client.runs.create(
        thread, "script", input={"script": [["block", 3600]], "log": str(side_effects.path)}
    )
    await asyncio.to_thread(side_effects.await_step, "0:block")
    await client.runs.cancel(thread, run["run_id"], wait=True)
    assert (await client.runs.get(thread, run["run_id"]))["status"] == "interrupted"


async def test_a_flush_loses_no_run_that_waits(
    topology: Any,
    client: LangGraphClient,
    side_effects: Any,
    valkey: Service,
    tmp_path: Path,
    eventually: Callable[..., Any],
) -> None:
    """All slots are taken and many more runs wait in Redis: the rows bring them back."""
    release = tmp_path / "release"
    script = {"script": [["await", str(release)]], "log": str(side_effects.path)}
    runs = [
        await client.runs.create(None, "script", input=script, on_completion="keep")
        for _ in range(topology.slots + 20)
    ]
    eventually(lambda: len(side_effects.read()) == topology.slots, "every slot is taken")
    _ask(valkey, "FLUSHALL")
    release.touch()
    for run in runs:
        eventually(lambda run=run: topology.run_row(run["run_id"])["finished_at"], "it ends")
        assert topology.run_row(run["run_id"])["status"] == "success"
    assert len(side_effects.read()) == len(runs)


async def test_what_a_stored_step_said_is_not_lost_with_its_process(
    topology: Any, client: LangGraphClient, side_effects: Any, valkey: Service, tmp_path: Path
) -> None:
    """A step that is stored is not executed again, so its events have to be stored before it."""
    speak, end = tmp_path / "speak", tmp_path / "end"
    script = [["hold", str(speak)], ["flood", 5000], ["hold", str(end)]]
    thread = (await client.threads.create())["thread_id"]
    run = await client.runs.create(
        thread,
        "script",
        input={"script": script, "log": str(side_effects.path)},
        stream_mode="custom",
        stream_resumable=True,
    )
    step = await asyncio.to_thread(side_effects.await_step, "0:hold")
    with frozen(valkey):
        speak.touch()
        await asyncio.to_thread(side_effects.await_step, "2:hold")
        await _stored(topology, thread, "1:flood")
        psutil.Process(step["pid"]).kill()
    end.touch()

    parts = client.runs.join_stream(thread, run["run_id"], last_event_id="-1")
    ticks = [part.data["tick"] async for part in parts if part.event == "custom"]
    assert ticks[-5000:] == list(range(5000))
    assert topology.run_row(run["run_id"])["status"] == "success"


async def _stored(topology: Any, thread: str, step: str, seconds: float = 1.0) -> None:
    """Returns when it is stored that a step is done, or when it might have been."""
    deadline = time.monotonic() + seconds
    query = "SELECT FROM checkpoint_writes WHERE thread_id = %s AND position(%s IN blob) > 0"
    while time.monotonic() < deadline:
        if topology.query(query, thread, step.encode()):
            return
        await asyncio.sleep(0.05)


@pytest.mark.faults
async def test_connections_that_redis_closed_while_they_were_idle_are_not_missed(
    topology: Any, client: LangGraphClient, side_effects: Any, valkey: Service
) -> None:
    """The first request after a quiet time is answered, and its run executed, as any other."""
    await _work_as_before(client, side_effects)
    _ask(valkey, "CONFIG", "SET", "timeout", "1")
    try:
        for _ in range(2):
            await asyncio.sleep(3)  # all that is neither blocked nor subscribed is closed
            for _ in range(5):
                thread = (await client.threads.create())["thread_id"]
                run = await client.runs.create(thread, "script", input={"script": [["sleep", 60]]})
                await client.runs.cancel(thread, run["run_id"], wait=True)
                assert topology.run_row(run["run_id"])["status"] == "interrupted"
            assert await client.runs.wait(None, "echo", input={"question": "well?"})
    finally:
        _ask(valkey, "CONFIG", "SET", "timeout", "0")

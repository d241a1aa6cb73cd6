"""Postgres goes away in every way it can, under runs, streams and waits."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from langgraph_sdk.client import LangGraphClient

from tests.faults.outages.services import Service

pytestmark = pytest.mark.topology

AWAY_SECONDS = 3.0
_OTHERS = "datname = 'postgres' AND pid <> pg_backend_pid()"


def _tell(postgres: Service, statement: str) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("SET default_transaction_read_only = off")
        connection.execute(statement)


@contextmanager
def stopped(postgres: Service) -> Iterator[None]:
    postgres.stop()
    yield
    postgres.start()


@contextmanager
def killed(postgres: Service) -> Iterator[None]:
    postgres.kill()
    yield
    postgres.start()


@contextmanager
def frozen(postgres: Service) -> Iterator[None]:
    """Its backends too: what is asked is heard and not answered."""
    backends = postgres.family()
    for process in backends:
        process.suspend()
    yield
    for process in backends:
        process.resume()


@contextmanager
def read_only(postgres: Service) -> Iterator[None]:
    """As after a failover that has not ended yet."""
    _tell(postgres, "ALTER DATABASE postgres SET default_transaction_read_only = on")
    _tell(postgres, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {_OTHERS}")
    yield
    _tell(postgres, "ALTER DATABASE postgres RESET default_transaction_read_only")
    _tell(postgres, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {_OTHERS}")


@contextmanager
def crowded(postgres: Service) -> Iterator[None]:
    """Others have taken all connections that the server allows, and ours are lost."""
    with ExitStack() as crowd:

        def fill() -> None:
            with suppress(psycopg.OperationalError):
                while True:
                    crowd.enter_context(psycopg.connect(postgres.url, application_name="crowd"))

        first = crowd.enter_context(psycopg.connect(postgres.url, application_name="crowd"))
        fill()
        first.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            f" WHERE {_OTHERS} AND application_name <> 'crowd'"
        )
        first.commit()
        fill()
        yield


@asynccontextmanager
async def asked_all_the_time(url: str) -> AsyncIterator[Counter[int]]:
    """Reads and writes over HTTP, one after the other; yields how often each status came."""
    answers: Counter[int] = Counter()

    async def ask() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=30) as http:
            while True:
                for path, body in (("/threads/search", {}), ("/threads", {})):
                    answer = await http.post(path, json=body)
                    answers[answer.status_code] += 1
                    if answer.status_code == 503:
                        assert "Retry-After" in answer.headers
                answers[(await http.get("/ok")).status_code] += 1
                await asyncio.sleep(0.05)

    asking = asyncio.create_task(ask())
    yield answers
    if asking.done():
        asking.result()
    asking.cancel()


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(stopped),
        pytest.param(killed, marks=pytest.mark.faults),
        pytest.param(frozen, marks=pytest.mark.faults),
        pytest.param(read_only, marks=pytest.mark.faults),
        pytest.param(crowded, marks=pytest.mark.faults),
    ],
)
async def test_an_outage_costs_no_run_anything(
    topology: Any,
    client: LangGraphClient,
    side_effects: Any,
    postgres: Service,
    tmp_path: Path,
    eventually: Callable[..., Any],
    fault: Any,
) -> None:
    """Runs go on, streams stay open, and the gateway says 503 and nothing worse."""
    release = tmp_path / "release"
    script = {
        "script": [["tick", [3, 0]], ["await", str(release)], ["tick", [3, 0]]],
        "log": str(side_effects.path),
    }
    thread = (await client.threads.create())["thread_id"]
    parts: list[Any] = []

    async def read() -> None:
        async for part in client.runs.stream(
            thread, "script", input=script, stream_mode="custom", stream_resumable=True
        ):
            parts.append(part)

    reader = asyncio.create_task(read())
    await asyncio.to_thread(side_effects.await_step, "1:await")
    waiter = asyncio.create_task(client.runs.wait(None, "script", input=script))
    await asyncio.to_thread(side_effects.await_step, "1:await", 2)
    behind = await client.runs.create(thread, "echo", input={"question": "in line?"})

    async with asked_all_the_time(topology.url) as answers:
        with fault(postgres):
            await asyncio.sleep(AWAY_SECONDS)
            # The runs end while it is away: what they have to say is kept.
            release.touch()
            await asyncio.sleep(1)
        await reader
        assert (await waiter)["done"] == ["0:tick", "1:await", "2:tick"]
        await client.runs.join(thread, behind["run_id"])
    assert set(answers) <= {200, 503}
    assert not [part for part in parts if part.event == "error"]
    ticks = [part.data["tick"] for part in parts if part.event == "custom"]
    assert ticks == [0, 1, 2, 0, 1, 2]
    rows = topology.query("SELECT DISTINCT attempt, status FROM runs WHERE thread_id = %s", thread)
    assert rows == [{"attempt": 1, "status": "success"}]


async def test_backends_that_are_terminated_again_and_again_cost_nothing(
    topology: Any, postgres: Service, side_effects: Any, eventually: Callable[..., Any]
) -> None:
    """Under load: no process ends, no accepted run is lost, none is done twice."""
    parts = {
        kind: [process.pid for process in topology.processes(kind)]
        for kind in ("gateway", "worker", "scheduler", "child")
    }
    script = {"script": [["sleep", 0.05]] * 6, "log": str(side_effects.path)}
    body = {"assistant_id": "script", "input": script, "on_completion": "keep"}
    accepted: list[str] = []

    async def load() -> None:
        async with httpx.AsyncClient(base_url=topology.url, timeout=30) as http:
            for _ in range(10):
                answer = await http.post("/runs", json={**body, "durability": "sync"})
                assert answer.status_code in (200, 503)
                if answer.status_code == 200:
                    accepted.append(answer.json()["run_id"])
                await asyncio.sleep(0.1)

    async def terminate() -> None:
        for _ in range(6):
            await asyncio.to_thread(
                _tell,
                postgres,
                f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {_OTHERS}",
            )
            await asyncio.sleep(0.7)

    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(load())
        group.create_task(terminate())
    unfinished = "SELECT FROM runs WHERE run_id = ANY(%s::uuid[]) AND finished_at IS NULL"
    await asyncio.to_thread(
        eventually, lambda: not topology.query(unfinished, accepted), "the accepted runs end"
    )
    ends = topology.query(
        "SELECT status, attempt, count(*) AS n FROM runs WHERE run_id = ANY(%s::uuid[])"
        " GROUP BY 1, 2",
        accepted,
    )
    assert ends == [{"status": "success", "attempt": 1, "n": len(accepted)}]
    for kind, pids in parts.items():
        # A spare may still have been starting.
        assert set(pids) <= {process.pid for process in topology.processes(kind)}

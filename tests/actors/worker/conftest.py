"""What tests of the worker share: rows to execute, and workers in processes of their own."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest

from actors.dispatch import RedisDispatcher
from actors.settings import WorkerSettings
from persistence import runs
from persistence.engine import Database
from persistence.lifecycle import ACTIVE, MultitaskStrategy
from persistence.settings import DatabaseSettings

GRAPHS = Path(__file__).parents[2] / "graphs" / "faults"
PROGRAM = Path(__file__).parent / "worker_program.py"
ROOT = Path(__file__).parents[3]


@pytest.fixture
def project() -> dict[str, Any]:
    """The scriptable graph of the fault tests, and one that cannot be imported."""
    graphs = {
        "script": "./script.py:graph",
        "beside": "./script.py:beside",
        "echo": "./script.py:echo",
        "broken": "./there_is_no_such_file.py:graph",
    }
    return {"root": str(GRAPHS), "graphs": graphs, "dependencies": [str(GRAPHS)], "env": {}}


@pytest.fixture
async def db(database_url: str) -> AsyncIterator[Database]:
    async with Database(DatabaseSettings(url=database_url)) as database:
        yield database


async def eventually(check: Callable[[], Awaitable[Any]], what: str, seconds: float = 60.0) -> Any:
    """The first true value of ``check``; fails naming ``what`` when there is none in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := await check():
            return value
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within {seconds} s: {what}")


@dataclass
class Rows:
    """Runs to execute, and what became of them."""

    db: Database

    async def submit(
        self,
        *script: list[Any],
        graph_id: str = "script",
        thread_id: UUID | None = None,
        **more: Any,
    ) -> UUID:
        """Accepts a run of the scriptable graph."""
        log = more.pop("log", None)
        run_id, thread_id = uuid4(), thread_id or uuid4()
        values = {"script": list(script), **({"log": str(log)} if log else {})}
        kwargs = {
            "input": values,
            "config": {
                "configurable": {
                    "run_id": str(run_id),
                    "thread_id": str(thread_id),
                    "graph_id": graph_id,
                }
            },
            "stream_mode": ["values"],
            "durability": "sync",  # a step that began is proof that the one before is stored
        }
        new = runs.NewRun(
            run_id=run_id,
            thread_id=thread_id,
            assistant_id=uuid4(),
            graph_id=graph_id,
            kwargs=orjson.dumps(kwargs),
            metadata={},
            base_metadata={},
            config_metadata={},
            config={},
            if_not_exists="create",
            multitask_strategy=MultitaskStrategy.ENQUEUE,
            **more,
        )
        await runs.create(self.db, new)
        return run_id

    async def row(self, run_id: UUID) -> dict[str, Any] | None:
        return await self.db.fetch_one("SELECT * FROM runs WHERE run_id = %s", [run_id])

    async def status(self, run_id: UUID) -> str | None:
        row = await self.row(run_id)
        return None if row is None else str(row["status"])

    async def ended(self, run_id: UUID, seconds: float = 60.0) -> dict[str, Any]:
        """The run's row, once it has ended."""

        async def over() -> dict[str, Any] | None:
            row = await self.row(run_id)
            return row if row is not None and row["status"] not in ACTIVE else None

        return await eventually(over, f"run {run_id} ends", seconds)

    async def running(self, run_id: UUID, attempt: int = 1) -> dict[str, Any]:
        """The run's row, once the attempt runs."""

        async def runs_now() -> dict[str, Any] | None:
            row = await self.row(run_id)
            good = row is not None and row["status"] == "running" and row["attempt"] >= attempt
            return row if good else None

        return await eventually(runs_now, f"attempt {attempt} of {run_id} runs")

    async def thread_of(self, run_id: UUID) -> UUID:
        row = await self.row(run_id)
        assert row is not None
        return UUID(str(row["thread_id"]))

    async def thread(self, run_id: UUID) -> dict[str, Any] | None:
        return await self.db.fetch_one(
            "SELECT t.* FROM threads t JOIN runs r USING (thread_id) WHERE r.run_id = %s", [run_id]
        )


@pytest.fixture
def rows(db: Database) -> Rows:
    return Rows(db)


@dataclass
class SideEffects:
    """What the steps of scripts did: one entry per started step."""

    path: Path

    def read(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    async def begun(self, node: str, times: int = 1) -> dict[str, Any]:
        """The entry of a step, once it began for the given time."""

        async def found() -> dict[str, Any] | None:
            entries = [entry for entry in self.read() if entry["node"] == node]
            return entries[times - 1] if len(entries) >= times else None

        return await eventually(found, f"step {node} begins")


@pytest.fixture
def side_effects(tmp_path: Path) -> SideEffects:
    return SideEffects(tmp_path / "side-effects")


@pytest.fixture
def settings() -> Callable[..., WorkerSettings]:
    """Settings for tests: small, quick to notice, and independent of the environment."""

    def make(**more: Any) -> WorkerSettings:
        values: dict[str, Any] = {
            "redis_url": None,
            "worker_count": 1,
            "n_jobs_per_worker": 2,
            "executor_spares": 0,
            "cancel_grace_seconds": 1.0,
            "retire_timeout_seconds": 2.0,
            "postgres_poll_interval_seconds": 0.5,
        }
        return WorkerSettings(**values | more)

    return make


@dataclass
class WorkerProcess:
    """A worker, with handles to hurt it."""

    process: subprocess.Popen[bytes]
    log: Path

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def exited(self, seconds: float = 30.0) -> int:
        """Its exit code."""

        async def code() -> tuple[int] | None:
            found = self.process.poll()
            return None if found is None else (found,)

        return (await eventually(code, "the worker exits", seconds))[0]

    def children(self) -> list[int]:
        """Process ids of its graph processes and its inspector."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    stat = (entry / "stat").read_text()
                except OSError:
                    continue
                parent = int(stat.rpartition(")")[2].split()[1])
                if parent == self.process.pid:
                    found.append(int(entry.name))
        return found


@dataclass
class Workers:
    """Starts workers and ends them after the test."""

    project: dict[str, Any]
    environment: dict[str, str]
    folder: Path
    started: list[WorkerProcess] = field(default_factory=list)

    def start(self, **more: str) -> WorkerProcess:
        log = self.folder / f"worker-{len(self.started)}.log"
        with log.open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-P", str(PROGRAM), json.dumps(self.project)],
                env={**os.environ, "PYTHONPATH": str(ROOT), **self.environment, **more},
                stdout=out,
                stderr=out,
            )
        self.started.append(WorkerProcess(process, log))
        return self.started[-1]


@pytest.fixture
async def dispatcher(redis_url: str) -> AsyncIterator[RedisDispatcher]:
    sender = RedisDispatcher(redis_url)
    yield sender
    await sender.close()


@pytest.fixture
def workers(
    project: dict[str, Any], database_url: str, redis_url: str, tmp_path: Path
) -> Iterator[Workers]:
    environment = {
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
        "WORKER_COUNT": "1",
        "N_JOBS_PER_WORKER": "3",
        "CANCEL_GRACE_SECONDS": "1",
        "RETIRE_TIMEOUT_SECONDS": "2",
        "WORKER_DRAIN_TIMEOUT": "20",
        "LEASE_DURATION_SECONDS": "6",
        "HEARTBEAT_INTERVAL_SECONDS": "1",
        "POSTGRES_POLL_INTERVAL_SECONDS": "3600",  # messages must do it, unless a test says so
    }
    all_of_them = Workers(project, environment, tmp_path)
    yield all_of_them
    for worker in all_of_them.started:
        if worker.process.poll() is None:
            worker.process.send_signal(signal.SIGCONT)
            worker.process.kill()
            worker.process.wait()
        sys.stderr.write(worker.log.read_text()[-6000:])

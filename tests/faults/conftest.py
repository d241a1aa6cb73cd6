"""The whole topology in processes of its own, with handles to hurt each part of it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from psycopg.rows import dict_row

GRAPHS = Path(__file__).parent.parent / "graphs" / "faults" / "langgraph.json"

KINDS = {
    "gateway": "callboard gateway",
    "worker": "callboard worker",
    "scheduler": "callboard scheduler",
    "child": "-m actors.child",
}


def _eventually(check: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    """The first true value of ``check``; fails naming ``what`` when there is none in time."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if value := check():
                return value
        except (httpx.TransportError, psycopg.OperationalError, psutil.Error):
            pass
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.02)


@dataclass
class Topology:
    """``callboard up`` with the fault graphs, on given services."""

    folder: Path
    port: int
    database_url: str
    redis_url: str
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [str(Path(sys.executable).parent / "callboard"), "up"]
        command += ["--config", str(GRAPHS), "--port", str(self.port), "--data", str(self.folder)]
        environment = {
            **os.environ,
            "DATABASE_URL": self.database_url,
            "REDIS_URL": self.redis_url,
            **self.environment,
        }
        with (self.folder / "up.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, cwd=self.folder
            )
        self.await_ready()

    def await_ready(self) -> None:
        assert self.process is not None

        def ready() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, (self.folder / "up.log").read_text()[-4000:]
            return httpx.get(f"{self.url}/ready", timeout=5).status_code == 200

        _eventually(ready, "the topology is ready")

    def stop(self) -> int:
        assert self.process is not None
        left = self._tree()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        _gone, alive = psutil.wait_procs(left, timeout=5)
        for process in alive:
            process.kill()
        assert not alive, f"left behind: {alive}"
        return code

    def _tree(self) -> list[psutil.Process]:
        assert self.process is not None
        return psutil.Process(self.process.pid).children(recursive=True)

    def processes(self, kind: str) -> list[psutil.Process]:
        """The running processes of a kind (see KINDS), oldest first."""
        found = []
        for process in self._tree():
            try:
                if KINDS[kind] in " ".join(process.cmdline()):
                    found.append(process)
            except psutil.Error:
                continue
        return sorted(found, key=lambda process: process.create_time())

    def query(self, sql: str, *parameters: Any) -> list[dict[str, Any]]:
        with psycopg.connect(self.database_url, row_factory=dict_row) as connection:
            return connection.execute(sql, parameters).fetchall()

    def free_slots(self) -> int:
        """Free slots of all live workers, as their last heartbeats say."""
        return int(self.query("SELECT coalesce(sum(free), 0) AS free FROM instances")[0]["free"])

    def run_row(self, run_id: str) -> dict[str, Any]:
        (row,) = self.query(
            "SELECT *, lease_expires_at > now() AS leased FROM runs WHERE run_id = %s", run_id
        )
        return row


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """Settings of the topology; a module may override this fixture."""
    return {"WORKER_COUNT": "2", "N_JOBS_PER_WORKER": "4", "CANCEL_GRACE_SECONDS": "1"}


@pytest.fixture(scope="module")
def topology(
    tmp_path_factory: pytest.TempPathFactory,
    environment: dict[str, str],
    module_database_url: str,
    module_redis_url: str,
    module_port: int,
) -> Iterator[Topology]:
    running = Topology(
        tmp_path_factory.mktemp("topology"),
        module_port,
        module_database_url,
        module_redis_url,
        environment,
    )
    running.start()
    yield running
    running.stop()


@pytest.fixture
async def client(topology: Topology) -> AsyncIterator[LangGraphClient]:
    topology.await_ready()
    async with get_client(url=topology.url) as client:
        yield client


@dataclass
class SideEffects:
    """What the nodes of a script did: one entry a started step."""

    path: Path

    def read(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def await_step(self, node: str, times: int = 1) -> dict[str, Any]:
        """Waits until a step was begun for the given time; returns its entry."""

        def begun() -> dict[str, Any] | None:
            entries = [entry for entry in self.read() if entry["node"] == node]
            return entries[times - 1] if len(entries) >= times else None

        return _eventually(begun, f"step {node} begins")


@pytest.fixture
def side_effects(tmp_path: Path) -> SideEffects:
    return SideEffects(tmp_path / "side-effects")


@pytest.fixture
def eventually() -> Callable[..., Any]:
    """Waits for an event: ``eventually(check, "what is awaited", seconds=60)``."""
    return _eventually

"""The whole topology in processes of its own, with handles to hurt each part of it."""

import contextlib
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

from tests.faults import invariants

GRAPHS = Path(__file__).parent.parent / "graphs" / "faults" / "langgraph.json"

KINDS = {
    "supervisord": "supervisor.supervisord",
    "gateway": "callboard gateway",
    "worker": "callboard worker",
    "scheduler": "callboard scheduler",
    "child": "-m actors.child",
}


def _eventually(check: Callable[[], Any], what: str, seconds: float = 120.0) -> Any:
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
    graphs: Path = GRAPHS
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [str(Path(sys.executable).parent / "callboard"), "up"]
        command += [
            "--config",
            str(self.graphs),
            "--port",
            str(self.port),
            "--data",
            str(self.folder),
        ]
        environment = {
            **os.environ,
            "DATABASE_URL": self.database_url,
            "REDIS_URL": self.redis_url,
            "TMPDIR": str(self.folder),
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

        _eventually(ready, "the topology is ready", 240)

    def stop(self) -> int:
        assert self.process is not None
        if self.process.poll() is not None:
            return self.process.returncode
        left = self._tree()
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.resume()  # what a failed test left frozen could not end
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        _gone, alive = psutil.wait_procs(left, timeout=30)
        for process in alive:
            process.kill()
        assert not alive, f"left behind: {alive}"
        return code

    def kill(self) -> None:
        """Kills everything at once, supervisord too; returns when all of it is gone."""
        assert self.process is not None
        victims = [psutil.Process(self.process.pid), *self._tree()]
        for process in victims:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.process.wait(30)
        _gone, alive = psutil.wait_procs(victims, timeout=30)
        assert not alive, f"not even SIGKILL ended {alive}"

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

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=30)

    @property
    def workers(self) -> int:
        return int(self.environment.get("CALLBOARD_WORKERS", "1"))

    @property
    def slots(self) -> int:
        """Slots of all workers."""
        of_one = int(self.environment["WORKER_COUNT"]) * int(self.environment["N_JOBS_PER_WORKER"])
        return self.workers * of_one

    def worker_of(self, pid: int) -> psutil.Process:
        """The worker to which a graph process belongs."""
        parent = psutil.Process(pid).parent()
        assert parent is not None
        return parent

    def orphans(self) -> list[psutil.Process]:
        """Processes that were started by this topology and belong to it no more."""
        ours = {process.pid for process in self._tree()}
        found = []
        for process in psutil.process_iter():
            try:
                mine = process.environ().get("CALLBOARD_DATA") == str(self.folder)
            except psutil.Error:
                continue
            if mine and process.pid not in ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        return found

    def complaints(self) -> list[str]:
        """Log lines of requests that failed for no good reason, and of errors nobody caught.

        Not those of graph processes: there the graphs speak.
        """
        bad = ('"event":"request failed"', "answer broken", "could not be performed")
        lines: list[str] = []
        for log in (self.folder / "logs").glob("*.log"):
            lines += [
                f"{log.name}: {line}"
                for line in log.read_text(errors="replace").splitlines()
                if any(text in line for text in (*bad, "never retrieved", "never awaited"))
                and " graphs[" not in line
            ]
        return lines

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
    return {
        "WORKER_COUNT": "2",
        "N_JOBS_PER_WORKER": "4",
        "CANCEL_GRACE_SECONDS": "1",
        "HEARTBEAT_INTERVAL_SECONDS": "2",  # it tells how many slots are free
    }


@pytest.fixture(scope="module")
def graphs() -> Path:
    """The langgraph.json of the topology; a module may override this fixture."""
    return GRAPHS


@pytest.fixture(scope="module")
def topology(
    tmp_path_factory: pytest.TempPathFactory,
    environment: dict[str, str],
    module_database_url: str,
    module_redis_url: str,
    module_port: int,
    graphs: Path,
) -> Iterator[Topology]:
    invariants.watch(module_database_url)
    running = Topology(
        tmp_path_factory.mktemp("topology"),
        module_port,
        module_database_url,
        module_redis_url,
        environment,
        graphs,
    )
    try:
        running.start()
        yield running
    finally:
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


@pytest.fixture(autouse=True)
def unbroken(request: pytest.FixtureRequest) -> Iterator[None]:
    """After every test with a topology: the promises, whatever it broke (see invariants.py)."""
    used = {
        name: request.getfixturevalue(name)
        for name in ("topology", "side_effects")
        if name in request.fixturenames
    }
    failed = request.session.testsfailed
    yield
    if "topology" in used and request.session.testsfailed == failed:
        effects = used["side_effects"].read() if "side_effects" in used else []
        invariants.check(used["topology"], effects, _eventually)


@pytest.fixture
def eventually() -> Callable[..., Any]:
    """Waits for an event: ``eventually(check, "what is awaited", seconds=120)``."""
    return _eventually

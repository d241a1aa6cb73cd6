"""How long it takes until work goes on after a part died, with every setting at its default.

Starts the topology of the fault tests on servers of its own and hurts one part after the other. The
clock runs from the blow, or from the return of what was away, to the first sign of work.
"""

import shutil
import signal
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from persistence import migrate
from tests.faults.conftest import SideEffects, Topology
from tests.faults.outages.services import Service, own_postgres, own_valkey

WORKER = {"WORKER_COUNT": "2", "N_JOBS_PER_WORKER": "10"}
_PATIENCE_SECONDS = 180.0


class Recovery:
    """A topology, and what can be done to it."""

    def __init__(self, folder: Path, postgres: Service, valkey: Service) -> None:
        self.folder, self.postgres, self.valkey = folder, postgres, valkey
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.topology = Topology(folder, port, postgres.url, f"{valkey.url}/0", dict(WORKER))
        self.number = 0

    def begin(self) -> SideEffects:
        """A run that waits in its second step for ever; returns once it is there."""
        self.number += 1
        effects = SideEffects(self.folder / f"effects-{self.number}")
        script = {"script": [["sleep", 0], ["sleep", 3600]], "log": str(effects.path)}
        body = {"assistant_id": "script", "input": script, "durability": "sync"}
        self.post("/runs", body)
        effects.await_step("1:sleep")
        return effects

    def post(self, path: str, body: dict[str, object]) -> httpx.Response:
        answer = httpx.post(self.topology.url + path, json=body, timeout=60)
        answer.raise_for_status()
        return answer

    def kill(self, kind: str) -> None:
        for process in self.topology.processes(kind):
            process.send_signal(signal.SIGKILL)

    def echo(self) -> bool:
        """Whether a run is executed from end to end."""
        body = {"assistant_id": "echo", "input": {"question": "well?"}}
        try:
            return httpx.post(
                f"{self.topology.url}/runs/wait", json=body, timeout=_PATIENCE_SECONDS
            ).is_success
        except httpx.TransportError:
            return False

    def stop_runs(self) -> None:
        """Stops the runs that run."""
        running = {"status": "running"}  # 404 when there is none
        httpx.post(f"{self.topology.url}/runs/cancel", json=running, timeout=60)


def _until(sign: Callable[[], object]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not sign():
        if time.monotonic() > deadline:
            raise RuntimeError("nothing recovered in time")
        time.sleep(0.01)


def graph_process(recovery: Recovery) -> float:
    effects = recovery.begin()
    (pid,) = {effect["pid"] for effect in effects.read()}
    at = time.monotonic()
    next(p for p in recovery.topology.processes("child") if p.pid == pid).kill()
    effects.await_step("1:sleep", 2)
    return time.monotonic() - at


def worker(recovery: Recovery) -> float:
    effects = recovery.begin()
    at = time.monotonic()
    recovery.kill("worker")
    effects.await_step("1:sleep", 2)
    return time.monotonic() - at


def gateway(recovery: Recovery) -> float:
    at = time.monotonic()
    recovery.kill("gateway")
    _until(recovery.echo)
    return time.monotonic() - at


def redis_back(recovery: Recovery) -> float:
    recovery.valkey.restart()
    at = time.monotonic()
    _until(recovery.echo)
    return time.monotonic() - at


def redis_away(recovery: Recovery) -> float:
    """A run that is created while Redis is away."""
    recovery.valkey.stop()
    try:
        at = time.monotonic()
        _until(recovery.echo)
        return time.monotonic() - at
    finally:
        recovery.valkey.start()


def redis_flushed(recovery: Recovery) -> float:
    """A run whose message is gone: every slot is busy, it waits, and Redis is emptied."""
    busy = [recovery.begin() for _ in range(20)]
    effects = SideEffects(recovery.folder / f"waiting-{recovery.number}")
    script = {"script": [["sleep", 0]], "log": str(effects.path)}
    recovery.post("/runs", {"assistant_id": "script", "input": script})
    recovery.valkey.stop()
    recovery.valkey.forget()
    recovery.valkey.start()
    assert busy, "every slot is taken"
    recovery.stop_runs()
    at = time.monotonic()
    effects.await_step("0:sleep")
    return time.monotonic() - at


def postgres_back(recovery: Recovery) -> float:
    recovery.postgres.restart()
    at = time.monotonic()
    _until(recovery.echo)
    return time.monotonic() - at


def everything(recovery: Recovery) -> float:
    """From the moment at which the services are back and ``callboard up`` is called."""
    effects = recovery.begin()
    recovery.topology.kill()
    recovery.postgres.kill()
    recovery.valkey.kill()
    recovery.postgres.start()
    recovery.valkey.start()
    at = time.monotonic()
    recovery.topology.start()
    effects.await_step("1:sleep", 2)
    return time.monotonic() - at


def frozen_worker(recovery: Recovery) -> float:
    """Nothing renews its leases: another worker takes over when they have run out."""
    effects = recovery.begin()
    (frozen,) = {recovery.topology.worker_of(effect["pid"]) for effect in effects.read()}
    frozen.suspend()
    at = time.monotonic()
    try:
        _until(lambda: len(effects.read()) == 3)
        return time.monotonic() - at
    finally:
        frozen.resume()


ONE_WORKER = {
    "a graph process is killed": graph_process,
    "the worker is killed": worker,
    "the gateway is killed": gateway,
    "Redis was restarted": redis_back,
    "a run is created while Redis is away": redis_away,
    "Redis came back empty, a run waited": redis_flushed,
    "Postgres was restarted": postgres_back,
    "everything was killed, services first": everything,
}
TWO_WORKERS = {"one of two workers is frozen": frozen_worker}


@contextmanager
def _running(workers: int) -> Iterator[Recovery]:
    folder = Path(tempfile.mkdtemp(prefix="cb-"))
    (folder / "topology").mkdir()
    postgres, valkey = own_postgres(folder), own_valkey(folder)
    try:
        migrate.upgrade(postgres.url)
        recovery = Recovery(folder / "topology", postgres, valkey)
        recovery.topology.environment["CALLBOARD_WORKERS"] = str(workers)
        recovery.topology.start()
        try:
            yield recovery
        finally:
            recovery.topology.stop()
    finally:
        postgres.stop()
        valkey.stop()
        shutil.rmtree(folder, ignore_errors=True)


def run(rounds: int) -> None:
    """Prints a table: median and longest of so many rounds, in seconds."""
    print("| what | median | longest |\n|---|---|---|")
    for workers, blows in ((1, ONE_WORKER), (2, TWO_WORKERS)):
        with _running(workers) as recovery:
            for what, blow in blows.items():
                took = []
                for _ in range(rounds):
                    took.append(blow(recovery))
                    recovery.topology.await_ready()
                    recovery.stop_runs()
                print(f"| {what} | {statistics.median(took):.1f} | {max(took):.1f} |", flush=True)

"""A container is killed, all of it, and comes up anew: the same name, the same process numbers."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from langgraph_sdk import get_client

from callboard import embedded as services
from tests.faults import invariants
from tests.faults.conftest import GRAPHS, Topology

pytestmark = [pytest.mark.topology, pytest.mark.faults, pytest.mark.timeout(300)]

_ALONE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


@pytest.fixture(autouse=True)
def own_numbers() -> None:
    """Skips where process numbers of one's own are not to be had."""
    done = subprocess.run([*_ALONE, "true"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no process numbers of one's own here: {done.stderr.strip()}")


@dataclass
class Container(Topology):
    """``callboard supervise`` as process 1."""

    embedded: bool = False

    def start(self) -> None:
        """As of a topology. Its first process is found from here under another number."""
        program = str(Path(sys.executable).parent / "callboard")
        options = {"config": self.graphs, "port": self.port, "data": self.folder}
        services = {"DATABASE_URL": self.database_url, "REDIS_URL": self.redis_url}
        environment = {
            **os.environ,
            **({} if self.embedded else services),
            "TMPDIR": str(self.folder),
            **self.environment,
        }
        command = [*_ALONE, program, "supervise"]
        command += [text for name, value in options.items() for text in (f"--{name}", str(value))]
        with (self.folder / "up.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, cwd=self.folder
            )
        self.await_ready()

    @property
    def first(self) -> psutil.Process:
        """Process 1; nothing outlives it."""
        assert self.process is not None
        (first,) = psutil.Process(self.process.pid).children()
        return first

    def stop(self) -> int:
        """Tells process 1 to end, as a container's end does."""
        assert self.process is not None
        if self.process.poll() is None:
            self.first.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def kill(self) -> None:
        """Kills process 1, and with it all others; returns when all are gone."""
        assert self.process is not None
        parts = self._tree()
        self.first.kill()
        self.process.wait(30)
        _gone, alive = psutil.wait_procs(parts, timeout=30)
        assert not alive

    def numbers(self, kind: str) -> list[str]:
        """The numbers of the processes of a kind, as they themselves know them."""
        found = []
        for process in self.processes(kind):
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            found += [line.split()[-1] for line in lines if line.startswith("NSpid:")]
        return found


@pytest.mark.parametrize("embedded", [False, True], ids=["services elsewhere", "services inside"])
async def test_one_that_is_killed_and_started_again_takes_its_runs_back_at_once(
    tmp_path: Path,
    environment: dict[str, str],
    database_url: str,
    redis_url: str,
    free_port: int,
    side_effects: Any,
    eventually: Callable[..., Any],
    embedded: bool,
) -> None:
    """Whoever has a number of the old ones is not taken for it, nor are the files they left."""
    folder = tmp_path / "data"
    folder.mkdir()
    if embedded:
        database_url, redis_url = services.postgres_url(folder), services.valkey_url(folder)
    else:
        invariants.watch(database_url)
    # A lease that would outlast the test: nobody waits for its end.
    lasting = {**environment, "LEASE_DURATION_SECONDS": "600"}
    container = Container(
        folder, free_port, database_url, redis_url, lasting, GRAPHS, embedded=embedded
    )
    release = tmp_path / "release"
    script = {
        "script": [["sleep", 0], ["await", str(release)], ["sleep", 0]],
        "log": str(side_effects.path),
    }
    try:
        container.start()
        if embedded:
            invariants.watch(database_url)
        async with get_client(url=container.url) as client:
            thread = (await client.threads.create())["thread_id"]
            run = await client.runs.create(thread, "script", input=script, durability="sync")
            behind = await client.runs.create(thread, "echo", input={"question": "in line?"})
        await asyncio.to_thread(side_effects.await_step, "1:await")
        before = container.numbers("gateway") + container.numbers("worker")
        container.kill()
        container.start()
        await asyncio.to_thread(side_effects.await_step, "1:await", 2)
        assert container.numbers("gateway") + container.numbers("worker") == before
        release.touch()
        async with get_client(url=container.url) as client:
            for one in (run, behind):
                await client.runs.join(thread, one["run_id"])
        row = container.run_row(run["run_id"])
        assert (row["status"], row["attempt"], row["crashes"]) == ("success", 2, 1)
        assert container.run_row(behind["run_id"])["status"] == "success"
        steps = [(effect["node"], effect["attempt"]) for effect in side_effects.read()]
        assert steps == [("0:sleep", 1), ("1:await", 1), ("1:await", 2), ("2:sleep", 2)]
        invariants.check(container, side_effects.read(), eventually)
    finally:
        container.stop()

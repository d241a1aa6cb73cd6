"""Logs that are flooded, and a disk that takes no more of them."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from langgraph_sdk import get_client

from tests.faults import invariants
from tests.faults.conftest import Topology

pytestmark = [pytest.mark.topology, pytest.mark.faults, pytest.mark.timeout(300)]

DISK_BYTES = 2 * 2**20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder for logs on a disk of its own."""
    logs = tmp_path / "topology" / "logs"
    logs.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(logs)]
    if (done := subprocess.run(mount, capture_output=True, text=True)).returncode != 0:
        pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")
    yield logs
    subprocess.run(["umount", "-l", str(logs)], check=True)


def fill(disk: Path) -> Path:
    """A file that takes all the room that is left."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(b"\0" * 4096):
                pass
        except OSError:
            return filler
    raise AssertionError("the disk has no end")


async def test_a_full_disk_for_logs_stops_nothing(
    small_disk: Path,
    environment: dict[str, str],
    database_url: str,
    redis_url: str,
    free_port: int,
    eventually: Callable[..., Any],
) -> None:
    """No process dies of it, none waits for it, what dies is started again, and logs go on."""
    invariants.watch(database_url)
    topology = Topology(small_disk.parent, free_port, database_url, redis_url, environment)
    topology.start()
    try:
        filler = fill(small_disk)
        before = [*topology.processes("gateway"), *topology.processes("scheduler")]
        async with get_client(url=topology.url) as client:
            chatter = {"script": [["chatter", 100_000], ["sleep", 0]]}
            result = await client.runs.wait(None, "script", input=chatter)
            assert result["done"] == ["0:chatter", "1:sleep"]
            (worker,) = topology.processes("worker")
            worker.kill()
            worker.wait(10)
            eventually(lambda: topology.processes("worker"), "another worker is started")
            given = {"question": "well?"}
            assert await client.runs.wait(None, "echo", input=given) == given
            assert all(process.is_running() for process in before)
            assert psutil.disk_usage(str(small_disk)).free == 0

            filler.unlink()
            worker_log = small_disk / "worker-0.log"
            size = worker_log.stat().st_size
            assert await client.runs.wait(None, "echo", input=given) == given
            eventually(lambda: worker_log.stat().st_size > size, "logs are written again")
        invariants.check(topology, [], eventually)
    finally:
        topology.stop()


async def test_a_graph_that_prints_a_million_lines_does_not_flood_the_log(
    topology: Any, client: Any
) -> None:
    logs = topology.folder / "logs"

    def size() -> int:
        return sum(log.stat().st_size for log in logs.glob("worker-0.log*"))

    before = size()
    script = {"script": [["chatter", 1_000_000], ["sleep", 0]]}
    result = await client.runs.wait(None, "script", input=script)
    assert result["done"] == ["0:chatter", "1:sleep"]
    assert size() - before < 4 * 2**20, "of 12 MB"

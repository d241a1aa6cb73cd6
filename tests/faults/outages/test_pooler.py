"""A pooler in transaction mode between us and Postgres: few sessions of the server, lent anew to
somebody else with each transaction."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from langgraph_sdk.client import LangGraphClient

from tests import lines
from tests.faults.outages.services import Service
from tests.faults.outages.test_postgres import asked_all_the_time

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")

pytestmark = [
    pytest.mark.topology,
    pytest.mark.faults,
    pytest.mark.skipif(
        PGBOUNCER is None and "CI" not in os.environ, reason="PgBouncer is not installed"
    ),
]

SESSIONS = 4
"""Of the server; the topology has some twenty connections."""


@dataclass
class Pooler:
    """PgBouncer, at one port however often it is started."""

    server_port: int
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="cb-", dir="/tmp")))
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        assert PGBOUNCER is not None, "PgBouncer is not installed"
        if not self.port:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.port = free.getsockname()[1]
        config = self.folder / "pgbouncer.ini"
        config.write_text(
            f"""[databases]
postgres = host=127.0.0.1 port={self.server_port} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {SESSIONS}
max_client_conn = 500
server_login_retry = 1
"""
        )
        # It does not run as root; what it reads it has read before it becomes somebody else.
        whoever = ["-u", "nobody"] if os.geteuid() == 0 else []
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen([PGBOUNCER, *whoever, config], stderr=log)
        self._await()

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def _await(self) -> None:
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                assert self.process is not None
                assert self.process.poll() is None, self.log()


@pytest.fixture(scope="module")
def pooler(module_database_url: str) -> Iterator[Pooler]:
    with lines.to_postgres(module_database_url) as line:
        port = urlsplit(line.url).port
        assert port is not None
        pooler = Pooler(port)
        pooler.start()
        yield pooler
        pooler.kill()
        shutil.rmtree(pooler.folder)


@pytest.fixture(scope="module")
def environment(environment: dict[str, str], pooler: Pooler, postgres: Service) -> dict[str, str]:
    return {
        **environment,
        "DATABASE_URL": pooler.url,
        "DATABASE_PREPARE_THRESHOLD": "none",
        "DATABASE_MIGRATION_URL": postgres.url,
        # Together more than Postgres allows: that is what a pooler is for.
        "DATABASE_POOL_MAX": "100",
    }


async def test_everything_goes_through_a_pooler(
    topology: Any,
    client: LangGraphClient,
    side_effects: Any,
    tmp_path: Path,
    eventually: Callable[..., Any],
) -> None:
    thread = (await client.threads.create(metadata={"of": "the pooler"}))["thread_id"]
    asked = await client.runs.wait(thread, "ask", input={"question": "really?"})
    assert asked["__interrupt__"][0]["value"] == {"question": "really?"}
    told = [part async for part in client.runs.stream(thread, "ask", command={"resume": "yes"})]
    assert told[-1].data == {"question": "really?", "answer": "yes"}
    await client.threads.update_state(thread, {"answer": "no"})
    assert (await client.threads.get_state(thread))["values"]["answer"] == "no"
    history = await client.threads.get_history(thread)
    assert [state["values"].get("answer") for state in history][:2] == ["no", "yes"]
    copy = await client.threads.copy(thread)
    assert len(await client.threads.get_history(copy["thread_id"])) == len(history)
    found = await client.threads.search(metadata={"of": "the pooler"}, values={"answer": "no"})
    assert {one["thread_id"] for one in found} == {thread, copy["thread_id"]}
    await client.threads.prune([copy["thread_id"]], strategy="keep_latest")
    assert len(await client.threads.get_history(copy["thread_id"])) == 1
    await client.threads.delete(copy["thread_id"])

    await client.store.put_item(["a", "b"], key="one", value={"n": 1})
    assert (await client.store.get_item(["a", "b"], key="one"))["value"] == {"n": 1}
    assert len((await client.store.search_items(["a"], filter={"n": 1}))["items"]) == 1
    assistant = await client.assistants.create("echo", name="through a pooler")
    await client.assistants.update(assistant["assistant_id"], description="still")
    assert len(await client.assistants.get_versions(assistant["assistant_id"])) == 2
    cron = await client.crons.create("echo", schedule="0 0 1 1 *", input={"question": "?"})
    await client.crons.delete(cron["cron_id"])

    log = {"log": str(side_effects.path)}
    steps = {"script": [["tick", [3, 0.01]]] * 20, **log}
    many = [client.runs.wait(None, "script", input=steps, durability="sync") for _ in range(8)]
    for one in await asyncio.gather(*many):
        assert len(one["done"]) == 20

    # Enqueued, delayed, cancelled, and one whose process dies.
    release = tmp_path / "release"
    await client.runs.create(thread, "script", input={"script": [["await", str(release)]], **log})
    await asyncio.to_thread(side_effects.await_step, "0:await")
    behind = await client.runs.create(thread, "echo", input={"question": "in line?"})
    delayed = await client.runs.create(thread, "echo", input={"question": "late"}, after_seconds=1)
    release.touch()
    for run in (behind, delayed):
        await client.runs.join(thread, run["run_id"])
    other = (await client.threads.create())["thread_id"]
    endless = {"script": [["hold", str(tmp_path / "never")]], **log}
    stopped = await client.runs.create(other, "script", input=endless)
    await asyncio.to_thread(side_effects.await_step, "0:hold")
    await client.runs.cancel(other, stopped["run_id"], wait=True)
    assert topology.run_row(stopped["run_id"])["status"] == "interrupted"
    dying = {"script": [["once", [str(tmp_path / "died"), ["kill", "SIGKILL"]]]], **log}
    assert (await client.runs.wait(other, "script", input=dying))["done"] == ["0:once"]


async def test_a_pooler_that_is_killed_costs_no_run_anything(
    topology: Any,
    client: LangGraphClient,
    side_effects: Any,
    pooler: Pooler,
    tmp_path: Path,
) -> None:
    release = tmp_path / "release"
    log = {"log": str(side_effects.path)}
    script = {"script": [["tick", [3, 0]], ["await", str(release)], ["tick", [3, 0]]], **log}
    waiters = [asyncio.create_task(client.runs.wait(None, "script", input=script))]
    await asyncio.to_thread(side_effects.await_step, "1:await")
    steps = {"script": [["tick", [1, 0.02]]] * 60, **log}
    busy = [
        asyncio.create_task(client.runs.wait(None, "script", input=steps, durability="sync"))
        for _ in range(2)
    ]
    await asyncio.to_thread(side_effects.await_step, "20:tick", 2)
    async with asked_all_the_time(topology.url) as answers:
        pooler.kill()
        await asyncio.sleep(3)
        await asyncio.to_thread(pooler.start)
        release.touch()
        for one in await asyncio.gather(*waiters):
            assert one["done"] == ["0:tick", "1:await", "2:tick"]
        for one in await asyncio.gather(*busy):
            assert one["done"] == [f"{at}:tick" for at in range(60)]
    assert set(answers) <= {200, 503}
    assert {effect["attempt"] for effect in side_effects.read()} == {1}

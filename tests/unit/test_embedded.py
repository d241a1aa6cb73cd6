"""The embedded servers: start after anything, alone on their folder, and end with their parent."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
import redis

from callboard import embedded
from callboard.embedded import EmbeddedError, Server


@pytest.fixture
def started() -> Iterator[list[Server]]:
    """Servers to stop in the end."""
    servers: list[Server] = []
    yield servers
    for server in servers:
        server.stop()


@pytest.fixture
def folder(service_folder: Path, tmp_path: Path) -> Path:
    return service_folder / tmp_path.name


def eventually(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_postgres_keeps_its_data_over_stop_and_kill(folder: Path, started: list[Server]) -> None:
    server = embedded.start_postgres(folder)
    started.append(server)
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept (n int)")
        connection.execute("INSERT INTO kept VALUES (1)")
    server.stop()
    assert server.process.returncode == 0

    server = embedded.start_postgres(folder)
    started.append(server)
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("INSERT INTO kept VALUES (2)")
        server.process.kill()
    server.process.wait()

    server = embedded.start_postgres(folder)
    started.append(server)
    with psycopg.connect(server.url) as connection:
        assert connection.execute("SELECT n FROM kept ORDER BY n").fetchall() == [(1,), (2,)]


def test_postgres_does_not_depend_on_the_environment(
    folder: Path, started: list[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "PGPORT": "1",
        "PGDATA": "/nowhere",
        "LANG": "xx_XX",
        "TZ": "Asia/Tokyo",
    }.items():
        monkeypatch.setenv(name, value)
    started.append(embedded.start_postgres(folder, durable=False))
    monkeypatch.delenv("PGPORT")
    with psycopg.connect(started[0].url) as connection:
        row = connection.execute(
            "SELECT current_setting('server_encoding'), current_setting('timezone'), current_user"
        ).fetchone()
    assert row == ("UTF8", "UTC", "postgres")


def test_a_stale_pid_file_with_a_living_number_is_no_obstacle(
    folder: Path, started: list[Server]
) -> None:
    """In a container the number of a dead postmaster soon belongs to another program."""
    embedded.start_postgres(folder, durable=False).stop()
    pid_file = next(folder.glob("postgres-*")) / "postmaster.pid"
    pid_file.write_text(f"{os.getpid()}\n{pid_file.parent}\n0\n5432\n\n\n\nready\n")
    started.append(embedded.start_postgres(folder, durable=False))
    with psycopg.connect(started[0].url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_an_unfinished_cluster_is_not_used(folder: Path, started: list[Server]) -> None:
    (folder / "postgres-18.new").mkdir(parents=True)
    (folder / "postgres-18.new" / "PG_VERSION").write_text("18")
    started.append(embedded.start_postgres(folder, durable=False))


def test_a_long_path_is_no_obstacle(folder: Path, started: list[Server]) -> None:
    long = folder / "a-folder-with-a-rather-long-name" / ("x" * 100)
    started.append(embedded.start_postgres(long, durable=False))
    psycopg.connect(started[0].url).close()
    sockets = embedded.socket_folder(long)
    assert sockets.stat().st_mode & 0o777 == 0o700
    started[0].stop()
    (sockets / "postgres").rmdir()
    sockets.rmdir()


def test_a_cluster_of_another_major_version_is_not_passed_over(folder: Path) -> None:
    (folder / "postgres-17").mkdir(parents=True)
    with pytest.raises(EmbeddedError, match="postgres-17"):
        embedded.start_postgres(folder, durable=False)


def test_a_folder_that_is_somebody_elses_is_refused(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "run").symlink_to("/tmp")
    with pytest.raises(EmbeddedError, match="in the way"):
        embedded.start_valkey(folder)


@pytest.mark.parametrize("server", ["postgres", "valkey"])
def test_two_servers_never_share_a_folder(
    folder: Path, started: list[Server], server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = embedded.start_postgres if server == "postgres" else embedded.start_valkey
    started.append(start(folder, durable=False))
    monkeypatch.setattr(embedded, "_LOCK_SECONDS", 0.0)
    with pytest.raises(EmbeddedError, match="another server"):
        embedded.lock(folder / f"{server}.lock")


def test_valkey_keeps_its_data_over_a_kill(folder: Path, started: list[Server]) -> None:
    server = embedded.start_valkey(folder)
    started.append(server)
    with redis.Redis.from_url(f"{server.url}/3") as client:
        client.xadd("stream", {"a": "b"})
        client.config_set("appendfsync", "always")
        client.xadd("stream", {"a": "c"})
    server.process.kill()
    server.process.wait()
    server = embedded.start_valkey(folder)
    started.append(server)
    with redis.Redis.from_url(f"{server.url}/3") as client:
        assert client.xlen("stream") == 2


def test_valkey_on_its_socket_is_reached_under_its_url(folder: Path) -> None:
    folder.mkdir(parents=True)
    command = [sys.executable, "-P", "-m", "callboard", "valkey", "--data", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        client = redis.Redis.from_url(embedded.valkey_url(folder))

        def answers() -> bool:
            assert process.poll() is None
            try:
                return bool(client.ping())
            except redis.ConnectionError:
                return False

        eventually(answers)
        client.close()
    finally:
        process.terminate()
        process.wait()


@pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells a process of its parent's end"
)
def test_servers_end_when_their_parent_is_killed(folder: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from callboard import embedded\n"
        "folder = Path(sys.argv[1])\n"
        "servers = [embedded.start_postgres(folder), embedded.start_valkey(folder)]\n"
        "print(*[server.process.pid for server in servers], flush=True)\n"
        "sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    servers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    _gone, alive = psutil.wait_procs(servers, timeout=30)
    assert len(servers) == 2
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]

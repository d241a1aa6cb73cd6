"""Real services for every test: one Postgres and one Valkey a session, a clean database a test.

The services are started here, from the same embedded servers that ``callboard up`` uses, unless
``TEST_DATABASE_URL`` and ``TEST_REDIS_URL`` name running ones (``scripts/test`` does not set them).
"""

import faulthandler
import gc
import itertools
import os
import shutil
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
import pytest_timeout
import redis
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

_logical_databases = itertools.count()

_TOGETHER = ("tests/clients", "tests/contract")
"""Folders whose files share a server, which takes as long to start as many of its tests."""
_ALONE = ("tests/contract/test_up.py",)
"""Files there that need none of the shared servers."""


class _WholeFolders(LoadScopeScheduling):
    """A file is not divided among processes, nor are files that share a server."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        folder = file.rpartition("/")[0]
        return folder if folder in _TOGETHER and file not in _ALONE else file

    def remove_node(self, node: WorkerController) -> str | None:
        """What a process has died of is not given to the next one: it would die of it too."""
        units = self.assigned_work[node].values()
        died_of = next((id for unit in units for id, done in unit.items() if not done), None)
        if died_of is not None:
            self.assigned_work[node][self._split_scope(died_of)][died_of] = True
        super().remove_node(node)
        return died_of


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _WholeFolders:
    return _WholeFolders(config, log)


_ENDING_SECONDS = 120.0
"""How long a test that ran into its time limit may take to clean up."""
_STDERR = pytest.StashKey[int]()
"""Where it goes when pytest does not capture it."""


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_STDERR] = os.dup(2)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Ends this process, and shows where it was, when a test outlives its time limit.

    pytest-timeout raises an exception in the main thread, once: a clean-up that then waits for what
    never comes, or a loop that takes the exception for a callback's, would wait for ever. Another
    process takes the rest of the tests.
    """
    limit = pytest_timeout._get_item_settings(item).timeout or 0.0

    def give_up() -> None:
        stderr = item.config.stash[_STDERR]
        os.write(stderr, f"\n{item.nodeid} does not end:\n".encode())
        faulthandler.dump_traceback(stderr)
        os._exit(1)

    watchdog = threading.Timer(limit + _ENDING_SECONDS, give_up)
    watchdog.daemon = True
    if limit:
        watchdog.start()
    try:
        return (yield)
    finally:
        watchdog.cancel()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shows failures without collecting garbage meanwhile.

    A traceback is shown by parsing its sources. Python 3.11 cannot parse while it parses: should
    garbage be collected just then, and a finalizer (or a thread that gets its turn in one) parse
    too, as hypothesis and LangChain do, it ends in "AST constructor recursion depth mismatch", and
    pytest with it.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def _with_database(url: str, name: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"/{name}"))


def _await_service(probe: str, attempt: object) -> None:
    """Calls ``attempt`` until it no longer raises; fails after 30 s."""
    deadline = time.monotonic() + 30
    while True:
        try:
            attempt()  # type: ignore[operator]  # a zero-argument probe
            return
        except (psycopg.OperationalError, redis.ConnectionError):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{probe} did not become ready in 30 s") from None
            time.sleep(0.02)


@pytest.fixture(scope="session")
def service_folder() -> Iterator[Path]:
    """A short path for sockets and data (a Unix socket's path may have 107 bytes)."""
    folder = Path(tempfile.mkdtemp(prefix="cb-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def _temporary_folder(service_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What a server leaves in the temporary folder goes with the session.

    That is a lock for each worker slot: the databases of a deployment are few, those of tests many.
    """
    tmp_path_factory.getbasetemp()  # pytest's own is where it was, and stays for a while
    folder = service_folder / "tmp"
    folder.mkdir()
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)


@pytest.fixture(scope="session")
def postgres_server(service_folder: Path) -> Iterator[str]:
    """URL of a Postgres server, without fsync."""
    if url := os.environ.get("TEST_DATABASE_URL"):
        yield url
        return
    from callboard import embedded

    server = embedded.start_postgres(service_folder / "pg", durable=False)
    _await_service("Postgres", lambda: psycopg.connect(server.url).close())
    yield server.url
    server.stop()


@pytest.fixture(scope="session")
def redis_server(service_folder: Path) -> Iterator[str]:
    """URL of a Valkey server, without a database number."""
    if url := os.environ.get("TEST_REDIS_URL"):
        yield url
        return
    from callboard import embedded

    server = embedded.start_valkey(service_folder / "valkey", durable=False)
    _await_service("Valkey", lambda: redis.Redis.from_url(server.url).ping())
    yield server.url
    server.stop()


@pytest.fixture(scope="session")
def template_database(postgres_server: str) -> Iterator[str]:
    """Name of a database with all tables, migrated once; each test gets a clone."""
    from persistence import migrate

    name = f"template_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres_server, autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}"')
    migrate.upgrade(_with_database(postgres_server, name))
    yield name
    with psycopg.connect(postgres_server, autocommit=True) as admin:
        admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@contextmanager
def _clone(postgres_server: str, template: str) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres_server, autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY FILE_COPY')
    yield _with_database(postgres_server, name)
    with psycopg.connect(postgres_server, autocommit=True) as admin:
        admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def _empty_redis(redis_server: str) -> str:
    url = f"{redis_server.rstrip('/')}/{next(_logical_databases) % 16}"
    client = redis.Redis.from_url(url)
    client.flushdb()
    client.close()
    return url


def _unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def database_url(postgres_server: str, template_database: str) -> Iterator[str]:
    """URL of a fresh, migrated database."""
    with _clone(postgres_server, template_database) as url:
        yield url


@pytest.fixture
def redis_url(redis_server: str) -> str:
    """URL of an empty logical database of its own."""
    return _empty_redis(redis_server)


@pytest.fixture
def free_port() -> int:
    """A TCP port that was free a moment ago."""
    return _unused_port()


@pytest.fixture(scope="module")
def module_database_url(postgres_server: str, template_database: str) -> Iterator[str]:
    """URL of a migrated database that the tests of a module share."""
    with _clone(postgres_server, template_database) as url:
        yield url


@pytest.fixture(scope="module")
def module_redis_url(redis_server: str) -> str:
    """URL of a logical database that the tests of a module share."""
    return _empty_redis(redis_server)


@pytest.fixture(scope="module")
def module_port() -> int:
    """A TCP port for what the tests of a module share."""
    return _unused_port()

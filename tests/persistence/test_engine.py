"""The pool: what counts as unavailable, and how soon it is well again."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path

import psutil
import psycopg
import pytest
import sqlalchemy as sa
from pydantic import ValidationError

from persistence import runs
from persistence.engine import Database
from persistence.errors import Unavailable
from persistence.settings import DatabaseSettings
from persistence.watch import Watch
from tests import lines
from tests.faults.outages.services import Service, own_postgres
from tests.lines import Line
from tests.persistence.sample import create


async def test_nobody_listens(free_port: int) -> None:
    url = f"postgresql://nobody@127.0.0.1:{free_port}/none"
    async with Database(DatabaseSettings(url=url, pool_timeout_seconds=0.3)) as database:
        with pytest.raises(Unavailable, match="refused"):
            await database.ping()
    with pytest.raises(Unavailable):
        await database.ping()


async def test_a_killed_backend_is_unavailable_once(db: Database) -> None:
    async with db.connection() as first, db.connection() as second, db.connection() as third:
        pids = [connection.info.backend_pid for connection in (first, second, third)]

    async def use_a_killed_one() -> None:
        async with db.connection() as connection:
            with psycopg.connect(db.settings.url, autocommit=True) as outside:
                outside.execute(
                    "SELECT pg_terminate_backend(pid, 30000) FROM unnest(%s) pid", [pids]
                )
            await connection.execute("SELECT 1")

    with pytest.raises(Unavailable):
        await use_a_killed_one()
    # The others died with it: after one loss all that are as old are replaced.
    for _ in range(4):
        await db.ping()


async def test_backends_that_died_unused_are_not_missed(db: Database) -> None:
    """Whoever comes next gets a fresh connection, and need not wait for the others to be found."""
    async with AsyncExitStack() as all_of_them:
        for _ in range(10):
            await all_of_them.enter_async_context(db.connection())
    with psycopg.connect(db.settings.url, autocommit=True) as outside:
        outside.execute(
            "SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )
    for _ in range(3):
        await create(db)


class Processes:
    """All processes of a server, that may be stopped."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._stopped: list[psutil.Process] = []

    def hold(self) -> None:
        self._stopped = self._service.family()
        for process in self._stopped:
            process.suspend()

    def mend(self) -> None:
        for process in self._stopped:
            with suppress(psutil.NoSuchProcess):
                process.resume()


@pytest.fixture(params=["stopped", "black hole"])
async def frozen(
    request: pytest.FixtureRequest, service_folder: Path
) -> AsyncIterator[tuple[Database, Line | Processes]]:
    """A database on a server of its own, and the way to freeze it."""
    folder = service_folder / f"own-{id(request)}"
    folder.mkdir()
    with ExitStack() as stack:
        service = own_postgres(folder)
        stack.callback(service.stop)
        url = service.url
        part: Line | Processes = Processes(service)
        if request.param == "black hole":
            part = stack.enter_context(lines.to_postgres(url))
            url = part.url
        async with Database(DatabaseSettings(url=url, connect_timeout_seconds=1)) as database:
            yield database, part
            part.mend()


async def test_nobody_waits_for_a_frozen_server(frozen: tuple[Database, Line | Processes]) -> None:
    database, part = frozen
    assert await database.fetch_one("SELECT pg_sleep(4)"), "slow is not frozen"
    async with AsyncExitStack() as some:
        for _ in range(3):
            await some.enter_async_context(database.connection())

    async def write() -> None:
        async with database.transaction() as connection:
            await connection.execute("CREATE TABLE begun ()")
            part.hold()
            await connection.execute("CREATE TABLE never ()")

    async with asyncio.timeout(60):
        with pytest.raises(Unavailable):
            await write()
        for _ in range(3):
            with pytest.raises(Unavailable):
                await database.ping()
    part.mend()
    await _answers(database)
    await asyncio.gather(*(database.ping() for _ in range(8)))
    tables = await database.fetch_all(
        "SELECT relname FROM pg_class WHERE relname IN ('begun', 'never')"
    )
    assert tables == [], "what was not committed is undone"


async def _answers(database: Database) -> None:
    """Returns when the database answers; fails when it does not for a minute."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await database.ping()
            except Unavailable:
                await asyncio.sleep(0.1)


async def test_a_dead_line_is_given_up_though_the_server_lives(database_url: str) -> None:
    """Long before the server would have ended the statement, which it has long done."""
    lock = "SELECT pg_advisory_lock(7)"
    with lines.to_postgres(database_url) as line:
        settings = DatabaseSettings(url=line.url, statement_timeout_seconds=600)
        async with (
            Database(settings) as database,
            asyncio.timeout(60),
            await psycopg.AsyncConnection.connect(database_url, autocommit=True) as outside,
        ):
            await outside.execute(lock)
            asking = asyncio.create_task(database.execute(lock))
            done, _ = await asyncio.wait({asking}, timeout=4)
            assert not done, "the server works for it, if only by waiting"
            line.hold()
            await outside.execute("SELECT pg_advisory_unlock(7)")
            line.mend()
            with pytest.raises(Unavailable):
                await asking
            await _answers(database)  # a greeting may have been on the dead line too


async def test_a_queue_that_nobody_serves_is_silence(service_folder: Path) -> None:
    """As after minutes, when all who were not greeted still wait in front of a Unix socket."""
    path = service_folder / ".s.PGSQL.7"
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(path))
        listener.listen(0)
        with suppress(BlockingIOError):
            while True:
                line = stack.enter_context(socket.socket(socket.AF_UNIX))
                line.setblocking(False)
                line.connect(str(path))

        async def greet(numbers: Sequence[int]) -> Sequence[int]:
            url = f"host={service_folder} port=7 connect_timeout=30"
            await psycopg.AsyncConnection.connect(url)
            return numbers

        watch = Watch(greet, patience=30, limit=0)
        await watch._look()
        assert watch.is_frozen


async def test_read_only_is_unavailable(db: Database) -> None:
    async def write() -> None:
        async with db.transaction() as connection:
            await connection.execute("SET TRANSACTION READ ONLY")
            await connection.execute("DELETE FROM runs")

    with pytest.raises(Unavailable, match="read-only"):
        await write()


async def test_no_free_connection_is_unavailable(database_url: str) -> None:
    settings = DatabaseSettings(url=database_url, pool_max=1, pool_timeout_seconds=0.1)
    async with Database(settings) as database:
        async with database.connection():
            with pytest.raises(Unavailable):
                await database.ping()
        await database.ping()


async def test_too_slow_is_unavailable(database_url: str) -> None:
    settings = DatabaseSettings(url=database_url, statement_timeout_seconds=0.05)
    async with Database(settings) as database:
        with pytest.raises(Unavailable):
            await database.fetch_one("SELECT pg_sleep(60)")


async def test_a_stopped_process_holds_no_lock_for_long(database_url: str) -> None:
    settings = DatabaseSettings(url=database_url, statement_timeout_seconds=0.2)
    async with Database(settings) as database:
        run = await create(database)

        async def stop_in_between() -> None:
            async with database.transaction() as connection:
                await connection.execute("SELECT 1 FROM threads FOR UPDATE")
                async with asyncio.timeout(30):
                    await _readable(connection.fileno())  # the server hangs up
                await connection.execute("SELECT 1")

        with pytest.raises(Unavailable):
            await stop_in_between()
        await create(database, run.thread_id)


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    seen = asyncio.Event()
    loop.add_reader(descriptor, seen.set)
    try:
        await seen.wait()
    finally:
        loop.remove_reader(descriptor)


@pytest.mark.parametrize("statement", ["SELEC 1", "SELECT 1/0", "SELECT * FROM nowhere"])
async def test_a_mistake_is_not_unavailable(db: Database, statement: str) -> None:
    with pytest.raises(psycopg.Error):
        await db.execute(statement)


async def test_a_cancelled_caller_leaves_the_pool_whole(db: Database) -> None:
    waiting = [asyncio.create_task(db.execute("SELECT pg_sleep(60)")) for _ in range(10)]
    while True:
        async with asyncio.timeout(30):
            # All ten connections are lent, so look from outside.
            with psycopg.connect(db.settings.url, autocommit=True) as outside:
                row = outside.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)%'"
                    " AND state = 'active' AND pid <> pg_backend_pid()"
                    " AND datname = current_database()"
                ).fetchone()
            if row == (10,):
                break
            await asyncio.sleep(0.01)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await asyncio.gather(*(db.ping() for _ in range(10)))


async def test_without_prepared_statements_everything_works(database_url: str) -> None:
    settings = DatabaseSettings(url=database_url, prepare_threshold=None)
    async with Database(settings) as database:
        run = await create(database)
        for _ in range(3):
            assert len(await runs.claim(database, [run.run_id], "h/1/a", 30)) == 1
            assert len(await runs.settle(database, [])) == 0
            attempt = (await runs.get(database, run.thread_id, run.run_id)).attempt
            assert len(await runs.hand_back(database, "h/1/a", [(run.run_id, attempt)])) == 1
        assert await database.fetch_all("SELECT 1 FROM pg_prepared_statements") == []


async def test_core_statements_run_on_the_pool(db: Database) -> None:
    row = await db.fetch_one(
        sa.select(
            sa.literal("50%", sa.Text).label("a"), sa.bindparam("b", type_=sa.Text).label("b")
        ),
        {"b": "x\0"},
    )
    assert row == {"a": "50%", "b": "x\ufffd"}


@pytest.fixture
async def environment() -> AsyncIterator[None]:
    kept = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(kept)


@pytest.mark.usefixtures("environment")
def test_settings_come_from_the_environment_as_they_are() -> None:
    url = "postgres://u:p%40%25@/db?host=/var/run&sslmode=verify-full"
    os.environ |= {"DATABASE_URL": url, "DATABASE_PREPARE_THRESHOLD": "none"}
    settings = DatabaseSettings()  # type: ignore[call-arg]  # the environment gives the rest
    assert (settings.url, settings.prepare_threshold) == (url, None)
    assert "p%40" not in repr(settings)
    os.environ["DATABASE_URL"] = "postgresql+psycopg://u@h/db"
    assert DatabaseSettings().url == "postgresql://u@h/db"  # type: ignore[call-arg]  # idem
    os.environ |= {"DATABASE_POOL_MIN": "9", "DATABASE_POOL_MAX": "2"}
    with pytest.raises(ValidationError, match="DATABASE_POOL_MIN is 9"):
        DatabaseSettings()  # type: ignore[call-arg]  # idem

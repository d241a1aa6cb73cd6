"""Revisions go up, down and up; models say what migrations do; starting together is safe."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit
from uuid import uuid4

import psycopg
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.script import ScriptDirectory

from persistence import migrate
from persistence.errors import Unavailable
from persistence.models import metadata

ROOT = Path(migrate.__file__).parents[1]


@pytest.fixture
def empty_url(postgres_server: str) -> Iterator[str]:
    """URL of a database without any table."""
    name = f"empty_{uuid4().hex[:12]}"
    with psycopg.connect(postgres_server, autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}"')
    yield urlunsplit(urlsplit(postgres_server)._replace(path=f"/{name}"))
    with psycopg.connect(postgres_server, autocommit=True) as admin:
        admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def _revisions() -> list[str]:
    folder = str(ROOT / "persistence" / "migrations")
    return [script.revision for script in ScriptDirectory(folder).walk_revisions()][::-1]


def test_up_down_up(empty_url: str) -> None:
    before = "base"
    for revision in _revisions():
        migrate.upgrade(empty_url, revision)
        migrate.downgrade(empty_url, before)
        migrate.upgrade(empty_url, revision)
        before = revision
    assert migrate.is_current(empty_url)
    migrate.downgrade(empty_url, "base")
    assert not migrate.is_current(empty_url)
    with psycopg.connect(empty_url) as connection:
        left = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
        ).fetchall()
    assert {name for (name,) in left}.isdisjoint(metadata.tables)


def _schema(url: str) -> dict[str, list[tuple[object, ...]]]:
    """All that Postgres knows of our tables, in its own words."""
    statements = {
        "columns": """SELECT table_name, column_name, data_type, is_nullable, column_default,
            is_identity FROM information_schema.columns WHERE table_name = ANY(%s)""",
        "constraints": """SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid)
            FROM pg_constraint WHERE conrelid::regclass::text = ANY(%s) AND contype <> 'n'""",
        "indexes": """SELECT tablename, indexname, indexdef FROM pg_indexes
            WHERE tablename = ANY(%s)""",
    }
    tables = list(metadata.tables)
    with psycopg.connect(url) as connection:
        return {
            name: sorted(connection.execute(statement, [tables]).fetchall())
            for name, statement in statements.items()
        }


def test_models_and_migrations_agree(empty_url: str, database_url: str) -> None:
    with migrate._connection(database_url) as connection:
        command.check(migrate._config(connection))
    # Alembic's comparison leaves out CHECKs, defaults and the predicates of partial indexes.
    engine = sa.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(empty_url), poolclass=sa.NullPool
    )
    metadata.create_all(engine)
    assert _schema(empty_url) == _schema(database_url)


def test_many_processes_start_at_once(empty_url: str) -> None:
    program = f"from persistence import migrate; migrate.upgrade({empty_url!r})"
    with psycopg.connect(empty_url, autocommit=True) as other:
        assert migrate._try_lock(other)
        started = [
            subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.PIPE)
            for _ in range(4)
        ]
        # All of them stand before the lock; one that waited inside Postgres would keep LangGraph's
        # CREATE INDEX CONCURRENTLY waiting in turn.
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%advisory_lock%'"
        waiting += " AND datname = current_database() AND pid <> pg_backend_pid()"
        while other.execute(waiting).fetchone() != (len(started),):
            assert all(process.poll() is None for process in started)
            time.sleep(0.02)
    for process in started:
        _, errors = process.communicate(timeout=100)
        assert process.returncode == 0, errors.decode()
    assert migrate.is_current(empty_url)


def test_at_head_no_lock_is_taken(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as other:
        assert migrate._try_lock(other)
        migrate.upgrade(database_url)


def test_a_database_that_is_away_is_unavailable(free_port: int) -> None:
    with pytest.raises(Unavailable):
        migrate.upgrade(f"postgresql://nobody@127.0.0.1:{free_port}/none")


def test_any_libpq_url_will_do(empty_url: str) -> None:
    """Whether the server that tests use listens on a port or on a socket only."""
    with psycopg.connect(empty_url, autocommit=True) as admin:
        row = admin.execute("SHOW unix_socket_directories").fetchone()
        host, port = admin.info.host, admin.info.port
        user, name = admin.info.user, admin.info.dbname
    socket_folders = row[0].split(",") if row else []
    hosts = dict.fromkeys([host, *(folder.strip().strip('"') for folder in socket_folders)])
    separator = "&" if "?" in empty_url else "?"
    urls = [empty_url.replace("postgresql://", "postgres://") + f"{separator}sslmode=prefer"]
    for host in filter(None, hosts):
        address = f"{quote(host, safe='')}:{port}"
        urls += [
            f"postgresql://{user}:p%40ss%25word@{address}/{name}",
            f"host={host} port={port} user={user} dbname={name}",
        ]
    for url in urls:
        migrate.upgrade(url)
        assert migrate.is_current(url)

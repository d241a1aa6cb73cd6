"""Brings the schema, ours and LangGraph's, to the version this code wants.

Any number of processes may call ``upgrade`` at once: one works, the others wait. At head nothing is
locked, so a start costs two reads.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files

import psycopg
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from psycopg.rows import DictRow, dict_row

from persistence import checkpoints, store_tables
from persistence.errors import Unavailable

VERSION_TABLE = "callboard_version"

_LOCK = 0x63616C6C626F6172  # "callboar", as good a bigint as any
_LOCK_PATIENCE_SECONDS = 600


def upgrade(url: str, revision: str = "head", *, vector_dims: int | None = None) -> None:
    """Upgrades to ``revision``; at head this changes nothing and takes no lock.

    url: anything libpq accepts. Behind a pooler in transaction mode give a direct one: the lock
    belongs to a session. vector_dims: length of the store's embeddings, for a project that has
    some. Raises Unavailable when the database cannot be reached, and IndexRefused when it cannot
    hold such embeddings.
    """
    with _as_unavailable():
        if revision == "head" and is_current(url, vector_dims):
            return
        with _locked(url):
            with _connection(url) as connection:
                command.upgrade(_config(connection), revision)
            with _autocommit(url) as langgraphs:
                checkpoints.set_up(langgraphs)
                store_tables.set_up(langgraphs, vector_dims)


def downgrade(url: str, revision: str) -> None:
    """Takes our tables back to ``revision`` ("base" for none); LangGraph's are left alone."""
    with _as_unavailable(), _locked(url), _connection(url) as connection:
        command.downgrade(_config(connection), revision)


def is_current(url: str, vector_dims: int | None = None) -> bool:
    """Whether the database is at the version this code wants."""
    with _connection(url) as connection:
        script = ScriptDirectory.from_config(_config(connection))
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
        at_head = set(context.get_current_heads()) == set(script.get_heads())
    if not at_head:
        return False
    with _autocommit(url) as langgraphs:
        try:
            return checkpoints.is_current(langgraphs) and store_tables.is_current(
                langgraphs, vector_dims
            )
        except psycopg.errors.UndefinedTable:
            return False


def _config(connection: sa.Connection) -> Config:
    config = Config()
    # Alembic interpolates "%"; a folder's name may hold one.
    folder = str(files("persistence") / "migrations").replace("%", "%%")
    config.set_main_option("script_location", folder)
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


@contextmanager
def _connection(url: str) -> Iterator[sa.Connection]:
    # The creator hands the URL to libpq as it came: all that libpq accepts works here too.
    engine = sa.create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(url, connect_timeout=30),
        poolclass=sa.NullPool,
    )
    with engine.connect() as connection:
        yield connection


def _autocommit(url: str) -> psycopg.Connection[DictRow]:
    # prepare_threshold None: LangGraph's migrations run once, and a pooler may stand in between.
    return psycopg.connect(
        url, autocommit=True, prepare_threshold=None, row_factory=dict_row, connect_timeout=30
    )


@contextmanager
def _locked(url: str) -> Iterator[None]:
    """Holds the one lock around all changes of the schema.

    Polls instead of waiting inside Postgres: a session that waits for an advisory lock holds a
    snapshot, and LangGraph's CREATE INDEX CONCURRENTLY waits for all older snapshots: a deadlock.
    """
    deadline = time.monotonic() + _LOCK_PATIENCE_SECONDS
    with psycopg.connect(url, autocommit=True, connect_timeout=30) as connection:
        while not _try_lock(connection):
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"another process has been migrating for {_LOCK_PATIENCE_SECONDS} s"
                )
            time.sleep(0.1)
        # Closing the session releases the lock, also when this process is killed.
        yield


def _try_lock(connection: psycopg.Connection) -> bool:
    row = connection.execute("SELECT pg_try_advisory_lock(%s)", [_LOCK]).fetchone()
    return row is not None and bool(row[0])


@contextmanager
def _as_unavailable() -> Iterator[None]:
    try:
        yield
    except psycopg.OperationalError as error:
        raise Unavailable(str(error).strip()) from error
    except sa.exc.OperationalError as error:
        raise Unavailable(str(error.orig).strip()) from error

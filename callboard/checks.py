"""What must hold before anything is started. Each check raises StartError with a sentence."""

import sys
from dataclasses import dataclass
from typing import Any

import click

from callboard import embedded
from callboard import launch as launching
from callboard.config import Project, load_project
from callboard.errors import StartError
from callboard.launch import Launch
from callboard.settings import read
from persistence.store import StoreConfig

MINIMAL_PYTHON = (3, 11)
MINIMAL_POSTGRES = 140000
MINIMAL_REDIS = (6, 2)
_SERVICE_SECONDS = 5
_RESERVED_CONNECTIONS = 5
"""For superusers, migrations and an operator's psql."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How many Postgres connections this machine's processes open at most."""

    gateways: int
    workers: int
    graph_processes: int
    scheduler: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.gateways + self.workers + self.graph_processes + self.scheduler

    def __str__(self) -> str:
        return (
            f"{self.total} connections at most: gateways {self.gateways}, workers {self.workers},"
            f" graph processes {self.graph_processes}, scheduler {self.scheduler}"
        )


def before_start(launch: Launch) -> Project:
    """All that ``callboard up`` must know to be true. Returns the project."""
    project = load_project(launch.config)
    for warning in project.warnings:
        click.echo(f"callboard: {warning}", err=True)
    needed = settings(launch)
    launching.prepare(launch)
    budget(needed, database(launch))
    if launch.database_url is not None:
        schema(launch, project.store, upgrade=True)
    if launch.redis_url is not None:
        redis(launch)
    return project


def python() -> str:
    """The interpreter is new enough."""
    if sys.version_info < MINIMAL_PYTHON:
        wanted = ".".join(map(str, MINIMAL_PYTHON))
        raise StartError(f"Python: expected {wanted} or newer, got {sys.version.split()[0]}")
    return sys.version.split()[0]


def settings(launch: Launch) -> Budget:
    """Every setting is valid, alone and together. Returns what they ask of Postgres."""
    from actors.settings import WorkerSettings
    from gateway.settings import GatewaySettings
    from persistence.settings import DatabaseSettings

    database_url = launch.database_url or embedded.postgres_url(launch.data)
    pool = read(DatabaseSettings, url=database_url).pool_max
    worker = read(WorkerSettings, redis_url=launch.redis_url or embedded.valkey_url(launch.data))
    read(GatewaySettings, host=launch.host, port=launch.port)
    processes = worker.worker_count + worker.executor_spares + 1  # the inspector
    return Budget(
        gateways=launch.gateways * pool,
        workers=launch.workers * pool,
        graph_processes=launch.workers * processes * worker.executor_pool_max,
        scheduler=pool,
    )


def database(launch: Launch) -> int | None:
    """Postgres can be reached and is new enough.

    Returns how many connections it allows; None behind a pooler in transaction mode, where ours are
    not Postgres' and nobody says how many there may be.
    """
    import psycopg

    from persistence.settings import DatabaseSettings

    if launch.database_url is None:
        return embedded.MAX_CONNECTIONS
    settings = read(DatabaseSettings, url=launch.database_url)
    url = settings.url
    try:
        with psycopg.connect(url, connect_timeout=_SERVICE_SECONDS) as connection:
            version = connection.info.server_version
            row = connection.execute("SHOW max_connections").fetchone()
    except (psycopg.Error, UnicodeError) as error:
        raise StartError(f"DATABASE_URL: cannot reach the database: {_one_line(error)}") from None
    if version < MINIMAL_POSTGRES:
        raise StartError(f"DATABASE_URL: expected PostgreSQL 14 or newer, got {version // 10000}")
    if settings.prepare_threshold is None:
        return None
    return int(row[0]) if row else 0


def budget(needed: Budget, allowed: int | None) -> str:
    """The pools of all processes fit into what Postgres allows, if that is known."""
    if allowed is None:
        return f"{needed}, through a pooler"
    if needed.total + _RESERVED_CONNECTIONS > allowed:
        raise StartError(
            f"{needed}; Postgres allows {allowed} (max_connections), of which"
            f" {_RESERVED_CONNECTIONS} are left free: raise it, or lower DATABASE_POOL_MAX,"
            " EXECUTOR_POOL_MAX, WORKER_COUNT or CALLBOARD_GATEWAYS"
        )
    return f"{needed}, of {allowed}"


def schema(launch: Launch, store: StoreConfig, *, upgrade: bool) -> str:
    """The schema is up to date, or has just been brought there."""
    import psycopg
    import sqlalchemy

    from persistence import migrate
    from persistence.errors import IndexRefused, Unavailable
    from persistence.settings import DatabaseSettings

    settings = read(DatabaseSettings, url=launch.database_url)
    url = settings.migration_url or settings.url
    try:
        if upgrade:
            migrate.upgrade(url, vector_dims=store.vector_dims)
        elif not migrate.is_current(url, store.vector_dims):
            raise StartError("not up to date: run `callboard migrate`")
    except IndexRefused as error:
        raise StartError(str(error)) from None
    except (Unavailable, psycopg.Error, sqlalchemy.exc.SQLAlchemyError) as error:
        raise StartError(f"DATABASE_URL: cannot set up the schema: {_one_line(error)}") from None
    return "up to date"


def redis(launch: Launch) -> str:
    """Redis or Valkey can be reached and is new enough. Returns its version."""
    import redis as client

    if launch.redis_url is None:
        return "embedded"
    try:
        connection = client.Redis.from_url(
            launch.redis_url, protocol=2, socket_timeout=_SERVICE_SECONDS
        )
        info: Any = connection.info("server")
        connection.close()
    except (client.RedisError, ValueError, OSError) as error:
        raise StartError(f"REDIS_URL: cannot reach Redis: {_one_line(error)}") from None
    version = str(info.get("valkey_version") or info.get("redis_version"))
    if tuple(int(part) for part in version.split(".")[:2]) < MINIMAL_REDIS:
        raise StartError(f"REDIS_URL: expected Redis 6.2 or newer, got {version}")
    return version


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__

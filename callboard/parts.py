"""The parts of the topology, each composed from the environment: gateway, worker, scheduler.

Errors that a person must mend are a ``StartError`` with a sentence; everything that may pass by
itself (a database that is not up yet) is waited for.
"""

import os
import resource
import signal
import time
from pathlib import Path

import structlog

from callboard import __version__, logs, process
from callboard.config import Project, load_project
from callboard.errors import StartError
from callboard.settings import read
from persistence import migrate
from persistence.errors import Unavailable
from persistence.settings import DatabaseSettings

log = structlog.get_logger()

_GATEWAY_PATIENCE_SECONDS = 10.0
"""A gateway waits so long for the schema, then listens and answers 503 until it is there."""

_SILENT_SECONDS = 3.0
"""An embedded database is expected to take so long: no reason for a warning."""


def gateway() -> None:
    """Serves HTTP until SIGTERM."""
    project, database_settings = _begin("gateway"), read(DatabaseSettings)
    from actors.dispatch import RedisDispatcher
    from actors.event_reader import RedisEventReader
    from gateway.app import create_app
    from gateway.server import serve
    from gateway.settings import GatewaySettings
    from persistence.engine import Database

    settings, redis_url = read(GatewaySettings), _redis_url()
    _await_schema(database_settings, _GATEWAY_PATIENCE_SECONDS)
    database = Database(database_settings)
    app = create_app(
        settings,
        database=database,
        dispatcher=RedisDispatcher(redis_url),
        events=RedisEventReader(redis_url, database),
        graph_ids=frozenset(project.graphs),
        version=__version__,
    )
    serve(app, settings)


def worker() -> int:
    """Executes runs until SIGTERM; returns the exit code."""
    project, database_settings = _begin("worker"), read(DatabaseSettings)
    from actors.errors import SlotTaken
    from actors.settings import WorkerSettings
    from actors.worker import Worker

    settings = read(WorkerSettings)
    _await_schema(database_settings)
    try:
        return Worker(settings, database_settings, project.to_child()).run()
    except SlotTaken as error:
        raise StartError(f"WORKER_SLOT: {error}") from None


def scheduler() -> int:
    """Ticks until SIGTERM; returns the exit code."""
    _begin("scheduler")
    database_settings = read(DatabaseSettings)
    from actors.scheduler import Scheduler
    from actors.settings import WorkerSettings

    settings = read(WorkerSettings)
    _await_schema(database_settings)
    return Scheduler(settings, database_settings).run()


def upgrade() -> None:
    """Brings the schema up to date, or says why it cannot."""
    logs.configure("migrate")
    settings = read(DatabaseSettings)
    try:
        migrate.upgrade(settings.migration_url or settings.url)
    except Unavailable as error:
        raise StartError(f"DATABASE_URL: cannot reach the database: {error}") from None


def _begin(part: str) -> Project:
    """What every part does first: its logs, its limits, its end with supervisord, its project."""
    if "SUPERVISOR_ENABLED" in os.environ:
        process.die_with_parent(signal.SIGKILL)
    logs.configure(part)
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # every open stream is a file
    project = load_project(Path(os.environ.get("CALLBOARD_CONFIG") or "."))
    for warning in project.warnings:
        log.warning("configuration", text=warning)
    return project


def _redis_url() -> str:
    if url := os.environ.get("REDIS_URL", "").strip():
        return url
    raise StartError("REDIS_URL: expected redis://…, rediss://… or unix://…, got nothing")


def _await_schema(settings: DatabaseSettings, patience: float = float("inf")) -> None:
    """Brings the schema up to date, as soon as the database can be reached."""
    begun, pause = time.monotonic(), 0.1
    while True:
        try:
            return migrate.upgrade(settings.migration_url or settings.url)
        except Unavailable as error:
            waited = time.monotonic() - begun
            if waited > patience:
                return
            if waited > _SILENT_SECONDS:
                log.warning("the database is not available, trying again", reason=str(error))
            time.sleep(pause)
            pause = min(pause * 2, 2.0)

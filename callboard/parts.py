"""The parts of the topology, each composed from the environment: gateway, worker, scheduler.

Errors that a person must mend are a ``StartError`` with a sentence; everything that may pass by
itself (a database that is not up yet) is waited for.
"""

import os
import resource
import signal
from pathlib import Path

import structlog

from actors.child import outlet
from callboard import logs, process, schema
from callboard.config import FILE_NAME, Project, load_project
from callboard.errors import StartError
from callboard.settings import read
from persistence.errors import Unavailable
from persistence.settings import DatabaseSettings
from persistence.store import StoreConfig

log = structlog.get_logger()

_GATEWAY_PATIENCE_SECONDS = 10.0
"""A gateway waits so long for the schema, then listens and answers 503 until it is there."""


def gateway() -> None:
    """Serves HTTP until SIGTERM."""
    project, database_settings = _begin("gateway"), read(DatabaseSettings)
    from actors.dispatch import RedisDispatcher
    from actors.event_reader import RedisEventReader
    from callboard import serving, user_code
    from gateway.settings import GatewaySettings
    from persistence.engine import Database

    settings, redis_url = read(GatewaySettings), _redis_url()
    code = user_code.load(project)
    schema.upgrade_when_reachable(database_settings, project.store, _GATEWAY_PATIENCE_SECONDS)
    database = Database(database_settings)
    serving.serve(
        project,
        code,
        settings,
        database=database,
        dispatcher=RedisDispatcher(redis_url),
        events=RedisEventReader(redis_url, database),
    )


def worker() -> int:
    """Executes runs until SIGTERM; returns the exit code."""
    project, database_settings = _begin("worker"), read(DatabaseSettings)
    from actors.errors import WorkerSlotTaken
    from actors.settings import WorkerSettings
    from actors.worker import Worker

    settings = read(WorkerSettings)
    if settings.callboard_url is None:
        settings = settings.model_copy(update={"callboard_url": _local_url(project)})
    schema.upgrade_when_reachable(database_settings, project.store)
    try:
        return Worker(settings, database_settings, project.to_child(), project.webhooks).run()
    except WorkerSlotTaken as error:
        raise StartError(f"WORKER_SLOT: {error}") from None


def scheduler() -> int:
    """Ticks until SIGTERM; returns the exit code."""
    project, database_settings = _begin("scheduler"), read(DatabaseSettings)
    from actors.scheduler import Scheduler
    from actors.settings import WorkerSettings

    settings = read(WorkerSettings)
    schema.upgrade_when_reachable(database_settings, project.store)
    return Scheduler(settings, database_settings).run()


def upgrade() -> None:
    """Brings the schema up to date, or says why it cannot.

    Of the project, when there is one, it takes what its store needs.
    """
    logs.configure("migrate")
    settings, store = read(DatabaseSettings), StoreConfig()
    config = Path(os.environ.get("CALLBOARD_CONFIG") or FILE_NAME)
    if "CALLBOARD_CONFIG" in os.environ or config.is_file():
        store = load_project(config).store
    try:
        schema.upgrade(settings, store)
    except Unavailable as error:
        raise StartError(f"DATABASE_URL: cannot reach the database: {error}") from None


def _begin(part: str) -> Project:
    """What every part does first: its logs, its limits, its end with supervisord, its project."""
    if "SUPERVISOR_ENABLED" in os.environ:
        process.die_with_parent(signal.SIGKILL)
    outlet.take_over()
    logs.configure(part)
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # every open stream is a file
    project = load_project(Path(os.environ.get("CALLBOARD_CONFIG") or "."))
    for warning in project.warnings:
        log.warning("configuration", text=warning)
    return project


def _local_url(project: Project) -> str:
    """Where the gateways of this machine serve the project."""
    from gateway.settings import GatewaySettings, local_url

    settings = read(GatewaySettings)
    return local_url(settings.host, settings.port) + project.http.mount_prefix


def _redis_url() -> str:
    if url := os.environ.get("REDIS_URL", "").strip():
        return url
    raise StartError("REDIS_URL: expected redis://…, rediss://… or unix://…, got nothing")

"""``callboard dev --in-process``: everything in one process, for a debugger.

The one place where graphs are imported beside the gateway.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click
import structlog

from actors.child import loopback
from actors.child.loader import Graphs
from actors.child.store_config import StoreConfig as GraphStoreConfig
from actors.event_memory import MemoryEventLog
from actors.inprocess import LocalDispatcher, worker_settings
from callboard import embedded, logs, schema, serving, user_code
from callboard.config import Project
from callboard.launch import Launch
from callboard.settings import read
from gateway.settings import GatewaySettings, local_url
from persistence.engine import Database
from persistence.settings import DatabaseSettings

log = structlog.get_logger(__name__)

NOTICE = """\
callboard: in-process mode, for debugging. Runs are tasks of this process, so it lacks
  isolation     a crash, sys.exit or a leak in a graph is one of the server
  recovery      runs that a crash cuts off end as errors; those of an orderly stop go on at the
                next start
  a hard stop   code that ignores a cancel goes on until the server ends (Ctrl-\\ ends it at once)
  company       one process only: no other gateway or worker may share its database
Sync nodes run in threads and hold nobody up. An async node that blocks, or stands at a breakpoint,
holds up everything, /ok and open streams included."""

_SWITCH_SECONDS = 0.0005
"""Neighbours of a thread that spins wait ten times less than with Python's 5 ms."""


def serve(launch: Launch, project: Project) -> int:
    """Serves the project until SIGTERM or SIGINT; returns the exit code. Raises StartError."""
    logs.configure("in-process")
    user_code.refuse_our_names(project, "graphs share their process with them here")
    click.echo(NOTICE, err=True)
    sys.setswitchinterval(_SWITCH_SECONDS)
    with _database_url(launch) as url:
        database_settings = read(DatabaseSettings, url=url)
        schema.upgrade(database_settings, project.store)
        os.environ.update(project.env)
        loopback.install(local_url(launch.host, launch.port) + project.http.mount_prefix)
        # Before the loop runs: a module may call asyncio.run while it is imported.
        graphs = Graphs.import_all(project.to_child())
        store = GraphStoreConfig.load(project.to_child())
        code = user_code.load(project)
        for graph_id, reason in graphs.broken.items():
            log.error("graph cannot be served", graph=graph_id, reason=reason)
        settings = read(GatewaySettings, host=launch.host, port=launch.port)
        database = Database(database_settings)
        worker = worker_settings()
        events = MemoryEventLog(
            database,
            maxlen=worker.stream_maxlen,
            max_bytes=worker.stream_max_bytes,
            ttl=float(worker.stream_ttl_seconds),
        )
        serving.serve(
            project,
            code,
            settings,
            database=database,
            dispatcher=LocalDispatcher(
                graphs, database, database_settings, events, worker, store, project.webhooks
            ),
            events=events,
        )
    return 0


@contextmanager
def _database_url(launch: Launch) -> Iterator[str]:
    """The named database, or one of our own for as long as the server runs."""
    if launch.database_url is not None:
        yield launch.database_url
        return
    server = embedded.start_postgres(launch.data)
    try:
        yield server.url
    finally:
        server.stop()

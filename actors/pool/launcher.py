"""How a graph process is started: its program, its surroundings, and the first thing it is told."""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import actors
from actors.child.protocol import Frame
from actors.errors import GraphProcessFailed
from actors.pool.graph_process import GraphProcess
from actors.settings import WorkerSettings
from persistence.settings import DatabaseSettings

_OUR_ROOT = Path(actors.__file__).resolve().parent.parent
_COMMAND = [sys.executable, "-P", "-m", "actors.child"]
_DEATH_SECONDS = 2.0
_SWITCH_INTERVAL = 0.0005
"""Seconds after which a spinning thread must let others run: ten times as often as Python's own."""


class Launcher:
    """Starts graph processes of one project, a few at a time."""

    def __init__(
        self, settings: WorkerSettings, project: Mapping[str, Any], database: DatabaseSettings
    ) -> None:
        """project: ``root``, ``graphs``, ``dependencies``, ``env``, as the child is told them."""
        self._settings = settings
        self._project = project
        self._database = database
        # Imports cost a second of CPU each: more starts at once than cores only delay the first.
        self._starts = asyncio.Semaphore(max(2, os.cpu_count() or 1))

    async def start(
        self,
        on_frame: Callable[[GraphProcess, Frame], None],
        on_exit: Callable[[GraphProcess], None],
    ) -> tuple[GraphProcess, Frame]:
        """Returns a process that is ready, and its ``ready`` frame.

        Waits as long as the project's imports take: starting is not dead. Raises
        GraphProcessFailed when it ends instead.
        """
        async with self._starts:
            process = GraphProcess(on_frame, on_exit, self._settings.n_jobs_per_worker)
            pings = asyncio.create_task(self._accompany(process), name="accompany")
            handed_over = False
            try:
                await process.start(_COMMAND, self._env(), self._folder(), self._init())
                ready = await asyncio.shield(process.ready)
                handed_over = True
                return process, ready
            except OSError as error:
                raise GraphProcessFailed(str(error)) from error
            finally:
                pings.cancel()
                # Also one that became ready in the moment in which this was cancelled.
                if not handed_over and process.pid:
                    process.kill()
                    await asyncio.wait({process.gone}, timeout=_DEATH_SECONDS)

    async def _accompany(self, process: GraphProcess) -> None:
        """Lets a process that imports for minutes know that its parent lives."""
        while True:
            await asyncio.sleep(1)
            process.ping()

    def _folder(self) -> Path:
        """Relative files of the user's code lie here; ``-P`` keeps it off the module path."""
        root = Path(str(self._project["root"]))
        return root if root.is_dir() else Path("/")

    def _env(self) -> dict[str, str]:
        own = {**os.environ, **{k: str(v) for k, v in dict(self._project.get("env", {})).items()}}
        # An empty entry would stand for the current folder.
        paths = [str(_OUR_ROOT), *filter(None, own.get("PYTHONPATH", "").split(os.pathsep))]
        return {**own, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}

    def _init(self) -> Frame:
        settings = self._settings
        return Frame(
            "init",
            {
                "project": dict(self._project),
                "database_url": self._database.url,
                "prepare_threshold": self._database.prepare_threshold,
                "redis_url": settings.redis_url,
                "pool_max": settings.executor_pool_max,
                "concurrency": settings.n_jobs_per_worker,
                "lease_seconds": settings.silence_seconds,
                "stream_maxlen": settings.stream_maxlen,
                "stream_max_bytes": settings.stream_max_bytes,
                "stream_ttl_seconds": settings.stream_ttl_seconds,
                "event_buffer_bytes": settings.event_buffer_bytes,
                "switch_interval": _SWITCH_INTERVAL,
                "server_url": settings.callboard_url,
            },
        )

"""Asks the rows which of the watched runs are over: one statement for all that are due.

The end of a run normally shows in its events, within milliseconds. The row has the last word when
the end was never written there (the worker died after it settled the row), was lost (Redis was
flushed, the log expired), or cannot be read (Redis is away). No connection is held between looks.
"""

import asyncio
import math
from collections.abc import Callable

import structlog

from persistence import runs
from persistence.engine import Database
from persistence.errors import PersistenceError
from persistence.runs import Finished

log = structlog.get_logger(__name__)

GONE = Finished(math.inf)
"""Stands for "over since ever": the row was rolled back or deleted."""

RETRY_SECONDS = 1.0
"""Until the next look when the database cannot be asked."""

_SLACK_SECONDS = 1.0
"""A look takes along what falls due so soon after it, so that many runs come to share one look."""
_BATCH = 1000


class RowWatch:
    """Looks at the rows of watched runs from time to time, as its owner's ``seen`` decides.

    seen(run_id, finished): called with what the row says of the run's end, GONE when there is no
    row, None while it is active; returns the seconds until the next look.
    """

    def __init__(self, database: Database, seen: Callable[[str, Finished | None], float]) -> None:
        self._database = database
        self._seen = seen
        self._due: dict[str, float] = {}
        self._sooner = asyncio.Event()

    def watch(self, run_id: str, within: float) -> None:
        """Looks at the run's row within so many seconds, and then again until it is forgotten."""
        due = asyncio.get_running_loop().time() + within
        if due < self._due.get(run_id, math.inf):
            self._due[run_id] = due
            self._sooner.set()

    def watch_all(self, within: float) -> None:
        """Looks at every watched row within so many seconds."""
        for run_id in list(self._due):
            self.watch(run_id, within)

    def postpone(self, run_id: str, seconds: float) -> None:
        """Leaves a watched row alone for so many seconds: the run has just shown signs of life."""
        if run_id in self._due:
            self._due[run_id] = asyncio.get_running_loop().time() + seconds

    def forget(self, run_id: str) -> None:
        """Looks at the row no more."""
        self._due.pop(run_id, None)

    async def run(self) -> None:
        """Looks and tells until cancelled. What falls due during a look goes with the next one."""
        clock = asyncio.get_running_loop().time
        while True:
            pause = min(self._due.values(), default=math.inf) - clock()
            if pause <= 0:
                horizon = clock() + _SLACK_SECONDS
                await self._look([run for run, at in self._due.items() if at <= horizon][:_BATCH])
                continue
            self._sooner.clear()
            try:
                async with asyncio.timeout(None if pause == math.inf else pause):
                    await self._sooner.wait()
            except TimeoutError:
                pass

    async def _look(self, due: list[str]) -> None:
        for run_id in due:
            self._due[run_id] = math.inf  # until this look is over, or somebody asks again
        try:
            finished = await runs.finished(self._database, due)
        except PersistenceError as error:
            log.warning("rows of watched runs cannot be read", runs=len(due), error=str(error))
            pauses = dict.fromkeys(due, RETRY_SECONDS)
        else:
            pauses = {
                run_id: self._seen(run_id, finished.get(run_id, GONE))
                for run_id in due
                if run_id in self._due
            }
        for run_id, pause in pauses.items():
            if run_id in self._due:
                self.watch(run_id, pause)

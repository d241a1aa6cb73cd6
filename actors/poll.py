"""Looks into Postgres for runs whose message never came. With no Redis it is what finds runs.

It takes the oldest first: rows do not say for which of them a client waits.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import structlog

from actors.executor import Executor
from persistence import runs
from persistence.engine import Database
from persistence.errors import Unavailable

log = structlog.get_logger(__name__)

_YOUNG_SECONDS = 1.0
"""A run that waits no longer than this has its message on the way."""


class Poll:
    """Fills free slots from the rows. Belongs to one event loop."""

    def __init__(
        self,
        db: Database,
        executor: Executor,
        perform: Callable[[UUID], Awaitable[None]],
        interval: float,
        messages_flow: Callable[[], bool],
    ) -> None:
        """perform: executes a run for which a slot is reserved. interval: seconds between looks.

        messages_flow: whether messages can arrive now; while not, every freed slot looks.
        """
        self._db = db
        self._executor = executor
        self._perform = perform
        self._interval = interval
        self._messages_flow = messages_flow
        self._nudged = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._more = False

    def nudge(self) -> None:
        """Looks at once: a run became claimable and no message says so."""
        self._nudged.set()

    def room(self) -> None:
        """A slot became free: looks at once if nobody else fills it and work was left."""
        if self._more and not self._messages_flow():
            self._nudged.set()

    async def run(self) -> None:
        """Looks until cancelled."""
        while True:
            try:
                await self.look()
            except Unavailable as error:
                log.warning("rows cannot be polled", error=str(error))
            try:
                async with asyncio.timeout(self._interval):
                    await self._nudged.wait()
            except TimeoutError:
                pass
            self._nudged.clear()

    async def look(self) -> int:
        """Starts what can be started; returns how many runs that were. Raises Unavailable."""
        free = self._executor.free
        self._more = free == 0
        if not free:
            return 0
        young = _YOUNG_SECONDS if self._messages_flow() else 0.0
        found = await runs.claimable(self._db, free, young)
        self._more = len(found) >= free
        started = 0
        for run_id in found:
            if not self._executor.reserve():
                self._more = True
                break
            started += 1
            task = asyncio.ensure_future(self._perform(run_id))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return started

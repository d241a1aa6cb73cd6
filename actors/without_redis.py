"""What stands where Redis would: nobody can be told anything, so workers poll and readers look."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from actors.errors import InspectorUnavailable
from actors.events import End


def _nothing() -> None:
    """Nobody to tell."""


class MuteDispatcher:
    """Tells at most its own process that there is something to do."""

    def __init__(
        self, on_run: Callable[[], None] = _nothing, on_cancel: Callable[[], None] = _nothing
    ) -> None:
        """on_run, on_cancel: called in place of a message."""
        self._on_run = on_run
        self._on_cancel = on_cancel

    async def run(self, run_id: UUID | str, *, awaited: bool = False) -> None:
        """See ``Dispatcher.run``. Who polls finds the oldest run first, awaited or not."""
        self._on_run()

    async def cancel(self, run_id: UUID | str) -> None:
        """See ``Dispatcher.cancel``."""
        self._on_cancel()

    async def over(self, *run_ids: UUID) -> None:
        """See ``Dispatcher.over``: readers find out by looking."""

    async def inspect(self, op: str, args: dict[str, Any], timeout: float) -> tuple[int, bytes]:
        """See ``Dispatcher.inspect``: there is no way to an inspector."""
        raise InspectorUnavailable("without Redis no inspector can be reached")

    async def ping(self) -> bool:
        """See ``Dispatcher.ping``."""
        return False


class MuteEnds:
    """Ends that only the row tells of."""

    def begin(self, thread_id: UUID) -> None:
        """See ``EventEnds.begin``: followers find the run by looking."""

    async def end(self, end: End) -> None:
        """See ``EventEnds.end``."""

"""message → lease → graph process → settled row → end event: the life of an attempt on one page."""

import logging
from uuid import UUID

import structlog

from actors.dispatch import Dispatcher
from actors.ending import announce
from actors.events import EventEnds
from actors.executor import Executor
from actors.lease import Leases
from actors.outcome import Crashed, Failed, HandedBack, Outcome, Succeeded
from persistence.errors import Unavailable

log = structlog.get_logger(__name__)


def _details(outcome: Outcome) -> dict[str, str]:
    """What a log line says of an end that is not the ordinary one."""
    match outcome:
        case Failed(error, message):
            return {"error": error, "error_message": message}
        case Crashed(reason) | HandedBack(reason):
            return {"reason": reason}
        case _:
            return {}


class RunActor:
    """Performs runs: those whose message came, and those that a poll found."""

    def __init__(
        self, leases: Leases, executor: Executor, ends: EventEnds, dispatcher: Dispatcher
    ) -> None:
        self._leases = leases
        self._executor = executor
        self._ends = ends
        self._dispatcher = dispatcher

    async def perform(self, run_id: UUID) -> None:
        """Executes the run if it may start now. The caller has reserved a slot for it.

        A run that may not start is forgotten: whoever blocks it will send it on. So is one whose
        claim the database did not answer: a poll finds it again.
        """
        claimed = None
        try:
            claimed = await self._leases.claim(run_id)
        except Unavailable as error:
            log.warning("run cannot be claimed", run_id=str(run_id), error=str(error))
        finally:
            if claimed is None:
                self._executor.release()
        if claimed is None:
            return
        self._ends.begin(claimed.thread_id)
        outcome = await self._executor.execute(claimed)
        ending = await self._leases.conclude(claimed, outcome)
        log.log(
            logging.DEBUG if isinstance(outcome, Succeeded) else logging.INFO,
            "attempt ended",
            run_id=str(run_id),
            attempt=claimed.attempt,
            outcome=type(outcome).__name__,
            status=ending and ending.status,
            **_details(outcome),
        )
        if ending is not None:
            await announce(ending, self._ends, self._dispatcher)

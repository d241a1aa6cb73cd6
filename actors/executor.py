"""What executes runs, seen from those who have runs to execute."""

from typing import Protocol
from uuid import UUID

from actors.outcome import Outcome
from persistence.lifecycle import CancelAction
from persistence.runs import ClaimedRun


class Executor(Protocol):
    """N slots. The pool of graph processes is one, asyncio in one process is the other."""

    @property
    def slots(self) -> int:
        """Runs that can be executed at once."""
        ...

    @property
    def free(self) -> int:
        """Runs that could start now."""
        ...

    def reserve(self) -> bool:
        """Takes a slot for a run that is about to be claimed; False when none is free.

        Every True is followed by exactly one ``execute`` or ``release``. May be called from any
        thread.
        """
        ...

    def release(self) -> None:
        """Gives a reserved slot back unused. May be called from any thread."""
        ...

    async def execute(self, claimed: ClaimedRun) -> Outcome:
        """Uses up the reserved slot; returns when the attempt has ended, however it did."""
        ...

    def cancel(self, run_id: UUID, action: CancelAction) -> None:
        """Begins to stop a run because a client asked for it. Repeating it does nothing."""
        ...

    def revoke(self, run_id: UUID, attempt: int) -> None:
        """Stops one attempt because its lease is lost: nothing of it may be written."""
        ...

    async def inspect(self, op: str, args: bytes) -> tuple[int, bytes]:
        """Answers what needs compiled graphs: an HTTP status and a JSON body.

        args: a JSON object. Raises InspectorUnavailable.
        """
        ...

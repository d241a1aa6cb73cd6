"""What all ends of a run share: the word of who stopped it, its webhook, and what it leaves."""

from collections.abc import Sequence
from uuid import UUID

from persistence import checkpoints, webhooks
from persistence.engine import Connection
from persistence.lifecycle import FAIL, TIME_OUT, CancelAction

CANCEL_ERRORS = {
    CancelAction.INTERRUPT: "UserInterrupt",
    CancelAction.ROLLBACK: "UserRollback",
}

FAILURE = f"CASE WHEN r.status IN ('{FAIL.target}', '{TIME_OUT.target}') THEN r.error END"
"""The error that the webhook of the run ``r`` is told: of a failure, not of a stop."""

_TELL = webhooks.statement(
    "(SELECT * FROM runs WHERE run_id = %(run_id)s) r",
    status="r.status",
    error=FAILURE,
    values="t.values::json",
)

_TELL_ROLLBACK = webhooks.statement(
    "(SELECT * FROM runs WHERE run_id = %(run_id)s) r",
    status=f"'{CancelAction.ROLLBACK}'",
    error="NULL::jsonb",
    values="NULL::json",
)


def cancel_error(action: CancelAction, reason: str) -> dict[str, str]:
    """The error of a run that was stopped on request."""
    return {"error": CANCEL_ERRORS[action], "message": reason}


async def tell(connection: Connection, run_id: UUID) -> None:
    """Notes for the run's webhook, if it has one, that it ended as its row says."""
    await connection.execute(_TELL, {"run_id": run_id})


async def roll_back(connection: Connection, thread_id: UUID, run_id: UUID) -> None:
    """Notes for the run's webhook that it was rolled back, and does it."""
    await connection.execute(_TELL_ROLLBACK, {"run_id": run_id})
    await erase(connection, thread_id, [run_id])


async def erase(connection: Connection, thread_id: UUID, run_ids: Sequence[UUID]) -> None:
    """Deletes runs of a locked thread with the checkpoints they wrote.

    Even a pending run may have some: those of attempts that crashed or were handed back.
    """
    await connection.execute(
        "DELETE FROM runs WHERE run_id = ANY(%(run_ids)s)", {"run_ids": list(run_ids)}
    )
    await checkpoints.delete_of_runs(connection, thread_id, run_ids)

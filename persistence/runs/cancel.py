"""Runs that shall not go on: a running one is wished stopped, a pending one ends at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from persistence.engine import Connection, Database, JsonText, Row
from persistence.errors import RunNotFound
from persistence.lifecycle import WITHDRAW, CancelAction, RunStatus
from persistence.run_secrets import WITHOUT_SECRETS
from persistence.runs.ending import cancel_error, erase, tell
from persistence.runs.thread import lock_thread, rest_status, settle_thread
from persistence.text import dumps
from persistence.visibility import Filter

# A stronger wish replaces a weaker one, never the other way round.
_WISH = f"""
UPDATE runs
SET cancel_requested_at = clock_timestamp(), cancel_action = %(action)s, cancel_reason = %(reason)s
WHERE run_id = %(run_id)s AND status = '{RunStatus.RUNNING}'
  AND (cancel_action IS NULL OR (cancel_action, %(action)s)
       = ('{CancelAction.INTERRUPT}', '{CancelAction.ROLLBACK}'))
"""

_WITHDRAW = f"""
UPDATE runs r
SET status = '{WITHDRAW.target}', error = %(error)s::jsonb, kwargs = {WITHOUT_SECRETS},
    finished_at = clock_timestamp(), updated_at = clock_timestamp()
WHERE run_id = ANY(%(run_ids)s) AND status = '{WITHDRAW.source}'
RETURNING run_id, attempt > 0 AS has_begun
"""


async def wish(connection: Connection, run_id: UUID, action: CancelAction, reason: str) -> None:
    """Wishes a run stopped, if it runs; its worker finds the wish in the row."""
    await connection.execute(_WISH, {"run_id": run_id, "action": action.value, "reason": reason})


async def end_pending(
    connection: Connection,
    thread_id: UUID,
    run_ids: Sequence[UUID],
    action: CancelAction,
    reason: str,
) -> bool:
    """Ends pending runs of a locked thread; the caller settles the thread.

    Returns whether the thread is left in the middle of one: of an attempt before, which crashed or
    was handed back. Its webhook is told like that of a run that was stopped while it ran.
    """
    if not run_ids:
        return False
    if action is CancelAction.ROLLBACK:
        await erase(connection, thread_id, run_ids)
        return False
    error = JsonText(dumps(cancel_error(action, reason)))
    cursor = await connection.execute(_WITHDRAW, {"run_ids": list(run_ids), "error": error})
    begun = [row["run_id"] for row in await cursor.fetchall() if row["has_begun"]]
    for run_id in begun:
        await tell(connection, run_id)
    return bool(begun)


async def left_midway(
    connection: Connection, thread_id: UUID, action: CancelAction, reason: str
) -> UUID | None:
    """Settles a thread that was left in the middle of a run which shall not go on."""
    rest = rest_status(WITHDRAW.target, next_nodes=True)
    error = cancel_error(action, reason)
    return await settle_thread(connection, thread_id, rest=rest, error=error)


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """What a wish to stop came to.

    kind: ``asked``, it runs and the wish is stored: tell its worker; ``withdrawn``, it was pending
        and is over (or gone, at a rollback); ``finished``, it had ended before.
    next_run_id: the run of the thread that may start now, when it was withdrawn.
    left_midway: whether it was withdrawn after an attempt that left something on the thread.
    """

    kind: Literal["asked", "withdrawn", "finished"]
    next_run_id: UUID | None = None
    left_midway: bool = False


_LOCK_RUN = """
SELECT run_id, thread_id, status FROM runs
WHERE run_id = %(run_id)s AND thread_id = %(thread_id)s FOR NO KEY UPDATE
"""


async def request_cancel(
    db: Database,
    thread_id: UUID,
    run_id: UUID,
    action: CancelAction,
    reason: str | None = None,
    *,
    allowed: Filter | None = None,
) -> CancelRequested:
    """Wishes a running run stopped; ends a pending one at once. Raises RunNotFound.

    reason: who asked and how, for people; by default, the cancel endpoint.
    """
    if reason is None:
        reason = f"{action.value} requested via POST /threads/{thread_id}/runs/{run_id}/cancel"
    async with db.transaction() as connection:
        row = await _lock_run(connection, thread_id, run_id, allowed)
        match RunStatus(row["status"]):
            case RunStatus.RUNNING:
                await wish(connection, run_id, action, reason)
                return CancelRequested("asked")
            case RunStatus.PENDING:
                has_begun = await end_pending(connection, thread_id, [run_id], action, reason)
                if has_begun:
                    next_run_id = await left_midway(connection, thread_id, action, reason)
                else:
                    next_run_id = await settle_thread(connection, thread_id)
                return CancelRequested("withdrawn", next_run_id, has_begun)
            case _:
                return CancelRequested("finished")


async def delete(
    db: Database, thread_id: UUID, run_id: UUID, *, allowed: Filter | None = None
) -> CancelRequested:
    """Removes a run and its checkpoints. Raises RunNotFound.

    ``asked``: it runs, so this is a wish for its rollback; the row goes when it has stopped.
    """
    reason = f"rollback requested via DELETE /threads/{thread_id}/runs/{run_id}"
    async with db.transaction() as connection:
        row = await _lock_run(connection, thread_id, run_id, allowed)
        if row["status"] == RunStatus.RUNNING:
            await wish(connection, run_id, CancelAction.ROLLBACK, reason)
            return CancelRequested("asked")
        await erase(connection, thread_id, [run_id])
        next_run_id = await settle_thread(connection, thread_id)
        kind: Literal["withdrawn", "finished"] = (
            "withdrawn" if row["status"] == RunStatus.PENDING else "finished"
        )
        return CancelRequested(kind, next_run_id)


async def _lock_run(
    connection: Connection, thread_id: UUID, run_id: UUID, allowed: Filter | None
) -> Row:
    if not await lock_thread(connection, thread_id, allowed):
        raise RunNotFound(run_id)
    cursor = await connection.execute(_LOCK_RUN, {"run_id": run_id, "thread_id": thread_id})
    row = await cursor.fetchone()
    if row is None:
        raise RunNotFound(run_id)
    return row

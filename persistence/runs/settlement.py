"""How an attempt that has an outcome ends its run and settles its thread."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg

from persistence import webhooks
from persistence.engine import Database, JsonText
from persistence.errors import Overtaken
from persistence.lifecycle import (
    FAIL,
    INTERRUPT,
    SUCCEED,
    CancelAction,
    Move,
    RunStatus,
    ThreadStatus,
)
from persistence.run_secrets import WITHOUT_SECRETS
from persistence.runs.ending import CANCEL_ERRORS, FAILURE, cancel_error, roll_back
from persistence.runs.line import IN_LINE
from persistence.runs.thread import be_impatient, lock_threads_of, rest_status, settle_thread
from persistence.text import dumps


@dataclass(frozen=True, slots=True)
class Settlement:
    """How an attempt ended, and what its thread looks like now.

    move: the fenced move to a terminal status.
    error: ``{"error", "message"}`` of a failure; for a stopped run the row knows who asked.
    values: the thread's values as JSON, or None to leave them as they are.
    interrupts: ``{task_id: [{"id", "value"}]}`` as JSON.
    next_nodes: whether the state has nodes left to do.
    output: what ``wait`` and ``join`` answer, as JSON; None when it equals ``values``.
    action: ``rollback`` deletes the run and its checkpoints instead.
    events: how many the attempt wrote; None when nobody knows.
    """

    run_id: UUID
    attempt: int
    move: Move
    error: Mapping[str, Any] | None = None
    values: bytes | None = None
    interrupts: bytes = b"{}"
    next_nodes: bool = False
    output: bytes | None = None
    action: CancelAction | None = None
    events: int | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a settlement.

    ok: False when it was refused: another attempt owns the run, or it is over, or gone.
    busy: nothing was done, since others hold its rows: it is to be settled again.
    status: what the row says now; None when it was rolled back.
    error: what the row says now.
    next_run_id: the run of the same thread that may start now.
    """

    run_id: UUID
    ok: bool
    busy: bool = False
    status: RunStatus | None = None
    error: dict[str, Any] | None = None
    next_run_id: UUID | None = None


_SETTLE = f"""
WITH mine AS (
    SELECT run_id FROM runs
    WHERE run_id = %(run_id)s AND attempt = %(attempt)s AND status = '{SUCCEED.source}'
    FOR UPDATE -- waits for checkpoints that are being stored under this attempt
),
ended AS (
    UPDATE runs r
    SET status = %(status)s, kwargs = {WITHOUT_SECRETS},
        output = coalesce(%(output)s::json, %(values)s::json),
        error = CASE WHEN %(status)s = '{INTERRUPT.target}' AND r.cancel_action IS NOT NULL
            THEN jsonb_build_object('error', CASE r.cancel_action
                WHEN '{CancelAction.ROLLBACK}' THEN '{CANCEL_ERRORS[CancelAction.ROLLBACK]}'
                ELSE '{CANCEL_ERRORS[CancelAction.INTERRUPT]}' END, 'message', r.cancel_reason)
            ELSE %(error)s::jsonb END,
        events = %(events)s,
        claimed_by = NULL, lease_expires_at = NULL,
        finished_at = clock_timestamp(), updated_at = clock_timestamp()
    FROM mine WHERE r.run_id = mine.run_id
    RETURNING r.run_id, r.thread_id, r.assistant_id, r.status, r.multitask_strategy, r.error,
        r.created_at, r.updated_at, r.started_at, r.webhook,
        -- Large: what is returned here is copied.
        CASE WHEN r.webhook IS NOT NULL THEN r.metadata END AS metadata,
        CASE WHEN r.webhook IS NOT NULL THEN r.kwargs END AS kwargs
),
told AS ({
    webhooks.statement(
        "ended r",
        status="r.status",
        error=FAILURE,
        values="coalesce(%(values)s::json, t.values::json)",
    )
}),
next AS (
    SELECT head.run_id, head.available_at <= clock_timestamp() AS due FROM ended, LATERAL (
        SELECT p.run_id, p.available_at FROM runs p
        WHERE p.thread_id = ended.thread_id AND p.status = '{RunStatus.PENDING}'
        {IN_LINE} LIMIT 1) AS head
),
thread AS (
    UPDATE threads t
    SET status = CASE WHEN EXISTS (SELECT FROM next) THEN '{ThreadStatus.BUSY}' ELSE %(rest)s END,
        rest_status = %(rest)s,
        values = coalesce(%(values)s::jsonb, t.values),
        interrupts = %(interrupts)s::jsonb,
        error = ended.error,
        updated_at = clock_timestamp(), state_updated_at = clock_timestamp()
    FROM ended WHERE t.thread_id = ended.thread_id
)
SELECT ended.error, CASE WHEN next.due THEN next.run_id END AS next_run_id
FROM ended LEFT JOIN next ON true
"""


async def settle(db: Database, settlements: Sequence[Settlement]) -> list[Settled]:
    """Ends attempts, each with its thread in one transaction; answers in the given order.

    A settlement with a stale token is refused, which is an answer, and so is that others hold its
    rows: it waits for them only a moment. What cannot be stored however cleaned (nested too deep,
    too large) ends the run as failed with that reason, never strands it.
    """
    plain = [s for s in settlements if s.action is not CancelAction.ROLLBACK]
    settled: dict[tuple[UUID, int], Settled] = {}
    if plain:
        settled |= await _settle_plain(db, plain)
    for settlement in settlements:
        if settlement.action is CancelAction.ROLLBACK:
            try:
                answer = await _roll_back(db, settlement)
            except Overtaken:
                answer = Settled(settlement.run_id, ok=False, busy=True)
            settled[settlement.run_id, settlement.attempt] = answer
    return [settled[s.run_id, s.attempt] for s in settlements]


async def _settle_plain(
    db: Database, settlements: Sequence[Settlement], *, again: bool = False
) -> dict[tuple[UUID, int], Settled]:
    try:
        return await _settle_together(db, settlements, again=again)
    except (Overtaken, psycopg.Error) as error:
        # Not that the database is away: this is about one of them.
        if len(settlements) > 1:
            settled: dict[tuple[UUID, int], Settled] = {}
            for settlement in settlements:
                settled |= await _settle_plain(db, [settlement], again=True)
            return settled
        [one] = settlements
        if isinstance(error, Overtaken):
            return {(one.run_id, one.attempt): Settled(one.run_id, ok=False, busy=True)}
        return await _settle_together(db, [_storable(one)])


def _storable(settlement: Settlement) -> Settlement:
    """The same end without the state that Postgres refused."""
    message = "the state of the thread cannot be stored: it is nested too deep or too large"
    return Settlement(
        run_id=settlement.run_id,
        attempt=settlement.attempt,
        move=FAIL if settlement.move is SUCCEED else settlement.move,
        error={"error": "ValueError", "message": message},
    )


async def _settle_together(
    db: Database, settlements: Sequence[Settlement], *, again: bool = False
) -> dict[tuple[UUID, int], Settled]:
    """One transaction and one round trip for all."""
    ordered = sorted(settlements, key=lambda settlement: settlement.run_id)
    async with db.connection() as connection:
        async with connection.pipeline(), connection.transaction():
            await be_impatient(connection, again=again)
            await lock_threads_of(connection, [settlement.run_id for settlement in ordered])
            cursors = [
                await connection.execute(_SETTLE, _settle_params(settlement))
                for settlement in ordered
            ]
        settled = {}
        for settlement, cursor in zip(ordered, cursors, strict=True):
            row = await cursor.fetchone()
            settled[settlement.run_id, settlement.attempt] = (
                Settled(settlement.run_id, ok=False)
                if row is None
                else Settled(
                    settlement.run_id,
                    ok=True,
                    status=settlement.move.target,
                    error=row["error"],
                    next_run_id=row["next_run_id"],
                )
            )
        return settled


def _settle_params(settlement: Settlement) -> dict[str, Any]:
    def stored(document: bytes | None) -> JsonText | None:
        return None if document is None else JsonText(document)

    error = settlement.error
    return {
        "run_id": settlement.run_id,
        "attempt": settlement.attempt,
        "status": settlement.move.target.value,
        "rest": rest_status(settlement.move.target, settlement.next_nodes).value,
        "values": stored(settlement.values),
        "interrupts": JsonText(settlement.interrupts),
        "output": stored(settlement.output),
        "error": None if error is None else JsonText(dumps(error)),
        "events": settlement.events,
    }


_LOCK_ATTEMPT = f"""
SELECT thread_id, cancel_reason FROM runs
WHERE run_id = %(run_id)s AND attempt = %(attempt)s AND status = '{RunStatus.RUNNING}'
FOR UPDATE
"""


async def _roll_back(db: Database, settlement: Settlement) -> Settled:
    async with db.transaction() as connection:
        await be_impatient(connection)
        await lock_threads_of(connection, [settlement.run_id])
        cursor = await connection.execute(
            _LOCK_ATTEMPT, {"run_id": settlement.run_id, "attempt": settlement.attempt}
        )
        row = await cursor.fetchone()
        if row is None:
            return Settled(settlement.run_id, ok=False)
        thread_id: UUID = row["thread_id"]
        await roll_back(connection, thread_id, settlement.run_id)
        error = (
            cancel_error(CancelAction.ROLLBACK, row["cancel_reason"])
            if row["cancel_reason"] is not None
            else settlement.error
        )
        next_run_id = await settle_thread(connection, thread_id, rolled_back=True, error=error)
        return Settled(
            settlement.run_id,
            ok=True,
            error=None if error is None else dict(error),
            next_run_id=next_run_id,
        )

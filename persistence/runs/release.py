"""Attempts that end without an outcome: handed back, crashed, expired, or left by a predecessor."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from persistence.engine import Connection, Database, JsonText, Row
from persistence.errors import Overtaken
from persistence.lifecycle import (
    EXPIRE,
    FAIL,
    HAND_BACK,
    INTERRUPT,
    RETRY,
    CancelAction,
    Move,
    RunStatus,
    ThreadStatus,
)
from persistence.run_secrets import WITHOUT_SECRETS
from persistence.runs.ending import cancel_error, roll_back, tell
from persistence.runs.thread import be_impatient, rest_status, settle_thread
from persistence.text import dumps


@dataclass(frozen=True, slots=True)
class Released:
    """What became of a run whose attempt ended without an outcome.

    attempt: the attempt that ended.
    status: pending when it shall run again, else its end; None when it was rolled back.
    error: why it ended, if it did.
    next_run_id: the run of the thread that may start now, most often this one again.
    """

    run_id: UUID
    thread_id: UUID
    graph_id: str
    attempt: int
    status: RunStatus | None
    error: dict[str, Any] | None
    next_run_id: UUID | None

    @property
    def retry(self) -> bool:
        """Whether the run waits for another attempt."""
        return self.status is RunStatus.PENDING


async def hand_back(db: Database, owner: str, held: Sequence[tuple[UUID, int]]) -> list[Released]:
    """Returns runs that were stopped through no fault of their own: pending again, at no cost.

    One that was to be stopped on request ends that way instead. Stale ones are left out. Raises
    Overtaken when others hold the rows of one: then none was returned.
    """
    return await _release(
        db,
        """r.claimed_by = %(owner)s AND (r.run_id, r.attempt) IN (
            SELECT * FROM unnest(%(run_ids)s::uuid[], %(attempts)s::int[]))""",
        {
            "owner": owner,
            "run_ids": [run_id for run_id, _ in held],
            "attempts": [attempt for _, attempt in held],
        },
        HAND_BACK,
    )


async def crash(
    db: Database, run_id: UUID, attempt: int, reason: str, max_retries: int
) -> Released | None:
    """The graph process died under the attempt: again, or failed after ``max_retries`` of these.

    reason: what happened, for people. None when the token is stale. Raises Overtaken.
    """
    released = await _release(
        db,
        "r.run_id = %(run_id)s AND r.attempt = %(attempt)s",
        {"run_id": run_id, "attempt": attempt},
        RETRY,
        reason=reason,
        max_retries=max_retries,
    )
    return released[0] if released else None


async def expire(db: Database, max_retries: int, limit: int = 100) -> list[Released]:
    """Ends attempts whose lease ran out by the database's clock; forgets instances long silent.

    Those whose rows others hold for long are left for the next time.
    """
    await db.execute(_FORGET_SILENT)
    return await _release_what_is_free(
        db,
        """r.run_id IN (
            SELECT run_id FROM runs WHERE status = 'running'
            AND lease_expires_at < clock_timestamp() ORDER BY lease_expires_at LIMIT %(limit)s)
        AND r.lease_expires_at < clock_timestamp()""",
        {"limit": limit},
        EXPIRE,
        "the worker instance that ran it stopped renewing its lease",
        max_retries,
    )


async def take_back(db: Database, slot_key: str, boot_id: str, max_retries: int) -> list[Released]:
    """At a worker's start: ends at once the attempts that its own predecessor left behind.

    slot_key: ``host/worker slot``; its leases with another boot id have nobody any more. Those
    whose rows others hold for long, as a step that Postgres is still storing, are left.
    """
    params = {"slot_key": slot_key, "owner": f"{slot_key}/{boot_id}"}
    await db.execute(_FORGET_PREDECESSORS, params)
    return await _release_what_is_free(
        db,
        _OF_PREDECESSORS,
        params,
        EXPIRE,
        "the worker instance that ran it was started anew",
        max_retries,
    )


async def left_by_predecessor(db: Database, slot_key: str, boot_id: str) -> bool:
    """Whether ``take_back`` has left something: somebody held its rows."""
    params = {"slot_key": slot_key, "owner": f"{slot_key}/{boot_id}"}
    where = f"r.status = '{RunStatus.RUNNING}' AND {_OF_PREDECESSORS}"
    return await db.fetch_one(f"SELECT 1 FROM runs r WHERE {where} LIMIT 1", params) is not None


_OF_PREDECESSORS = """
starts_with(r.claimed_by, %(slot_key)s || '/') AND r.claimed_by <> %(owner)s
AND strpos(substr(r.claimed_by, length(%(slot_key)s) + 2), '/') = 0
"""
_FORGET_SILENT = """
DELETE FROM instances WHERE heartbeat_at < clock_timestamp() - interval '1 hour'
"""
_FORGET_PREDECESSORS = """
DELETE FROM instances WHERE slot_key = %(slot_key)s AND owner <> %(owner)s
"""

_LOCK_THREADS_WHERE = f"""
SELECT t.thread_id FROM threads t
WHERE t.thread_id IN (
    SELECT r.thread_id FROM runs r WHERE r.status = '{RunStatus.RUNNING}' AND {{where}})
ORDER BY t.thread_id FOR NO KEY UPDATE OF t{{skip}}
"""

_LOCK_RUNS_WHERE = f"""
SELECT r.run_id, r.thread_id, r.graph_id, r.attempt, r.crashes, r.cancel_action, r.cancel_reason
FROM runs r
WHERE r.status = '{RunStatus.RUNNING}' AND r.thread_id = ANY(%(thread_ids)s) AND {{where}}
ORDER BY r.run_id FOR UPDATE OF r{{skip}}
"""

# Its place in line stays: available_at and queue_seq are not touched, so it goes before those that
# were accepted after it.
_RELEASE = f"""
UPDATE runs r
SET status = %(status)s, crashes = crashes + %(cost)s, error = %(error)s::jsonb,
    claimed_by = NULL, lease_expires_at = NULL, updated_at = clock_timestamp(),
    finished_at = CASE WHEN %(status)s = '{RunStatus.PENDING}' THEN NULL
        ELSE clock_timestamp() END,
    kwargs = CASE WHEN %(status)s = '{RunStatus.PENDING}' THEN kwargs ELSE {WITHOUT_SECRETS} END
WHERE run_id = %(run_id)s
"""


async def _release(
    db: Database,
    where: str,
    params: dict[str, Any],
    move: Move,
    *,
    reason: str = "",
    max_retries: int = 0,
) -> list[Released]:
    """Ends the attempts that ``where`` names (over ``runs r``), each with its thread.

    Raises Overtaken when others hold the rows of one.
    """
    async with db.transaction() as connection:
        await be_impatient(connection)
        return await _release_within(connection, where, params, move, reason, max_retries)


async def _release_what_is_free(
    db: Database, where: str, params: dict[str, Any], move: Move, reason: str, max_retries: int
) -> list[Released]:
    """The same, but leaves those whose rows others hold for long."""
    try:
        return await _release(db, where, params, move, reason=reason, max_retries=max_retries)
    except Overtaken:
        async with db.transaction() as connection:
            skip = " SKIP LOCKED"
            return await _release_within(connection, where, params, move, reason, max_retries, skip)


async def _release_within(
    connection: Connection,
    where: str,
    params: dict[str, Any],
    move: Move,
    reason: str,
    max_retries: int,
    skip: str = "",
) -> list[Released]:
    cursor = await connection.execute(_LOCK_THREADS_WHERE.format(where=where, skip=skip), params)
    thread_ids = [row["thread_id"] for row in await cursor.fetchall()]
    if not thread_ids:
        return []
    cursor = await connection.execute(
        _LOCK_RUNS_WHERE.format(where=where, skip=skip), params | {"thread_ids": thread_ids}
    )
    return [
        await _release_one(connection, row, _verdict(row, move, reason, max_retries))
        for row in await cursor.fetchall()
    ]


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What shall become of a run; no status means that it is rolled back."""

    status: RunStatus | None
    cost: int
    error: dict[str, str] | None = None


def _verdict(row: Row, move: Move, reason: str, max_retries: int) -> _Verdict:
    """Decides over an attempt without an outcome. Pure.

    A wish to stop comes first: a run that was to be stopped is not started again.
    """
    cost = 0 if move is HAND_BACK else 1
    if row["cancel_action"] is not None:
        action = CancelAction(row["cancel_action"])
        status = None if action is CancelAction.ROLLBACK else INTERRUPT.target
        return _Verdict(status, cost, cancel_error(action, row["cancel_reason"]))
    crashes = row["crashes"] + cost
    if cost and crashes > max_retries:
        times = "once" if crashes == 1 else f"{crashes} times"
        return _Verdict(
            FAIL.target, cost, {"error": "RunCrashed", "message": f"{reason} ({times})"}
        )
    return _Verdict(move.target, cost)


async def _release_one(connection: Connection, row: Row, verdict: _Verdict) -> Released:
    run_id, thread_id = row["run_id"], row["thread_id"]
    status, error = verdict.status, verdict.error
    rest: ThreadStatus | None = None
    if status is None:
        await roll_back(connection, thread_id, run_id)
    else:
        await connection.execute(
            _RELEASE,
            {
                "run_id": run_id,
                "status": status.value,
                "cost": verdict.cost,
                "error": None if error is None else JsonText(dumps(error)),
            },
        )
        if status is not RunStatus.PENDING:
            await tell(connection, run_id)
            rest = rest_status(status, next_nodes=False)
    next_run_id = await settle_thread(
        connection, thread_id, rest=rest, rolled_back=status is None, error=error
    )
    return Released(run_id, thread_id, row["graph_id"], row["attempt"], status, error, next_run_id)

"""The right to one attempt of a run: claimed, prolonged by heartbeats, and who holds it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg

from persistence.engine import Connection, Database
from persistence.lifecycle import CLAIM, CancelAction, MultitaskStrategy, RunStatus, ThreadStatus
from persistence.runs.ending import CANCEL_ERRORS
from persistence.runs.line import UNBLOCKED


@dataclass(frozen=True, slots=True)
class ClaimedRun:
    """A run that is now ours. ``attempt`` is the fencing token for every write that follows."""

    run_id: UUID
    thread_id: UUID
    assistant_id: UUID
    graph_id: str
    attempt: int
    crashes: int
    kwargs: bytes
    metadata: dict[str, Any]
    multitask_strategy: MultitaskStrategy
    temporary: bool
    resumable: bool
    credential: UUID
    """What the graph shows when it calls the API itself."""
    unfinished: bool = False
    """Whether the run before it on the thread left something to do, and was not rolled back: what
    hangs on the checkpoint then may be of the one that is gone."""

    @property
    def handed_back(self) -> int:
        """How many of its attempts were handed back."""
        return self.attempt - 1 - self.crashes


# SKIP LOCKED: whoever holds the row is claiming it too, or is ending it. Never waiting for a run,
# a claim cannot be part of a deadlock over runs.
_CLAIM = f"""
WITH candidate AS (
    SELECT r.run_id FROM runs r WHERE r.run_id = ANY(%(run_ids)s) AND {UNBLOCKED}
    ORDER BY r.run_id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE runs r
SET status = '{CLAIM.target}', attempt = attempt + 1, claimed_by = %(owner)s,
    lease_expires_at = clock_timestamp() + make_interval(secs => %(lease_seconds)s),
    started_at = coalesce(started_at, clock_timestamp()), updated_at = clock_timestamp(),
    credential = gen_random_uuid()
FROM candidate, threads t
WHERE r.run_id = candidate.run_id AND t.thread_id = r.thread_id
RETURNING r.run_id, r.thread_id, r.assistant_id, r.graph_id, r.attempt, r.crashes,
    r.kwargs::text, r.metadata, r.multitask_strategy, t.temporary, r.resumable, r.credential,
    t.rest_status <> '{ThreadStatus.IDLE}'
        AND coalesce(t.error->>'error' <> '{CANCEL_ERRORS[CancelAction.ROLLBACK]}', true)
        AS unfinished
"""


async def claim(
    db: Database, run_ids: Sequence[UUID], owner: str, lease_seconds: float
) -> list[ClaimedRun]:
    """Takes those of the runs that may start now: due, first in line, and nothing else running.

    owner: ``host/worker slot/boot id``. The others are no error: whoever blocks them sends them on.
    """
    async with db.connection() as connection:
        try:
            return await _claim(connection, run_ids, owner, lease_seconds)
        except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
            # Two claimers saw two different runs of a thread as first. Rare; one by one, then.
            claimed: list[ClaimedRun] = []
            for run_id in run_ids:
                try:
                    claimed += await _claim(connection, [run_id], owner, lease_seconds)
                except psycopg.errors.UniqueViolation:
                    continue
            return claimed


async def _claim(
    connection: Connection, run_ids: Sequence[UUID], owner: str, lease_seconds: float
) -> list[ClaimedRun]:
    cursor = await connection.execute(
        _CLAIM, {"run_ids": list(run_ids), "owner": owner, "lease_seconds": lease_seconds}
    )
    return [
        ClaimedRun(
            **row
            | {
                "kwargs": row["kwargs"].encode(),
                "multitask_strategy": MultitaskStrategy(row["multitask_strategy"]),
            }
        )
        for row in await cursor.fetchall()
    ]


@dataclass(frozen=True, slots=True)
class Held:
    """A lease that is still ours, and what is wished for the run.

    renewed: False when somebody had the row locked: the lease is as it was.
    """

    run_id: UUID
    attempt: int
    cancel_action: CancelAction | None
    renewed: bool


_HELD = f"""
FROM runs r
JOIN unnest(%(run_ids)s::uuid[], %(attempts)s::int[]) AS h (run_id, attempt)
  ON h.run_id = r.run_id AND h.attempt = r.attempt
WHERE r.status = '{RunStatus.RUNNING}' AND r.claimed_by = %(owner)s
"""

# SKIP LOCKED: who waits for one run's row would let the leases of all others run out.
_HEARTBEAT = f"""
WITH instance AS (
    INSERT INTO instances AS i (owner, slot_key, boot_id, slots, free)
    VALUES (%(owner)s, %(slot_key)s, %(boot_id)s, %(slots)s, %(free)s)
    ON CONFLICT (owner) DO UPDATE
    SET slots = excluded.slots, free = excluded.free, heartbeat_at = clock_timestamp()
),
free AS (
    SELECT r.run_id {_HELD} ORDER BY r.run_id FOR NO KEY UPDATE OF r SKIP LOCKED
),
renewed AS (
    UPDATE runs r
    SET lease_expires_at = clock_timestamp() + make_interval(secs => %(lease_seconds)s)
    FROM free WHERE r.run_id = free.run_id
    RETURNING r.run_id
)
SELECT r.run_id, r.attempt, r.cancel_action,
    EXISTS (SELECT FROM renewed WHERE renewed.run_id = r.run_id) AS renewed
{_HELD}
"""


async def heartbeat(
    db: Database,
    owner: str,
    slots: int,
    free: int,
    held: Sequence[tuple[UUID, int]],
    lease_seconds: float,
) -> list[Held]:
    """Prolongs all leases of an instance and reports it alive, in one statement.

    held: run ids with their attempts. What does not come back is lost: kill it, write nothing. It
    waits for nobody.
    """
    slot_key, _, boot_id = owner.rpartition("/")
    rows = await db.fetch_all(
        _HEARTBEAT,
        {
            "owner": owner,
            "slot_key": slot_key,
            "boot_id": boot_id,
            "slots": slots,
            "free": free,
            "run_ids": [run_id for run_id, _ in held],
            "attempts": [attempt for _, attempt in held],
            "lease_seconds": lease_seconds,
        },
    )
    return [
        Held(
            row["run_id"],
            row["attempt"],
            None if row["cancel_action"] is None else CancelAction(row["cancel_action"]),
            row["renewed"],
        )
        for row in rows
    ]


async def retire(db: Database, owner: str) -> None:
    """Forgets a worker instance that ends in good order."""
    await db.execute("DELETE FROM instances WHERE owner = %(owner)s", {"owner": owner})

"""Deliveries of webhooks: written when a run ends, in the same transaction, and gone when told.

At least once: who dies while sending leaves the delivery to be sent again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from persistence.engine import Database
from persistence.run_secrets import WITHOUT_SECRETS


def _time(column: str) -> str:
    return f"""to_char({column} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"')"""


def statement(source: str, *, status: str, error: str, values: str) -> str:
    """The insert of a delivery for the run in ``source``, a relation ``r`` with all its columns.

    status: SQL of the status to tell; the row's own may not say it (``rollback``). error: SQL of
    its jsonb. values: SQL of the state's json; not told for stateless runs, whose thread goes.
    """
    return f"""
    INSERT INTO webhook_deliveries (run_id, url, body, failure)
    SELECT r.run_id, r.webhook, json_build_object(
        'run_id', r.run_id, 'thread_id', r.thread_id, 'assistant_id', r.assistant_id,
        'metadata', r.metadata, 'status', {status}, 'kwargs', {WITHOUT_SECRETS},
        'multitask_strategy', r.multitask_strategy, 'langsmith_session_name', NULL,
        'created_at', {_time("r.created_at")}, 'updated_at', {_time("r.updated_at")},
        'run_started_at', {_time("r.started_at")}, 'run_ended_at', {_time("clock_timestamp()")},
        'values', CASE WHEN t.temporary THEN NULL ELSE {values} END), {error}
    FROM {source} JOIN threads t ON t.thread_id = r.thread_id
    WHERE r.webhook IS NOT NULL
    ON CONFLICT (run_id) DO NOTHING
    """


@dataclass(frozen=True, slots=True)
class Delivery:
    """A run's end that is to be told now.

    url: may be a credential: for sending only. body: JSON object; the moment of sending is to be
    added. failure: ``{"error", "message"}`` of a run that failed, as JSON. attempts: this one too.
    """

    run_id: UUID
    url: str
    body: bytes
    failure: bytes | None
    attempts: int


_TAKE = """
UPDATE webhook_deliveries d
SET attempts = attempts + 1, due_at = clock_timestamp() + make_interval(secs => %(lease)s)
FROM (
    SELECT run_id FROM webhook_deliveries WHERE due_at <= clock_timestamp()
    ORDER BY due_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
) AS taken
WHERE d.run_id = taken.run_id
RETURNING d.run_id, d.url, d.body::text, d.failure::text, d.attempts
"""


async def take(db: Database, limit: int, lease_seconds: float) -> list[Delivery]:
    """Takes deliveries that are due; they are due again after the lease if nothing is heard."""
    rows = await db.fetch_all(_TAKE, {"limit": limit, "lease": lease_seconds})
    return [
        Delivery(
            row["run_id"],
            row["url"],
            row["body"].encode(),
            None if row["failure"] is None else row["failure"].encode(),
            row["attempts"],
        )
        for row in rows
    ]


async def done(db: Database, run_id: UUID) -> None:
    """Forgets a delivery that was told."""
    await db.execute("DELETE FROM webhook_deliveries WHERE run_id = %s", [run_id])


_FAILED = """
UPDATE webhook_deliveries
SET error = %(error)s, due_at = clock_timestamp() + make_interval(secs => %(again)s::float8)
WHERE run_id = %(run_id)s AND attempts = %(attempts)s
"""


async def failed(db: Database, one: Delivery, error: str, again_seconds: float | None) -> None:
    """Notes why a delivery failed, and when to try again; None gives it up."""
    params: Mapping[str, Any] = {
        "run_id": one.run_id,
        "attempts": one.attempts,
        "error": error,
        "again": again_seconds,
    }
    await db.execute(_FAILED, params)


_FORGET = """
DELETE FROM webhook_deliveries
WHERE due_at IS NULL AND created_at < clock_timestamp() - make_interval(secs => %(kept)s)
"""


async def forget(db: Database, kept_seconds: float) -> int:
    """Deletes deliveries that were given up, so long after their run's end; returns how many."""
    return await db.execute(_FORGET, {"kept": kept_seconds})

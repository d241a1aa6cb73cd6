"""Runs as callers and readers see them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from persistence.engine import Database
from persistence.errors import RunNotFound
from persistence.lifecycle import ACTIVE, RunStatus
from persistence.runs.rows import ACTIVE_STATUSES, COLUMNS, RunRow, run_row
from persistence.visibility import Filter, clause


def _on_visible_thread(allowed: Filter | None) -> tuple[str, dict[str, Any]]:
    """The condition that a run is on a thread that the caller may see."""
    if not allowed:
        return "TRUE", {}
    condition, params = clause("t.metadata", allowed)
    return (
        f"EXISTS (SELECT FROM threads t WHERE t.thread_id = runs.thread_id AND {condition})",
        params,
    )


async def caller(db: Database, run_id: UUID, credential: UUID) -> bytes | None:
    """The user who made a run, as JSON; None unless this is its present attempt's credential."""
    row = await db.fetch_one(
        f"""SELECT kwargs #>> '{{config,configurable,langgraph_auth_user}}' AS caller FROM runs
        WHERE run_id = %(run_id)s AND credential = %(credential)s
          AND status = '{RunStatus.RUNNING}'""",
        {"run_id": run_id, "credential": credential},
    )
    if row is None or row["caller"] is None:
        return None
    return str(row["caller"]).encode()


async def get(
    db: Database, thread_id: UUID, run_id: UUID, *, allowed: Filter | None = None
) -> RunRow:
    """Returns a run of the thread. Raises RunNotFound.

    allowed: which threads the caller may see, here as in all that follow.
    """
    condition, params = _on_visible_thread(allowed)
    row = await db.fetch_one(
        f"""SELECT {COLUMNS} FROM runs
        WHERE run_id = %(run_id)s AND thread_id = %(thread_id)s AND {condition}""",
        {"run_id": run_id, "thread_id": thread_id, **params},
    )
    if row is None:
        raise RunNotFound(run_id)
    return run_row(row)


_LIST = f"""
SELECT {COLUMNS} FROM runs
WHERE thread_id = %(thread_id)s AND (%(status)s::text IS NULL OR status = %(status)s)
  AND {{visible}}
ORDER BY created_at DESC, queue_seq DESC
LIMIT %(limit)s OFFSET %(offset)s
"""


async def list_for_thread(
    db: Database,
    thread_id: UUID,
    status: str | None = None,
    limit: int = 10,
    offset: int = 0,
    *,
    allowed: Filter | None = None,
) -> list[RunRow]:
    """Returns runs of the thread, newest first; an unknown thread or status has none."""
    condition, params = _on_visible_thread(allowed)
    rows = await db.fetch_all(
        _LIST.format(visible=condition),
        {"thread_id": thread_id, "status": status, "limit": limit, "offset": offset, **params},
    )
    return [run_row(row) for row in rows]


_ACTIVE_IDS = f"""
SELECT run_id, thread_id FROM runs
WHERE (%(thread_id)s::uuid IS NULL OR thread_id = %(thread_id)s)
  AND (%(run_ids)s::uuid[] IS NULL OR run_id = ANY(%(run_ids)s))
  AND status = ANY(%(statuses)s) AND status IN ({ACTIVE_STATUSES}) AND {{visible}}
ORDER BY created_at, queue_seq
"""


async def active(
    db: Database,
    statuses: Sequence[RunStatus] = tuple(ACTIVE),
    thread_id: UUID | None = None,
    run_ids: Sequence[UUID] | None = None,
    *,
    allowed: Filter | None = None,
) -> list[tuple[UUID, UUID]]:
    """Returns ``(thread_id, run_id)`` of pending or running runs, oldest first."""
    condition, params = _on_visible_thread(allowed)
    rows = await db.fetch_all(
        _ACTIVE_IDS.format(visible=condition),
        {
            **params,
            "thread_id": thread_id,
            "run_ids": None if run_ids is None else list(run_ids),
            "statuses": [status.value for status in statuses],
        },
    )
    return [(row["thread_id"], row["run_id"]) for row in rows]


@dataclass(frozen=True, slots=True)
class RunResult:
    """What ``wait`` and ``join`` answer with.

    output: JSON of the final values; None when the run never got so far.
    error: ``{"error", "message"}`` of a failed or stopped run.
    """

    run_id: UUID
    thread_id: UUID
    status: RunStatus
    output: bytes | None
    error: dict[str, Any] | None


async def result(db: Database, run_id: UUID) -> RunResult | None:
    """Returns how a run stands or ended; None when there is no such run (any more)."""
    row = await db.fetch_one(
        "SELECT run_id, thread_id, status, output::text, error FROM runs WHERE run_id = %s",
        [run_id],
    )
    if row is None:
        return None
    output = row["output"]
    return RunResult(
        row["run_id"],
        row["thread_id"],
        RunStatus(row["status"]),
        None if output is None else output.encode(),
        row["error"],
    )


@dataclass(frozen=True, slots=True)
class Finished:
    """A run that is over.

    seconds: since when. attempt: its last one. events: how many that one wrote, with the ``error``
    that readers are told of a failure; None when nobody knows.
    """

    seconds: float
    attempt: int = 0
    events: int | None = None


_FINISHED = f"""
SELECT run_id::text, extract(epoch FROM clock_timestamp() - finished_at)::float8 AS seconds,
    attempt, events + (
        status IN ('{RunStatus.ERROR}', '{RunStatus.TIMEOUT}') AND error IS NOT NULL
    )::int AS events
FROM runs WHERE run_id = ANY(%(run_ids)s::uuid[])
"""


async def finished(db: Database, run_ids: Sequence[str]) -> dict[str, Finished | None]:
    """Returns what is known of the ends of runs: None for an active one, no entry for one gone."""
    rows = await db.fetch_all(_FINISHED, {"run_ids": list(run_ids)})
    return {
        row["run_id"]: None
        if row["seconds"] is None
        else Finished(row["seconds"], row["attempt"], row["events"])
        for row in rows
    }

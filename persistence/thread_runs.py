"""Which runs of threads have started: what those ask who follow a thread over several runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from persistence.engine import Database, Row
from persistence.lifecycle import RunStatus, ThreadStatus

EVER = datetime(1970, 1, 1, tzinfo=UTC)
"""Before every run."""


@dataclass(frozen=True, slots=True)
class StartedRun:
    """A run that has started, as it stood when it was read.

    error: ``{"error", "message"}`` of one that failed or was stopped.
    over: seconds since it was settled by the database's clock; None while it is active.
    """

    run_id: UUID
    thread_id: UUID
    graph_id: str
    status: RunStatus
    resumable: bool
    error: dict[str, str] | None
    started_at: datetime
    finished_at: datetime | None
    over: float | None


@dataclass(frozen=True, slots=True)
class Seen:
    """How far somebody knows a thread: its latest start, and when its row last changed."""

    started_at: datetime = EVER
    updated_at: datetime = EVER


@dataclass(frozen=True, slots=True)
class News:
    """What a thread has that was not seen: its runs in the order in which they started."""

    seen: Seen
    runs: tuple[StartedRun, ...]


# A claim does not touch the thread's row, but a thread whose run may be claimed is busy. So an idle
# thread whose row did not change costs a look at its primary key, and nothing else.
_STARTED = f"""
SELECT t.thread_id, t.updated_at AS thread_updated_at,
       r.run_id, r.graph_id, r.status, r.resumable, r.error, r.started_at, r.finished_at,
       extract(epoch FROM clock_timestamp() - r.finished_at)::float8 AS over
FROM unnest(%(thread_ids)s::uuid[], %(started)s::timestamptz[], %(updated)s::timestamptz[])
     AS w (thread_id, started_at, updated_at)
JOIN threads t ON t.thread_id = w.thread_id
JOIN LATERAL (SELECT t.status = '{ThreadStatus.BUSY}' OR t.updated_at > w.updated_at AS yes)
     AS changed ON changed.yes
LEFT JOIN runs r ON r.thread_id = t.thread_id AND r.started_at > w.started_at
ORDER BY t.thread_id, r.started_at, r.queue_seq
"""


async def started(db: Database, watched: Mapping[UUID, Seen]) -> dict[UUID, News]:
    """Returns what is new on each of the threads, by thread; one that is unchanged has no entry."""
    rows = await db.fetch_all(
        _STARTED,
        {
            "thread_ids": list(watched),
            "started": [seen.started_at for seen in watched.values()],
            "updated": [seen.updated_at for seen in watched.values()],
        },
    )
    by_thread: dict[UUID, list[Row]] = {}
    for row in rows:
        by_thread.setdefault(row["thread_id"], []).append(row)
    return {
        thread_id: _news(watched[thread_id], of_thread)
        for thread_id, of_thread in by_thread.items()
    }


def _news(before: Seen, rows: list[Row]) -> News:
    found = tuple(
        StartedRun(
            run_id=row["run_id"],
            thread_id=row["thread_id"],
            graph_id=row["graph_id"],
            status=RunStatus(row["status"]),
            resumable=row["resumable"],
            error=row["error"],
            started_at=row["started_at"],
            finished_at=row["finished_at"],
            over=row["over"],
        )
        for row in rows
        if row["run_id"] is not None
    )
    started_at = found[-1].started_at if found else before.started_at
    return News(Seen(started_at, rows[0]["thread_updated_at"]), found)

"""Who is next: the line of runs on each thread.

A run is first in line on its thread when no pending run of it has a smaller
``(available_at, queue_seq)``. Both are given out under the thread's lock, so the line is the order
of acceptance; a delayed run joins it when it falls due and blocks nobody before.
"""

from dataclasses import dataclass
from uuid import UUID

from persistence.engine import Connection, Database
from persistence.lifecycle import RunStatus

UNBLOCKED = f"""
r.status = '{RunStatus.PENDING}'
AND r.available_at <= clock_timestamp()
AND NOT EXISTS (
    SELECT FROM runs o WHERE o.thread_id = r.thread_id AND o.status = '{RunStatus.RUNNING}')
AND NOT EXISTS (
    SELECT FROM runs o WHERE o.thread_id = r.thread_id AND o.status = '{RunStatus.PENDING}'
    AND (o.available_at, o.queue_seq) < (r.available_at, r.queue_seq))
"""
"""Whether the run ``r`` may start now."""

_CLAIMABLE = f"""
SELECT r.run_id FROM runs r
WHERE {UNBLOCKED} AND r.available_at <= clock_timestamp() - make_interval(secs => %(older)s)
ORDER BY r.available_at, r.queue_seq
LIMIT %(limit)s
"""


async def claimable(db: Database, limit: int, older_than_seconds: float = 0.0) -> list[UUID]:
    """Returns runs that could be claimed now and have been waiting for so long, oldest first."""
    rows = await db.fetch_all(_CLAIMABLE, {"limit": limit, "older": older_than_seconds})
    return [row["run_id"] for row in rows]


# A delayed run is created with created_at ahead of the moment of acceptance, kept in updated_at.
_DUE = f"""
SELECT r.run_id FROM runs r
WHERE {UNBLOCKED} AND r.available_at > clock_timestamp() - make_interval(secs => %(within)s)
  AND r.created_at > r.updated_at
ORDER BY r.available_at, r.queue_seq
LIMIT %(limit)s
"""


async def due(db: Database, within_seconds: float, limit: int = 1000) -> list[UUID]:
    """Returns delayed runs that could be claimed now and fell due within the last so many seconds.

    A tick that comes more often than ``within_seconds`` sees each; a message too many is harmless.
    """
    rows = await db.fetch_all(_DUE, {"within": within_seconds, "limit": limit})
    return [row["run_id"] for row in rows]


# thread_id comes first though it is one and the same, so that only the line's own index has this
# order: left to choose, the planner walks through all that wait anywhere.
IN_LINE = "ORDER BY p.thread_id, p.available_at, p.queue_seq"

_NEXT = f"""
SELECT head.run_id FROM (
    SELECT p.run_id, p.available_at FROM runs p
    WHERE p.thread_id = %(thread_id)s AND p.status = '{RunStatus.PENDING}'
    {IN_LINE} LIMIT 1) AS head
WHERE head.available_at <= clock_timestamp() AND NOT EXISTS (
    SELECT FROM runs WHERE thread_id = %(thread_id)s AND status = '{RunStatus.RUNNING}')
"""


async def next_of_thread(connection: Connection, thread_id: UUID) -> UUID | None:
    """Returns the run of the thread that may start now, inside the caller's transaction."""
    row = await (await connection.execute(_NEXT, {"thread_id": thread_id})).fetchone()
    return None if row is None else row["run_id"]


@dataclass(frozen=True, slots=True)
class Waiting:
    """Whether work waits, and whether there is anybody to do it.

    oldest_seconds: for how long the longest waiting run could have been claimed; 0 when none waits.
    instances, slots, free: worker instances whose heartbeat is fresh, and their slots.
    """

    oldest_seconds: float
    instances: int
    slots: int
    free: int


_WAITING = f"""
SELECT
    coalesce((
        SELECT extract(epoch FROM clock_timestamp() - r.available_at)::float8 FROM runs r
        WHERE {UNBLOCKED} ORDER BY r.available_at, r.queue_seq LIMIT 1), 0) AS oldest_seconds,
    count(*)::int AS instances,
    coalesce(sum(slots), 0)::int AS slots,
    coalesce(sum(free), 0)::int AS free
FROM instances
WHERE heartbeat_at > clock_timestamp() - make_interval(secs => %(fresh)s)
"""


async def waiting(db: Database, fresh_seconds: float = 30.0) -> Waiting:
    """Returns the state of the queue; an instance counts if its last heartbeat is that fresh."""
    row = await db.fetch_one(_WAITING, {"fresh": fresh_seconds})
    if row is None:
        raise RuntimeError("an aggregate always has one row")
    return Waiting(**row)

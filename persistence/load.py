"""How much waits, how much runs, and how many there are to do it: figures for whoever watches."""

from dataclasses import dataclass

from persistence.engine import Database
from persistence.lifecycle import RunStatus
from persistence.runs.line import UNBLOCKED


@dataclass(frozen=True, slots=True)
class Load:
    """The state of the queue and of the workers at one moment. Times are seconds.

    pending: runs that wait, also for their date. longest, median: for how long those have waited
    whose date has come. longest_unblocked: the same of those that could start at once.
    slots, free: of the instances whose heartbeat is fresh.
    """

    pending: int
    running: int
    longest: float
    median: float
    longest_unblocked: float
    slots: int
    free: int


_LOAD = f"""
SELECT waiting.*, active.*, working.*, coalesce((
    SELECT extract(epoch FROM clock_timestamp() - r.available_at)::float8 FROM runs r
    WHERE {UNBLOCKED} ORDER BY r.available_at, r.queue_seq LIMIT 1), 0) AS longest_unblocked
FROM (
    SELECT count(*)::int AS pending, coalesce(max(seconds), 0) AS longest,
        coalesce(percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds), 0) AS median
    FROM (
        SELECT CASE WHEN available_at <= clock_timestamp()
            THEN extract(epoch FROM clock_timestamp() - available_at)::float8 END AS seconds
        FROM runs WHERE status = '{RunStatus.PENDING}') AS pending) AS waiting,
    (SELECT count(*)::int AS running FROM runs WHERE status = '{RunStatus.RUNNING}') AS active,
    (SELECT coalesce(sum(slots), 0)::int AS slots, coalesce(sum(free), 0)::int AS free
    FROM instances
    WHERE heartbeat_at > clock_timestamp() - make_interval(secs => %(fresh)s)) AS working
"""


async def load(db: Database, fresh_seconds: float = 30.0) -> Load:
    """Returns the figures; an instance counts if its last heartbeat is that fresh.

    Costs as much as counting all that waits: not for every request.
    """
    row = await db.fetch_one(_LOAD, {"fresh": fresh_seconds})
    if row is None:
        raise RuntimeError("an aggregate always has one row")
    return Load(**row)

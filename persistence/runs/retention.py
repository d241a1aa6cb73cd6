"""Runs that ended long ago."""

from persistence.engine import Database

# SKIP LOCKED: whoever holds a row removes it too. Its thread is not touched: what the run left
# there, its state and its history, has a lifetime of its own.
_FORGET = """
DELETE FROM runs WHERE run_id IN (
    SELECT run_id FROM runs
    WHERE finished_at < clock_timestamp() - make_interval(secs => %(seconds)s::float8)
    ORDER BY finished_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
RETURNING run_id
"""


async def forget(db: Database, seconds: float, limit: int = 500) -> int:
    """Removes runs that ended more than so many seconds ago; returns how many, at most limit."""
    return len(await db.fetch_all(_FORGET, {"seconds": seconds, "limit": limit}))

"""Requests that name a key: whoever asks again, since no answer came, gets the run of the first."""

from dataclasses import dataclass
from uuid import UUID

from persistence.engine import Connection, Database
from persistence.errors import Conflict

KEPT_SECONDS = 86_400.0
"""A key that comes again later is a new one."""


@dataclass(frozen=True, slots=True)
class RequestKey:
    """Two digests: of who asks under which key, and of what is asked for."""

    key: bytes
    request: bytes


# Whoever notes the same key at this moment is waited for.
_NOTE = """
INSERT INTO request_keys AS k (key, request, run_id)
VALUES (%(key)s, %(request)s, %(run_id)s)
ON CONFLICT (key) DO UPDATE SET created_at = k.created_at
RETURNING request, run_id
"""

_FORGET = """
DELETE FROM request_keys WHERE key IN (
    SELECT key FROM request_keys
    WHERE created_at < clock_timestamp() - make_interval(secs => %(seconds)s::float8)
    ORDER BY created_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
RETURNING key
"""


async def note(connection: Connection, asked: RequestKey, run_id: UUID) -> UUID:
    """Which run the key stands for: this one from now on, or that of the first who asked.

    Take it before all other locks. Raises Conflict when something else was asked for.
    """
    cursor = await connection.execute(
        _NOTE, {"key": asked.key, "request": asked.request, "run_id": run_id}
    )
    row = await cursor.fetchone()
    if row is None or row["request"] != asked.request:
        raise Conflict("This Idempotency-Key was used before, for another request")
    first: UUID = row["run_id"]
    return first


async def forget(db: Database, seconds: float = KEPT_SECONDS, limit: int = 1000) -> int:
    """Removes keys that are older; returns how many, at most limit."""
    return len(await db.fetch_all(_FORGET, {"seconds": seconds, "limit": limit}))

"""The thread of a run: locked before the run, and settled together with it."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from persistence.engine import Connection, JsonText
from persistence.lifecycle import RunStatus, ThreadStatus
from persistence.runs.line import next_of_thread
from persistence.runs.rows import ACTIVE_STATUSES
from persistence.text import dumps
from persistence.visibility import Filter, clause

_LOCK_THREAD = """
SELECT thread_id FROM threads WHERE thread_id = %(thread_id)s AND {visible} FOR NO KEY UPDATE
"""


async def lock_thread(
    connection: Connection, thread_id: UUID, allowed: Filter | None = None
) -> bool:
    """Locks a thread until the end of the transaction; returns whether there is such a one."""
    condition, params = clause("metadata", allowed)
    cursor = await connection.execute(
        _LOCK_THREAD.format(visible=condition), {"thread_id": thread_id, **params}
    )
    return await cursor.fetchone() is not None


_LOCK_THREADS_OF = """
SELECT t.thread_id FROM threads t
WHERE t.thread_id IN (SELECT r.thread_id FROM runs r WHERE r.run_id = ANY(%(run_ids)s))
ORDER BY t.thread_id FOR NO KEY UPDATE OF t
"""


_LOCK_PATIENCE = "SET LOCAL lock_timeout = '500ms'"
_NO_LOCK_PATIENCE = "SET LOCAL lock_timeout = '20ms'"
"""For who locks the rows of many runs at once: neighbours must not wait for whoever holds one, for
as long as a large step is being stored, or a long thread deleted. Longer than a queue of those that
create runs on one thread."""


async def be_impatient(connection: Connection, *, again: bool = False) -> None:
    """Lets this transaction wait for a lock only as long as locks are commonly held.

    again: all were waited for together already; now it is only asked which of them are held.
    Beyond that a statement fails, which is told as Overtaken.
    """
    await connection.execute(_NO_LOCK_PATIENCE if again else _LOCK_PATIENCE)


async def lock_threads_of(connection: Connection, run_ids: Sequence[UUID]) -> None:
    """Locks the threads of the runs until the end of the transaction."""
    await connection.execute(_LOCK_THREADS_OF, {"run_ids": list(run_ids)})


def rest_status(ended: RunStatus, next_nodes: bool) -> ThreadStatus:
    """What a thread is after its last run ended so."""
    match ended:
        case RunStatus.SUCCESS:
            return ThreadStatus.INTERRUPTED if next_nodes else ThreadStatus.IDLE
        case RunStatus.ERROR | RunStatus.TIMEOUT:
            return ThreadStatus.ERROR
        case RunStatus.INTERRUPTED:
            return ThreadStatus.INTERRUPTED
        case RunStatus.PENDING | RunStatus.RUNNING:
            raise ValueError(f"{ended} is no end")


# rest NULL: the run left no trace, so the thread rests as it did before. A rolled back run leaves
# nothing but the word of it in the thread's error, which is why an earlier failure rests no longer.
_SETTLE_THREAD = f"""
UPDATE threads t
SET rest_status = new.rest,
    status = CASE WHEN EXISTS (
        SELECT FROM runs a WHERE a.thread_id = t.thread_id AND a.status IN ({ACTIVE_STATUSES})
    ) THEN '{ThreadStatus.BUSY}' ELSE new.rest END,
    error = CASE WHEN %(error)s::jsonb IS NULL THEN t.error ELSE %(error)s::jsonb END,
    updated_at = clock_timestamp()
FROM (
    SELECT thread_id, CASE
        WHEN %(rest)s::text IS NOT NULL THEN %(rest)s::text
        WHEN %(rolled_back)s AND rest_status = '{ThreadStatus.ERROR}' THEN '{ThreadStatus.IDLE}'
        ELSE rest_status END AS rest
    FROM threads WHERE thread_id = %(thread_id)s
) AS new
WHERE t.thread_id = new.thread_id
"""


async def settle_thread(
    connection: Connection,
    thread_id: UUID,
    *,
    rest: ThreadStatus | None = None,
    rolled_back: bool = False,
    error: Mapping[str, Any] | None = None,
) -> UUID | None:
    """Makes a locked thread agree with its runs; returns the one of them that may start now."""
    await connection.execute(
        _SETTLE_THREAD,
        {
            "thread_id": thread_id,
            "rest": None if rest is None else rest.value,
            "rolled_back": rolled_back,
            "error": None if error is None else JsonText(dumps(error)),
        },
    )
    return await next_of_thread(connection, thread_id)

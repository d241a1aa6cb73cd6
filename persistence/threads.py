"""Threads: what belongs to them, how they are found, and how they go.

``allowed`` says which of them the caller may see; the others are not there for the statement.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import sqlalchemy as sa

from persistence import checkpoints
from persistence.engine import Database, JsonText, Row
from persistence.errors import Conflict, ThreadNotFound
from persistence.lifecycle import ACTIVE, RunStatus, ThreadStatus
from persistence.models import threads, words
from persistence.search import matches, ordered
from persistence.text import dumps
from persistence.visibility import Filter, clause, visible

SortBy = Literal["thread_id", "status", "created_at", "updated_at", "state_updated_at"]


@dataclass(frozen=True, slots=True)
class ThreadRow:
    """A thread as it is read. JSON comes as bytes.

    values, interrupts, state_updated_at: None until the first change of state.
    expires_at: when the strategy will be applied to the thread if nothing changes it before.
    """

    thread_id: UUID
    status: ThreadStatus
    metadata: bytes
    config: bytes
    values: bytes | None
    interrupts: bytes | None
    error: bytes | None
    temporary: bool
    created_at: datetime
    updated_at: datetime
    state_updated_at: datetime | None
    ttl_minutes: float | None
    ttl_strategy: str | None
    expires_at: datetime | None


_THREAD_ROW = """
thread_id, status, metadata::text, config::text, values::text, interrupts::text, error::text,
temporary, created_at, updated_at, state_updated_at, ttl_minutes, ttl_strategy, expires_at
"""

_HIDDEN = ("rest_status", "ttl_swept_at")
"""Columns that are nobody's to read."""

_JSON = ("metadata", "config", "values", "interrupts", "error")


def _thread_row(row: Row) -> ThreadRow:
    documents = {name: None if row[name] is None else row[name].encode() for name in _JSON}
    return ThreadRow(**row | documents | {"status": ThreadStatus(row["status"])})


async def create(
    db: Database,
    thread_id: UUID,
    metadata: Mapping[str, Any],
    if_exists: Literal["raise", "do_nothing"] = "raise",
    *,
    allowed: Filter | None = None,
) -> ThreadRow:
    """Makes a thread, or returns the one there is, unchanged. Raises Conflict.

    The one there is must be allowed to be seen, or its id is taken by nobody knows whom.
    """
    row = await db.fetch_one(
        f"""INSERT INTO threads (thread_id, metadata) VALUES (%(thread_id)s, %(metadata)s::jsonb)
        ON CONFLICT (thread_id) DO NOTHING RETURNING {_THREAD_ROW}""",
        {"thread_id": thread_id, "metadata": JsonText(dumps(metadata))},
    )
    if row is not None:
        return _thread_row(row)
    if if_exists == "raise":
        raise Conflict(f"Thread with ID {thread_id} already exists")
    try:
        return await get(db, thread_id, allowed=allowed)
    except ThreadNotFound:
        raise Conflict(f"Thread with ID {thread_id} already exists") from None


async def get(db: Database, thread_id: UUID, *, allowed: Filter | None = None) -> ThreadRow:
    """Returns a thread. Raises ThreadNotFound."""
    condition, params = clause("metadata", allowed)
    row = await db.fetch_one(
        f"SELECT {_THREAD_ROW} FROM threads WHERE thread_id = %(thread_id)s AND {condition}",
        {"thread_id": thread_id, **params},
    )
    if row is None:
        raise ThreadNotFound(thread_id)
    return _thread_row(row)


async def patch(
    db: Database,
    thread_id: UUID,
    metadata: Mapping[str, Any],
    *,
    allowed: Filter | None = None,
) -> ThreadRow:
    """Merges metadata, key by key of the top level. Raises ThreadNotFound."""
    condition, params = clause("metadata", allowed)
    row = await db.fetch_one(
        f"""UPDATE threads SET metadata = metadata || %(metadata)s::jsonb,
        updated_at = clock_timestamp() WHERE thread_id = %(thread_id)s AND {condition}
        RETURNING {_THREAD_ROW}""",
        {"thread_id": thread_id, "metadata": JsonText(dumps(metadata)), **params},
    )
    if row is None:
        raise ThreadNotFound(thread_id)
    return _thread_row(row)


_RECORD_STATE = f"""
UPDATE threads
SET values = coalesce(%(values)s::jsonb, values), interrupts = %(interrupts)s::jsonb, error = NULL,
    rest_status = %(rest)s,
    status = CASE WHEN status = '{ThreadStatus.BUSY}' THEN status ELSE %(rest)s END,
    updated_at = clock_timestamp(), state_updated_at = clock_timestamp()
WHERE thread_id = %(thread_id)s
"""


async def record_state(
    db: Database,
    thread_id: UUID,
    *,
    values: bytes | None,
    interrupts: bytes = b"{}",
    next_nodes: bool,
) -> None:
    """Notes a change of state that no run made (a state update). Raises ThreadNotFound.

    values, interrupts: JSON, as in a run's settlement; values None leaves them as they are.
    """
    rest = ThreadStatus.INTERRUPTED if next_nodes else ThreadStatus.IDLE
    touched = await db.execute(
        _RECORD_STATE,
        {
            "thread_id": thread_id,
            "values": None if values is None else JsonText(values),
            "interrupts": JsonText(interrupts),
            "rest": rest.value,
        },
    )
    if not touched:
        raise ThreadNotFound(thread_id)


_COPY = f"""
INSERT INTO threads (thread_id, status, rest_status, metadata, config, values, interrupts, error,
    state_updated_at)
SELECT %(target)s, rest_status, rest_status, metadata || %(metadata)s::jsonb, config, values,
    interrupts, error, state_updated_at
FROM threads WHERE thread_id = %(source)s AND {{visible}}
RETURNING {_THREAD_ROW}
"""


async def copy(
    db: Database,
    source: UUID,
    target: UUID,
    *,
    metadata: Mapping[str, Any] | None = None,
    allowed: Filter | None = None,
) -> ThreadRow:
    """Copies a thread with its whole history, without its runs.

    metadata: merged into the copy's. Raises ThreadNotFound, Conflict.
    """
    condition, params = clause("metadata", allowed)
    params |= {"source": source, "target": target, "metadata": JsonText(dumps(metadata or {}))}
    async with db.transaction() as connection:
        taken = "SELECT 1 FROM threads WHERE thread_id = %s"
        if await (await connection.execute(taken, [target])).fetchone():
            raise Conflict(f"Thread with ID {target} already exists")
        # No run can end in between: then values and history would not be of the same moment.
        await connection.execute(_LOCK, {"thread_ids": [source]})
        cursor = await connection.execute(_COPY.format(visible=condition), params)
        row = await cursor.fetchone()
        if row is None:
            raise ThreadNotFound(source)
        await checkpoints.copy_thread(connection, source, target)
        return _thread_row(row)


_LOCK = """
SELECT thread_id FROM threads WHERE thread_id = ANY(%(thread_ids)s)
ORDER BY thread_id FOR NO KEY UPDATE
"""

_LOCK_TO_DELETE = """
SELECT thread_id FROM threads WHERE thread_id = ANY(%(thread_ids)s) AND {visible}
ORDER BY thread_id FOR UPDATE
"""

# The cascade would lock the runs in no order; see the rule in persistence.runs.
_LOCK_RUNS = """
SELECT run_id, status FROM runs WHERE thread_id = ANY(%(thread_ids)s) ORDER BY run_id FOR UPDATE
"""


@dataclass(frozen=True, slots=True)
class Deleted:
    """What went.

    count: how many threads.
    running: runs that were being executed; their leases are void, and their workers can be told.
    """

    count: int
    running: tuple[UUID, ...]


async def delete(db: Database, thread_id: UUID, *, allowed: Filter | None = None) -> Deleted:
    """Deletes a thread with everything that is of it. Raises ThreadNotFound."""
    deleted = await delete_many(db, [thread_id], allowed=allowed)
    if not deleted.count:
        raise ThreadNotFound(thread_id)
    return deleted


async def delete_many(
    db: Database, thread_ids: Sequence[UUID], *, allowed: Filter | None = None
) -> Deleted:
    """Deletes threads with all that is of them, in one transaction; skips unknown ids."""
    condition, filters = clause("metadata", allowed)
    async with db.transaction() as connection:
        cursor = await connection.execute(
            _LOCK_TO_DELETE.format(visible=condition), {"thread_ids": list(thread_ids), **filters}
        )
        thread_ids = [row["thread_id"] for row in await cursor.fetchall()]
        params = {"thread_ids": thread_ids}
        rows = await (await connection.execute(_LOCK_RUNS, params)).fetchall()
        await checkpoints.delete_of_threads(connection, thread_ids)
        cursor = await connection.execute(
            "DELETE FROM threads WHERE thread_id = ANY(%(thread_ids)s)", params
        )
        running = tuple(row["run_id"] for row in rows if row["status"] == RunStatus.RUNNING)
        return Deleted(cursor.rowcount, running)


_TEMPORARY = f"""
SELECT thread_id FROM threads t
WHERE temporary AND updated_at < clock_timestamp() - make_interval(secs => %(grace)s)
  AND NOT EXISTS (
    SELECT FROM runs r WHERE r.thread_id = t.thread_id AND r.status IN ({words(ACTIVE)}))
ORDER BY updated_at LIMIT %(limit)s
"""


async def sweep_temporary(db: Database, grace_seconds: float, limit: int = 500) -> int:
    """Deletes threads of stateless runs that ended some seconds ago; returns how many.

    The grace lets those who waited for the run still read its end.
    """
    rows = await db.fetch_all(_TEMPORARY, {"grace": grace_seconds, "limit": limit})
    if not rows:
        return 0
    return (await delete_many(db, [row["thread_id"] for row in rows])).count


def _text(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    return sa.cast(column, sa.Text).label(column.name)


def _filtered(
    statement: sa.Select[Any],
    ids: Collection[UUID] | None,
    metadata: Mapping[str, Any] | None,
    values: Mapping[str, Any] | None,
    status: ThreadStatus | None,
    allowed: Filter | None,
) -> sa.Select[Any]:
    # Threads of stateless runs are nobody's to find; by id they can be read while they live.
    statement = statement.where(sa.not_(threads.c.temporary))
    if allowed:
        statement = statement.where(visible(threads.c.metadata, allowed))
    if ids:
        statement = statement.where(threads.c.thread_id.in_(ids))
    if metadata:
        statement = statement.where(matches(threads.c.metadata, metadata))
    if values:
        statement = statement.where(matches(threads.c["values"], values))
    if status is not None:
        statement = statement.where(threads.c.status == status.value)
    return statement


async def search(
    db: Database,
    *,
    ids: Collection[UUID] | None = None,
    metadata: Mapping[str, Any] | None = None,
    values: Mapping[str, Any] | None = None,
    status: ThreadStatus | None = None,
    limit: int = 10,
    offset: int = 0,
    sort_by: SortBy = "updated_at",
    sort_order: Literal["asc", "desc"] = "desc",
    select: Collection[str] | None = None,
    allowed: Filter | None = None,
) -> list[ThreadRow]:
    """Returns threads, by default those changed last first; ties go by id, so pages never overlap.

    ids: none or an empty list means any. metadata, values: containment, lists must be equal.
    select: of ``values`` and ``interrupts``, which may be large, only those named are read.
    """
    columns: list[sa.ColumnElement[Any]] = []
    for column in threads.c:
        if column.name in _HIDDEN:
            continue
        if column.name in ("values", "interrupts") and not (
            select is None or column.name in select
        ):
            columns.append(sa.null().label(column.name))
        else:
            columns.append(_text(column) if column.name in _JSON else column)
    by: sa.ColumnElement[Any] = threads.c[sort_by]
    if sort_by == "state_updated_at":
        by = sa.func.coalesce(threads.c.state_updated_at, threads.c.created_at)
    statement = _filtered(sa.select(*columns), ids, metadata, values, status, allowed)
    statement = ordered(statement, by, threads.c.thread_id, ascending=sort_order == "asc")
    rows = await db.fetch_all(statement.limit(limit).offset(offset))
    return [_thread_row(row) for row in rows]


async def count(
    db: Database,
    *,
    metadata: Mapping[str, Any] | None = None,
    values: Mapping[str, Any] | None = None,
    status: ThreadStatus | None = None,
    allowed: Filter | None = None,
) -> int:
    """Returns how many threads ``search`` would find."""
    statement = sa.select(sa.func.count().label("n")).select_from(threads)
    row = await db.fetch_one(_filtered(statement, None, metadata, values, status, allowed))
    return 0 if row is None else int(row["n"])

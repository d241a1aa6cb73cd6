"""Threads: what belongs to them, how they are found, and how they go.

``allowed`` says which of them the caller may see; the others are not there for the statement.
"""

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import sqlalchemy as sa

from persistence import checkpoints
from persistence.engine import Connection, Database, JsonText, Row
from persistence.errors import Conflict, HistoryNeeded, ThreadNotFound
from persistence.lifecycle import ACTIVE, RunStatus, ThreadStatus
from persistence.models import threads, words
from persistence.search import matches
from persistence.text import dumps
from persistence.ttl import Ttl, TtlStrategy
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
    ttl: Ttl | None = None,
    allowed: Filter | None = None,
) -> ThreadRow:
    """Makes a thread, or returns the one there is, unchanged. Raises Conflict.

    The one there is must be allowed to be seen, or its id is taken by nobody knows whom.
    """
    row = await db.fetch_one(
        f"""INSERT INTO threads (
            thread_id, metadata, ttl_minutes, ttl_strategy, created_at, updated_at)
        SELECT %(thread_id)s, %(metadata)s::jsonb, %(minutes)s::float8, %(strategy)s, now, now
        FROM clock_timestamp() AS now
        ON CONFLICT (thread_id) DO NOTHING RETURNING {_THREAD_ROW}""",
        {"thread_id": thread_id, "metadata": JsonText(dumps(metadata)), **_lifetime(ttl)},
    )
    if row is not None:
        return _thread_row(row)
    if if_exists == "raise":
        raise Conflict(f"Thread with ID {thread_id} already exists")
    try:
        return await get(db, thread_id, allowed=allowed)
    except ThreadNotFound:
        raise Conflict(f"Thread with ID {thread_id} already exists") from None


def _lifetime(ttl: Ttl | None) -> dict[str, Any]:
    return {"minutes": ttl and ttl.minutes, "strategy": ttl and ttl.strategy.value}


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


@dataclass(frozen=True, slots=True)
class ThreadHead:
    """A thread without its values, which may be great. JSON comes as bytes."""

    thread_id: UUID
    status: ThreadStatus
    metadata: bytes
    interrupts: bytes | None


async def head(db: Database, thread_id: UUID, *, allowed: Filter | None = None) -> ThreadHead:
    """Returns what a thread is, for who does not show its state. Raises ThreadNotFound."""
    condition, params = clause("metadata", allowed)
    row = await db.fetch_one(
        f"""SELECT status, metadata::text, interrupts::text FROM threads
        WHERE thread_id = %(thread_id)s AND {condition}""",
        {"thread_id": thread_id, **params},
    )
    if row is None:
        raise ThreadNotFound(thread_id)
    interrupts = row["interrupts"]
    return ThreadHead(
        thread_id,
        ThreadStatus(row["status"]),
        row["metadata"].encode(),
        None if interrupts is None else interrupts.encode(),
    )


async def patch(
    db: Database,
    thread_id: UUID,
    metadata: Mapping[str, Any],
    *,
    ttl: Ttl | None = None,
    allowed: Filter | None = None,
) -> ThreadRow:
    """Merges metadata, key by key of the top level. Raises ThreadNotFound.

    ttl: counts from now on; None leaves it as it is.
    """
    condition, params = clause("metadata", allowed)
    row = await db.fetch_one(
        f"""UPDATE threads SET metadata = metadata || %(metadata)s::jsonb,
        ttl_minutes = coalesce(%(minutes)s::float8, ttl_minutes),
        ttl_strategy = coalesce(%(strategy)s, ttl_strategy),
        updated_at = clock_timestamp() WHERE thread_id = %(thread_id)s AND {condition}
        RETURNING {_THREAD_ROW}""",
        {
            "thread_id": thread_id,
            "metadata": JsonText(dumps(metadata)),
            **_lifetime(ttl),
            **params,
        },
    )
    if row is None:
        raise ThreadNotFound(thread_id)
    return _thread_row(row)


_RECORD_STATE = f"""
UPDATE threads
SET values = coalesce(%(values)s::jsonb, values), interrupts = %(interrupts)s::jsonb, error = NULL,
    rest_status = %(rest)s,
    status = CASE WHEN status = '{ThreadStatus.BUSY}' THEN status ELSE %(rest)s END,
    updated_at = now, state_updated_at = now
FROM clock_timestamp() AS now
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


# Only as long as the thread shows this run's end: a later change of state is newer.
_SHOW_LEFT = """
UPDATE threads t
SET values = %(values)s::jsonb, interrupts = %(interrupts)s::jsonb,
    updated_at = clock_timestamp(), state_updated_at = clock_timestamp()
FROM runs r WHERE r.run_id = %(run_id)s AND t.thread_id = r.thread_id AND t.error = r.error
"""


async def show_left(db: Database, run_id: UUID, *, values: bytes, interrupts: bytes) -> None:
    """Notes what a run left on its thread that ended without saying so itself.

    values, interrupts: JSON, as in a run's settlement.
    """
    await db.execute(
        _SHOW_LEFT,
        {"run_id": run_id, "values": JsonText(values), "interrupts": JsonText(interrupts)},
    )


_COPY = f"""
INSERT INTO threads (thread_id, status, rest_status, metadata, config, values, interrupts, error,
    state_updated_at, ttl_minutes, ttl_strategy, created_at, updated_at)
SELECT %(target)s, rest_status, rest_status, metadata || %(metadata)s::jsonb, config, values,
    interrupts, error, state_updated_at, ttl_minutes, ttl_strategy, now, now
FROM threads, clock_timestamp() AS now WHERE thread_id = %(source)s AND {{visible}}
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
    pending: runs that waited.
    """

    count: int
    running: tuple[UUID, ...]
    pending: tuple[UUID, ...]


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
    async with db.transaction() as connection:
        return await delete_within(connection, thread_ids, allowed=allowed)


async def delete_within(
    connection: Connection, thread_ids: Sequence[UUID], *, allowed: Filter | None = None
) -> Deleted:
    """Deletes threads inside the caller's transaction, which holds no locks of runs."""
    condition, filters = clause("metadata", allowed)
    cursor = await connection.execute(
        _LOCK_TO_DELETE.format(visible=condition), {"thread_ids": list(thread_ids), **filters}
    )
    return await _delete(connection, [row["thread_id"] for row in await cursor.fetchall()])


async def _delete(connection: Connection, thread_ids: Sequence[UUID]) -> Deleted:
    """Deletes threads that are locked."""
    params = {"thread_ids": list(thread_ids)}
    rows = await (await connection.execute(_LOCK_RUNS, params)).fetchall()
    await checkpoints.delete_of_threads(connection, thread_ids)
    cursor = await connection.execute(
        "DELETE FROM threads WHERE thread_id = ANY(%(thread_ids)s)", params
    )
    running = tuple(row["run_id"] for row in rows if row["status"] == RunStatus.RUNNING)
    pending = tuple(row["run_id"] for row in rows if row["status"] == RunStatus.PENDING)
    return Deleted(cursor.rowcount, running, pending)


_UNUSED = f"""
NOT EXISTS (SELECT FROM runs r WHERE r.thread_id = t.thread_id AND r.status IN ({words(ACTIVE)}))
"""

_TEMPORARY = f"""
SELECT thread_id FROM threads t
WHERE temporary AND updated_at < clock_timestamp() - make_interval(secs => %(grace)s) AND {_UNUSED}
ORDER BY updated_at LIMIT %(limit)s
"""


async def sweep_temporary(db: Database, grace_seconds: float, limit: int = 100) -> int:
    """Deletes threads of stateless runs that ended some seconds ago; returns how many.

    The grace lets those who waited for the run still read its end.
    """
    rows = await db.fetch_all(_TEMPORARY, {"grace": grace_seconds, "limit": limit})
    if not rows:
        return 0
    return (await delete_many(db, [row["thread_id"] for row in rows])).count


_IS_EXPIRED = f"""
t.expires_at <= clock_timestamp() AND t.ttl_strategy = %(strategy)s AND {_UNUSED}
"""

# SKIP LOCKED: whoever holds a thread is using it, or sweeps it. A run that is created meanwhile
# waits for the lock and then finds no thread, as after any deletion.
_EXPIRED_TO_DELETE = f"""
SELECT t.thread_id FROM threads t
WHERE {_IS_EXPIRED} AND t.status <> '{ThreadStatus.BUSY}'
ORDER BY t.expires_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
"""

_EXPIRED = (
    f"SELECT t.thread_id FROM threads t WHERE {_IS_EXPIRED} ORDER BY t.expires_at LIMIT %(limit)s"
)


async def delete_expired(db: Database, limit: int = 100) -> int:
    """Deletes threads whose time is over and that no run uses; returns how many, at most limit."""
    async with db.transaction() as connection:
        cursor = await connection.execute(
            _EXPIRED_TO_DELETE, {"strategy": TtlStrategy.DELETE.value, "limit": limit}
        )
        thread_ids = sorted(row["thread_id"] for row in await cursor.fetchall())
        return (await _delete(connection, thread_ids)).count if thread_ids else 0


async def prune_expired(db: Database, limit: int = 100) -> int:
    """Removes the history of threads whose time is over and that no run uses; returns how many."""
    rows = await db.fetch_all(_EXPIRED, {"strategy": TtlStrategy.KEEP_LATEST.value, "limit": limit})
    for row in rows:
        with contextlib.suppress(HistoryNeeded):
            await keep_latest(db, [row["thread_id"]])
        # Also one whose history cannot be removed: it need not be looked at before it changes.
        await db.execute(
            "UPDATE threads SET ttl_swept_at = clock_timestamp() WHERE thread_id = %s",
            [row["thread_id"]],
        )
    return len(rows)


_UNUSED_OF = f"""
SELECT t.thread_id FROM threads t
WHERE t.thread_id = ANY(%(thread_ids)s) AND {_UNUSED} AND {{visible}}
"""


async def keep_latest(
    db: Database, thread_ids: Sequence[UUID], *, allowed: Filter | None = None
) -> int:
    """Removes what the threads' latest states do not need; returns of how many threads.

    Of all of them or none; skips unknown ids and threads that a run uses. Raises HistoryNeeded.
    """
    condition, filters = clause("t.metadata", allowed)
    rows = await db.fetch_all(
        _UNUSED_OF.format(visible=condition), {"thread_ids": list(thread_ids), **filters}
    )
    await checkpoints.keep_latest(db, [row["thread_id"] for row in rows])
    return len(rows)


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
    keys = _ORDERS[sort_by]
    way = sa.desc if sort_order == "desc" else sa.asc
    # First which threads, then what they hold: what is sorted or skipped on the way is not read,
    # and a page far behind costs no more than a walk through an index.
    found = sa.select(*(key.label(f"key_{n}") for n, key in enumerate(keys)))
    found = _filtered(found, ids, metadata, values, status, allowed)
    page = found.order_by(*map(way, keys)).limit(limit).offset(offset).subquery("page")
    *_, thread_id = page.c
    # The limit makes Postgres read one by one. It would else read the whole table for a long page.
    one = sa.select(*_columns(select)).where(threads.c.thread_id == thread_id).limit(1).lateral()
    statement = sa.select(one).select_from(page.join(one, sa.true())).order_by(*map(way, page.c))
    return [_thread_row(row) for row in await db.fetch_all(statement)]


_ORDERS: Mapping[SortBy, tuple[sa.ColumnElement[Any], ...]] = {
    "thread_id": (threads.c.thread_id,),
    "status": (threads.c.status, threads.c.updated_at, threads.c.thread_id),
    "created_at": (threads.c.created_at, threads.c.thread_id),
    "updated_at": (threads.c.updated_at, threads.c.thread_id),
    "state_updated_at": (
        sa.func.coalesce(threads.c.state_updated_at, threads.c.created_at),
        threads.c.thread_id,
    ),
}
"""Each has an index. The id comes last: no two threads are equal."""


def _columns(select: Collection[str] | None) -> Iterator[sa.ColumnElement[Any]]:
    for column in threads.c:
        if column.name in ("values", "interrupts") and select and column.name not in select:
            yield sa.null().label(column.name)
        elif column.name not in _HIDDEN:
            yield _text(column) if column.name in _JSON else column


async def count(
    db: Database,
    *,
    ids: Collection[UUID] | None = None,
    metadata: Mapping[str, Any] | None = None,
    values: Mapping[str, Any] | None = None,
    status: ThreadStatus | None = None,
    allowed: Filter | None = None,
) -> int:
    """Returns how many threads ``search`` would find."""
    statement = sa.select(sa.func.count().label("n")).select_from(threads)
    row = await db.fetch_one(_filtered(statement, ids, metadata, values, status, allowed))
    return 0 if row is None else int(row["n"])

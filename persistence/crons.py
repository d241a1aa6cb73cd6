"""Crons: requests that are run again and again, and the firing of those that are due.

One firing is one transaction: it takes the cron's row if nobody else has it, makes the run, and
moves the cron to its next date by the database's clock. So there is one run for a date, however
many schedulers look, and dates that were missed are made up for by one run.

Locks are taken in the order of persistence.runs, with crons after threads.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import psycopg
import sqlalchemy as sa

from persistence import assistants, runs, schedule
from persistence.engine import Connection, Database, JsonText, Row
from persistence.errors import (
    AssistantNotFound,
    CronNotFound,
    NothingToResume,
    ThreadBusy,
    ThreadNotFound,
)
from persistence.models import crons, threads
from persistence.run_request import RunRequest, compose
from persistence.runs import Created
from persistence.schedule import BadSchedule
from persistence.search import matches, ordered
from persistence.text import dumps
from persistence.visibility import Filter, clause, visible

SortBy = Literal[
    "cron_id",
    "assistant_id",
    "thread_id",
    "next_run_date",
    "end_time",
    "created_at",
    "updated_at",
]
OnRunCompleted = Literal["delete", "keep"]


@dataclass(frozen=True, slots=True)
class CronRow:
    """A cron as it is read. JSON comes as bytes.

    thread_id: None when each firing makes a thread.
    payload: what the client sent. next_run_date: None when there is none before the end.
    """

    cron_id: UUID
    assistant_id: UUID
    thread_id: UUID | None
    user_id: str
    schedule: str
    timezone: str | None
    end_time: str | None
    payload: bytes
    metadata: bytes
    on_run_completed: OnRunCompleted | None
    enabled: bool
    next_run_date: datetime | None
    created_at: datetime
    updated_at: datetime


_CRON_ROW = """
cron_id, assistant_id, thread_id, user_id, schedule, timezone, end_time, payload::text,
metadata::text, on_run_completed, enabled, next_run_date, created_at, updated_at
"""
_COLUMNS = [
    sa.cast(column, sa.Text).label(column.name)
    if column.name in ("payload", "metadata")
    else column
    for column in crons.c
    if column.name not in ("request", "ends_at")
]


def _cron_row(row: Row) -> CronRow:
    return CronRow(**row | {name: row[name].encode() for name in ("payload", "metadata")})


@dataclass(frozen=True, slots=True)
class CronContent:
    """All of a cron that a client decides.

    payload: what the client sent, as JSON. request: what that means: each firing makes a run of it,
    with the cron's metadata.
    """

    schedule: str
    timezone: str | None
    end_time: str | None
    payload: bytes
    request: RunRequest
    metadata: Mapping[str, Any]
    on_run_completed: OnRunCompleted | None
    enabled: bool = True


_INSERT = f"""
INSERT INTO crons (cron_id, assistant_id, thread_id, user_id, schedule, timezone, end_time, ends_at,
    payload, request, metadata, on_run_completed, enabled, next_run_date, created_at, updated_at)
SELECT %(cron_id)s, %(assistant_id)s, %(thread_id)s, %(user_id)s, %(schedule)s, %(timezone)s,
    %(end_time)s, %(ends_at)s, %(payload)s::json, %(request)s::json, %(metadata)s::jsonb,
    %(on_run_completed)s, %(enabled)s, %(next_run_date)s, now, now
FROM clock_timestamp() AS now
RETURNING {_CRON_ROW}
"""

_MISSING: Mapping[str | None, type[Exception]] = {
    "fk_crons_thread_id": ThreadNotFound,
    "fk_crons_assistant_id": AssistantNotFound,
}


async def create(
    db: Database,
    cron_id: UUID,
    assistant_id: UUID,
    thread_id: UUID | None,
    content: CronContent,
    *,
    allowed_threads: Filter | None = None,
) -> CronRow:
    """Makes a cron; it is first due at the first date from now on.

    allowed_threads: which threads the caller may see; on another it is not made.
    Raises ThreadNotFound, AssistantNotFound, BadSchedule (no date at all), TooDeep.
    """
    ids = {
        "cron_id": cron_id,
        "assistant_id": assistant_id,
        "thread_id": thread_id,
        "user_id": content.request.caller["user_id"],
    }
    async with db.transaction() as connection:
        if thread_id is not None and not await runs.lock_thread(
            connection, thread_id, allowed_threads
        ):
            raise ThreadNotFound(thread_id)
        now = await _now(connection)
        try:
            cursor = await connection.execute(_INSERT, ids | _columns(content, now))
        except psycopg.errors.ForeignKeyViolation as error:
            name = error.diag.constraint_name
            missing = thread_id if name == "fk_crons_thread_id" else assistant_id
            raise _MISSING[name](missing) from error
        row = await cursor.fetchone()
        if row is None:
            raise RuntimeError("an insert returns its row")
        return _cron_row(row)


_LOCK = f"""
SELECT {_CRON_ROW}, request::text FROM crons WHERE cron_id = %(cron_id)s AND {{visible}} FOR UPDATE
"""

_UPDATE = f"""
UPDATE crons SET schedule = %(schedule)s, timezone = %(timezone)s, end_time = %(end_time)s,
    ends_at = %(ends_at)s, payload = %(payload)s::json, request = %(request)s::json,
    metadata = %(metadata)s::jsonb, on_run_completed = %(on_run_completed)s, enabled = %(enabled)s,
    next_run_date = %(next_run_date)s, updated_at = clock_timestamp()
WHERE cron_id = %(cron_id)s
RETURNING {_CRON_ROW}
"""


async def update(
    db: Database,
    cron_id: UUID,
    change: Callable[[CronRow], CronContent],
    *,
    allowed: Filter | None = None,
    allowed_threads: Filter | None = None,
) -> CronRow:
    """Changes a cron as ``change`` says, which is given it as it is now.

    It stays its maker's: runs are theirs, whoever changes it. Its next date is reckoned anew.
    allowed, allowed_threads: which crons the caller may see, and on which threads. Raises
    CronNotFound, BadSchedule, TooDeep, and what ``change`` raises.
    """
    async with db.transaction() as connection:
        condition, params = _seen_by(allowed, allowed_threads)
        cursor = await connection.execute(
            _LOCK.format(visible=condition), {"cron_id": cron_id, **params}
        )
        row = await cursor.fetchone()
        if row is None:
            raise CronNotFound(cron_id)
        maker = RunRequest.from_json(row.pop("request").encode()).caller
        content = change(_cron_row(row))
        content = replace(content, request=replace(content.request, caller=maker))
        columns = _columns(content, await _now(connection))
        cursor = await connection.execute(_UPDATE, columns | {"cron_id": cron_id})
        row = await cursor.fetchone()
        if row is None:
            raise RuntimeError("the row is locked")
        return _cron_row(row)


def _columns(content: CronContent, now: datetime) -> dict[str, Any]:
    dates = schedule.read(content.schedule, content.timezone, content.end_time)
    if schedule.never_due(dates, now):
        raise BadSchedule(f"Invalid cron schedule: '{content.schedule}' has no date from now on")
    return {
        "schedule": content.schedule,
        "timezone": content.timezone,
        "end_time": content.end_time,
        "ends_at": dates.ends_at,
        "payload": JsonText(content.payload),
        "request": JsonText(content.request.to_json()),
        "metadata": JsonText(dumps(content.metadata)),
        "on_run_completed": content.on_run_completed,
        "enabled": content.enabled,
        "next_run_date": dates.after(now),
    }


async def _now(connection: Connection) -> datetime:
    row = await (await connection.execute("SELECT clock_timestamp() AS now")).fetchone()
    if row is None:
        raise RuntimeError("there is always a time")
    now: datetime = row["now"]
    return now


async def delete(
    db: Database,
    cron_id: UUID,
    *,
    allowed: Filter | None = None,
    allowed_threads: Filter | None = None,
) -> None:
    """Deletes a cron; its runs stay. Raises CronNotFound.

    allowed, allowed_threads: which crons the caller may see, and on which threads.
    """
    condition, params = _seen_by(allowed, allowed_threads)
    statement = f"DELETE FROM crons WHERE cron_id = %(cron_id)s AND {condition}"
    if not await db.execute(statement, {"cron_id": cron_id, **params}):
        raise CronNotFound(cron_id)


# --- read ---------------------------------------------------------------------------------------


async def get(
    db: Database,
    cron_id: UUID,
    *,
    allowed: Filter | None = None,
    allowed_threads: Filter | None = None,
) -> CronRow:
    """Returns a cron. Raises CronNotFound.

    allowed, allowed_threads: which crons the caller may see, and on which threads.
    """
    condition, params = _seen_by(allowed, allowed_threads)
    row = await db.fetch_one(
        f"SELECT {_CRON_ROW} FROM crons WHERE cron_id = %(cron_id)s AND {condition}",
        {"cron_id": cron_id, **params},
    )
    if row is None:
        raise CronNotFound(cron_id)
    return _cron_row(row)


def _seen_by(allowed: Filter | None, allowed_threads: Filter | None) -> tuple[str, dict[str, Any]]:
    """The condition on a cron, and its parameters, that ``_filtered`` has for lists."""
    own, params = clause("crons.metadata", allowed)
    if not allowed_threads:
        return own, params
    of_thread, more = clause("t.metadata", allowed_threads, "thread")
    on_visible = f"""(crons.thread_id IS NULL OR EXISTS (
        SELECT FROM threads t WHERE t.thread_id = crons.thread_id AND {of_thread}))"""
    return f"{own} AND {on_visible}", params | more


def _filtered(
    statement: sa.Select[Any],
    assistant_id: UUID | None,
    thread_id: UUID | None,
    enabled: bool | None,
    metadata: Mapping[str, Any] | None,
    allowed: Filter | None,
    allowed_threads: Filter | None,
) -> sa.Select[Any]:
    if allowed:
        statement = statement.where(visible(crons.c.metadata, allowed))
    if allowed_threads:
        on_visible = sa.exists().where(
            threads.c.thread_id == crons.c.thread_id, visible(threads.c.metadata, allowed_threads)
        )
        statement = statement.where(sa.or_(crons.c.thread_id.is_(None), on_visible))
    if assistant_id is not None:
        statement = statement.where(crons.c.assistant_id == assistant_id)
    if thread_id is not None:
        statement = statement.where(crons.c.thread_id == thread_id)
    if enabled is not None:
        statement = statement.where(crons.c.enabled == enabled)
    if metadata:
        statement = statement.where(matches(crons.c.metadata, metadata))
    return statement


async def search(
    db: Database,
    *,
    assistant_id: UUID | None = None,
    thread_id: UUID | None = None,
    enabled: bool | None = None,
    metadata: Mapping[str, Any] | None = None,
    limit: int = 10,
    offset: int = 0,
    sort_by: SortBy = "created_at",
    sort_order: Literal["asc", "desc"] = "desc",
    allowed: Filter | None = None,
    allowed_threads: Filter | None = None,
) -> list[CronRow]:
    """Returns crons, by default the newest first; ties go by id, so pages never overlap.

    allowed, allowed_threads: which crons the caller may see, and on which threads.
    What has no next date or end sorts as if it were later than all others.
    """
    by: sa.ColumnElement[Any] = crons.c["ends_at" if sort_by == "end_time" else sort_by]
    if sort_by in ("end_time", "next_run_date"):
        by = sa.func.coalesce(by, sa.text("'infinity'::timestamptz"))
    statement = _filtered(
        sa.select(*_COLUMNS), assistant_id, thread_id, enabled, metadata, allowed, allowed_threads
    )
    statement = ordered(statement, by, crons.c.cron_id, ascending=sort_order == "asc")
    return [_cron_row(row) for row in await db.fetch_all(statement.limit(limit).offset(offset))]


async def count(
    db: Database,
    *,
    assistant_id: UUID | None = None,
    thread_id: UUID | None = None,
    enabled: bool | None = None,
    metadata: Mapping[str, Any] | None = None,
    allowed: Filter | None = None,
    allowed_threads: Filter | None = None,
) -> int:
    """Returns how many crons ``search`` would find."""
    statement = sa.select(sa.func.count().label("n")).select_from(crons)
    row = await db.fetch_one(
        _filtered(statement, assistant_id, thread_id, enabled, metadata, allowed, allowed_threads)
    )
    return 0 if row is None else int(row["n"])


# --- fire ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Due:
    """A cron whose date has come, as it was when somebody looked."""

    cron_id: UUID
    assistant_id: UUID
    thread_id: UUID | None


_IS_DUE = """
enabled AND next_run_date <= clock_timestamp() AND (ends_at IS NULL OR ends_at > clock_timestamp())
"""

_DUE = f"""
SELECT cron_id, assistant_id, thread_id FROM crons WHERE {_IS_DUE}
ORDER BY next_run_date LIMIT %(limit)s
"""


async def due(db: Database, limit: int = 100) -> list[Due]:
    """Returns crons whose date has come, longest due first."""
    return [Due(**row) for row in await db.fetch_all(_DUE, {"limit": limit})]


# SKIP LOCKED: whoever holds the row is firing it, or is changing its dates.
_TAKE = f"""
SELECT schedule, timezone, end_time, request::text, metadata, on_run_completed,
    clock_timestamp() AS now
FROM crons WHERE cron_id = %(cron_id)s AND {_IS_DUE} FOR UPDATE SKIP LOCKED
"""

_MOVE_ON = "UPDATE crons SET next_run_date = %(next)s WHERE cron_id = %(cron_id)s"


async def fire(db: Database, one: Due) -> Created | None:
    """Makes the run of a cron that is due, and moves the cron to its next date from now on.

    None when somebody else has done or is doing it. None, too, when its strategy is ``reject`` and
    the thread is busy, or when it answers and nothing is asked: then the date is passed over.
    """
    try:
        assistant = await assistants.get(db, one.assistant_id)
    except AssistantNotFound:
        return None  # the cron went with it
    async with db.transaction() as connection:
        if one.thread_id is not None:
            await runs.lock_thread(connection, one.thread_id)
        row = await (await connection.execute(_TAKE, {"cron_id": one.cron_id})).fetchone()
        if row is None:
            return None
        await connection.execute(_MOVE_ON, {"cron_id": one.cron_id, "next": _next(row)})
        request = replace(
            RunRequest.from_json(row["request"]),
            metadata=row["metadata"],
            keep_thread=row["on_run_completed"] == "keep",
        )
        try:
            return await runs.create_within(connection, compose(request, assistant, one.thread_id))
        except (NothingToResume, ThreadBusy):
            return None


async def pass_over(db: Database, one: Due) -> None:
    """Moves a cron that cannot be fired to its next date, so that it holds nobody up."""
    async with db.transaction() as connection:
        row = await (await connection.execute(_TAKE, {"cron_id": one.cron_id})).fetchone()
        if row is not None:
            await connection.execute(_MOVE_ON, {"cron_id": one.cron_id, "next": _next(row)})


def _next(row: Row) -> datetime | None:
    try:
        dates = schedule.read(row["schedule"], row["timezone"], row["end_time"])
    except BadSchedule:  # accepted by an older croniter or tzdata
        return None
    return dates.after(row["now"])

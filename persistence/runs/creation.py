"""How a run is accepted: its row, its thread and the multitask strategy in one transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal
from uuid import UUID

import psycopg

from persistence.engine import Connection, Database, JsonText
from persistence.errors import Conflict, NothingToResume, ThreadBusy, ThreadNotFound
from persistence.lifecycle import CancelAction, MultitaskStrategy, RunStatus, ThreadStatus
from persistence.runs.answers import Answers, check_answers
from persistence.runs.cancel import end_pending, left_midway, wish
from persistence.runs.request_keys import RequestKey, note
from persistence.runs.rows import ACTIVE_STATUSES, COLUMNS, RunRow, run_row
from persistence.runs.thread import lock_thread
from persistence.text import dumps
from persistence.ttl import Ttl
from persistence.visibility import Filter, clause


@dataclass(frozen=True, slots=True)
class NewRun:
    """What is asked of ``create``.

    kwargs: the wire's ``kwargs`` as JSON, all that a worker needs.
    base_metadata, config_metadata, metadata: the assistant's, ``config.metadata``, the run's own;
        the run's metadata is merged from these and the thread's.
    config: what the thread shall remember of the run's config.
    if_not_exists: ``create`` makes the thread when there is none, ``reject`` refuses.
    after_seconds: the run starts no sooner than so many seconds from now.
    temporary: the thread is made for this run and swept after it.
    resumable: streams of the run may be rejoined with their past.
    webhook: URL that is told of the run's end.
    ttl: of the thread, if it is made for this run.
    answers: what it answers, if it is to go on from an interrupt.
    allowed: which threads the caller may see; on another there is nothing to run.
    asked: by which the client may ask for it again, and get this one.
    """

    run_id: UUID
    thread_id: UUID
    assistant_id: UUID
    graph_id: str
    kwargs: bytes
    metadata: Mapping[str, Any]
    base_metadata: Mapping[str, Any]
    config_metadata: Mapping[str, Any]
    config: Mapping[str, Any]
    multitask_strategy: MultitaskStrategy = MultitaskStrategy.ENQUEUE
    if_not_exists: Literal["create", "reject"] = "reject"
    after_seconds: float = 0.0
    temporary: bool = False
    resumable: bool = False
    webhook: str | None = None
    ttl: Ttl | None = None
    answers: Answers | None = None
    allowed: Filter | None = None
    asked: RequestKey | None = None


@dataclass(frozen=True, slots=True)
class Created:
    """A run was accepted, and this became of those before it.

    cancel: running ones whose stop is now wished for; somebody must tell their workers.
    withdrawn: pending ones that ended as ``interrupted``.
    deleted: pending ones that are gone.
    """

    run: RunRow
    cancel: tuple[UUID, ...] = ()
    withdrawn: tuple[UUID, ...] = ()
    deleted: tuple[UUID, ...] = ()


_THREAD_IDS = """jsonb_build_object(
    'graph_id', %(graph_id)s::text, 'assistant_id', %(assistant_id)s::text)"""

# A thread that a run makes is whose the run is: the caller's mark is in the run's metadata.
_NEW_METADATA = f"{_THREAD_IDS} || %(config_metadata)s::jsonb || %(metadata)s::jsonb"

_TOUCH_THREAD = f"""
    status = '{ThreadStatus.BUSY}',
    metadata = t.metadata || {_THREAD_IDS},
    config = t.config || %(config)s::jsonb || CASE
        WHEN jsonb_typeof(t.config->'configurable') = 'object'
         AND jsonb_typeof(%(config)s::jsonb->'configurable') = 'object'
        THEN jsonb_build_object('configurable',
            (t.config->'configurable') || (%(config)s::jsonb->'configurable'))
        ELSE '{{}}' END,
    updated_at = clock_timestamp()
"""

_EXISTING_THREAD = f"""
UPDATE threads t SET {_TOUCH_THREAD}
WHERE t.thread_id = %(thread_id)s AND {{visible}} RETURNING t.metadata
"""

_ANY_THREAD = f"""
INSERT INTO threads AS t (
    thread_id, status, metadata, config, temporary, ttl_minutes, ttl_strategy, created_at,
    updated_at)
SELECT %(thread_id)s, '{ThreadStatus.BUSY}', {_NEW_METADATA}, %(config)s::jsonb, %(temporary)s,
    %(ttl_minutes)s::float8, %(ttl_strategy)s, now, now
FROM clock_timestamp() AS now
ON CONFLICT (thread_id) DO UPDATE SET {_TOUCH_THREAD} WHERE {{visible}}
RETURNING t.metadata
"""

# One statement: the thread's row lock comes with its change, and the run's place in line (clock,
# identity) is given out after it, because the insert reads what the change returns.
_CREATE = """
WITH thread AS ({thread}),
locked AS MATERIALIZED (SELECT metadata, clock_timestamp() AS accepted FROM thread)
INSERT INTO runs (
    run_id, thread_id, assistant_id, graph_id, metadata, kwargs, multitask_strategy, resumable,
    webhook, available_at, created_at, updated_at)
SELECT %(run_id)s, %(thread_id)s, %(assistant_id)s, %(graph_id)s,
       %(base_metadata)s::jsonb || l.metadata || %(config_metadata)s::jsonb || %(metadata)s::jsonb,
       %(kwargs)s::json, %(multitask_strategy)s, %(resumable)s, %(webhook)s,
       l.accepted + make_interval(secs => %(after_seconds)s),
       l.accepted + make_interval(secs => %(after_seconds)s), l.accepted
FROM locked l
RETURNING {columns}
"""

_CREATE_ON_EXISTING = _CREATE.format(thread=_EXISTING_THREAD, columns=COLUMNS)
_CREATE_ON_ANY = _CREATE.format(thread=_ANY_THREAD, columns=COLUMNS)
"""Both still have a place for which threads are visible."""

_ENSURE_THREAD = """
INSERT INTO threads (
    thread_id, metadata, temporary, ttl_minutes, ttl_strategy, created_at, updated_at)
SELECT %(thread_id)s, %(config_metadata)s::jsonb || %(metadata)s::jsonb, %(temporary)s,
    %(ttl_minutes)s::float8, %(ttl_strategy)s, now, now
FROM clock_timestamp() AS now
ON CONFLICT (thread_id) DO NOTHING
"""

_ACTIVE_OF_THREAD = f"""
SELECT run_id, thread_id, status FROM runs
WHERE thread_id = %(thread_id)s AND status IN ({ACTIVE_STATUSES})
ORDER BY run_id
"""

# For who stops or ends them, and nobody else: a claim passes over a run that is locked.
_LOCK_ACTIVE = f"{_ACTIVE_OF_THREAD} FOR NO KEY UPDATE"

_MAKING_WAY = frozenset({MultitaskStrategy.INTERRUPT, MultitaskStrategy.ROLLBACK})


async def create(db: Database, new: NewRun) -> Created:
    """Accepts a run: row, thread and multitask strategy in one transaction.

    One that was asked for before is not created again: what is returned is the first. Raises
    ThreadNotFound, ThreadBusy (strategy ``reject``), NothingToResume, Conflict (the run's id is
    taken, the request's key stands for another one, or its run is gone).
    """
    try:
        if new.asked is not None:
            async with db.transaction() as connection:
                first = await note(connection, new.asked, new.run_id)
                if first != new.run_id:
                    return Created(await _again(connection, first))
                return await create_within(connection, new)
        if _minds_nobody(new):
            async with db.connection() as connection:
                return Created(run=await _insert(connection, new))
        async with db.transaction() as connection:
            return await create_within(connection, new)
    except psycopg.errors.UniqueViolation as error:
        raise Conflict(f"run {new.run_id} exists already") from error


async def _again(connection: Connection, run_id: UUID) -> RunRow:
    cursor = await connection.execute(
        f"SELECT {COLUMNS} FROM runs WHERE run_id = %(run_id)s", {"run_id": run_id}
    )
    row = await cursor.fetchone()
    if row is None:
        raise Conflict("The run of this Idempotency-Key was created before, and is gone")
    return run_row(row)


async def create_all(db: Database, new: Sequence[NewRun]) -> list[Created]:
    """Accepts all of the runs or none, in one transaction and in this order.

    Each has a thread of its own that it makes: nobody else can hold a lock that this waits for.
    Raises Conflict (a run's id is taken).
    """
    try:
        async with db.transaction() as connection:
            return [await create_within(connection, one) for one in new]
    except psycopg.errors.UniqueViolation as error:
        raise Conflict("one of the runs exists already") from error


async def create_within(connection: Connection, new: NewRun) -> Created:
    """Accepts a run inside the caller's transaction.

    Locks the thread: whoever holds other locks than a thread's must have taken that one before.
    Raises ThreadNotFound, ThreadBusy (strategy ``reject``), NothingToResume.
    """
    if _minds_nobody(new):
        return Created(await _insert(connection, new))
    if new.if_not_exists == "create":
        cursor = await connection.execute(
            _ENSURE_THREAD, {"thread_id": new.thread_id} | _new_thread(new)
        )
        if cursor.rowcount:  # nobody else's, whatever its metadata are
            if new.answers is not None:
                raise NothingToResume("There is nothing to resume: the thread has never run")
            return Created(await _insert(connection, replace(new, allowed=None)))
    stopped = await _make_way(connection, new)
    return Created(await _insert(connection, new), **stopped)


def _minds_nobody(new: NewRun) -> bool:
    """Whether what else is on the thread does not matter: then one statement does it all."""
    return new.multitask_strategy is MultitaskStrategy.ENQUEUE and new.answers is None


async def _insert(connection: Connection, new: NewRun) -> RunRow:
    statement = _CREATE_ON_ANY if new.if_not_exists == "create" else _CREATE_ON_EXISTING
    condition, filters = clause("t.metadata", new.allowed)
    cursor = await connection.execute(
        statement.replace("{visible}", condition),
        {
            "run_id": new.run_id,
            "thread_id": new.thread_id,
            "assistant_id": new.assistant_id,
            "graph_id": new.graph_id,
            "kwargs": JsonText(new.kwargs),
            "base_metadata": JsonText(dumps(new.base_metadata)),
            "config": JsonText(dumps(new.config)),
            "multitask_strategy": new.multitask_strategy.value,
            "after_seconds": max(0.0, new.after_seconds),
            "resumable": new.resumable,
            "webhook": new.webhook,
            **_new_thread(new),
            **filters,
        },
    )
    row = await cursor.fetchone()
    if row is None:
        raise ThreadNotFound(new.thread_id)
    return run_row(row)


def _new_thread(new: NewRun) -> dict[str, Any]:
    """What a thread begins with that the run makes."""
    return {
        "metadata": JsonText(dumps(new.metadata)),
        "config_metadata": JsonText(dumps(new.config_metadata)),
        "temporary": new.temporary,
        "ttl_minutes": new.ttl and new.ttl.minutes,
        "ttl_strategy": new.ttl and new.ttl.strategy.value,
    }


async def _make_way(connection: Connection, new: NewRun) -> dict[str, tuple[UUID, ...]]:
    """Applies the multitask strategy to the thread's active runs, under the thread's lock."""
    ids = {"thread_id": new.thread_id}
    if not await lock_thread(connection, new.thread_id, new.allowed):
        raise ThreadNotFound(new.thread_id)
    look = _LOCK_ACTIVE if new.multitask_strategy in _MAKING_WAY else _ACTIVE_OF_THREAD
    active = await (await connection.execute(look, ids)).fetchall()
    if new.answers is not None:
        await check_answers(connection, new.thread_id, new.multitask_strategy, new.answers)
    if not active or new.multitask_strategy is MultitaskStrategy.ENQUEUE:
        return {}
    if new.multitask_strategy is MultitaskStrategy.REJECT:
        raise ThreadBusy(new.thread_id)
    running = tuple(row["run_id"] for row in active if row["status"] == RunStatus.RUNNING)
    pending = tuple(row["run_id"] for row in active if row["status"] == RunStatus.PENDING)
    action = CancelAction(new.multitask_strategy.value)
    reason = f"superseded by run {new.run_id} (multitask_strategy={action.value})"
    for run_id in running:
        await wish(connection, run_id, action, reason)
    if await end_pending(connection, new.thread_id, pending, action, reason):
        await left_midway(connection, new.thread_id, action, reason)
    rolled_back = action is CancelAction.ROLLBACK
    return {
        "cancel": running,
        "withdrawn": () if rolled_back else pending,
        "deleted": pending if rolled_back else (),
    }

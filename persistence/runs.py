"""Every statement that changes a run, and those that read one.

Three rules hold all of it together:

- Time is the database's: leases, lines and delays are decided by ``clock_timestamp()``.
- Whoever ends or returns a run settles its thread in the same transaction, under the thread's lock.
- Locks are taken in one order: threads by id, then runs by id. ``claim`` takes none but those of
  the runs it wants, and never waits for them.

A run is first in line on its thread when no pending run of it has a smaller
``(available_at, queue_seq)``. Both are given out under the thread's lock, so the line is the order
of acceptance; a delayed run joins it when it falls due and blocks nobody before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import DictRow

from persistence import checkpoints, webhooks
from persistence.engine import Database, JsonText, Row
from persistence.errors import (
    Conflict,
    NothingToResume,
    RunNotFound,
    ThreadBusy,
    ThreadNotFound,
)
from persistence.lifecycle import (
    ACTIVE,
    CLAIM,
    EXPIRE,
    FAIL,
    HAND_BACK,
    INTERRUPT,
    RETRY,
    SUCCEED,
    TIME_OUT,
    WITHDRAW,
    CancelAction,
    Move,
    MultitaskStrategy,
    RunStatus,
    ThreadStatus,
)
from persistence.models import words
from persistence.text import dumps
from persistence.ttl import Ttl
from persistence.visibility import Filter, clause

Connection = AsyncConnection[DictRow]

_ACTIVE = words(ACTIVE)


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run as it is read. JSON that is only relayed comes as bytes."""

    run_id: UUID
    thread_id: UUID
    assistant_id: UUID
    graph_id: str
    status: RunStatus
    metadata: bytes
    kwargs: bytes
    multitask_strategy: MultitaskStrategy
    attempt: int
    resumable: bool
    cancel_action: CancelAction | None
    error: bytes | None
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


_RUN_ROW = """
run_id, thread_id, assistant_id, graph_id, status, metadata::text, kwargs::text,
multitask_strategy, attempt, resumable, cancel_action, error::text, created_at, updated_at,
started_at, finished_at
"""


def _run_row(row: Row) -> RunRow:
    action, error = row["cancel_action"], row["error"]
    return RunRow(
        **row
        | {
            "status": RunStatus(row["status"]),
            "metadata": row["metadata"].encode(),
            "kwargs": row["kwargs"].encode(),
            "multitask_strategy": MultitaskStrategy(row["multitask_strategy"]),
            "cancel_action": None if action is None else CancelAction(action),
            "error": None if error is None else error.encode(),
        }
    )


# --- create -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answers:
    """What questions of the thread a new run answers.

    ids: the interrupts; empty when the answer is for whichever one is open.
    known: whether the questions must be open in the thread's row: who asks has read them there.
    """

    ids: frozenset[str] = frozenset()
    known: bool = False


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

_CREATE_ON_EXISTING = _CREATE.format(thread=_EXISTING_THREAD, columns=_RUN_ROW)
_CREATE_ON_ANY = _CREATE.format(thread=_ANY_THREAD, columns=_RUN_ROW)
"""Both still have a place for which threads are visible."""

_ENSURE_THREAD = """
INSERT INTO threads (
    thread_id, metadata, temporary, ttl_minutes, ttl_strategy, created_at, updated_at)
SELECT %(thread_id)s, %(config_metadata)s::jsonb || %(metadata)s::jsonb, %(temporary)s,
    %(ttl_minutes)s::float8, %(ttl_strategy)s, now, now
FROM clock_timestamp() AS now
ON CONFLICT (thread_id) DO NOTHING
"""

_LOCK_THREAD = """
SELECT thread_id FROM threads WHERE thread_id = %(thread_id)s AND {visible} FOR NO KEY UPDATE
"""

_ACTIVE_OF_THREAD = f"""
SELECT run_id, thread_id, status FROM runs
WHERE thread_id = %(thread_id)s AND status IN ({_ACTIVE})
ORDER BY run_id
"""

# For who stops or ends them, and nobody else: a claim passes over a run that is locked.
_LOCK_ACTIVE = f"{_ACTIVE_OF_THREAD} FOR NO KEY UPDATE"

# A stronger wish replaces a weaker one, never the other way round.
_WISH = f"""
UPDATE runs
SET cancel_requested_at = clock_timestamp(), cancel_action = %(action)s, cancel_reason = %(reason)s
WHERE run_id = %(run_id)s AND status = '{RunStatus.RUNNING}'
  AND (cancel_action IS NULL OR (cancel_action, %(action)s)
       = ('{CancelAction.INTERRUPT}', '{CancelAction.ROLLBACK}'))
"""

_WITHDRAW = f"""
UPDATE runs
SET status = '{WITHDRAW.target}', error = %(error)s::jsonb,
    finished_at = clock_timestamp(), updated_at = clock_timestamp()
WHERE run_id = ANY(%(run_ids)s) AND status = '{WITHDRAW.source}'
"""

_DELETE = "DELETE FROM runs WHERE run_id = ANY(%(run_ids)s)"


async def create(db: Database, new: NewRun) -> Created:
    """Accepts a run: row, thread and multitask strategy in one transaction.

    Raises ThreadNotFound, ThreadBusy (strategy ``reject``), NothingToResume, Conflict (the run's
    id is taken).
    """
    try:
        if new.multitask_strategy is MultitaskStrategy.ENQUEUE and new.answers is None:
            async with db.connection() as connection:
                return Created(run=await _insert(connection, new))
        async with db.transaction() as connection:
            return await create_within(connection, new)
    except psycopg.errors.UniqueViolation as error:
        raise Conflict(f"run {new.run_id} exists already") from error


async def lock_thread(
    connection: Connection, thread_id: UUID, allowed: Filter | None = None
) -> bool:
    """Locks a thread until the end of the transaction; returns whether there is such a one."""
    condition, params = clause("metadata", allowed)
    cursor = await connection.execute(
        _LOCK_THREAD.format(visible=condition), {"thread_id": thread_id, **params}
    )
    return await cursor.fetchone() is not None


async def create_within(connection: Connection, new: NewRun) -> Created:
    """Accepts a run inside the caller's transaction.

    Locks the thread: whoever holds other locks than a thread's must have taken that one before.
    Raises ThreadNotFound, ThreadBusy (strategy ``reject``), NothingToResume.
    """
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
    return _run_row(row)


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
        await _check_answers(connection, new, new.answers)
    if not active or new.multitask_strategy is MultitaskStrategy.ENQUEUE:
        return {}
    if new.multitask_strategy is MultitaskStrategy.REJECT:
        raise ThreadBusy(new.thread_id)
    running = tuple(row["run_id"] for row in active if row["status"] == RunStatus.RUNNING)
    pending = tuple(row["run_id"] for row in active if row["status"] == RunStatus.PENDING)
    action = CancelAction(new.multitask_strategy.value)
    reason = f"superseded by run {new.run_id} (multitask_strategy={action.value})"
    for run_id in running:
        await connection.execute(
            _WISH, {"run_id": run_id, "action": action.value, "reason": reason}
        )
    await _end_pending(connection, new.thread_id, pending, action, reason)
    rolled_back = action is CancelAction.ROLLBACK
    return {
        "cancel": running,
        "withdrawn": () if rolled_back else pending,
        "deleted": pending if rolled_back else (),
    }


_ANSWERED = f"""
SELECT r.kwargs->'command'->'resume' AS answer FROM runs r
WHERE r.thread_id = %(thread_id)s AND r.status IN ({_ACTIVE})
"""

_ASKED = """
SELECT coalesce(t.interrupts, '{}') AS interrupts,
       t.status NOT IN ('idle', 'busy') OR t.interrupts <> '{}' AS unfinished
FROM threads t WHERE t.thread_id = %(thread_id)s
"""


async def _check_answers(connection: Connection, new: NewRun, answers: Answers) -> None:
    """Lets one of several answers to a question through, on a thread that is locked.

    Raises NothingToResume.
    """
    ids = {"thread_id": new.thread_id}
    active = await (await connection.execute(_ANSWERED, ids)).fetchall()
    asked = await (await connection.execute(_ASKED, ids)).fetchone()
    if asked is None:
        raise ThreadNotFound(new.thread_id)
    if new.multitask_strategy is not MultitaskStrategy.ENQUEUE:
        active = []  # they make way, and their answers with them
    given = [row["answer"] for row in active if row["answer"] is not None]
    if any(_answers_same(answers, answer) for answer in given):
        raise NothingToResume("The question was answered by another run already")
    open_ids = {question["id"] for task in asked["interrupts"].values() for question in task}
    if answers.known and not answers.ids <= open_ids:
        unsettled = bool(active) and not given
        raise NothingToResume("No such question waits for an answer", unsettled=unsettled)
    if not active and (
        not asked["unfinished"] or (open_ids and answers.ids and not answers.ids & open_ids)
    ):
        raise NothingToResume("There is nothing to resume: no question waits for this answer")


def _answers_same(answers: Answers, given: Any) -> bool:
    """Whether a run that is under way answers what is to be answered. Pure.

    An answer to no question in particular is for the one that is open, and there can be one such.
    """
    named = set(given) if isinstance(given, dict) and all(len(key) == 32 for key in given) else None
    if named is None or not answers.ids:
        return named is None
    return not named.isdisjoint(answers.ids)


async def _end_pending(
    connection: Connection,
    thread_id: UUID,
    run_ids: Sequence[UUID],
    action: CancelAction,
    reason: str,
) -> None:
    """Ends pending runs of a locked thread; the caller settles the thread."""
    if not run_ids:
        return
    if action is CancelAction.ROLLBACK:
        # A pending run may have checkpoints: those of attempts that crashed or were handed back.
        await checkpoints.delete_of_runs(connection, thread_id, run_ids)
        await connection.execute(_DELETE, {"run_ids": list(run_ids)})
    else:
        error = JsonText(dumps(_cancel_error(action, reason)))
        await connection.execute(_WITHDRAW, {"run_ids": list(run_ids), "error": error})


def _cancel_error(action: CancelAction, reason: str) -> dict[str, str]:
    return {"error": _CANCEL_ERRORS[action], "message": reason}


_MAKING_WAY = frozenset({MultitaskStrategy.INTERRUPT, MultitaskStrategy.ROLLBACK})

_CANCEL_ERRORS = {
    CancelAction.INTERRUPT: "UserInterrupt",
    CancelAction.ROLLBACK: "UserRollback",
}


# --- claim --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClaimedRun:
    """A run that is now ours. ``attempt`` is the fencing token for every write that follows."""

    run_id: UUID
    thread_id: UUID
    assistant_id: UUID
    graph_id: str
    attempt: int
    crashes: int
    kwargs: bytes
    metadata: dict[str, Any]
    multitask_strategy: MultitaskStrategy
    temporary: bool
    resumable: bool
    credential: UUID
    """What the graph shows when it calls the API itself."""


_UNBLOCKED = f"""
r.status = '{RunStatus.PENDING}'
AND r.available_at <= clock_timestamp()
AND NOT EXISTS (
    SELECT FROM runs o WHERE o.thread_id = r.thread_id AND o.status = '{RunStatus.RUNNING}')
AND NOT EXISTS (
    SELECT FROM runs o WHERE o.thread_id = r.thread_id AND o.status = '{RunStatus.PENDING}'
    AND (o.available_at, o.queue_seq) < (r.available_at, r.queue_seq))
"""

# SKIP LOCKED: whoever holds the row is claiming it too, or is ending it. Never waiting for a run,
# a claim cannot be part of a deadlock over runs.
_CLAIM = f"""
WITH candidate AS (
    SELECT r.run_id FROM runs r WHERE r.run_id = ANY(%(run_ids)s) AND {_UNBLOCKED}
    ORDER BY r.run_id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE runs r
SET status = '{CLAIM.target}', attempt = attempt + 1, claimed_by = %(owner)s,
    lease_expires_at = clock_timestamp() + make_interval(secs => %(lease_seconds)s),
    started_at = coalesce(started_at, clock_timestamp()), updated_at = clock_timestamp(),
    credential = gen_random_uuid()
FROM candidate, threads t
WHERE r.run_id = candidate.run_id AND t.thread_id = r.thread_id
RETURNING r.run_id, r.thread_id, r.assistant_id, r.graph_id, r.attempt, r.crashes,
    r.kwargs::text, r.metadata, r.multitask_strategy, t.temporary, r.resumable, r.credential
"""


async def claim(
    db: Database, run_ids: Sequence[UUID], owner: str, lease_seconds: float
) -> list[ClaimedRun]:
    """Takes those of the runs that may start now: due, first in line, and nothing else running.

    owner: ``host/slot/boot id``. The others are not an error: whoever blocks them sends them on.
    """
    async with db.connection() as connection:
        try:
            return await _claim(connection, run_ids, owner, lease_seconds)
        except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
            # Two claimers saw two different runs of a thread as first. Rare; one by one, then.
            claimed: list[ClaimedRun] = []
            for run_id in run_ids:
                try:
                    claimed += await _claim(connection, [run_id], owner, lease_seconds)
                except psycopg.errors.UniqueViolation:
                    continue
            return claimed


async def _claim(
    connection: Connection, run_ids: Sequence[UUID], owner: str, lease_seconds: float
) -> list[ClaimedRun]:
    cursor = await connection.execute(
        _CLAIM, {"run_ids": list(run_ids), "owner": owner, "lease_seconds": lease_seconds}
    )
    return [
        ClaimedRun(
            **row
            | {
                "kwargs": row["kwargs"].encode(),
                "multitask_strategy": MultitaskStrategy(row["multitask_strategy"]),
            }
        )
        for row in await cursor.fetchall()
    ]


_CLAIMABLE = f"""
SELECT r.run_id FROM runs r
WHERE {_UNBLOCKED} AND r.available_at <= clock_timestamp() - make_interval(secs => %(older)s)
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
WHERE {_UNBLOCKED} AND r.available_at > clock_timestamp() - make_interval(secs => %(within)s)
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


# --- heartbeat ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Held:
    """A lease that was prolonged, and what is wished for the run."""

    run_id: UUID
    attempt: int
    cancel_action: CancelAction | None


_HEARTBEAT = f"""
WITH instance AS (
    INSERT INTO instances AS i (owner, slot_key, boot_id, slots, free)
    VALUES (%(owner)s, %(slot_key)s, %(boot_id)s, %(slots)s, %(free)s)
    ON CONFLICT (owner) DO UPDATE
    SET slots = excluded.slots, free = excluded.free, heartbeat_at = clock_timestamp()
),
held AS (
    SELECT r.run_id FROM runs r
    JOIN unnest(%(run_ids)s::uuid[], %(attempts)s::int[]) AS h (run_id, attempt)
      ON h.run_id = r.run_id AND h.attempt = r.attempt
    WHERE r.status = '{RunStatus.RUNNING}' AND r.claimed_by = %(owner)s
    ORDER BY r.run_id FOR NO KEY UPDATE OF r
)
UPDATE runs r
SET lease_expires_at = clock_timestamp() + make_interval(secs => %(lease_seconds)s)
FROM held WHERE r.run_id = held.run_id
RETURNING r.run_id, r.attempt, r.cancel_action
"""


async def heartbeat(
    db: Database,
    owner: str,
    slots: int,
    free: int,
    held: Sequence[tuple[UUID, int]],
    lease_seconds: float,
) -> list[Held]:
    """Prolongs all leases of an instance and reports it alive, in one statement.

    held: run ids with their attempts. What does not come back is lost: kill it, write nothing.
    """
    slot_key, _, boot_id = owner.rpartition("/")
    rows = await db.fetch_all(
        _HEARTBEAT,
        {
            "owner": owner,
            "slot_key": slot_key,
            "boot_id": boot_id,
            "slots": slots,
            "free": free,
            "run_ids": [run_id for run_id, _ in held],
            "attempts": [attempt for _, attempt in held],
            "lease_seconds": lease_seconds,
        },
    )
    return [
        Held(
            row["run_id"],
            row["attempt"],
            None if row["cancel_action"] is None else CancelAction(row["cancel_action"]),
        )
        for row in rows
    ]


# --- settle -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Settlement:
    """How an attempt ended, and what its thread looks like now.

    move: the fenced move to a terminal status.
    error: ``{"error", "message"}`` of a failure; for a stopped run the row knows who asked.
    values: the thread's values as JSON, or None to leave them as they are.
    interrupts: ``{task_id: [{"id", "value"}]}`` as JSON.
    next_nodes: whether the state has nodes left to do.
    output: what ``wait`` and ``join`` answer, as JSON; None when it equals ``values``.
    action: ``rollback`` deletes the run and its checkpoints instead.
    """

    run_id: UUID
    attempt: int
    move: Move
    error: Mapping[str, Any] | None = None
    values: bytes | None = None
    interrupts: bytes = b"{}"
    next_nodes: bool = False
    output: bytes | None = None
    action: CancelAction | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a settlement.

    ok: False when it was refused: another attempt owns the run, or it is over, or gone.
    status: what the row says now; None when it was rolled back.
    error: what the row says now.
    next_run_id: the run of the same thread that may start now.
    """

    run_id: UUID
    ok: bool
    status: RunStatus | None = None
    error: dict[str, Any] | None = None
    next_run_id: UUID | None = None


# thread_id comes first though it is one and the same, so that only the line's own index has this
# order: left to choose, the planner walks through all that wait anywhere.
_IN_LINE = "ORDER BY p.thread_id, p.available_at, p.queue_seq"

_LOCK_THREADS_OF = """
SELECT t.thread_id FROM threads t
WHERE t.thread_id IN (SELECT r.thread_id FROM runs r WHERE r.run_id = ANY(%(run_ids)s))
ORDER BY t.thread_id FOR NO KEY UPDATE OF t
"""

_FAILURE = f"CASE WHEN r.status IN ('{FAIL.target}', '{TIME_OUT.target}') THEN r.error END"

_SETTLE = f"""
WITH ended AS (
    UPDATE runs r
    SET status = %(status)s,
        output = coalesce(%(output)s::json, %(values)s::json),
        error = CASE WHEN %(status)s = '{INTERRUPT.target}' AND r.cancel_action IS NOT NULL
            THEN jsonb_build_object('error', CASE r.cancel_action
                WHEN '{CancelAction.ROLLBACK}' THEN '{_CANCEL_ERRORS[CancelAction.ROLLBACK]}'
                ELSE '{_CANCEL_ERRORS[CancelAction.INTERRUPT]}' END, 'message', r.cancel_reason)
            ELSE %(error)s::jsonb END,
        claimed_by = NULL, lease_expires_at = NULL,
        finished_at = clock_timestamp(), updated_at = clock_timestamp()
    WHERE r.run_id = %(run_id)s AND r.attempt = %(attempt)s AND r.status = '{SUCCEED.source}'
    RETURNING r.run_id, r.thread_id, r.assistant_id, r.status, r.multitask_strategy, r.error,
        r.created_at, r.updated_at, r.started_at, r.webhook,
        -- Large: what is returned here is copied.
        CASE WHEN r.webhook IS NOT NULL THEN r.metadata END AS metadata,
        CASE WHEN r.webhook IS NOT NULL THEN r.kwargs END AS kwargs
),
told AS ({
    webhooks.statement(
        "ended r",
        status="r.status",
        error=_FAILURE,
        values="coalesce(%(values)s::json, t.values::json)",
    )
}),
next AS (
    SELECT head.run_id, head.available_at <= clock_timestamp() AS due FROM ended, LATERAL (
        SELECT p.run_id, p.available_at FROM runs p
        WHERE p.thread_id = ended.thread_id AND p.status = '{RunStatus.PENDING}'
        {_IN_LINE} LIMIT 1) AS head
),
thread AS (
    UPDATE threads t
    SET status = CASE WHEN EXISTS (SELECT FROM next) THEN '{ThreadStatus.BUSY}' ELSE %(rest)s END,
        rest_status = %(rest)s,
        values = coalesce(%(values)s::jsonb, t.values),
        interrupts = %(interrupts)s::jsonb,
        error = ended.error,
        updated_at = clock_timestamp(), state_updated_at = clock_timestamp()
    FROM ended WHERE t.thread_id = ended.thread_id
)
SELECT ended.error, CASE WHEN next.due THEN next.run_id END AS next_run_id
FROM ended LEFT JOIN next ON true
"""


async def settle(db: Database, settlements: Sequence[Settlement]) -> list[Settled]:
    """Ends attempts, each with its thread in one transaction; answers in the given order.

    A settlement with a stale token is refused, which is an answer. What cannot be stored however
    cleaned (nested too deep, too large) ends the run as failed with that reason, never strands it.
    """
    plain = [s for s in settlements if s.action is not CancelAction.ROLLBACK]
    settled: dict[tuple[UUID, int], Settled] = {}
    if plain:
        settled |= await _settle_plain(db, plain)
    for settlement in settlements:
        if settlement.action is CancelAction.ROLLBACK:
            settled[settlement.run_id, settlement.attempt] = await _roll_back(db, settlement)
    return [settled[s.run_id, s.attempt] for s in settlements]


async def _settle_plain(
    db: Database, settlements: Sequence[Settlement]
) -> dict[tuple[UUID, int], Settled]:
    try:
        return await _settle_together(db, settlements)
    except psycopg.Error:
        # Unavailable passes; this is about what one of them wants stored.
        if len(settlements) > 1:
            settled: dict[tuple[UUID, int], Settled] = {}
            for settlement in settlements:
                settled |= await _settle_plain(db, [settlement])
            return settled
        return await _settle_together(db, [_storable(settlements[0])])


def _storable(settlement: Settlement) -> Settlement:
    """The same end without the state that Postgres refused."""
    message = "the state of the thread cannot be stored: it is nested too deep or too large"
    return Settlement(
        run_id=settlement.run_id,
        attempt=settlement.attempt,
        move=FAIL if settlement.move is SUCCEED else settlement.move,
        error={"error": "ValueError", "message": message},
    )


async def _settle_together(
    db: Database, settlements: Sequence[Settlement]
) -> dict[tuple[UUID, int], Settled]:
    """One transaction and one round trip for all."""
    ordered = sorted(settlements, key=lambda settlement: settlement.run_id)
    async with db.connection() as connection:
        async with connection.pipeline(), connection.transaction():
            await connection.execute(
                _LOCK_THREADS_OF, {"run_ids": [settlement.run_id for settlement in ordered]}
            )
            cursors = [
                await connection.execute(_SETTLE, _settle_params(settlement))
                for settlement in ordered
            ]
        settled = {}
        for settlement, cursor in zip(ordered, cursors, strict=True):
            row = await cursor.fetchone()
            settled[settlement.run_id, settlement.attempt] = (
                Settled(settlement.run_id, ok=False)
                if row is None
                else Settled(
                    settlement.run_id,
                    ok=True,
                    status=settlement.move.target,
                    error=row["error"],
                    next_run_id=row["next_run_id"],
                )
            )
        return settled


def _settle_params(settlement: Settlement) -> dict[str, Any]:
    def stored(document: bytes | None) -> JsonText | None:
        return None if document is None else JsonText(document)

    error = settlement.error
    return {
        "run_id": settlement.run_id,
        "attempt": settlement.attempt,
        "status": settlement.move.target.value,
        "rest": _rest_status(settlement.move.target, settlement.next_nodes).value,
        "values": stored(settlement.values),
        "interrupts": JsonText(settlement.interrupts),
        "output": stored(settlement.output),
        "error": None if error is None else JsonText(dumps(error)),
    }


def _rest_status(ended: RunStatus, next_nodes: bool) -> ThreadStatus:
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


_LOCK_ATTEMPT = f"""
SELECT thread_id, cancel_reason FROM runs
WHERE run_id = %(run_id)s AND attempt = %(attempt)s AND status = '{RunStatus.RUNNING}'
FOR UPDATE
"""

_TELL = webhooks.statement(
    "(SELECT * FROM runs WHERE run_id = %(run_id)s) r",
    status="r.status",
    error=_FAILURE,
    values="t.values::json",
)

_TELL_ROLLBACK = webhooks.statement(
    "(SELECT * FROM runs WHERE run_id = %(run_id)s) r",
    status=f"'{CancelAction.ROLLBACK}'",
    error="NULL::jsonb",
    values="NULL::json",
)


async def _roll_back(db: Database, settlement: Settlement) -> Settled:
    async with db.transaction() as connection:
        await connection.execute(_LOCK_THREADS_OF, {"run_ids": [settlement.run_id]})
        cursor = await connection.execute(
            _LOCK_ATTEMPT, {"run_id": settlement.run_id, "attempt": settlement.attempt}
        )
        row = await cursor.fetchone()
        if row is None:
            return Settled(settlement.run_id, ok=False)
        thread_id: UUID = row["thread_id"]
        await connection.execute(_TELL_ROLLBACK, {"run_id": settlement.run_id})
        await connection.execute(_DELETE, {"run_ids": [settlement.run_id]})
        await checkpoints.delete_of_runs(connection, thread_id, [settlement.run_id])
        error = (
            _cancel_error(CancelAction.ROLLBACK, row["cancel_reason"])
            if row["cancel_reason"] is not None
            else settlement.error
        )
        next_run_id = await _settle_thread(connection, thread_id, rolled_back=True, error=error)
        return Settled(settlement.run_id, ok=True, error=_dict(error), next_run_id=next_run_id)


def _dict(error: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if error is None else dict(error)


# rest NULL: the run left no trace, so the thread rests as it did before. A rolled back run leaves
# nothing but the word of it in the thread's error, which is why an earlier failure rests no longer.
_SETTLE_THREAD = f"""
UPDATE threads t
SET rest_status = new.rest,
    status = CASE WHEN EXISTS (
        SELECT FROM runs a WHERE a.thread_id = t.thread_id AND a.status IN ({_ACTIVE})
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

_NEXT = f"""
SELECT head.run_id FROM (
    SELECT p.run_id, p.available_at FROM runs p
    WHERE p.thread_id = %(thread_id)s AND p.status = '{RunStatus.PENDING}'
    {_IN_LINE} LIMIT 1) AS head
WHERE head.available_at <= clock_timestamp() AND NOT EXISTS (
    SELECT FROM runs WHERE thread_id = %(thread_id)s AND status = '{RunStatus.RUNNING}')
"""


async def _settle_thread(
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
    row = await (await connection.execute(_NEXT, {"thread_id": thread_id})).fetchone()
    return None if row is None else row["run_id"]


# --- leases that end without an outcome ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Released:
    """What became of a run whose attempt ended without an outcome.

    attempt: the attempt that ended.
    status: pending when it shall run again, else its end; None when it was rolled back.
    error: why it ended, if it did.
    next_run_id: the run of the thread that may start now, most often this one again.
    """

    run_id: UUID
    thread_id: UUID
    attempt: int
    status: RunStatus | None
    error: dict[str, Any] | None
    next_run_id: UUID | None

    @property
    def retry(self) -> bool:
        """Whether the run waits for another attempt."""
        return self.status is RunStatus.PENDING


async def hand_back(db: Database, owner: str, held: Sequence[tuple[UUID, int]]) -> list[Released]:
    """Returns runs that were stopped through no fault of their own: pending again, at no cost.

    One that was to be stopped on request ends that way instead. Stale ones are left out.
    """
    return await _release(
        db,
        """r.claimed_by = %(owner)s AND (r.run_id, r.attempt) IN (
            SELECT * FROM unnest(%(run_ids)s::uuid[], %(attempts)s::int[]))""",
        {
            "owner": owner,
            "run_ids": [run_id for run_id, _ in held],
            "attempts": [attempt for _, attempt in held],
        },
        HAND_BACK,
    )


async def crash(
    db: Database, run_id: UUID, attempt: int, reason: str, max_retries: int
) -> Released | None:
    """The graph process died under the attempt: again, or failed after ``max_retries`` of these.

    reason: what happened, for people. None when the token is stale.
    """
    released = await _release(
        db,
        "r.run_id = %(run_id)s AND r.attempt = %(attempt)s",
        {"run_id": run_id, "attempt": attempt},
        RETRY,
        reason=reason,
        max_retries=max_retries,
    )
    return released[0] if released else None


async def expire(db: Database, max_retries: int, limit: int = 100) -> list[Released]:
    """Ends attempts whose lease ran out by the database's clock; forgets instances long silent."""
    await db.execute(_FORGET_SILENT)
    return await _release(
        db,
        """r.run_id IN (
            SELECT run_id FROM runs WHERE status = 'running'
            AND lease_expires_at < clock_timestamp() ORDER BY lease_expires_at LIMIT %(limit)s)
        AND r.lease_expires_at < clock_timestamp()""",
        {"limit": limit},
        EXPIRE,
        reason="the worker instance that ran it stopped renewing its lease",
        max_retries=max_retries,
    )


async def take_back(db: Database, slot_key: str, boot_id: str, max_retries: int) -> list[Released]:
    """At a worker's start: ends at once the attempts that its own predecessor left behind.

    slot_key: ``host/slot``; leases of the same slot with another boot id have nobody any more.
    """
    params = {"slot_key": slot_key, "owner": f"{slot_key}/{boot_id}"}
    await db.execute(_FORGET_PREDECESSORS, params)
    return await _release(
        db,
        """starts_with(r.claimed_by, %(slot_key)s || '/') AND r.claimed_by <> %(owner)s
        AND strpos(substr(r.claimed_by, length(%(slot_key)s) + 2), '/') = 0""",
        params,
        EXPIRE,
        reason="the worker instance that ran it was started anew",
        max_retries=max_retries,
    )


async def retire(db: Database, owner: str) -> None:
    """Forgets a worker instance that ends in good order."""
    await db.execute("DELETE FROM instances WHERE owner = %(owner)s", {"owner": owner})


_FORGET_SILENT = """
DELETE FROM instances WHERE heartbeat_at < clock_timestamp() - interval '1 hour'
"""
_FORGET_PREDECESSORS = """
DELETE FROM instances WHERE slot_key = %(slot_key)s AND owner <> %(owner)s
"""

_LOCK_THREADS_WHERE = f"""
SELECT t.thread_id FROM threads t
WHERE t.thread_id IN (
    SELECT r.thread_id FROM runs r WHERE r.status = '{RunStatus.RUNNING}' AND {{where}})
ORDER BY t.thread_id FOR NO KEY UPDATE OF t
"""

_LOCK_RUNS_WHERE = f"""
SELECT r.run_id, r.thread_id, r.attempt, r.crashes, r.cancel_action, r.cancel_reason FROM runs r
WHERE r.status = '{RunStatus.RUNNING}' AND r.thread_id = ANY(%(thread_ids)s) AND {{where}}
ORDER BY r.run_id FOR NO KEY UPDATE OF r
"""

# Its place in line stays: available_at and queue_seq are not touched, so it goes before those that
# were accepted after it.
_RELEASE = f"""
UPDATE runs
SET status = %(status)s, crashes = crashes + %(cost)s, error = %(error)s::jsonb,
    claimed_by = NULL, lease_expires_at = NULL, updated_at = clock_timestamp(),
    finished_at = CASE WHEN %(status)s = '{RunStatus.PENDING}' THEN NULL
        ELSE clock_timestamp() END
WHERE run_id = %(run_id)s
"""


async def _release(
    db: Database,
    where: str,
    params: dict[str, Any],
    move: Move,
    *,
    reason: str = "",
    max_retries: int = 0,
) -> list[Released]:
    """Ends the attempts that ``where`` names (over ``runs r``), each with its thread."""
    async with db.transaction() as connection:
        cursor = await connection.execute(_LOCK_THREADS_WHERE.format(where=where), params)
        thread_ids = [row["thread_id"] for row in await cursor.fetchall()]
        if not thread_ids:
            return []
        cursor = await connection.execute(
            _LOCK_RUNS_WHERE.format(where=where), params | {"thread_ids": thread_ids}
        )
        return [
            await _release_one(connection, row, _verdict(row, move, reason, max_retries))
            for row in await cursor.fetchall()
        ]


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What shall become of a run; no status means that it is rolled back."""

    status: RunStatus | None
    cost: int
    error: dict[str, str] | None = None


def _verdict(row: Row, move: Move, reason: str, max_retries: int) -> _Verdict:
    """Decides over an attempt without an outcome. Pure.

    A wish to stop comes first: a run that was to be stopped is not started again.
    """
    cost = 0 if move is HAND_BACK else 1
    if row["cancel_action"] is not None:
        action = CancelAction(row["cancel_action"])
        status = None if action is CancelAction.ROLLBACK else INTERRUPT.target
        return _Verdict(status, cost, _cancel_error(action, row["cancel_reason"]))
    crashes = row["crashes"] + cost
    if cost and crashes > max_retries:
        times = "once" if crashes == 1 else f"{crashes} times"
        return _Verdict(
            FAIL.target, cost, {"error": "RunCrashed", "message": f"{reason} ({times})"}
        )
    return _Verdict(move.target, cost)


async def _release_one(connection: Connection, row: Row, verdict: _Verdict) -> Released:
    run_id, thread_id, error = row["run_id"], row["thread_id"], verdict.error
    if verdict.status is None:
        await connection.execute(_TELL_ROLLBACK, {"run_id": run_id})
        await connection.execute(_DELETE, {"run_ids": [run_id]})
        await checkpoints.delete_of_runs(connection, thread_id, [run_id])
    else:
        await connection.execute(
            _RELEASE,
            {
                "run_id": run_id,
                "status": verdict.status.value,
                "cost": verdict.cost,
                "error": None if error is None else JsonText(dumps(error)),
            },
        )
    ended = verdict.status is not None and verdict.status is not RunStatus.PENDING
    if ended:
        await connection.execute(_TELL, {"run_id": run_id})
    next_run_id = await _settle_thread(
        connection,
        thread_id,
        rest=_rest_status(verdict.status, next_nodes=False) if ended and verdict.status else None,
        rolled_back=verdict.status is None,
        error=error,
    )
    return Released(run_id, thread_id, row["attempt"], verdict.status, error, next_run_id)


# --- cancel and delete --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """What a wish to stop came to.

    kind: ``asked``, it runs and the wish is stored: tell its worker; ``withdrawn``, it was pending
        and is over (or gone, at a rollback); ``finished``, it had ended before.
    next_run_id: the run of the thread that may start now, when it was withdrawn.
    """

    kind: Literal["asked", "withdrawn", "finished"]
    next_run_id: UUID | None = None


_LOCK_RUN = """
SELECT run_id, thread_id, status FROM runs
WHERE run_id = %(run_id)s AND thread_id = %(thread_id)s FOR NO KEY UPDATE
"""


async def request_cancel(
    db: Database,
    thread_id: UUID,
    run_id: UUID,
    action: CancelAction,
    reason: str | None = None,
    *,
    allowed: Filter | None = None,
) -> CancelRequested:
    """Wishes a running run stopped; ends a pending one at once. Raises RunNotFound.

    reason: who asked and how, for people; by default, the cancel endpoint.
    """
    if reason is None:
        reason = f"{action.value} requested via POST /threads/{thread_id}/runs/{run_id}/cancel"
    async with db.transaction() as connection:
        row = await _lock_run(connection, thread_id, run_id, allowed)
        match RunStatus(row["status"]):
            case RunStatus.RUNNING:
                await connection.execute(
                    _WISH, {"run_id": run_id, "action": action.value, "reason": reason}
                )
                return CancelRequested("asked")
            case RunStatus.PENDING:
                await _end_pending(connection, thread_id, [run_id], action, reason)
                next_run_id = await _settle_thread(connection, thread_id)
                return CancelRequested("withdrawn", next_run_id)
            case _:
                return CancelRequested("finished")


async def delete(
    db: Database, thread_id: UUID, run_id: UUID, *, allowed: Filter | None = None
) -> CancelRequested:
    """Removes a run and its checkpoints. Raises RunNotFound.

    ``asked``: it runs, so this is a wish for its rollback; the row goes when it has stopped.
    """
    reason = f"rollback requested via DELETE /threads/{thread_id}/runs/{run_id}"
    async with db.transaction() as connection:
        row = await _lock_run(connection, thread_id, run_id, allowed)
        if row["status"] == RunStatus.RUNNING:
            await connection.execute(
                _WISH,
                {"run_id": run_id, "action": CancelAction.ROLLBACK.value, "reason": reason},
            )
            return CancelRequested("asked")
        await checkpoints.delete_of_runs(connection, thread_id, [run_id])
        await connection.execute(_DELETE, {"run_ids": [run_id]})
        next_run_id = await _settle_thread(connection, thread_id)
        kind: Literal["withdrawn", "finished"] = (
            "withdrawn" if row["status"] == RunStatus.PENDING else "finished"
        )
        return CancelRequested(kind, next_run_id)


async def _lock_run(
    connection: Connection, thread_id: UUID, run_id: UUID, allowed: Filter | None
) -> Row:
    if not await lock_thread(connection, thread_id, allowed):
        raise RunNotFound(run_id)
    cursor = await connection.execute(_LOCK_RUN, {"run_id": run_id, "thread_id": thread_id})
    row = await cursor.fetchone()
    if row is None:
        raise RunNotFound(run_id)
    return row


# --- read ---------------------------------------------------------------------------------------


def _on_visible_thread(allowed: Filter | None) -> tuple[str, dict[str, Any]]:
    """The condition that a run is on a thread that the caller may see."""
    if not allowed:
        return "TRUE", {}
    condition, params = clause("t.metadata", allowed)
    return (
        f"EXISTS (SELECT FROM threads t WHERE t.thread_id = runs.thread_id AND {condition})",
        params,
    )


async def caller(db: Database, run_id: UUID, credential: UUID) -> bytes | None:
    """The user who made a run, as JSON; None unless this is its present attempt's credential."""
    row = await db.fetch_one(
        f"""SELECT kwargs #>> '{{config,configurable,langgraph_auth_user}}' AS caller FROM runs
        WHERE run_id = %(run_id)s AND credential = %(credential)s
          AND status = '{RunStatus.RUNNING}'""",
        {"run_id": run_id, "credential": credential},
    )
    if row is None or row["caller"] is None:
        return None
    return str(row["caller"]).encode()


async def get(
    db: Database, thread_id: UUID, run_id: UUID, *, allowed: Filter | None = None
) -> RunRow:
    """Returns a run of the thread. Raises RunNotFound.

    allowed: which threads the caller may see, here as in all that follow.
    """
    condition, params = _on_visible_thread(allowed)
    row = await db.fetch_one(
        f"""SELECT {_RUN_ROW} FROM runs
        WHERE run_id = %(run_id)s AND thread_id = %(thread_id)s AND {condition}""",
        {"run_id": run_id, "thread_id": thread_id, **params},
    )
    if row is None:
        raise RunNotFound(run_id)
    return _run_row(row)


_LIST = f"""
SELECT {_RUN_ROW} FROM runs
WHERE thread_id = %(thread_id)s AND (%(status)s::text IS NULL OR status = %(status)s)
  AND {{visible}}
ORDER BY created_at DESC, queue_seq DESC
LIMIT %(limit)s OFFSET %(offset)s
"""


async def list_for_thread(
    db: Database,
    thread_id: UUID,
    status: str | None = None,
    limit: int = 10,
    offset: int = 0,
    *,
    allowed: Filter | None = None,
) -> list[RunRow]:
    """Returns runs of the thread, newest first; an unknown thread or status has none."""
    condition, params = _on_visible_thread(allowed)
    rows = await db.fetch_all(
        _LIST.format(visible=condition),
        {"thread_id": thread_id, "status": status, "limit": limit, "offset": offset, **params},
    )
    return [_run_row(row) for row in rows]


_ACTIVE_IDS = f"""
SELECT run_id, thread_id FROM runs
WHERE (%(thread_id)s::uuid IS NULL OR thread_id = %(thread_id)s)
  AND (%(run_ids)s::uuid[] IS NULL OR run_id = ANY(%(run_ids)s))
  AND status = ANY(%(statuses)s) AND status IN ({_ACTIVE}) AND {{visible}}
ORDER BY created_at, queue_seq
"""


async def active(
    db: Database,
    statuses: Sequence[RunStatus] = tuple(ACTIVE),
    thread_id: UUID | None = None,
    run_ids: Sequence[UUID] | None = None,
    *,
    allowed: Filter | None = None,
) -> list[tuple[UUID, UUID]]:
    """Returns ``(thread_id, run_id)`` of pending or running runs, oldest first."""
    condition, params = _on_visible_thread(allowed)
    rows = await db.fetch_all(
        _ACTIVE_IDS.format(visible=condition),
        {
            **params,
            "thread_id": thread_id,
            "run_ids": None if run_ids is None else list(run_ids),
            "statuses": [status.value for status in statuses],
        },
    )
    return [(row["thread_id"], row["run_id"]) for row in rows]


@dataclass(frozen=True, slots=True)
class RunResult:
    """What ``wait`` and ``join`` answer with.

    output: JSON of the final values; None when the run never got so far.
    error: ``{"error", "message"}`` of a failed or stopped run.
    """

    run_id: UUID
    thread_id: UUID
    status: RunStatus
    output: bytes | None
    error: dict[str, Any] | None


async def result(db: Database, run_id: UUID) -> RunResult | None:
    """Returns how a run stands or ended; None when there is no such run (any more)."""
    row = await db.fetch_one(
        "SELECT run_id, thread_id, status, output::text, error FROM runs WHERE run_id = %s",
        [run_id],
    )
    if row is None:
        return None
    output = row["output"]
    return RunResult(
        row["run_id"],
        row["thread_id"],
        RunStatus(row["status"]),
        None if output is None else output.encode(),
        row["error"],
    )


_FINISHED_FOR = """
SELECT run_id::text, extract(epoch FROM clock_timestamp() - finished_at)::float8 AS seconds
FROM runs WHERE run_id = ANY(%(run_ids)s::uuid[])
"""


async def finished_for(db: Database, run_ids: Sequence[str]) -> dict[str, float | None]:
    """Returns for how many seconds each run has been over; None while active, no entry if gone."""
    rows = await db.fetch_all(_FINISHED_FOR, {"run_ids": list(run_ids)})
    return {row["run_id"]: row["seconds"] for row in rows}


async def next_in_line(db: Database, thread_id: UUID) -> UUID | None:
    """Returns the run of the thread that could be claimed now."""
    row = await db.fetch_one(_NEXT, {"thread_id": thread_id})
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
        WHERE {_UNBLOCKED} ORDER BY r.available_at, r.queue_seq LIMIT 1), 0) AS oldest_seconds,
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

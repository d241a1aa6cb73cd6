"""Every status crossed with every move, against the real statements."""

from collections.abc import Awaitable, Callable

import pytest

from persistence import runs
from persistence.engine import Database
from persistence.lifecycle import (
    CLAIM,
    EXPIRE,
    FAIL,
    HAND_BACK,
    INTERRUPT,
    MOVES,
    RETRY,
    SUCCEED,
    TIME_OUT,
    WITHDRAW,
    CancelAction,
    Move,
    RunStatus,
    ThreadStatus,
)
from persistence.runs import RunRow, Settlement
from tests.persistence.sample import OWNER, claim, create, thread_status

ENDS = {
    RunStatus.SUCCESS: SUCCEED,
    RunStatus.ERROR: FAIL,
    RunStatus.TIMEOUT: TIME_OUT,
    RunStatus.INTERRUPTED: INTERRUPT,
}
RESTS = {
    RunStatus.SUCCESS: ThreadStatus.IDLE,
    RunStatus.ERROR: ThreadStatus.ERROR,
    RunStatus.TIMEOUT: ThreadStatus.ERROR,
    RunStatus.INTERRUPTED: ThreadStatus.INTERRUPTED,
}


async def reach(db: Database, status: RunStatus) -> RunRow:
    """A run in that status."""
    run = await create(db)
    if status is not RunStatus.PENDING:
        await claim(db, run.run_id)
    if status in ENDS:
        [settled] = await runs.settle(db, [Settlement(run.run_id, 1, ENDS[status])])
        assert settled.ok
    return await runs.get(db, run.thread_id, run.run_id)


async def _settle(db: Database, run: RunRow, move: Move) -> bool:
    [settled] = await runs.settle(db, [Settlement(run.run_id, run.attempt, move)])
    return settled.ok


async def _claim(db: Database, run: RunRow, _: Move) -> bool:
    return bool(await runs.claim(db, [run.run_id], OWNER, 30))


async def _hand_back(db: Database, run: RunRow, _: Move) -> bool:
    return bool(await runs.hand_back(db, OWNER, [(run.run_id, run.attempt)]))


async def _retry(db: Database, run: RunRow, _: Move) -> bool:
    return bool(await runs.crash(db, run.run_id, run.attempt, "killed", max_retries=3))


async def _expire(db: Database, run: RunRow, _: Move) -> bool:
    await db.execute(
        "UPDATE runs SET lease_expires_at = now() - interval '1 s' WHERE status = 'running'"
    )
    return bool(await runs.expire(db, max_retries=3))


async def _withdraw(db: Database, run: RunRow, _: Move) -> bool:
    requested = await runs.request_cancel(db, run.thread_id, run.run_id, CancelAction.INTERRUPT)
    return requested.kind == "withdrawn"


STATEMENTS: list[tuple[Move, Callable[[Database, RunRow, Move], Awaitable[bool]]]] = [
    (CLAIM, _claim),
    (SUCCEED, _settle),
    (FAIL, _settle),
    (TIME_OUT, _settle),
    (INTERRUPT, _settle),
    (HAND_BACK, _hand_back),
    (RETRY, _retry),
    (EXPIRE, _expire),
    (WITHDRAW, _withdraw),
]


def test_every_move_has_its_statement() -> None:
    assert [move for move, _ in STATEMENTS] == list(MOVES)


@pytest.mark.parametrize(
    ("move", "statement"), STATEMENTS, ids=lambda value: getattr(value, "__name__", None) or ""
)
async def test_a_move_changes_the_status_it_starts_from_and_no_other(
    db: Database,
    move: Move,
    statement: Callable[[Database, RunRow, Move], Awaitable[bool]],
) -> None:
    for status in RunStatus:
        run = await reach(db, status)
        legal = status is move.source
        assert await statement(db, run, move) is legal, (status, move)
        after = await runs.get(db, run.thread_id, run.run_id)
        assert after.status is (move.target if legal else status)
        if after.status in ENDS and move is not WITHDRAW:
            assert await thread_status(db, run.thread_id) == RESTS[after.status]
        if after.status is RunStatus.RUNNING:
            await runs.settle(db, [Settlement(run.run_id, after.attempt, SUCCEED)])


async def test_a_stale_token_is_refused_after_release_and_claim(db: Database) -> None:
    run = await create(db)
    first = await claim(db, run.run_id)
    await runs.hand_back(db, OWNER, [(run.run_id, first.attempt)])
    second = await claim(db, run.run_id, "host/2/boot-b")
    assert second.attempt == first.attempt + 1
    for move in (SUCCEED, FAIL, TIME_OUT, INTERRUPT):
        for action in (None, CancelAction.ROLLBACK):
            [settled] = await runs.settle(
                db, [Settlement(run.run_id, first.attempt, move, values=b"{}", action=action)]
            )
            assert not settled.ok
    assert await runs.crash(db, run.run_id, first.attempt, "late", 3) is None
    assert await runs.hand_back(db, OWNER, [(run.run_id, first.attempt)]) == []
    # Not even with the right number: the lease is another instance's.
    assert await runs.hand_back(db, OWNER, [(run.run_id, second.attempt)]) == []
    assert await runs.heartbeat(db, OWNER, 1, 0, [(run.run_id, first.attempt)], 30) == []
    row = await runs.get(db, run.thread_id, run.run_id)
    assert (row.status, row.attempt) == (RunStatus.RUNNING, second.attempt)
    [settled] = await runs.settle(db, [Settlement(run.run_id, second.attempt, SUCCEED)])
    assert settled.ok


ILLEGAL = [
    "UPDATE runs SET status = 'running'",
    "UPDATE runs SET status = 'success'",
    "UPDATE runs SET status = 'asleep'",
    "UPDATE runs SET claimed_by = 'h/1/a', lease_expires_at = now()",
    "UPDATE runs SET finished_at = now()",
    "UPDATE runs SET attempt = -1",
    "UPDATE runs SET crashes = 1",
    "UPDATE runs SET cancel_action = 'interrupt'",
    "UPDATE runs SET cancel_action = 'interrupt', cancel_requested_at = now(), cancel_reason = ''",
    "UPDATE runs SET multitask_strategy = 'hope'",
    "UPDATE threads SET status = 'asleep'",
    "UPDATE threads SET rest_status = 'busy'",
]


@pytest.mark.parametrize("statement", ILLEGAL)
async def test_the_database_refuses_an_illegal_row(db: Database, statement: str) -> None:
    import psycopg

    await create(db)
    with pytest.raises(psycopg.errors.CheckViolation):
        await db.execute(statement)


async def test_the_database_refuses_two_running_runs_of_a_thread(db: Database) -> None:
    import psycopg

    run = await create(db)
    await create(db, run.thread_id)
    running = """UPDATE runs SET status = 'running', attempt = 1, started_at = now(),
        claimed_by = 'h/1/a', lease_expires_at = now()"""
    with pytest.raises(psycopg.errors.UniqueViolation):
        await db.execute(running)

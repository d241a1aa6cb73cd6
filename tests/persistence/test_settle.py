"""The end of attempts: the run and its thread in one transaction, whatever is to be stored."""

import asyncio

import orjson
import pytest

from persistence import runs, threads
from persistence.engine import Database
from persistence.lifecycle import FAIL, INTERRUPT, SUCCEED, CancelAction, RunStatus
from persistence.runs import Settlement
from tests.persistence.sample import claim, create, thread_status


async def test_a_run_ends_with_its_thread(db: Database) -> None:
    run = await create(db)
    await claim(db, run.run_id)
    interrupts = b'{"task":[{"id":"i","value":1}]}'
    [settled] = await runs.settle(
        db,
        [
            Settlement(
                run.run_id,
                1,
                SUCCEED,
                values=b'{"b":1,"a":2}',
                output=b'{"b":1,"__interrupt__":[]}',
                interrupts=interrupts,
                next_nodes=True,
            )
        ],
    )
    assert (settled.ok, settled.status, settled.next_run_id) == (True, RunStatus.SUCCESS, None)
    result = await runs.result(db, run.run_id)
    assert result is not None
    assert result.output == b'{"b":1,"__interrupt__":[]}'
    thread = await threads.get(db, run.thread_id)
    assert thread.status == "interrupted"
    assert orjson.loads(thread.values or b"") == {"a": 2, "b": 1}
    assert orjson.loads(thread.interrupts or b"") == orjson.loads(interrupts)
    assert thread.state_updated_at is not None


async def test_output_is_the_values_unless_given(db: Database) -> None:
    run = await create(db)
    await claim(db, run.run_id)
    await runs.settle(db, [Settlement(run.run_id, 1, SUCCEED, values=b'{"b":1,"a":2}')])
    result = await runs.result(db, run.run_id)
    assert result is not None
    assert result.output == b'{"b":1,"a":2}'


async def test_a_failure_shows_and_the_next_good_end_clears_it(db: Database) -> None:
    run = await create(db)
    await claim(db, run.run_id)
    error = {"error": "ValueError", "message": "x"}
    await runs.settle(db, [Settlement(run.run_id, 1, FAIL, error=error)])
    thread = await threads.get(db, run.thread_id)
    assert (thread.status, orjson.loads(thread.error or b"")) == ("error", error)
    run = await create(db, run.thread_id)
    await claim(db, run.run_id)
    await runs.settle(db, [Settlement(run.run_id, 1, SUCCEED)])
    thread = await threads.get(db, run.thread_id)
    assert (thread.status, thread.error) == ("idle", None)


async def test_the_next_in_line_is_named_and_the_thread_stays_busy(db: Database) -> None:
    first = await create(db)
    second = await create(db, first.thread_id)
    await create(db, first.thread_id)
    await claim(db, first.run_id)
    [settled] = await runs.settle(db, [Settlement(first.run_id, 1, SUCCEED)])
    assert settled.next_run_id == second.run_id
    assert await thread_status(db, first.thread_id) == "busy"


async def test_a_batch_answers_in_order_and_stale_ones_hurt_nobody(db: Database) -> None:
    made = [await create(db) for _ in range(4)]
    for run in made:
        await claim(db, run.run_id)
    batch = [Settlement(run.run_id, 1, SUCCEED) for run in made]
    batch.insert(2, Settlement(made[0].run_id, 7, FAIL))
    settled = await runs.settle(db, batch)
    assert [s.ok for s in settled] == [True, True, False, True, True]
    assert [s.run_id for s in settled] == [s.run_id for s in batch]
    assert await runs.settle(db, []) == []


async def test_heartbeats_settlements_and_cancels_of_many_runs_do_not_deadlock(
    db: Database,
) -> None:
    made = [await create(db) for _ in range(12)]
    ids = [run.run_id for run in made]
    assert len(await runs.claim(db, ids, "h/1/a", 30)) == 12
    held = [(run_id, 1) for run_id in ids]
    for _ in range(5):
        await asyncio.gather(
            runs.heartbeat(db, "h/1/a", 12, 0, held, 30),
            runs.heartbeat(db, "h/1/a", 12, 0, held[::-1], 30),
            runs.settle(db, [Settlement(run_id, 9, SUCCEED) for run_id in ids[::-1]]),
            *(
                runs.request_cancel(db, run.thread_id, run.run_id, CancelAction.INTERRUPT)
                for run in made[:4]
            ),
            runs.expire(db, 3),
        )
    settled = await runs.settle(db, [Settlement(run_id, 1, SUCCEED) for run_id in ids[::-1]])
    assert all(s.ok for s in settled)


DEEP = b"[" * 50_000 + b"]" * 50_000


async def test_what_cannot_be_stored_fails_its_run_and_no_other(db: Database) -> None:
    good, bad = await create(db), await create(db)
    await runs.claim(db, [good.run_id, bad.run_id], "h/1/a", 30)
    settled = await runs.settle(
        db,
        [
            Settlement(bad.run_id, 1, SUCCEED, values=DEEP),
            Settlement(good.run_id, 1, SUCCEED, values=b"{}"),
        ],
    )
    assert [s.status for s in settled] == [RunStatus.ERROR, RunStatus.SUCCESS]
    assert settled[0].error is not None
    assert "cannot be stored" in settled[0].error["message"]
    assert await thread_status(db, bad.thread_id) == "error"


@pytest.mark.parametrize(
    "text",
    [b'"a\\u0000b"', b'"\\ud800"', b'"\xed\xa0\x80"', b'"\xff"', b'{"\\u0000":1e400}'],
    ids=["nul", "surrogate", "raw surrogate", "not UTF-8", "nul in key, huge number"],
)
async def test_odd_text_is_cleaned_and_stored(db: Database, text: bytes) -> None:
    run = await create(db, kwargs=text)
    await claim(db, run.run_id)
    [settled] = await runs.settle(
        db,
        [
            Settlement(
                run.run_id,
                1,
                FAIL,
                error={"error": "E\0", "message": "\ud800 \0"},
                values=text,
                output=text,
                interrupts=text,
            )
        ],
    )
    assert (settled.ok, settled.error) == (True, {"error": "E\ufffd", "message": "\ufffd \ufffd"})
    result = await runs.result(db, run.run_id)
    assert result is not None
    assert b"\\u0000" not in (result.output or b"")


async def test_a_stopped_run_says_who_stopped_it(db: Database) -> None:
    run = await create(db)
    await claim(db, run.run_id)
    requested = await runs.request_cancel(db, run.thread_id, run.run_id, CancelAction.INTERRUPT)
    assert requested.kind == "asked"
    [held] = await runs.heartbeat(db, "host/1/boot-a", 1, 0, [(run.run_id, 1)], 30)
    assert held.cancel_action is CancelAction.INTERRUPT
    [settled] = await runs.settle(db, [Settlement(run.run_id, 1, INTERRUPT)])
    assert settled.error == {
        "error": "UserInterrupt",
        "message": "interrupt requested via POST "
        f"/threads/{run.thread_id}/runs/{run.run_id}/cancel",
    }
    assert await thread_status(db, run.thread_id) == "interrupted"

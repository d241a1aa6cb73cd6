"""What is to be told of a run's end: written with it, once, whatever the end was."""

from typing import Any
from uuid import UUID

import orjson
import pytest

from persistence import runs, webhooks
from persistence.engine import Database
from persistence.lifecycle import FAIL, INTERRUPT, SUCCEED, TIME_OUT, CancelAction, Move
from persistence.runs import Settlement
from persistence.webhooks import Delivery
from tests.persistence.sample import OWNER, claim, create

URL = "https://hooks.example/secret"
ERROR = {"error": "ValueError", "message": "x"}


async def started(db: Database, **given: Any) -> UUID:
    run = await create(db, webhook=URL, **given)
    await claim(db, run.run_id)
    return run.run_id


async def taken(db: Database) -> list[Delivery]:
    return await webhooks.take(db, 10, 60)


async def test_a_run_that_ends_is_told_with_the_state_it_left(db: Database) -> None:
    run_id = await started(db, metadata={"a": 1})
    assert await taken(db) == []
    await runs.settle(db, [Settlement(run_id, 1, SUCCEED, values=b'{"b":1,"a":2}', output=b"{}")])
    [told] = await taken(db)
    assert (told.run_id, told.url, told.failure, told.attempts) == (run_id, URL, None, 1)
    body = orjson.loads(told.body)
    assert body["run_id"] == str(run_id)
    assert body["status"] == "success"
    assert list(body["values"]) == ["b", "a"]
    assert body["kwargs"] == {"input": {"z": 1, "a": 2}}
    assert body["metadata"]["a"] == 1
    for name in ("created_at", "updated_at", "run_started_at", "run_ended_at"):
        assert body[name].endswith("+00:00"), name
    assert body["run_started_at"] <= body["run_ended_at"]


@pytest.mark.parametrize(
    ("move", "error", "status"),
    [(FAIL, ERROR, "error"), (TIME_OUT, ERROR, "timeout"), (INTERRUPT, None, "interrupted")],
)
async def test_other_ends_are_told_too(
    db: Database, move: Move, error: dict[str, str] | None, status: str
) -> None:
    run_id = await started(db)
    await runs.settle(db, [Settlement(run_id, 1, move, error=error)])
    [told] = await taken(db)
    assert orjson.loads(told.body)["status"] == status
    assert (told.failure and orjson.loads(told.failure)) == error


async def test_a_rollback_is_told_though_the_run_is_gone(db: Database) -> None:
    run_id = await started(db)
    await runs.settle(
        db,
        [Settlement(run_id, 1, INTERRUPT, values=b"{}", action=CancelAction.ROLLBACK)],
    )
    assert await runs.result(db, run_id) is None
    [told] = await taken(db)
    body = orjson.loads(told.body)
    assert (body["status"], body["values"]) == ("rollback", None)


async def test_a_run_that_crashed_too_often_is_told_and_one_that_is_tried_again_is_not(
    db: Database,
) -> None:
    run_id = await started(db)
    await runs.crash(db, run_id, 1, "died", max_retries=1)
    assert await taken(db) == []
    await claim(db, run_id)
    await runs.crash(db, run_id, 2, "died", max_retries=1)
    [told] = await taken(db)
    assert orjson.loads(told.body)["status"] == "error"
    assert told.failure is not None
    assert orjson.loads(told.failure)["error"] == "RunCrashed"


@pytest.mark.parametrize("action", list(CancelAction))
async def test_a_run_cancelled_in_a_crash_is_told(db: Database, action: CancelAction) -> None:
    run_id = await started(db)
    [attempt] = await db.fetch_all("SELECT thread_id FROM runs")
    await runs.request_cancel(db, attempt["thread_id"], run_id, action)
    await runs.hand_back(db, OWNER, [(run_id, 1)])
    [told] = await taken(db)
    status = "rollback" if action is CancelAction.ROLLBACK else "interrupted"
    assert orjson.loads(told.body)["status"] == status


async def test_a_run_that_never_started_and_one_without_webhook_are_not_told(db: Database) -> None:
    pending = await create(db, webhook=URL)
    await runs.request_cancel(db, pending.thread_id, pending.run_id, CancelAction.INTERRUPT)
    plain = await create(db)
    await claim(db, plain.run_id)
    await runs.settle(db, [Settlement(plain.run_id, 1, SUCCEED, values=b"{}")])
    assert await taken(db) == []


async def test_a_stale_end_is_not_told(db: Database) -> None:
    run_id = await started(db)
    await runs.settle(db, [Settlement(run_id, 1, SUCCEED, values=b"{}")])
    [told] = await taken(db)
    await webhooks.done(db, told.run_id)
    await runs.settle(db, [Settlement(run_id, 1, FAIL, error=ERROR)])
    assert await taken(db) == []


async def test_of_a_stateless_run_the_state_is_not_told(db: Database) -> None:
    run_id = await started(db, temporary=True)
    await runs.settle(db, [Settlement(run_id, 1, SUCCEED, values=b'{"a":1}')])
    [told] = await taken(db)
    assert orjson.loads(told.body)["values"] is None


async def test_a_delivery_is_taken_by_one_and_comes_back_when_nothing_is_heard(
    db: Database,
) -> None:
    run_id = await started(db)
    await runs.settle(db, [Settlement(run_id, 1, SUCCEED, values=b"{}")])
    [first] = await taken(db)
    assert await taken(db) == []
    await db.execute(
        "UPDATE webhook_deliveries SET due_at = clock_timestamp()"
    )  # the lease is over
    [second] = await taken(db)
    assert second.attempts == 2
    await webhooks.failed(db, first, "late", 0)  # the first sender wakes up: no business of its
    assert await taken(db) == []
    await webhooks.failed(db, second, "status 500", 0)
    [third] = await taken(db)
    assert third.attempts == 3


async def test_a_delivery_that_was_given_up_is_kept_for_a_while(db: Database) -> None:
    run_id = await started(db)
    await runs.settle(db, [Settlement(run_id, 1, SUCCEED, values=b"{}")])
    [told] = await taken(db)
    await webhooks.failed(db, told, "status 410", None)
    assert await taken(db) == []
    assert await webhooks.forget(db, 60) == 0
    assert await webhooks.forget(db, 0) == 1

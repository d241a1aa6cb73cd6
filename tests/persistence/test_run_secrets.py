"""What a run's row says of secrets once the run is over: nothing."""

from typing import Any
from uuid import UUID

import orjson
import pytest

from persistence import runs, webhooks
from persistence.engine import Database
from persistence.lifecycle import SUCCEED, CancelAction
from persistence.runs import RunRow, Settlement
from tests.persistence.sample import OWNER, claim, column, create

CONFIGURABLE: dict[str, Any] = {
    "__context_provided__": True,
    "token": "CANARY",
    "model": "of the assistant",
    "thread_id": "stamped",
    "langgraph_auth_user": {"identity": "ann", "permissions": [], "key": "CANARY"},
}
CONTEXT = {"token": "CANARY", "thread_id": "sent", "more": {"deep": "CANARY"}}
KEPT = {
    "__context_provided__": True,
    "model": "of the assistant",
    "thread_id": "stamped",
    "langgraph_auth_user": {"identity": "ann", "permissions": []},
}


def kwargs(configurable: dict[str, Any], context: dict[str, Any]) -> bytes:
    config = {"tags": ["a"], "configurable": configurable}
    return orjson.dumps({"input": {"a": 1}, "config": config, "context": context})


async def succeed(db: Database, run: RunRow) -> None:
    await claim(db, run.run_id)
    await runs.settle(db, [Settlement(run.run_id, 1, SUCCEED, values=b"{}")])


async def crash(db: Database, run: RunRow) -> None:
    await claim(db, run.run_id)
    await runs.crash(db, run.run_id, 1, "died", max_retries=0)


async def withdraw(db: Database, run: RunRow) -> None:
    await runs.request_cancel(db, run.thread_id, run.run_id, CancelAction.INTERRUPT)


async def stored(db: Database, run_id: UUID) -> Any:
    return await column(db, "run", "kwargs", run_id)


async def test_a_large_input_is_read_once_and_not_for_each_secret(db: Database) -> None:
    """Else Postgres is busy with it for longer than one statement may take."""
    context = {f"key {n}": "CANARY" for n in range(1000)}
    run = await create(
        db,
        kwargs=orjson.dumps(
            {
                "input": "x" * 20_000_000,
                "config": {"configurable": {"__context_provided__": True, **context}},
                "context": context,
            },
        ),
    )
    await succeed(db, run)
    left = await db.fetch_one(
        "SELECT kwargs->'config' AS config, kwargs->'context' AS context FROM runs"
    )
    assert left == {"config": {"configurable": {"__context_provided__": True}}, "context": {}}


@pytest.mark.parametrize("end", [succeed, crash, withdraw])
async def test_they_are_forgotten_when_it_ends(db: Database, end: Any) -> None:
    run = await create(db, kwargs=kwargs(CONFIGURABLE, CONTEXT))
    await end(db, run)
    assert await stored(db, run.run_id) == orjson.loads(kwargs(KEPT, {}))


async def test_a_run_that_goes_on_keeps_them(db: Database) -> None:
    given = kwargs(CONFIGURABLE, CONTEXT)
    run = await create(db, kwargs=given)
    await claim(db, run.run_id)
    await runs.hand_back(db, OWNER, [(run.run_id, 1)])
    await claim(db, run.run_id)
    await runs.crash(db, run.run_id, 2, "died", max_retries=1)
    assert orjson.loads((await claim(db, run.run_id)).kwargs) == orjson.loads(given)


async def test_what_was_sent_as_configurable_stays(db: Database) -> None:
    mirrored = {"model": "small"}
    given = kwargs({**mirrored, "langgraph_auth_user": None}, mirrored)
    run = await create(db, kwargs=given)
    await succeed(db, run)
    assert await stored(db, run.run_id) == orjson.loads(given)


@pytest.mark.parametrize("action", [None, CancelAction.ROLLBACK])
async def test_webhooks_are_not_told_them(db: Database, action: CancelAction | None) -> None:
    run = await create(db, kwargs=kwargs(CONFIGURABLE, CONTEXT), webhook="https://hooks.example")
    await claim(db, run.run_id)
    await runs.settle(db, [Settlement(run.run_id, 1, SUCCEED, values=b"{}", action=action)])
    [told] = await webhooks.take(db, 10, 60)
    assert orjson.loads(told.body)["kwargs"] == orjson.loads(kwargs(KEPT, {}))

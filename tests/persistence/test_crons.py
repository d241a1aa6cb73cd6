"""Crons: one run a date, whoever looks and how often; and that every firing makes the right run."""

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest

from persistence import assistants, crons, runs, threads
from persistence.crons import CronContent, CronRow, Due
from persistence.engine import Database
from persistence.errors import AssistantNotFound, CronNotFound, ThreadNotFound
from persistence.lifecycle import CancelAction
from persistence.run_request import RunRequest
from persistence.schedule import BadSchedule
from persistence.settings import DatabaseSettings
from persistence.ttl import Ttl, TtlStrategy
from tests.persistence.sample import claim, create

ASSISTANT = assistants.system_id("echo")


@pytest.fixture(autouse=True)
async def assistant(db: Database) -> None:
    await assistants.ensure_system(db, frozenset({"echo"}))


def content(**given: Any) -> CronContent:
    return CronContent(
        **{
            "schedule": "*/5 * * * *",
            "timezone": None,
            "end_time": None,
            "payload": b"{}",
            "request": RunRequest(input={"z": 1, "a": 2}),
            "metadata": {},
            "on_run_completed": "delete",
        }
        | given
    )


async def new_cron(db: Database, thread_id: UUID | None = None, **given: Any) -> CronRow:
    if thread_id is not None:
        given["on_run_completed"] = None
    return await crons.create(db, uuid4(), ASSISTANT, thread_id, content(**given))


async def make_due(db: Database, *rows: CronRow, ago: str = "1 second") -> list[Due]:
    for row in rows:
        await db.execute(
            "UPDATE crons SET next_run_date = clock_timestamp() - %s::interval WHERE cron_id = %s",
            [ago, row.cron_id],
        )
    return await crons.due(db)


async def all_runs(db: Database) -> list[dict[str, Any]]:
    return await db.fetch_all("SELECT * FROM runs ORDER BY queue_seq")


async def test_a_cron_is_due_at_its_first_date_and_not_before(db: Database) -> None:
    row = await new_cron(db)
    assert row.next_run_date is not None
    until = row.next_run_date - datetime.now(UTC)
    assert timedelta() < until <= timedelta(minutes=5, seconds=1)
    assert (row.next_run_date.minute % 5, row.next_run_date.second) == (0, 0)
    assert await crons.due(db) == []
    assert await crons.fire(db, Due(row.cron_id, ASSISTANT, None)) is None


async def test_a_firing_makes_one_run_and_moves_on_to_the_next_date_from_now(db: Database) -> None:
    row = await new_cron(db)
    [due] = await make_due(db, row, ago="3 days")  # 864 dates were missed
    created = await crons.fire(db, due)
    assert created is not None
    moved = (await crons.get(db, row.cron_id)).next_run_date
    assert moved is not None
    assert moved > datetime.now(UTC) - timedelta(seconds=1)
    assert await crons.due(db) == []
    assert await crons.fire(db, due) is None
    assert [run["run_id"] for run in await all_runs(db)] == [created.run.run_id]


async def test_many_schedulers_at_once_make_one_run_a_date(db: Database, database_url: str) -> None:
    thread_id = (await threads.create(db, uuid4(), {})).thread_id
    rows = [await new_cron(db) for _ in range(6)] + [await new_cron(db, thread_id)]
    others = [Database(DatabaseSettings(url=database_url, pool_max=4)) for _ in range(3)]
    for other in others:
        await other.open()
    try:
        for _ in range(3):  # three dates
            due = await make_due(db, *rows)
            assert len(due) == len(rows)
            fired = await asyncio.gather(
                *(crons.fire(other, one) for one in due for other in [db, *others])
            )
            assert sum(one is not None for one in fired) == len(rows)
    finally:
        for other in others:
            await other.close()
    made = Counter(run["thread_id"] for run in await all_runs(db))
    assert sum(made.values()) == 3 * len(rows)
    assert made[thread_id] == 3


async def test_a_scheduler_that_dies_in_the_middle_of_a_firing_has_fired_nothing(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = await new_cron(db)
    [due] = await make_due(db, row)

    async def die(*_: Any) -> None:
        raise ConnectionError

    with monkeypatch.context() as patch:
        patch.setattr(runs, "create_within", die)
        with pytest.raises(ConnectionError):
            await crons.fire(db, due)
    assert await crons.due(db) == [due]
    assert await crons.fire(db, due) is not None


async def test_the_run_is_what_a_request_of_that_moment_would_make(db: Database) -> None:
    await assistants.patch(
        db,
        ASSISTANT,
        config={"tags": ["theirs"], "configurable": {"model": "big", "kept": 1}},
        context={"model": "big"},
    )
    request = RunRequest(
        input={"z": 1, "a": 2},
        config={"recursion_limit": 7, "configurable": {"model": "small", "cron_id": "c"}},
        context={"model": "small", "cron_id": "c"},
        stream_mode=["updates"],
        stream_resumable=True,
        interrupt_before=["node"],
        durability="sync",
    )
    row = await new_cron(
        db, request=request, metadata={"by": "cron"}, on_run_completed="keep", timezone="Asia/Tokyo"
    )
    [due] = await make_due(db, row)
    created = await crons.fire(db, due)
    assert created is not None
    run = created.run
    assert orjson.loads(run.metadata)["by"] == "cron"
    kwargs = orjson.loads(run.kwargs)
    assert b'"input":{"z":1,"a":2}' in run.kwargs
    assert (kwargs["stream_mode"], kwargs["resumable"]) == (["updates"], True)
    assert (kwargs["interrupt_before"], kwargs["durability"]) == (["node"], "sync")
    assert kwargs["temporary"] is False
    config = kwargs["config"]
    assert (config["tags"], config["recursion_limit"]) == (["theirs"], 7)
    configurable = config["configurable"]
    assert (configurable["model"], configurable["kept"]) == ("small", 1)
    assert configurable["cron_id"] == "c"
    assert configurable["run_id"] == str(run.run_id)
    assert configurable["thread_id"] == str(run.thread_id)
    assert (configurable["graph_id"], configurable["assistant_id"]) == ("echo", str(ASSISTANT))
    assert kwargs["context"] == {"model": "small", "cron_id": "c"}
    assert (await threads.get(db, run.thread_id)).temporary is False


async def test_a_stateless_firing_makes_a_thread_that_goes_with_the_run(db: Database) -> None:
    row = await new_cron(db, request=RunRequest(ttl=Ttl(5)))
    for ago in ("1 second", "2 seconds"):
        [due] = await make_due(db, row, ago=ago)
        await crons.fire(db, due)
    first, second = await all_runs(db)
    assert first["thread_id"] != second["thread_id"]
    thread = await threads.get(db, first["thread_id"])
    assert (thread.temporary, thread.ttl_minutes) == (True, None)


async def test_a_thread_that_is_kept_has_the_lifetime_of_threads(db: Database) -> None:
    ttl = Ttl(5, TtlStrategy.KEEP_LATEST)
    row = await new_cron(db, request=RunRequest(ttl=ttl), on_run_completed="keep")
    [due] = await make_due(db, row)
    await crons.fire(db, due)
    [run] = await all_runs(db)
    thread = await threads.get(db, run["thread_id"])
    assert (thread.ttl_minutes, thread.ttl_strategy) == (5, "keep_latest")


@pytest.mark.parametrize("strategy", ["enqueue", "reject", "interrupt", "rollback"])
async def test_on_a_busy_thread_the_strategy_decides(db: Database, strategy: str) -> None:
    busy = await create(db)
    await claim(db, busy.run_id)
    row = await new_cron(db, busy.thread_id, request=RunRequest(multitask_strategy=strategy))
    [due] = await make_due(db, row)
    created = await crons.fire(db, due)
    assert await crons.due(db) == []
    if strategy == "reject":
        assert created is None
        assert len(await all_runs(db)) == 1
        return
    assert created is not None
    stopped = await runs.get(db, busy.thread_id, busy.run_id)
    if strategy == "enqueue":
        assert (created.cancel, stopped.cancel_action) == ((), None)
    else:
        assert created.cancel == (busy.run_id,)
        assert stopped.cancel_action is CancelAction(strategy)


async def test_an_answer_that_nobody_waits_for_is_passed_over(db: Database) -> None:
    thread = await threads.create(db, uuid4(), {})
    request = RunRequest(command={"resume": "yes"})
    [due] = await make_due(db, await new_cron(db, thread.thread_id, request=request))
    assert await crons.fire(db, due) is None
    assert await crons.due(db) == []


async def test_a_disabled_or_ended_cron_does_not_fire(db: Database) -> None:
    off = await new_cron(db, enabled=False)
    ended = await new_cron(db, end_time="2030-01-01T00:00:00Z")
    await db.execute("UPDATE crons SET ends_at = clock_timestamp() WHERE end_time IS NOT NULL")
    assert await make_due(db, off, ended) == []
    for row in (off, ended):
        assert await crons.fire(db, Due(row.cron_id, ASSISTANT, None)) is None
    assert (await new_cron(db, end_time="2020-01-01")).next_run_date is None


async def test_a_cron_that_is_enabled_again_does_not_make_up_for_its_sleep(db: Database) -> None:
    row = await new_cron(db, enabled=False)
    await make_due(db, row, ago="1 day")
    await crons.update(db, row.cron_id, lambda _: content())
    assert await crons.due(db) == []


async def test_a_cron_that_cannot_be_fired_is_passed_over(db: Database) -> None:
    row = await new_cron(db)
    await db.execute("UPDATE crons SET request = '{\"unknown\": 1}'")
    [due] = await make_due(db, row)
    with pytest.raises((TypeError, KeyError)):
        await crons.fire(db, due)
    await crons.pass_over(db, due)
    assert await crons.due(db) == []
    assert await all_runs(db) == []


async def test_a_cron_goes_with_its_thread_and_its_assistant(db: Database) -> None:
    thread_id = (await threads.create(db, uuid4(), {})).thread_id
    on_thread, stateless = await new_cron(db, thread_id), await new_cron(db)
    due = await make_due(db, on_thread, stateless)
    await threads.delete(db, thread_id)
    with pytest.raises(CronNotFound):
        await crons.get(db, on_thread.cron_id)
    await assistants.delete(db, ASSISTANT)
    assert await crons.count(db) == 0
    assert await asyncio.gather(*(crons.fire(db, one) for one in due)) == [None, None]


async def test_firing_and_deleting_a_thread_at_once_never_deadlock(db: Database) -> None:
    for _ in range(8):
        thread_id = (await threads.create(db, uuid4(), {})).thread_id
        rows = [await new_cron(db, thread_id) for _ in range(3)]
        due = await make_due(db, *rows)
        await asyncio.gather(*(crons.fire(db, one) for one in due), threads.delete(db, thread_id))
        assert await crons.count(db) == 0


async def test_nothing_is_made_for_what_is_not_there(db: Database) -> None:
    with pytest.raises(ThreadNotFound):
        await new_cron(db, uuid4())
    with pytest.raises(AssistantNotFound):
        await crons.create(db, uuid4(), uuid4(), None, content())
    with pytest.raises(BadSchedule, match="no date"):
        await new_cron(db, schedule="0 0 31 2 *")
    assert await crons.count(db) == 0


async def test_search_sorts_filters_and_pages(db: Database) -> None:
    rows = [
        await new_cron(db, metadata={"n": n, "flag": True}, enabled=n != 1, end_time=end)
        for n, end in enumerate(["2031-01-01", None, "2030-01-01"])
    ]
    ids = [row.cron_id for row in rows]

    async def found(**given: Any) -> list[UUID]:
        return [row.cron_id for row in await crons.search(db, **given)]

    assert await found() == ids[::-1]
    assert await found(limit=1, offset=1) == [ids[1]]
    assert await found(sort_by="end_time", sort_order="asc") == [ids[2], ids[0], ids[1]]
    assert await found(metadata={"flag": 1}) == []
    assert await found(metadata={"n": 1}) == [ids[1]]
    assert await found(enabled=False) == [ids[1]]
    assert await found(assistant_id=uuid4()) == []
    assert await crons.count(db, enabled=True) == 2

"""Which runs of a thread have started: told at once, and found anyway."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from uuid import UUID

import pytest

from actors.event_ends import RedisEventEnds
from actors.event_memory import MemoryEventLog
from actors.event_reader import RedisEventReader
from actors.event_threads import ThreadWatch
from actors.tasks import stop
from persistence import runs, thread_runs
from persistence.engine import Database
from persistence.lifecycle import SUCCEED
from persistence.settings import DatabaseSettings
from persistence.thread_runs import StartedRun
from tests.persistence.sample import claim, create


@pytest.fixture
async def db(database_url: str) -> AsyncIterator[Database]:
    async with Database(DatabaseSettings(url=database_url)) as database:
        yield database


async def settle(db: Database, run_id: UUID) -> None:
    [settled] = await runs.settle(db, [runs.Settlement(run_id, 1, SUCCEED)])
    assert settled.ok


async def taken(lists: AsyncIterator[list[StartedRun]]) -> list[UUID]:
    async with asyncio.timeout(60):
        return [run.run_id for run in await anext(lists)]


async def test_runs_come_in_the_order_of_their_start(db: Database) -> None:
    thread_id = uuid.uuid4()
    watch = ThreadWatch(db, poll_seconds=1000)
    running = asyncio.create_task(watch.run())
    async with aclosing(watch.runs_of(thread_id)) as lists:
        assert await taken(lists) == [], "the thread need not exist"
        first = await create(db, thread_id)
        second = await create(db, thread_id)
        await claim(db, first.run_id)
        watch.wake(thread_id)
        assert await taken(lists) == [first.run_id], "the second has not started"
        await settle(db, first.run_id)
        await claim(db, second.run_id)
        watch.wake(thread_id)
        assert await taken(lists) == [second.run_id]
        async with aclosing(watch.runs_of(thread_id)) as late:
            async with asyncio.timeout(60):
                found = await anext(late)
            assert [run.run_id for run in found] == [first.run_id, second.run_id]
            assert [run.finished_at is None for run in found] == [False, True], "as they are now"
            await settle(db, second.run_id)
            third = await create(db, thread_id)
            await claim(db, third.run_id)
            watch.wake(thread_id)
            assert await taken(late) == await taken(lists) == [third.run_id]
    await stop(running)


async def test_what_one_follower_finds_all_are_told(db: Database) -> None:
    """Who begins in the moment in which a run starts reads it before the wake-up does."""
    thread_id = uuid.uuid4()
    watch = ThreadWatch(db, poll_seconds=1000)
    running = asyncio.create_task(watch.run())
    async with (
        aclosing(watch.runs_of(thread_id)) as early,
        aclosing(watch.runs_of(thread_id)) as at,
    ):
        assert await taken(early) == []
        run = await create(db, thread_id)
        await claim(db, run.run_id)
        assert await taken(at) == [run.run_id]
        watch.wake(thread_id)
        assert await taken(early) == [run.run_id]
        await settle(db, run.run_id)
        later = await create(db, thread_id)
        await claim(db, later.run_id)
        watch.wake(thread_id)
        assert await taken(early) == await taken(at) == [later.run_id]
    await stop(running)


async def test_a_lost_wake_up_costs_time_and_no_run(db: Database) -> None:
    thread_id, other = uuid.uuid4(), uuid.uuid4()
    watch = ThreadWatch(db, poll_seconds=0.05)
    running = asyncio.create_task(watch.run())
    async with aclosing(watch.runs_of(thread_id)) as lists, aclosing(watch.runs_of(other)) as idle:
        assert await taken(lists) == await taken(idle) == []
        run = await create(db, thread_id)
        await claim(db, run.run_id)
        assert await taken(lists) == [run.run_id]
    await stop(running)


async def test_a_thread_that_did_not_change_is_not_read_on(db: Database) -> None:
    thread_id = uuid.uuid4()
    run = await create(db, thread_id)
    await claim(db, run.run_id)
    await settle(db, run.run_id)
    found = await thread_runs.started(db, {thread_id: thread_runs.Seen()})
    assert [one.run_id for one in found[thread_id].runs] == [run.run_id]
    assert await thread_runs.started(db, {thread_id: found[thread_id].seen}) == {}


async def test_a_worker_that_begins_wakes_every_gateway(db: Database, redis_url: str) -> None:
    thread_id = uuid.uuid4()
    async with AsyncExitStack() as stack:
        ends = RedisEventEnds(redis_url, 60)
        await ends.open()
        stack.push_async_callback(ends.close)
        readers = [RedisEventReader(redis_url, db, thread_poll_seconds=1000) for _ in range(2)]
        for reader in readers:
            await reader.open()
            stack.push_async_callback(reader.close)
        lists = [
            await stack.enter_async_context(aclosing(one.runs_of(thread_id))) for one in readers
        ]
        assert [await taken(one) for one in lists] == [[], []]
        run = await create(db, thread_id)
        await claim(db, run.run_id)
        ends.begin(thread_id)
        assert [await taken(one) for one in lists] == [[run.run_id]] * 2


async def test_in_one_process(db: Database) -> None:
    thread_id = uuid.uuid4()
    log = MemoryEventLog(db)
    await log.open()
    async with (
        aclosing(log.runs_of(thread_id)) as lists,
        aclosing(log.updates_of(thread_id)) as updates,
    ):
        assert await taken(lists) == []
        assert await anext(updates) == []
        run = await create(db, thread_id)
        await claim(db, run.run_id)
        log.begin(thread_id)
        assert await taken(lists) == [run.run_id]
        await log.note_update(thread_id, b"{}")
        async with asyncio.timeout(60):
            [update] = await anext(updates)
        assert (update.name, update.data) == ("state_update", b"{}")
        await log.put(str(run.run_id), 1, "values", b"1")
        assert await log.tip(str(run.run_id)) > "0-0"
    await log.close()

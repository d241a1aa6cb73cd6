"""What readers of events are promised, over Redis and within one process alike."""

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Protocol

import pytest
import redis.asyncio as redis

from actors.child.protocol import (
    FIELD_ATTEMPT,
    FIELD_DATA,
    FIELD_NAME,
    FIELD_SEQ,
    WAKE_CHANNEL,
    events_key,
)
from actors.event_ends import RedisEventEnds
from actors.event_memory import MemoryEventLog
from actors.event_reader import RedisEventReader
from actors.events import GAP_EVENT, LIVE, START, Event, EventEnds, EventReader
from persistence.engine import Database
from persistence.settings import DatabaseSettings

_LONG = 30.0
"""Seconds after which a test gives up waiting."""


class Writer(Protocol):
    """What a runner puts its events into."""

    async def put(self, run_id: str, attempt: int, name: str, data: bytes) -> None: ...


class RedisWriter:
    """Writes entries as graph processes do, one by one, with numbers that a test may set."""

    def __init__(self, url: str) -> None:
        self.redis = redis.Redis.from_url(url, protocol=2)
        self.seq: dict[tuple[str, int], int] = {}

    async def put(
        self, run_id: str, attempt: int, name: str, data: bytes, seq: int | None = None
    ) -> None:
        if seq is None:
            seq = self.seq[run_id, attempt] = self.seq.get((run_id, attempt), 0) + 1
        await self.redis.xadd(
            events_key(run_id),
            {FIELD_NAME: name, FIELD_DATA: data, FIELD_ATTEMPT: attempt, FIELD_SEQ: seq},
        )
        await self.redis.publish(WAKE_CHANNEL, run_id)


class Rows:
    """Rows of runs, moved by hand."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def running(self) -> str:
        """A run that somebody executes."""
        run_id, thread_id = str(uuid.uuid4()), str(uuid.uuid4())
        await self._database.execute("INSERT INTO threads (thread_id) VALUES (%s)", [thread_id])
        await self._database.execute(
            "INSERT INTO runs (run_id, thread_id, assistant_id, graph_id, status, kwargs,"
            " multitask_strategy, attempt, claimed_by, lease_expires_at, started_at)"
            " VALUES (%s, %s, %s, 'g', 'running', '{}', 'enqueue', 1, 'h/1/b', now() + '1 h',"
            " now())",
            [run_id, thread_id, str(uuid.uuid4())],
        )
        return run_id

    async def settle(self, run_id: str, ago: str = "0 s") -> None:
        """The run came to its end, so long ago."""
        await self._database.execute(
            "UPDATE runs SET status = 'success', claimed_by = NULL, lease_expires_at = NULL,"
            " finished_at = clock_timestamp() - %s::interval WHERE run_id = %s",
            [ago, run_id],
        )

    async def delete(self, run_id: str) -> None:
        """The run was rolled back."""
        await self._database.execute("DELETE FROM runs WHERE run_id = %s", [run_id])


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(DatabaseSettings(url=database_url))
    await database.open()
    yield database
    await database.close()


@pytest.fixture
def rows(database: Database) -> Rows:
    return Rows(database)


Carrier = tuple[Writer, EventEnds, EventReader]


@pytest.fixture(params=["redis", "memory"])
async def carrier(request: pytest.FixtureRequest, database: Database) -> AsyncIterator[Carrier]:
    if request.param == "memory":
        log = MemoryEventLog(database)
        await log.open()
        yield log, log, log
        await log.close()
        return
    url = request.getfixturevalue("redis_url")
    writer, ends = RedisWriter(url), RedisEventEnds(url, ttl=60)
    reader = RedisEventReader(url, database)
    await ends.open()
    await reader.open()
    yield writer, ends, reader
    await reader.close()
    await ends.close()
    await writer.redis.aclose()


@pytest.fixture
async def writer(redis_url: str) -> AsyncIterator[RedisWriter]:
    writer = RedisWriter(redis_url)
    yield writer
    await writer.redis.aclose()


@pytest.fixture
async def ends(redis_url: str) -> AsyncIterator[RedisEventEnds]:
    ends = RedisEventEnds(redis_url, ttl=60)
    await ends.open()
    yield ends
    await ends.close()


@pytest.fixture
async def make_reader(
    redis_url: str, database: Database
) -> AsyncIterator[Callable[..., Awaitable[RedisEventReader]]]:
    readers = []

    async def make(url: str = redis_url, **options: int) -> RedisEventReader:
        reader = RedisEventReader(url, database, **options)
        await reader.open()
        readers.append(reader)
        return reader

    yield make
    for reader in readers:
        await reader.close()


def data(number: int) -> bytes:
    return b'{"n":%d}' % number


async def collect(reader: EventReader, run_id: str, after: str = START) -> list[Event]:
    """All events until the stream ends by itself."""
    async with asyncio.timeout(_LONG):
        return [event async for batch in reader.follow(run_id, after) for event in batch]


def numbers(events: list[Event]) -> list[int]:
    return [int(event.data[5:-1]) for event in events if event.name == "values"]


class Subscription:
    """A subscriber whose events a test can wait for."""

    def __init__(self, reader: EventReader, run_id: str, after: str = START) -> None:
        self.events: list[Event] = []
        self._more = asyncio.Condition()
        self.task = asyncio.create_task(self._read(reader.follow(run_id, after)))

    async def _read(self, batches: AsyncIterator[list[Event]]) -> None:
        async with aclosing(batches):  # type: ignore[type-var]  # both are generators
            async for batch in batches:
                async with self._more:
                    self.events += batch
                    self._more.notify_all()

    async def seen(self, count: int) -> list[Event]:
        async with asyncio.timeout(_LONG), self._more:
            await self._more.wait_for(lambda: len(self.events) >= count)
        return self.events

    async def finished(self) -> list[Event]:
        async with asyncio.timeout(_LONG):
            await self.task
        return self.events

    async def cancel(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


# ── both carriers ────────────────────────────────────────────────────────────────────────────────


async def test_events_come_in_order_and_the_end_is_the_end(carrier: Carrier, rows: Rows) -> None:
    writer, ends, reader = carrier
    run_id = await rows.running()
    subscription = Subscription(reader, run_id)
    await writer.put(run_id, 1, "metadata", b'{"attempt":1}')
    assert (await subscription.seen(1))[0].name == "metadata"
    for number in range(10):
        await writer.put(run_id, 1, "values", data(number))
    await subscription.seen(11)
    await rows.settle(run_id)
    await ends.end(run_id, 1, "error", b'{"error":"E","message":"m"}')
    events = await subscription.finished()
    assert numbers(events) == list(range(10))
    assert events[-1].name == "error"
    assert events[-1].data == b'{"error":"E","message":"m"}'
    assert len({event.id for event in events}) == len(events) == 12
    assert {event.attempt for event in events} == {1}


async def test_who_comes_late_sees_the_same(carrier: Carrier, rows: Rows) -> None:
    writer, ends, reader = carrier
    run_id = await rows.running()
    for number in range(300):
        await writer.put(run_id, 1, "values", data(number))
    await rows.settle(run_id)
    await ends.end(run_id, 1, "success")
    events = await collect(reader, run_id)
    assert numbers(events) == list(range(300))
    assert numbers(await collect(reader, run_id, "-1")) == list(range(300))
    assert numbers(await collect(reader, run_id, events[99].id)) == list(range(100, 300))
    assert await collect(reader, run_id, events[-1].id) == []
    assert await collect(reader, run_id, LIVE) == []


async def test_live_means_what_comes_from_now_on(carrier: Carrier, rows: Rows) -> None:
    writer, ends, reader = carrier
    run_id = await rows.running()
    await writer.put(run_id, 1, "values", data(0))
    other = Subscription(reader, run_id)
    await other.seen(1)
    live = Subscription(reader, run_id, LIVE)
    seen = asyncio.create_task(live.seen(1))
    number = 0
    while not seen.done():  # the subscription begins when it has looked where the stream ends
        number += 1
        await writer.put(run_id, 1, "values", data(number))
        await asyncio.sleep(0.005)
    await ends.end(run_id, 1, "success")
    got = numbers(await live.finished())
    assert got == list(range(got[0], number + 1))
    assert got[0] >= 1
    assert numbers(await other.finished()) == list(range(number + 1))


@pytest.mark.parametrize("after", ["junk", "", "-", "1-2-3", "9" * 5000, "٣", "-5", "$$", "1 "])
async def test_an_id_that_is_none_replays_nothing(carrier: Carrier, rows: Rows, after: str) -> None:
    writer, ends, reader = carrier
    run_id = await rows.running()
    await writer.put(run_id, 1, "values", data(0))
    await rows.settle(run_id)
    await ends.end(run_id, 1, "success")
    assert await collect(reader, run_id, after) == []


@pytest.mark.parametrize(("after", "count"), [("0", 2), ("0-5", 2), ("99999999999999999999", 0)])
async def test_any_id_is_a_place(carrier: Carrier, rows: Rows, after: str, count: int) -> None:
    writer, ends, reader = carrier
    run_id = await rows.running()
    await writer.put(run_id, 1, "values", data(0))
    await writer.put(run_id, 1, "values", data(1))
    await ends.end(run_id, 1, "success")
    assert len(numbers(await collect(reader, run_id, after))) == count


async def test_a_stale_attempt_is_not_heard(carrier: Carrier, rows: Rows) -> None:
    writer, ends, reader = carrier
    run_id = await rows.running()
    subscription = Subscription(reader, run_id)
    await writer.put(run_id, 1, "values", data(0))
    await writer.put(run_id, 1, "values", data(1))
    await writer.put(run_id, 2, "values", data(10))
    await writer.put(run_id, 1, "values", data(2))
    await writer.put(run_id, 2, "values", data(11))
    await writer.put(run_id, 1, "values", data(3))
    await ends.end(run_id, 2, "success")
    events = await subscription.finished()
    assert numbers(events) == [0, 1, 10, 11]
    assert numbers(await collect(reader, run_id)) == [0, 1, 10, 11]
    assert numbers(await collect(reader, run_id, events[2].id)) == [11]
    assert GAP_EVENT not in {event.name for event in events}


async def test_the_row_ends_a_stream_that_was_never_ended(carrier: Carrier, rows: Rows) -> None:
    writer, _, reader = carrier
    run_id = await rows.running()
    subscription = Subscription(reader, run_id)
    await writer.put(run_id, 1, "values", data(0))
    await subscription.seen(1)
    await rows.settle(run_id)
    assert numbers(await subscription.finished()) == [0]
    assert numbers(await collect(reader, run_id)) == [0]


async def test_a_row_that_is_gone_ends_a_stream(carrier: Carrier, rows: Rows) -> None:
    writer, _, reader = carrier
    run_id = await rows.running()
    subscription = Subscription(reader, run_id)
    await writer.put(run_id, 1, "values", data(0))
    await subscription.seen(1)
    await rows.delete(run_id)
    assert numbers(await subscription.finished()) == [0]
    assert await collect(reader, str(uuid.uuid4())) == []


@pytest.mark.parametrize("after", [START, LIVE, "5-5"])
async def test_a_finished_run_whose_events_are_lost_ends_at_once(
    carrier: Carrier, rows: Rows, after: str
) -> None:
    _, _, reader = carrier
    run_id = await rows.running()
    await rows.settle(run_id, ago="1 hour")
    assert await collect(reader, run_id, after) == []


async def test_ended_tells_the_end(carrier: Carrier, rows: Rows) -> None:
    _, ends, reader = carrier
    run_id = await rows.running()
    waiting = [asyncio.create_task(reader.ended(run_id)) for _ in range(5)]
    await asyncio.sleep(0.2)
    assert not any(task.done() for task in waiting)
    await ends.end(run_id, 1, "success")  # the row stays active: only the mark can have told
    async with asyncio.timeout(2):
        await asyncio.gather(*waiting)


async def test_ended_believes_the_row(carrier: Carrier, rows: Rows) -> None:
    _, _, reader = carrier
    settled, deleted = await rows.running(), await rows.running()
    waiting = [asyncio.create_task(reader.ended(run_id)) for run_id in (settled, deleted)]
    await rows.settle(settled)
    await rows.delete(deleted)
    async with asyncio.timeout(_LONG):
        await asyncio.gather(*waiting)
        await reader.ended(settled)


async def test_nobody_who_left_is_remembered(carrier: Carrier, rows: Rows) -> None:
    writer, _, reader = carrier
    run_id = await rows.running()
    for number in range(20):
        await writer.put(run_id, 1, "values", data(number))
    for step in range(60):  # leaves at every moment of a subscription's beginning
        subscription = Subscription(reader, run_id, random.choice([START, LIVE, "7-7"]))
        waiting = asyncio.create_task(reader.ended(run_id))
        for _ in range(step // 2):
            await asyncio.sleep(0)
        if step % 3 == 0:
            await asyncio.sleep(0.001 * random.random())
        await subscription.cancel()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    inside: Any = reader
    assert inside._rows._due == {}
    if isinstance(reader, RedisEventReader):
        assert inside._feeds == {}
        assert inside._dirty == {}
        assert inside._behind._value == 8


async def test_joining_at_any_moment_leaves_no_gap(carrier: Carrier, rows: Rows) -> None:
    """100 subscribers join a run of 200 events a second, with random cursors."""
    writer, ends, reader = carrier
    run_id = await rows.running()
    total = 400
    first = Subscription(reader, run_id)
    joined: list[tuple[int, Subscription]] = []
    for number in range(total):
        await writer.put(run_id, 1, "values", data(number))
        if number % 4 == 3:
            seen = list(first.events)
            if seen and random.random() < 0.5:
                last = random.randrange(len(seen))
                joined.append((last + 1, Subscription(reader, run_id, seen[last].id)))
            else:
                joined.append((0, Subscription(reader, run_id)))
        await asyncio.sleep(0.005)
    await rows.settle(run_id)
    await ends.end(run_id, 1, "success")
    assert len(joined) == 100
    assert numbers(await first.finished()) == list(range(total))
    for start, subscription in joined:
        events = await subscription.finished()
        assert numbers(events) == list(range(start, total))
        assert len(events) == total - start


async def test_what_was_pushed_out_is_marked(database: Database, rows: Rows) -> None:
    log = MemoryEventLog(database, maxlen=10)
    await log.open()
    run_id = await rows.running()
    for number in range(25):
        await log.put(run_id, 1, "values", data(number))
    await log.end(run_id, 1, "success")
    events = await collect(log, run_id)
    assert events[0].name == GAP_EVENT
    assert events[0].data == b'{"missed":16}'
    assert numbers(events) == list(range(16, 25))
    await log.close()


async def test_memory_forgets_after_the_end(database: Database, rows: Rows) -> None:
    log = MemoryEventLog(database, ttl=0)
    await log.open()
    run_id = await rows.running()
    await log.put(run_id, 1, "values", data(0))
    await rows.settle(run_id)
    await log.end(run_id, 1, "success")
    await asyncio.sleep(0.01)
    assert await collect(log, run_id) == []
    assert log._logs == {}
    await log.close()

"""What readers of events are promised, over Redis and within one process alike."""

import asyncio
import random
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, Protocol

import pytest
import redis.asyncio as redis

from actors import event_reader
from actors.child.event_names import (
    FIELD_ATTEMPT,
    FIELD_DATA,
    FIELD_NAME,
    FIELD_SEQ,
    WAKE_CHANNEL,
    events_key,
)
from actors.child.events import EventWriter
from actors.dispatch import RedisDispatcher
from actors.event_ends import RedisEventEnds
from actors.event_feed import PAGE_BYTES
from actors.event_memory import MemoryEventLog
from actors.event_reader import RedisEventReader
from actors.events import GAP_EVENT, LIVE, START, End, Event, EventEnds, EventReader
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

    async def clock_passes(self, event_id: str) -> None:
        """Returns when Redis gives out greater ids than this one in any stream, also a new one."""
        milliseconds = int(event_id.partition("-")[0])
        while True:
            seconds, microseconds = await self.redis.time()
            if seconds * 1000 + microseconds // 1000 > milliseconds:
                return


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

    async def settle(
        self,
        run_id: str,
        ago: str = "0 s",
        *,
        status: str = "success",
        attempt: int = 1,
        events: int | None = None,
    ) -> None:
        """The run came to its end, so long ago, with so many events of its last attempt."""
        await self._database.execute(
            "UPDATE runs SET status = %s, claimed_by = NULL, lease_expires_at = NULL,"
            " error = CASE WHEN %s = 'error' THEN '{}'::jsonb END, attempt = %s, events = %s,"
            " finished_at = clock_timestamp() - %s::interval WHERE run_id = %s",
            [status, status, attempt, events, ago, run_id],
        )

    async def delete(self, run_id: str) -> None:
        """The run was rolled back."""
        await self._database.execute("DELETE FROM runs WHERE run_id = %s", [run_id])


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with Database(DatabaseSettings(url=database_url)) as database:
        yield database


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
    await ends.end(End(run_id, 1, "error", b'{"error":"E","message":"m"}'))
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
    await ends.end(End(run_id, 1, "success"))
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
    await ends.end(End(run_id, 1, "success"))
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
    await ends.end(End(run_id, 1, "success"))
    assert await collect(reader, run_id, after) == []


@pytest.mark.parametrize(("after", "count"), [("0", 2), ("0-5", 2), ("99999999999999999999", 0)])
async def test_any_id_is_a_place(carrier: Carrier, rows: Rows, after: str, count: int) -> None:
    writer, ends, reader = carrier
    run_id = await rows.running()
    await writer.put(run_id, 1, "values", data(0))
    await writer.put(run_id, 1, "values", data(1))
    await ends.end(End(run_id, 1, "success"))
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
    await ends.end(End(run_id, 2, "success"))
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


@pytest.mark.parametrize(
    ("row", "missed"),
    [
        ({"events": 2}, []),
        ({"events": 5}, [b'{"missed":3}']),
        ({"events": 2, "status": "error"}, [b'{"missed":1}']),
        ({"events": 3, "attempt": 2}, [b'{"missed":null}']),
    ],
)
async def test_a_stream_that_breaks_off_says_so(
    carrier: Carrier, rows: Rows, row: dict[str, Any], missed: list[bytes]
) -> None:
    """The last events, or the error, died with the processes that were to write them."""
    writer, _, reader = carrier
    run_id = await rows.running()
    subscription = Subscription(reader, run_id)
    await writer.put(run_id, 1, "values", data(0))
    await writer.put(run_id, 1, "values", data(1))
    await subscription.seen(2)
    await rows.settle(run_id, **row)
    for events in (await subscription.finished(), await collect(reader, run_id)):
        assert numbers(events) == [0, 1]
        assert [event.data for event in events if event.name == GAP_EVENT] == missed


@pytest.mark.parametrize(
    ("after", "missed"),
    [
        (START, [b'{"missed":4}']),
        ("-1", [b'{"missed":4}']),
        ("5-5", [b'{"missed":null}']),
        (LIVE, []),
    ],
)
async def test_a_stream_that_is_gone_says_what_was_there(
    carrier: Carrier, rows: Rows, after: str, missed: list[bytes]
) -> None:
    _, _, reader = carrier
    run_id = await rows.running()
    await rows.settle(run_id, ago="1 hour", events=4)
    events = await collect(reader, run_id, after)
    assert [(event.name, event.data) for event in events] == [(GAP_EVENT, gap) for gap in missed]
    if events:  # who comes back with that place hears the same
        (again,) = await collect(reader, run_id, events[0].id)
        assert again.name == GAP_EVENT


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
    await ends.end(End(run_id, 1, "success"))  # the row stays active: only the mark can have told
    async with asyncio.timeout(_LONG):
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


async def test_an_end_that_no_worker_writes_is_heard(
    request: pytest.FixtureRequest, carrier: Carrier, rows: Rows
) -> None:
    writer, _, reader = carrier
    run_id = await rows.running()  # the row stays active: only what is said can have told
    waiting, reading = asyncio.create_task(reader.ended(run_id)), Subscription(reader, run_id)
    for number in range(2):
        await writer.put(run_id, 1, "values", data(number))
        await reading.seen(number + 1)
    if isinstance(reader, MemoryEventLog):
        reader.over(uuid.UUID(run_id))
    else:
        dispatcher = RedisDispatcher(request.getfixturevalue("redis_url"))
        await dispatcher.over(uuid.uuid4(), uuid.UUID(run_id))
        await dispatcher.close()
    assert numbers(await reading.finished()) == [0, 1]
    async with asyncio.timeout(_LONG):
        await waiting


async def test_great_events_behind_small_ones_come_one_by_one(carrier: Carrier, rows: Rows) -> None:
    """However small those before were: a batch is a page, and one event that may be greater."""
    writer, ends, reader = carrier
    run_id = await rows.running()
    for number in range(150):
        await writer.put(run_id, 1, "values", data(number))
    for number in range(150, 160):
        await writer.put(run_id, 1, "values", data(number) + b" " * 2**20)
    batches = [batch async for batch in _until(reader.follow(run_id), 160)]
    sizes = [sorted(len(event.data) for event in batch) for batch in batches]
    assert max(sum(others) for *others, _greatest in sizes) < PAGE_BYTES
    assert [event.data[:8] for batch in batches for event in batch] == [
        data(number)[:8] for number in range(160)
    ]
    await rows.settle(run_id)
    await ends.end(End(run_id, 1, "success"))


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
    await ends.end(End(run_id, 1, "success"))
    assert len(joined) == 100
    assert numbers(await first.finished()) == list(range(total))
    for start, subscription in joined:
        events = await subscription.finished()
        assert numbers(events) == list(range(start, total))
        assert len(events) == total - start


async def test_what_was_pushed_out_is_marked(database: Database, rows: Rows) -> None:
    log = MemoryEventLog(database, maxlen=10, fresh_seconds=0)
    await log.open()
    run_id = await rows.running()
    for number in range(25):
        await log.put(run_id, 1, "values", data(number))
    await log.end(End(run_id, 1, "success"))
    events = await collect(log, run_id)
    assert events[0].name == GAP_EVENT
    assert events[0].data == b'{"missed":16}'
    assert numbers(events) == list(range(16, 25))
    await log.close()


async def test_a_burst_is_kept_whole_for_a_while_in_memory_too(
    database: Database, rows: Rows
) -> None:
    log = MemoryEventLog(database, maxlen=10)
    await log.open()
    run_id = await rows.running()
    for number in range(1000):
        await log.put(run_id, 1, "values", data(number))
    await log.end(End(run_id, 1, "success"))
    assert numbers(await collect(log, run_id)) == list(range(1000))
    await log.close()


async def test_memory_forgets_after_the_end(database: Database, rows: Rows) -> None:
    log = MemoryEventLog(database, ttl=0)
    await log.open()
    run_id = await rows.running()
    await log.put(run_id, 1, "values", data(0))
    await rows.settle(run_id)
    await log.end(End(run_id, 1, "success"))
    await asyncio.sleep(0.01)
    assert await collect(log, run_id) == []
    assert log._logs == {}
    await log.close()


# ── Redis alone ──────────────────────────────────────────────────────────────────────────────────

MakeReader = Callable[..., Awaitable[RedisEventReader]]


async def write(writer: RedisWriter, run_id: str, wanted: range, pause: float = 0.005) -> None:
    for number in wanted:
        await writer.put(run_id, 1, "values", data(number))
        await asyncio.sleep(pause)


async def test_a_batch_sent_twice_is_seen_once(
    writer: RedisWriter, ends: RedisEventEnds, make_reader: MakeReader, rows: Rows
) -> None:
    reader = await make_reader()
    run_id = await rows.running()
    subscription = Subscription(reader, run_id)
    for seq in (1, 2, 3, 4, 2, 3, 4, 5, 6, 5):
        await writer.put(run_id, 1, "values", data(seq), seq=seq)
    events = await subscription.seen(6)
    middle = Subscription(reader, run_id, events[3].id)
    await ends.end(End(run_id, 1, "success"))
    assert numbers(await subscription.finished()) == [1, 2, 3, 4, 5, 6]
    assert numbers(await middle.finished()) == [5, 6]
    assert numbers(await collect(await make_reader(), run_id)) == [1, 2, 3, 4, 5, 6]


async def test_two_ends_are_one(
    writer: RedisWriter, ends: RedisEventEnds, make_reader: MakeReader, rows: Rows
) -> None:
    run_id = await rows.running()
    await writer.put(run_id, 1, "values", data(0))
    for _ in range(2):
        await ends.end(End(run_id, 1, "error", b'{"error":"E","message":"m"}'))
    names = [event.name for event in await collect(await make_reader(), run_id)]
    assert names == ["values", "error"]
    assert 0 < await writer.redis.ttl(events_key(run_id)) <= 60


async def test_who_reads_slowly_falls_out_of_the_ring_and_loses_nothing(
    writer: RedisWriter, ends: RedisEventEnds, make_reader: MakeReader, rows: Rows
) -> None:
    reader = await make_reader(ring_events=8, ring_bytes=4000, page_connections=1)
    run_id = await rows.running()
    quick = Subscription(reader, run_id)
    slow = reader.follow(run_id)
    await writer.put(run_id, 1, "values", data(0))
    seen = await anext(slow)
    for number in range(1, 500):
        await writer.put(run_id, 1, "values", data(number))
    await quick.seen(500)
    feed = reader._feeds[run_id]
    assert len(feed.entries) <= 8
    assert feed.floor > (0, 0)
    await rows.settle(run_id)
    await ends.end(End(run_id, 1, "success"))
    async for batch in slow:
        seen += batch
    assert numbers(seen) == list(range(500))
    assert numbers(await quick.finished()) == list(range(500))


async def test_great_events_are_read_in_small_pages(
    writer: RedisWriter, ends: RedisEventEnds, make_reader: MakeReader, rows: Rows
) -> None:
    reader = await make_reader()
    run_id = await rows.running()
    quick = Subscription(reader, run_id)
    for number in range(40):
        await writer.put(run_id, 1, "values", data(number) + b" " * 100_000)
        await quick.seen(number + 1)
    batches = [batch async for batch in _until(reader.follow(run_id), 40)]
    assert max(sum(len(event.data) for event in batch) for batch in batches[1:]) < 400_000
    await ends.end(End(run_id, 1, "success"))


async def _until(batches: AsyncIterator[list[Event]], count: int) -> AsyncIterator[list[Event]]:
    seen = 0
    async for batch in batches:
        yield batch
        seen += len(batch)
        if seen >= count:
            return


async def test_a_burst_is_heard_whole_by_who_keeps_up(
    redis_url: str, ends: RedisEventEnds, make_reader: MakeReader, rows: Rows
) -> None:
    """A node that held up its loop says all at once, and far more than a stream keeps for long."""
    reader, run_id = await make_reader(), await rows.running()
    subscription = Subscription(reader, run_id)
    burst = EventWriter(redis_url, maxlen=1000, ttl_seconds=60, buffer_bytes=32 << 20)
    await burst.open()
    for number in range(25_000):
        await burst.put(run_id, 1, "values", data(number))
    await burst.flush(run_id)
    await burst.close()
    await rows.settle(run_id)
    await ends.end(End(run_id, 1, "success"))
    events = await subscription.finished()
    assert [event.data for event in events] == [data(number) for number in range(25_000)]


async def test_what_was_trimmed_is_marked(
    writer: RedisWriter, ends: RedisEventEnds, make_reader: MakeReader, rows: Rows
) -> None:
    reader = await make_reader()
    run_id = await rows.running()
    subscription = Subscription(reader, run_id)
    for number in range(10):
        await writer.put(run_id, 1, "values", data(number))
    first = list(await subscription.seen(10))
    await subscription.cancel()
    for number in range(10, 50):
        await writer.put(run_id, 1, "values", data(number))
    await writer.redis.xtrim(events_key(run_id), maxlen=5, approximate=False)
    await ends.end(End(run_id, 1, "success"))
    events = await collect(reader, run_id)
    assert [event.name for event in events] == [GAP_EVENT] + ["values"] * 5
    assert events[0].data == b'{"missed":45}'
    assert numbers(await collect(reader, run_id, events[0].id)) == [45, 46, 47, 48, 49]
    resumed = await collect(reader, run_id, first[-1].id)
    assert resumed[0].data == b'{"missed":null}'  # how much lay between, nobody knows any more
    assert numbers(resumed) == [45, 46, 47, 48, 49]


async def test_a_flush_in_mid_stream_is_marked(
    writer: RedisWriter, ends: RedisEventEnds, make_reader: MakeReader, rows: Rows
) -> None:
    reader = await make_reader()
    run_id = await rows.running()
    subscription = Subscription(reader, run_id)
    for number in range(3):
        await writer.put(run_id, 1, "values", data(number))
    last = (await subscription.seen(3))[2]
    await writer.redis.flushdb()
    await writer.clock_passes(last.id)
    await writer.put(run_id, 1, "values", data(4), seq=5)
    await ends.end(End(run_id, 1, "success"))
    events = await subscription.finished()
    assert numbers(events) == [0, 1, 2, 4]
    assert events[3].name == GAP_EVENT
    assert events[3].data == b'{"missed":1}'


async def test_a_gap_that_the_writer_marked_is_marked_once(
    writer: RedisWriter, ends: RedisEventEnds, make_reader: MakeReader, rows: Rows
) -> None:
    run_id = await rows.running()
    await writer.put(run_id, 1, "values", data(1), seq=1)
    await writer.put(run_id, 1, GAP_EVENT, b'{"missed":3}', seq=4)
    await writer.put(run_id, 1, "values", data(5), seq=5)
    await ends.end(End(run_id, 1, "success"))
    events = await collect(await make_reader(), run_id)
    assert [event.name for event in events] == ["values", GAP_EVENT, "values"]


async def test_two_gateways_tell_the_same(
    writer: RedisWriter, ends: RedisEventEnds, make_reader: MakeReader, rows: Rows
) -> None:
    one, other = await make_reader(), await make_reader()
    run_id = await rows.running()
    here, there = Subscription(one, run_id), Subscription(other, run_id)
    writing = asyncio.create_task(write(writer, run_id, range(200), 0.001))
    last = list(await here.seen(50))[49]
    moved = Subscription(other, run_id, last.id)
    await writing
    await ends.end(End(run_id, 1, "success"))
    assert await here.finished() == await there.finished()
    assert numbers(here.events[:50] + await moved.finished()) == list(range(200))


async def test_a_thousand_subscribers_share_a_few_connections(
    writer: RedisWriter, ends: RedisEventEnds, make_reader: MakeReader, rows: Rows
) -> None:
    before = len(await writer.redis.client_list())
    reader = await make_reader()
    run_ids = [await rows.running() for _ in range(50)]
    for run_id in run_ids:
        for number in range(50):
            await writer.put(run_id, 1, "values", data(number))
    subscriptions = [Subscription(reader, run_id) for run_id in run_ids for _ in range(20)]
    for subscription in subscriptions:
        await subscription.seen(50)
    assert len(await writer.redis.client_list()) - before <= 10
    for run_id in run_ids:
        await writer.put(run_id, 1, "values", data(50))
        await rows.settle(run_id)
        await ends.end(End(run_id, 1, "success"))
    for subscription in subscriptions:
        assert numbers(await subscription.finished()) == list(range(51))
    assert reader._feeds == {}
    assert reader._rows._due == {}


async def test_killed_subscriptions_come_back(
    writer: RedisWriter, ends: RedisEventEnds, make_reader: MakeReader, rows: Rows
) -> None:
    reader = await make_reader()
    run_id = await rows.running()
    subscriptions = [Subscription(reader, run_id) for _ in range(10)]
    waiting = asyncio.create_task(reader.ended(run_id))
    writing = asyncio.create_task(write(writer, run_id, range(300)))
    for count in (50, 100, 150, 200):
        await subscriptions[0].seen(count)
        await writer.redis.client_kill_filter(_type="pubsub")
    await writing
    await writer.redis.client_kill_filter(_type="pubsub")
    await ends.end(End(run_id, 1, "success"))
    for subscription in subscriptions:
        assert numbers(await subscription.finished()) == list(range(300))
    await rows.settle(run_id)
    async with asyncio.timeout(_LONG):
        await waiting


class Valkey:
    """A server of the test's own, to be stopped and started, frozen and thawed."""

    def __init__(self, folder: Path, port: int) -> None:
        self.url = f"redis://127.0.0.1:{port}"
        code = (
            "import sys; from pathlib import Path; from callboard import embedded;"
            "embedded.exec_valkey(Path(sys.argv[1]), port=int(sys.argv[2]))"
        )
        self._command = [sys.executable, "-c", code, str(folder), str(port)]
        self._child: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        self._child = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        client = redis.Redis.from_url(self.url, protocol=2)
        async with asyncio.timeout(_LONG):
            while True:
                try:
                    await client.ping()
                    break
                except redis.ConnectionError:
                    await asyncio.sleep(0.02)
        await client.aclose()

    def stop(self) -> None:
        if self._child is not None:
            self._child.send_signal(signal.SIGCONT)
            self._child.terminate()
            self._child.wait(10)
            self._child = None

    def send(self, number: signal.Signals) -> None:
        assert self._child is not None
        self._child.send_signal(number)


@pytest.fixture
async def valkey(service_folder: Path, free_port: int) -> AsyncIterator[Valkey]:
    folder = service_folder / f"own-{free_port}"
    folder.mkdir()
    server = Valkey(folder, free_port)
    await server.start()
    yield server
    server.stop()


async def persistently(put: Callable[[], Awaitable[None]]) -> None:
    """As a graph process does: sends again until it is acknowledged."""
    async with asyncio.timeout(_LONG):
        while True:
            try:
                return await put()
            except redis.RedisError:
                await asyncio.sleep(0.02)


async def test_a_restart_in_mid_stream_leaves_no_gap(
    valkey: Valkey, make_reader: MakeReader, rows: Rows
) -> None:
    writer, ends = RedisWriter(valkey.url), RedisEventEnds(valkey.url, ttl=60)
    reader = await make_reader(valkey.url)
    await ends.open()
    run_id = await rows.running()
    subscriptions = [Subscription(reader, run_id) for _ in range(5)]
    for number in range(100):
        await writer.put(run_id, 1, "values", data(number))
    await subscriptions[0].seen(100)
    valkey.stop()
    late = Subscription(reader, run_id)
    starting = asyncio.create_task(_start_later(valkey))
    for number in range(100, 200):
        seq = number + 1
        await persistently(lambda n=number, s=seq: writer.put(run_id, 1, "values", data(n), seq=s))
    await rows.settle(run_id)
    await ends.end(End(run_id, 1, "success"))
    for subscription in [*subscriptions, late]:
        assert numbers(await subscription.finished()) == list(range(200))
    await starting
    await ends.close()
    await writer.redis.aclose()


async def test_what_a_graph_process_held_back_comes_before_the_end(
    valkey: Valkey, make_reader: MakeReader, rows: Rows
) -> None:
    """The run ends during the outage; its events and its end are written after it, in order."""
    writer = EventWriter(valkey.url, maxlen=10_000, ttl_seconds=60, buffer_bytes=1 << 20)
    ends = RedisEventEnds(valkey.url, ttl=60)
    reader = await make_reader(valkey.url)
    await writer.open()
    await ends.open()
    run_id = await rows.running()
    subscription = Subscription(reader, run_id)
    for number in range(100):
        await writer.put(run_id, 1, "values", data(number))
    await subscription.seen(100)
    valkey.stop()
    for number in range(100, 200):
        await writer.put(run_id, 1, "values", data(number))
    await asyncio.sleep(0.5)
    await rows.settle(run_id)
    await ends.end(End(run_id, 1, "error", b'{"error":"E","message":"m"}'))
    await valkey.start()
    events = await subscription.finished()
    assert numbers(events) == list(range(200))
    assert events[-1].name == "error"
    assert await collect(reader, run_id) == events
    await ends.close()
    await writer.close()


async def _start_later(valkey: Valkey) -> None:
    await asyncio.sleep(1.0)
    await valkey.start()


async def test_a_run_that_ends_while_redis_is_away_ends_its_streams(
    valkey: Valkey, make_reader: MakeReader, rows: Rows
) -> None:
    writer, ends = RedisWriter(valkey.url), RedisEventEnds(valkey.url, ttl=60)
    reader = await make_reader(valkey.url)
    await ends.open()
    run_id = await rows.running()
    reading = Subscription(reader, run_id)
    await writer.put(run_id, 1, "values", data(0))
    await reading.seen(1)
    valkey.stop()
    others = [Subscription(reader, run_id, after) for after in (START, LIVE, "5-5")]
    waiting = asyncio.create_task(reader.ended(run_id))
    await asyncio.sleep(0.5)
    await rows.settle(run_id)
    async with asyncio.timeout(_LONG):
        await ends.end(End(run_id, 1, "success"))
        await waiting
    assert numbers(await reading.finished()) == [0]
    for other in others:
        assert await other.finished() == []
    # Who comes later finds the end, written when Redis came back.
    await valkey.start()
    async with asyncio.timeout(_LONG):
        await ends._idle.wait()
    assert numbers(await collect(await make_reader(valkey.url), run_id)) == [0]
    assert await writer.redis.xlen(events_key(run_id)) == 2
    await ends.close()
    await writer.redis.aclose()


async def test_a_frozen_redis_is_noticed(
    valkey: Valkey, make_reader: MakeReader, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection stays open and says nothing: as half-open as one whose packets are dropped."""
    monkeypatch.setattr(event_reader, "_QUIET_SECONDS", 0.2)
    monkeypatch.setattr(event_reader, "_COMMAND_SECONDS", 0.5)
    writer = RedisWriter(valkey.url)
    reader = await make_reader(valkey.url)
    run_id = await rows.running()
    subscription = Subscription(reader, run_id)
    await writer.put(run_id, 1, "values", data(0))
    await subscription.seen(1)
    valkey.send(signal.SIGSTOP)
    async with asyncio.timeout(_LONG):
        while reader._reachable:
            await asyncio.sleep(0.02)
    valkey.send(signal.SIGCONT)
    await writer.put(run_id, 1, "values", data(1))
    await subscription.seen(2)
    await rows.settle(run_id)
    assert numbers(await subscription.finished()) == [0, 1]
    await writer.redis.aclose()


async def test_a_gateway_starts_before_redis(
    valkey: Valkey, make_reader: MakeReader, rows: Rows
) -> None:
    valkey.stop()
    reader = await make_reader(valkey.url)
    run_id = await rows.running()
    subscription = Subscription(reader, run_id)
    await asyncio.sleep(0.2)
    await valkey.start()
    writer = RedisWriter(valkey.url)
    await writer.put(run_id, 1, "values", data(0))
    await subscription.seen(1)
    await rows.settle(run_id)
    assert numbers(await subscription.finished()) == [0]
    await writer.redis.aclose()


async def test_a_database_that_is_away_ends_nothing(
    writer: RedisWriter, ends: RedisEventEnds, redis_url: str, rows: Rows
) -> None:
    run_id = await rows.running()
    away = DatabaseSettings(url="postgresql://127.0.0.1:1/none", pool_timeout_seconds=0.2)
    async with Database(away) as gone:
        reader = RedisEventReader(redis_url, gone)
        await reader.open()
        subscription = Subscription(reader, run_id)
        waiting = asyncio.create_task(reader.ended(run_id))
        await asyncio.sleep(1)
        await writer.put(run_id, 1, "values", data(0))
        await subscription.seen(1)
        assert not waiting.done()
        await ends.end(End(run_id, 1, "success"))
        assert numbers(await subscription.finished()) == [0]
        await waiting
        await reader.close()

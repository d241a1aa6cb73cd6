"""A gateway over real Postgres and Redis, and a worker that tests play by hand."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import aiohttp
import orjson
import pytest
import redis.asyncio as redis

from actors.child.event_names import (
    FIELD_ATTEMPT,
    FIELD_DATA,
    FIELD_NAME,
    FIELD_SEQ,
    WAKE_CHANNEL,
    events_key,
)
from actors.dispatch import (
    AWAITED,
    CANCEL_CHANNEL,
    NAMESPACE,
    RUNS,
    RedisDispatcher,
    ask_key,
    pack_reply,
)
from actors.event_ends import RedisEventEnds
from actors.event_reader import RedisEventReader
from actors.events import End
from actors.webhook_policy import WebhookPolicy
from gateway.app import create_app
from gateway.asgi import Asgi
from gateway.auth.access import Access
from gateway.http_options import HttpOptions
from gateway.server import serve_until
from gateway.settings import GatewaySettings
from persistence import runs
from persistence.engine import Database
from persistence.lifecycle import FAIL, INTERRUPT, SUCCEED, CancelAction, Move
from persistence.settings import DatabaseSettings
from persistence.store import StoreConfig
from persistence.ttl import Ttl

_PLAIN = StoreConfig()
OWNER = "host/1/boot"
GRAPHS = frozenset({"agent", "other"})


@dataclass
class Answer:
    """What came back, read to its end."""

    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


@dataclass
class Frame:
    """One frame of an event stream; a comment has no event."""

    event: str | None = None
    data: Any = None
    id: str | None = None
    comment: str | None = None


@dataclass
class Client:
    """Speaks HTTP to one gateway."""

    session: aiohttp.ClientSession
    url: str

    async def ask(
        self, method: str, path: str, body: Any = None, *, raw: bytes | None = None, **headers: str
    ) -> Answer:
        """One request. ``body`` goes as JSON, ``raw`` as it is; headers have ``_`` for ``-``."""
        data = raw if raw is not None else None if body is None else orjson.dumps(body)
        async with self.session.request(
            method,
            self.url + path,
            data=data,
            headers={name.replace("_", "-"): value for name, value in headers.items()},
            allow_redirects=False,
        ) as response:
            return Answer(response.status, response.headers, await response.read())

    async def get(self, path: str, **headers: str) -> Answer:
        return await self.ask("GET", path, **headers)

    async def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        return await self.ask("POST", path, {} if body is None else body, **headers)

    async def thread(self, **body: Any) -> str:
        return str((await self.post("/threads", body)).json["thread_id"])

    async def run(self, thread_id: str, **body: Any) -> Any:
        answer = await self.post(
            f"/threads/{thread_id}/runs", {"assistant_id": "agent", "input": {}, **body}
        )
        assert answer.status == 200, answer.body
        return answer.json

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> AsyncIterator["Stream"]:
        async with self.session.request(
            method,
            self.url + path,
            data=None if body is None else orjson.dumps(body),
            headers={name.replace("_", "-"): value for name, value in headers.items()},
        ) as response:
            yield Stream(response)


@dataclass
class Stream:
    """An open event stream."""

    response: aiohttp.ClientResponse
    comments: int = 0

    async def frame(self) -> Frame | None:
        """The next frame that is not a heartbeat; None at the end."""
        while True:
            frame = await self.any_frame()
            if frame is None or frame.comment is None:
                return frame
            self.comments += 1

    async def any_frame(self) -> Frame | None:
        """The next frame or comment; None at the end."""
        frame = Frame()
        while line := await self.response.content.readline():
            assert line.endswith(b"\r\n"), line
            text = line[:-2].decode()
            if not text:
                return frame
            name, _, value = text.partition(": ")
            match name:
                case "event":
                    frame.event = value
                case "data":
                    frame.data = orjson.loads(value)
                case "id":
                    frame.id = value
                case "":
                    frame.comment = value
                case _:
                    raise AssertionError(text)
        return None

    async def rest(self) -> list[Frame]:
        """All frames until the end."""
        frames = []
        while (frame := await self.frame()) is not None:
            frames.append(frame)
        return frames


@dataclass
class Stage:
    """Plays the worker: claims runs, writes their events, settles and ends them."""

    database: Database
    redis: redis.Redis
    ends: RedisEventEnds
    seq: dict[str, int] = field(default_factory=dict)
    lane: str = ""
    """Where the last message came from."""

    async def claim(self, run_id: str) -> runs.ClaimedRun:
        [claimed] = await runs.claim(self.database, [UUID(run_id)], OWNER, 30)
        self.ends.begin(claimed.thread_id)
        return claimed

    async def emit(self, run_id: str, name: str, data: Any, attempt: int = 1) -> str:
        """Appends one event and wakes the readers; returns its id."""
        seq = self.seq[run_id] = self.seq.get(run_id, 0) + 1
        fields = {
            FIELD_NAME: name,
            FIELD_DATA: orjson.dumps(data),
            FIELD_ATTEMPT: attempt,
            FIELD_SEQ: seq,
        }
        entry = await self.redis.xadd(events_key(run_id), fields)  # type: ignore[arg-type]
        await self.redis.publish(WAKE_CHANNEL, run_id)
        return str(entry.decode())

    async def settle(
        self,
        run_id: str,
        move: Move = SUCCEED,
        values: Any = None,
        *,
        error: dict[str, str] | None = None,
        action: CancelAction | None = None,
        attempt: int = 1,
        **rest: Any,
    ) -> runs.Settled:
        """Ends the attempt in the row, then in the events."""
        [settled] = await runs.settle(
            self.database,
            [
                runs.Settlement(
                    UUID(run_id),
                    attempt,
                    move,
                    error=error,
                    values=None if values is None else orjson.dumps(values),
                    action=action,
                    **rest,
                )
            ],
        )
        assert settled.ok
        status = str(settled.status or "rolled back")
        wire_error = None if error is None or move is INTERRUPT else orjson.dumps(error)
        await self.ends.end(End(run_id, attempt, status, wire_error))
        return settled

    async def perform(self, run_id: str, *events: tuple[str, Any], values: Any = None) -> None:
        """A whole run that succeeds."""
        await self.claim(run_id)
        await self.emit(run_id, "metadata", {"run_id": run_id, "attempt": 1})
        for name, data in events:
            await self.emit(run_id, name, data)
        await self.settle(run_id, SUCCEED, values)

    async def fail(self, run_id: str, error: dict[str, str], move: Move = FAIL) -> None:
        await self.claim(run_id)
        await self.settle(run_id, move, error=error)

    async def next_message(self) -> str:
        """The id of the run that the next message in the queue names."""
        lanes = [f"{NAMESPACE}:{lane}" for lane in (AWAITED, RUNS)]
        entry = await self.redis.blpop(lanes, timeout=30)  # type: ignore[misc]
        assert entry is not None, "no message came"
        lane, message_id = entry[0].decode(), entry[1]
        message = await self.redis.hget(f"{lane}.msgs", message_id)  # type: ignore[misc]
        assert message is not None
        self.lane = lane.removeprefix(f"{NAMESPACE}:")
        return str(orjson.loads(message)["args"][0])

    async def inspect(self, status: int, body: Any) -> tuple[str, Any]:
        """Answers the next question to the inspector; returns what was asked."""
        entry = await self.redis.blpop(["callboard:inspect"], timeout=30)  # type: ignore[misc]
        assert entry is not None, "nothing was asked"
        message = await self.redis.hget("callboard:inspect.msgs", entry[1])  # type: ignore[misc,arg-type]
        assert message is not None
        ask_id, reply = orjson.loads(message)["args"]
        op, args = orjson.loads(await self.redis.getdel(ask_key(ask_id)))
        await self.redis.rpush(reply, pack_reply(ask_id, status, orjson.dumps(body)))  # type: ignore[misc]
        return op, args

    @asynccontextmanager
    async def cancels(self) -> AsyncIterator[Callable[[], Coroutine[Any, Any, str]]]:
        """Listens to what workers are told to stop."""
        async with self.heard(CANCEL_CHANNEL) as heard:
            yield heard

    @asynccontextmanager
    async def heard(self, channel: str) -> AsyncIterator[Callable[[], Coroutine[Any, Any, str]]]:
        """Listens to a channel."""
        async with self.redis.pubsub() as listener:
            await listener.subscribe(channel)
            await listener.get_message(timeout=30)

            async def heard() -> str:
                async with asyncio.timeout(30):
                    while True:
                        message = await listener.get_message(
                            ignore_subscribe_messages=True, timeout=5
                        )
                        if message is not None:
                            return str(message["data"].decode())

            yield heard


@dataclass
class House:
    """Starts gateways over the same services."""

    database_url: str
    redis_url: str
    stack: AsyncExitStack

    async def gateway(self, **settings: Any) -> Client:
        """A running gateway; it is stopped at the end of the test."""
        client, stop = await self.stoppable(**settings)
        self.stack.push_async_callback(stop)
        return client

    async def stoppable(
        self,
        *,
        store_config: StoreConfig = _PLAIN,
        webhooks: WebhookPolicy | None = None,
        thread_ttl: Ttl | None = None,
        http: HttpOptions | None = None,
        access: Access | None = None,
        custom: Asgi | None = None,
        descriptions: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> tuple[Client, Callable[[], Coroutine[Any, Any, None]]]:
        """A running gateway and what stops it."""
        database = Database(DatabaseSettings(url=self.database_url))
        chosen = GatewaySettings(
            **{"host": "127.0.0.1", "port": 0, "stream_heartbeat_seconds": 0.1} | settings
        )
        app = create_app(
            chosen,
            database=database,
            dispatcher=RedisDispatcher(self.redis_url),
            events=RedisEventReader(self.redis_url, database),
            graph_ids=GRAPHS,
            version="0",
            descriptions=descriptions,
            store_config=store_config,
            webhooks=webhooks or WebhookPolicy(),
            thread_ttl=thread_ttl,
            http=http or HttpOptions(),
            access=access,
            custom=custom,
        )
        stop, port = asyncio.Event(), asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(serve_until(app, chosen, stop, listening=port.set_result))
        await asyncio.wait([serving, port], return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
        session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60))

        async def end() -> None:
            stop.set()
            await serving
            await session.close()

        return Client(session, f"http://127.0.0.1:{port.result()}"), end


@pytest.fixture
async def house(database_url: str, redis_url: str) -> AsyncIterator[House]:
    async with AsyncExitStack() as stack:
        yield House(database_url, redis_url, stack)


@pytest.fixture
async def client(house: House) -> Client:
    return await house.gateway()


@pytest.fixture
async def stage(database_url: str, redis_url: str) -> AsyncIterator[Stage]:
    async with Database(DatabaseSettings(url=database_url)) as database:
        connection = redis.Redis.from_url(redis_url, protocol=2)
        ends = RedisEventEnds(redis_url, 60)
        await ends.open()
        try:
            yield Stage(database, connection, ends)
        finally:
            await ends.close()
            await connection.aclose()

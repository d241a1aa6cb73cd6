"""Questions to the inspector that come through Redis, and their answers."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import orjson
import structlog
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeout

from actors import redis_connections
from actors.dispatch import REPLY_TTL_SECONDS, ask_key, pack_reply
from actors.errors import InspectorUnavailable
from actors.executor import Executor
from actors.tasks import stop

log = structlog.get_logger(__name__)

Result = TypeVar("Result")

_COMMAND_SECONDS = 5.0
_AT_ONCE = 32
"""Questions in work; more stay in Redis, where another worker may take them."""


class Inspections:
    """Answers questions. Belongs to one event loop."""

    def __init__(self, redis_url: str, executor: Executor) -> None:
        self._redis = redis_connections.client(redis_url, _COMMAND_SECONDS)
        self._executor = executor
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Leaves questions unanswered; those who asked are told so by their own clocks."""
        await stop(*self._tasks)
        await self._redis.aclose()

    async def accept(self, ask_id: str, reply_to: str) -> None:
        """Begins to answer, and returns as soon as there is room for one more."""
        await self._room.acquire()
        task = asyncio.create_task(self._answer(ask_id, reply_to), name=f"ask {ask_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, ask_id: str, reply_to: str) -> None:
        try:
            # Who deletes the question answers it: a second copy, or one that nobody waits for
            # any more, finds nothing.
            question = await self._twice(lambda: self._redis.getdel(ask_key(ask_id)))
            if question is None:
                return
            op, args = orjson.loads(question)
            try:
                status, body = await self._executor.inspect(op, orjson.dumps(args))
            except InspectorUnavailable as error:
                status, body = 503, orjson.dumps({"detail": str(error)})
            reply = pack_reply(ask_id, status, body)
            await self._twice(lambda: self._send(reply_to, reply))
        except (RedisError, OSError) as error:
            log.warning("answer cannot be sent", ask_id=ask_id, error=str(error))
        finally:
            self._room.release()

    async def _send(self, reply_to: str, reply: bytes) -> None:
        async with self._redis.pipeline(transaction=False) as pipeline:
            _ = pipeline.rpush(reply_to, reply)
            _ = pipeline.expire(reply_to, REPLY_TTL_SECONDS)
            await pipeline.execute()

    async def _twice(self, command: Callable[[], Awaitable[Result]]) -> Result:
        """What the command returns, over a new connection if an old one says nothing.

        Only time tells a line that is dead though nobody hung up, and others are as old. A question
        that is taken twice is gone the second time; nobody waits for a second answer.
        """
        try:
            return await command()
        except RedisTimeout:
            await self._redis.connection_pool.disconnect(inuse_connections=False)
            return await command()

"""Changes of a thread's state that no run made: told to who follows the thread, at any gateway.

A short Redis Stream a thread, and a wake-up that says "read on". They are rare, so every follower
reads for itself.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any
from uuid import UUID

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from actors.child.event_names import FIELD_ATTEMPT, FIELD_DATA, FIELD_NAME, WAKE_CHANNEL
from actors.event_cursor import FIRST, parse_cursor
from actors.event_pages import entries_of, latest, page
from actors.events import UPDATE_EVENT, UPDATE_MARK, Event

log = structlog.get_logger(__name__)

_KEEP = 100
_KEEP_SECONDS = 3600
_RETRY_SECONDS = 1.0
_SEND_SECONDS = 2.0


def _key(thread_id: UUID) -> str:
    """Key of the stream that holds a thread's updates: fields as in the events of runs."""
    return f"callboard:thread:{thread_id}:updates"


class StateUpdates:
    """Reads and writes the updates of threads. Who owns this wakes it."""

    def __init__(self, redis: Redis, asked: Callable[[Awaitable[Any]], Awaitable[Any]]) -> None:
        """asked: runs one command for one follower, who may leave meanwhile."""
        self._redis = redis
        self._asked = asked
        self._followers: dict[UUID, set[asyncio.Event]] = {}

    async def note(self, thread_id: UUID, data: bytes) -> None:
        """See ``EventReader.note_update``."""
        key = _key(thread_id)
        fields: dict[Any, Any] = {FIELD_NAME: UPDATE_EVENT, FIELD_DATA: data, FIELD_ATTEMPT: 1}
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                async with self._redis.pipeline(transaction=False) as pipeline:
                    _ = pipeline.xadd(key, fields, maxlen=_KEEP)
                    _ = pipeline.expire(key, _KEEP_SECONDS)
                    _ = pipeline.publish(WAKE_CHANNEL, f"{UPDATE_MARK}{thread_id}")
                    await pipeline.execute()
        except (RedisError, OSError, TimeoutError) as error:
            log.warning("state update not told", thread_id=str(thread_id), error=str(error))

    async def follow(self, thread_id: UUID, after: str) -> AsyncGenerator[list[Event], None]:
        """See ``EventReader.updates_of``."""
        key, at = _key(thread_id), parse_cursor(after)
        woken = asyncio.Event()
        self._followers.setdefault(thread_id, set()).add(woken)
        try:
            while at is None:
                try:
                    last = entries_of(await self._asked(latest(self._redis, key, 1)))
                    at = last[0].at if last else FIRST
                except (RedisError, OSError):
                    await asyncio.sleep(_RETRY_SECONDS)
            yield []
            while True:
                woken.clear()
                try:
                    reply = await self._asked(page(self._redis, key, at))
                except (RedisError, OSError):
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
                entries = entries_of(reply)
                if entries:
                    at = entries[-1].at
                    yield [one.event for one in entries]
                else:
                    await woken.wait()
        finally:
            followers = self._followers[thread_id]
            followers.discard(woken)
            if not followers:
                del self._followers[thread_id]

    def wake(self, thread_id: UUID) -> None:
        """Lets the thread's followers read on."""
        for woken in self._followers.get(thread_id, ()):
            woken.set()

    def wake_all(self) -> None:
        """Lets all followers read on: wake-ups may have been missed."""
        for thread_id in self._followers:
            self.wake(thread_id)

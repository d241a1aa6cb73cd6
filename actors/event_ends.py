"""Writes the end of runs to their streams, after the rows are settled.

Ends that arrive while a write is under way go with the next one, in one round trip. A Redis that is
gone delays nobody: readers find the end in the row, and what is written here late is for those who
come later.
"""

import asyncio
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import orjson
import structlog
from redis.exceptions import RedisError

from actors import redis_connections
from actors.child.event_names import (
    END_EVENT,
    END_MARK,
    FIELD_ATTEMPT,
    FIELD_DATA,
    FIELD_NAME,
    FIELD_SEQ,
    WAKE_CHANNEL,
    events_key,
)
from actors.events import THREAD_MARK, End
from actors.tasks import stop

log = structlog.get_logger(__name__)

_COMMAND_SECONDS = 5.0
_PATIENCE_SECONDS = 1.0
"""How long one caller waits for its end to be written; the writing goes on without it."""
_KEEP_SECONDS = 600.0
_KEEP_ENDS = 10_000
"""How long, and how many, ends are kept while Redis is away."""
_BATCH = 200
_PAUSE_MIN, _PAUSE_MAX = 0.1, 2.0
_AFTER_OUTAGE_SECONDS = 1.0
"""After an outage graph processes write what they held; an end before it would cut that off."""


@dataclass(slots=True)
class _Waiting:
    """An end on its way. given_up_at: by the loop's clock."""

    end: End
    given_up_at: float
    noted: asyncio.Event = field(default_factory=asyncio.Event)
    """Written, or known that this will take long: no reason for the caller to wait."""


class RedisEventEnds:
    """The worker's ``EventEnds``. Belongs to one event loop; open and close it there.

    ttl: seconds that a run's events are kept after its end.
    """

    def __init__(self, redis_url: str, ttl: float) -> None:
        self._redis = redis_connections.client(redis_url, _COMMAND_SECONDS)
        self._ttl = max(1, int(ttl))
        self._waiting: list[_Waiting] = []
        self._begun: dict[UUID, None] = {}
        self._any = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._away = False
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Starts the writer; does not wait for Redis."""
        self._task = asyncio.create_task(self._write(), name="event ends")

    async def close(self, timeout: float = 2.0) -> None:
        """Writes what is left, for so many seconds at most, and closes the connection."""
        if self._task is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(0 if self._away else timeout):
                    await self._idle.wait()
            await stop(self._task)
        if self._waiting:
            log.warning("ends of runs were not written to redis", runs=len(self._waiting))
        await self._redis.aclose()

    def begin(self, thread_id: UUID) -> None:
        """See ``EventEnds.begin``. Lost while Redis is away: followers look at the rows too."""
        if not self._away:
            self._begun[thread_id] = None
            self._any.set()

    async def end(self, end: End) -> None:
        """See ``EventEnds.end``. Returns when it is written; soon, anyhow, if Redis is gone."""
        given_up_at = asyncio.get_running_loop().time() + _KEEP_SECONDS
        waiting = _Waiting(end, given_up_at)
        self._waiting.append(waiting)
        self._idle.clear()
        self._any.set()
        if self._away:
            return
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await waiting.noted.wait()
        except TimeoutError:
            log.warning("end of run not yet written to redis", run_id=end.run_id)

    async def _write(self) -> None:
        pause = _PAUSE_MIN
        while True:
            await self._any.wait()
            batch, begun = self._waiting[:_BATCH], list(self._begun)
            self._begun.clear()
            if not batch and not begun:
                self._any.clear()
                self._idle.set()
                continue
            try:
                if self._away:
                    await self._redis.ping()
                    await asyncio.sleep(_AFTER_OUTAGE_SECONDS)
                await self._send([waiting.end for waiting in batch], begun)
            except (RedisError, OSError) as error:
                if not self._away:
                    log.warning("redis is away, ends of runs are kept", error=str(error))
                self._away = True
                for waiting in self._waiting:
                    waiting.noted.set()
                self._forget_old()
                await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - jitter
                pause = min(pause * 2, _PAUSE_MAX)
                continue
            self._away, pause = False, _PAUSE_MIN
            del self._waiting[: len(batch)]
            for waiting in batch:
                waiting.noted.set()

    async def _send(self, batch: list[End], begun: list[UUID]) -> None:
        async with self._redis.pipeline(transaction=False) as pipeline:
            for thread_id in begun:
                _ = pipeline.publish(WAKE_CHANNEL, f"{THREAD_MARK}{thread_id}")
            for end in batch:
                key = events_key(end.run_id)
                for entry in _entries(end):
                    _ = pipeline.xadd(key, entry)
                _ = pipeline.expire(key, self._ttl)
                _ = pipeline.publish(WAKE_CHANNEL, end.run_id + END_MARK)
            refused = [
                reply
                for reply in await pipeline.execute(raise_on_error=False)
                if isinstance(reply, RedisError)
            ]
        if refused:  # out of memory, a replica, a key of another type: no better next time
            log.warning(
                "redis refused the end of runs", replies=len(refused), error=str(refused[0])
            )

    def _forget_old(self) -> None:
        now = asyncio.get_running_loop().time()
        kept = [waiting for waiting in self._waiting if waiting.given_up_at > now][-_KEEP_ENDS:]
        if len(kept) < len(self._waiting):
            log.warning("gave up on ends of runs", runs=len(self._waiting) - len(kept))
        self._waiting = kept


def _entries(end: End) -> Iterator[dict[Any, Any]]:
    """The error, if any, and the end. The first of them takes the number after the last event's."""
    attempt = str(end.attempt).encode()
    number = {} if end.events is None else {FIELD_SEQ: str(end.events + 1).encode()}
    if end.error is not None:
        yield {FIELD_NAME: b"error", FIELD_DATA: end.error, FIELD_ATTEMPT: attempt, **number}
        number = {}
    status = orjson.dumps({"status": end.status})
    yield {FIELD_NAME: END_EVENT, FIELD_DATA: status, FIELD_ATTEMPT: attempt, **number}

"""Writes the events of all runs of a graph process to Redis.

Self-clocking: what arrives while a batch is under way goes with the next one, so an idle writer
sends at once and a busy one coalesces, without a timer. A batch is applied as a whole or not at all
(event_command.py); one whose answer is lost is sent again with the same numbers, which readers drop
when they have them already. How many events stay is for event_retention.py to say.

While Redis is away the events wait, in order and up to a bound in bytes; then ``put`` waits. After
``GIVE_UP_SECONDS`` of that, the oldest are dropped, and a marker in their place says how many: a
gap is never silent.
"""

import asyncio
import logging
import math
import random
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any

import orjson
from redis.asyncio.connection import Connection, parse_url
from redis.exceptions import RedisError

from actors.child.event_command import append, pack
from actors.child.event_names import GAP_EVENT
from actors.child.event_retention import FRESH_BYTES, FRESH_SECONDS, Retention

_log = logging.getLogger(__name__)

TOO_LARGE_EVENT = "callboard/too-large"
"""Stands for one event over ``MAX_EVENT_BYTES``; data ``{"event": name, "bytes", "limit"}``."""
MAX_EVENT_BYTES = 32 << 20
"""A larger event is replaced by a marker: one such value blocks Redis for everybody."""
GIVE_UP_SECONDS = 30.0
"""So long ``put`` waits for a Redis that is away before the oldest events are dropped."""
RUNNING_TTL_SECONDS = 86_400
"""A stream outlives a silence of this length while its run goes on. The end sets the real TTL."""

_BATCH_BYTES = 4 << 20
_BATCH_EVENTS = 1000
_LONGEST_PAUSE_SECONDS = 1.0
_ANSWER_SECONDS = 3.0
_BYTES_PER_SECOND = 1 << 20
"""A batch that takes longer, for its size, is sent again over another connection: this one may be
dead though nobody hung up. Seconds are fewer than an outcome waits for its run's events."""


@dataclass(slots=True)
class _Entry:
    """An event that waits. ``place`` numbers all entries of the process, in order of arrival."""

    run_id: str
    attempt: int
    number: int
    place: int
    packed: bytes


@dataclass(slots=True)
class _Log:
    """How far an attempt has come: the last number given out, and the place of its last entry."""

    attempt: int
    number: int = 0
    place: int = 0


@dataclass(slots=True)
class _Gap:
    """Events of an attempt that were dropped; ``number`` is the last one's."""

    attempt: int
    number: int
    dropped: int


class EventWriter:
    """The one writer of a process, shared by all its runs. Belongs to the loop that opened it."""

    def __init__(
        self,
        redis_url: str | None,
        *,
        maxlen: int,
        ttl_seconds: int,
        buffer_bytes: int,
        give_up_seconds: float = GIVE_UP_SECONDS,
        max_event_bytes: int = MAX_EVENT_BYTES,
        fresh_seconds: float = FRESH_SECONDS,
        fresh_bytes: int = FRESH_BYTES,
        max_stream_bytes: int = 64 << 20,
    ) -> None:
        """maxlen: about how many events a run's stream keeps, and more as long as they are fresh.

        max_stream_bytes: how many bytes of a run's attempt are kept at most, however few events
        they are; readers who have not come so far are told how many are missing.
        buffer_bytes: what may wait.
        redis_url: any form redis-py takes; None means that events go nowhere.
        """
        self._redis_url = redis_url
        self._ttl_seconds = max(ttl_seconds, RUNNING_TTL_SECONDS)
        self._retention = Retention(
            maxlen=maxlen,
            max_bytes=max_stream_bytes,
            fresh_seconds=fresh_seconds,
            fresh_bytes=fresh_bytes,
        )
        self._bound = buffer_bytes
        self._give_up_seconds = give_up_seconds
        self._max_event_bytes = max_event_bytes
        self._waiting: deque[_Entry] = deque()
        self._size = 0
        self._gaps: dict[str, _Gap] = {}
        self._logs: dict[str, _Log] = {}
        self._places = 0
        self._settled = 0  # place up to which every entry is in Redis or in a gap
        self._away_since: float | None = None
        self._written_at = 0.0
        self._work = asyncio.Event()
        self._watchers: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Starts writing. Does not wait for Redis. Raises ValueError for a URL that is none."""
        if self._redis_url is not None:
            connection = _connection(self._redis_url)
            self._task = asyncio.create_task(self._write(connection), name="event-writer")

    async def close(self, timeout: float = 5.0) -> None:
        """Writes what waits, for at most ``timeout`` seconds, and hangs up."""
        if self._task is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._waiting or self._gaps:
                    await self._movement()
        self._task.cancel()
        await asyncio.wait({self._task})
        self._task = None

    async def put(self, run_id: str, attempt: int, name: str, data: bytes) -> None:
        """Takes an event of a run; waits while more than the bound waits already.

        data: JSON on one line. Events of one run are written in the order in which they were put.
        """
        if self._task is None:
            return
        if len(data) > self._max_event_bytes:
            marker = {"event": name, "bytes": len(data), "limit": self._max_event_bytes}
            name, data = TOO_LARGE_EVENT, orjson.dumps(marker)
        while self._waiting and self._size + len(data) > self._bound:
            if self._is_away_too_long():
                self._drop(len(data))
                break
            await self._movement()
        log = self._logs.get(run_id)
        if log is None or log.attempt != attempt:
            log = self._logs[run_id] = _Log(attempt)
        self._places += 1
        log.number, log.place = log.number + 1, self._places
        packed = pack(name, data, attempt, log.number)
        self._waiting.append(_Entry(run_id, attempt, log.number, log.place, packed))
        self._size += len(packed)
        self._work.set()

    async def flush(self, run_id: str, patience: float = math.inf) -> bool:
        """Returns when all that was put for the run so far is in Redis.

        False when nothing at all could be written for ``patience`` seconds: what waits because
        there is much of it is worth waiting for, what waits because Redis is away is not.
        """
        log, begun = self._logs.get(run_id), monotonic()
        while log is not None and (log.place > self._settled or run_id in self._gaps):
            if monotonic() - max(begun, self._written_at) > patience:
                return False
            await self._movement()
        return True

    async def settle(self, run_id: str) -> None:
        """Returns when what was put for the run so far is in Redis; at once while that is away."""
        log = self._logs.get(run_id)
        place = 0 if log is None else log.place
        while place > self._settled and self._away_since is None:
            await self._movement()

    def count(self, run_id: str) -> int:
        """How many events were put for the run's present attempt; 0 once it is forgotten."""
        log = self._logs.get(run_id)
        return 0 if log is None else log.number

    def forget(self, run_id: str) -> None:
        """Frees what is remembered of a run that puts no more. What waits is still written."""
        self._logs.pop(run_id, None)
        self._retention.forget(run_id)

    # Writing

    async def _write(self, connection: Connection) -> None:
        failures = 0
        try:
            while True:
                await self._work.wait()
                entries, gaps = self._next_batch()
                try:
                    await self._send(connection, entries, gaps)
                except (RedisError, OSError) as error:
                    failures += 1
                    await self._pause(connection, failures, error)
                else:
                    failures, self._away_since, self._written_at = 0, None, monotonic()
                    self._acknowledge(entries, gaps)
        finally:
            await _hang_up(connection)

    def _next_batch(self) -> tuple[list[_Entry], dict[str, _Gap]]:
        """What goes next; it stays where it is until it is acknowledged."""
        entries, size = [], 0
        for entry in self._waiting:
            entries.append(entry)
            size += len(entry.packed)
            if size >= _BATCH_BYTES or len(entries) >= _BATCH_EVENTS:
                break
        gaps = {
            run_id: _Gap(gap.attempt, gap.number, gap.dropped) for run_id, gap in self._gaps.items()
        }
        return entries, gaps

    async def _send(
        self, connection: Connection, entries: list[_Entry], gaps: dict[str, _Gap]
    ) -> None:
        # What was dropped is older than all that waits: markers first.
        events = [
            (
                run_id,
                pack(GAP_EVENT, b'{"missed":%d}' % gap.dropped, gap.attempt, gap.number),
            )
            for run_id, gap in gaps.items()
        ]
        events += [(entry.run_id, entry.packed) for entry in entries]
        command = append(events, self._retention.lengths(_totals(events)), self._ttl_seconds)
        async with asyncio.timeout(_ANSWER_SECONDS + len(command) / _BYTES_PER_SECOND):
            await connection.send_packed_command(command)
            await connection.read_response()

    def _acknowledge(self, entries: list[_Entry], gaps: dict[str, _Gap]) -> None:
        for run_id, written in _totals((entry.run_id, entry.packed) for entry in entries).items():
            self._retention.add(run_id, *written, goes_on=run_id in self._logs)
        if entries:
            self._settled = max(self._settled, entries[-1].place)
        while self._waiting and self._waiting[0].place <= self._settled:
            self._size -= len(self._waiting.popleft().packed)
        for run_id, told in gaps.items():
            gap = self._gaps[run_id]
            if gap.attempt == told.attempt:  # else a newer attempt's has taken its place
                gap.dropped -= told.dropped
                if gap.dropped == 0:
                    del self._gaps[run_id]
        self._moved()

    async def _pause(self, connection: Connection, failures: int, error: Exception) -> None:
        if self._away_since is None:
            self._away_since = monotonic()
            _log.warning(
                "events cannot be written; they wait until Redis is back",
                extra={"reason": f"{type(error).__name__}: {error}"},
            )
            self._moved()
        await _hang_up(connection)
        pause = min(_LONGEST_PAUSE_SECONDS, 0.02 * 2 ** min(failures, 10))
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  # jitter, no secret

    # When Redis stays away

    def _is_away_too_long(self) -> bool:
        return (
            self._away_since is not None and monotonic() - self._away_since > self._give_up_seconds
        )

    def _drop(self, room: int) -> None:
        """Drops the oldest entries until ``room`` bytes fit, and remembers how many."""
        while self._waiting and self._size + room > self._bound:
            entry = self._waiting.popleft()
            self._size -= len(entry.packed)
            self._settled = max(self._settled, entry.place)
            gap = self._gaps.get(entry.run_id)
            if gap is None or gap.attempt != entry.attempt:
                gap = self._gaps[entry.run_id] = _Gap(entry.attempt, entry.number, 0)
            gap.number, gap.dropped = entry.number, gap.dropped + 1
        self._moved()

    # Waiting

    def _moved(self) -> None:
        """Wakes who waits for room or for what was put to be written."""
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(None)
        if not self._waiting and not self._gaps:
            self._work.clear()

    async def _movement(self) -> None:
        """Returns after the next batch or drop, when Redis goes away, and after a second."""
        watcher = asyncio.get_running_loop().create_future()
        self._watchers.append(watcher)
        await asyncio.wait({watcher}, timeout=1.0)


def _totals(events: Iterable[tuple[str, bytes]]) -> dict[str, tuple[int, int]]:
    """How many events there are of each run, and how many bytes."""
    totals: dict[str, tuple[int, int]] = {}
    for run_id, packed in events:
        count, size = totals.get(run_id, (0, 0))
        totals[run_id] = count + 1, size + len(packed)
    return totals


def _connection(url: str) -> Connection:
    options: dict[str, Any] = dict(parse_url(url))
    kind = options.pop("connection_class", Connection)
    for pool_option in ("max_connections", "timeout"):
        options.pop(pool_option, None)
    # Whatever the URL says: bytes, in the protocol whose answers are read here, and no retries of
    # redis-py's own, which would send without our knowing what was acknowledged.
    options |= {"protocol": 2, "decode_responses": False, "retry": None, "retry_on_timeout": False}
    options.setdefault("socket_connect_timeout", 5.0)
    options["socket_timeout"] = None  # how long an answer may take depends on the batch
    connection: Connection = kind(**options)
    return connection


async def _hang_up(connection: Connection) -> None:
    with suppress(RedisError, OSError):
        await connection.disconnect(nowait=True)

"""Reads the events of runs from Redis, for any number of subscribers.

    PUBLISH ──▶ _listen ──▶ dirty feeds ──▶ _read_on ──▶ ring of the feed ──▶ subscriber's cursor
                one connection              pages of many runs           └──▶ pages of its own for
                for the process             in one round trip                 who is behind the ring
                                                                              (see event_pages)

Every subscriber is a cursor, and both ways lead through the same stream in the same order: there is
no seam between replay and live, so no gap and no duplicate. A wake-up carries nothing but a run's
id; one that is lost costs time, never an event. A run nobody watches costs nothing, a watched run
that is silent costs a share of one statement every few seconds.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import UUID

import structlog
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from actors import redis_connections
from actors.child.event_names import END_MARK, WAKE_CHANNEL, events_key
from actors.event_cursor import FIRST, Cursor, Entry, entry, format_id, parse_cursor
from actors.event_pages import entries_of, latest, page
from actors.event_ring import RING_BYTES, RING_EVENTS, RunFeed
from actors.event_rows import RowWatch
from actors.event_threads import POLL_SECONDS, ThreadWatch
from actors.event_updates import StateUpdates
from actors.events import LIVE, OVER, START, THREAD_MARK, UPDATE_MARK, Event
from actors.tasks import raise_if_cancelled, stop, supervise
from persistence.engine import Database
from persistence.runs import Finished
from persistence.thread_runs import StartedRun

log = structlog.get_logger(__name__)

PAGE_CONNECTIONS = 8
"""For pages of subscribers who are behind, however many they are. Two more connections serve the
whole process: one listens, one reads for all rings."""

_FEEDS_PER_ROUND_TRIP = 64
_ENTRIES_BEHIND = 8
"""How far back a cursor looks to learn its attempt and number: the entry itself, and a few more in
case those before it are a stale attempt's."""

_SOON_SECONDS = 0.1
"""First look at the row of a run with no events: it may be over, with its events lost."""
_IDLE_SECONDS = 3.0
_OUTAGE_SECONDS = 1.0
"""Between looks at the row of a silent run, with Redis and without."""
_END_GRACE_SECONDS = 0.5
"""The end normally follows the settled row within milliseconds; then it is taken for lost."""
_OUTAGE_GRACE_SECONDS = 3.0
"""Writers that were cut off write what they hold so long after Redis is back; and a run that ended
while it is away waits so long for its return."""

_QUIET_SECONDS = 3.0
"""A listener that heard nothing so long sends a ping, and after as long again gives up."""
_COMMAND_SECONDS = 5.0
_PAUSE_MIN, _PAUSE_MAX = 0.05, 1.0


class RedisEventReader:
    """The gateway's ``EventReader`` over Redis Streams. Open and close it with the process.

    redis_url: as redis-py reads it. Redis may be away at any time, also when this opens.
    database: asked about rows; the reader neither opens nor closes it.
    """

    def __init__(
        self,
        redis_url: str,
        database: Database,
        *,
        page_connections: int = PAGE_CONNECTIONS,
        ring_events: int = RING_EVENTS,
        ring_bytes: int = RING_BYTES,
        thread_poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._redis = redis_connections.client(redis_url, _COMMAND_SECONDS)
        self._behind = asyncio.Semaphore(page_connections)
        self._ring_events = ring_events
        self._ring_bytes = ring_bytes
        self._feeds: dict[str, RunFeed] = {}
        self._dirty: dict[RunFeed, None] = {}
        self._woken = asyncio.Event()
        self._reachable = True
        self._changed_at = 0.0
        self._rows = RowWatch(database, self._row_seen)
        self._threads = ThreadWatch(database, poll_seconds=thread_poll_seconds)
        self._updates = StateUpdates(self._redis, self._asked)
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Starts listening; does not wait for Redis, so a gateway can start before it does."""
        loops = (self._listen, self._read_on, self._rows.run, self._threads.run)
        self._tasks = [asyncio.create_task(supervise(loop)) for loop in loops]

    async def close(self) -> None:
        """Ends every subscription and gives the connections back."""
        await stop(*self._tasks)
        self._tasks = []
        for feed in self._feeds.values():
            feed.close()
        await self._redis.aclose()

    # ── the subscriber's side ────────────────────────────────────────────────────────────────────

    async def follow(
        self, run_id: str, after: str = START, *, with_end: bool = False, over: bool = False
    ) -> AsyncGenerator[list[Event], None]:
        """See ``EventReader.follow``."""
        with self._watching(run_id, reading=True, over=over) as feed:
            began = asyncio.get_running_loop().time()
            cursor = await self._cursor(feed, after)
            while cursor is not None:
                news = feed.news
                entries = feed.held_after(cursor.at) if feed.placed else []
                if entries is None:
                    entries = await self._page(feed, cursor)
                    if entries is None:  # Redis is away
                        if feed.over:
                            break
                        await _wait(news, _PAUSE_MAX)
                        continue
                    if not entries:
                        continue
                if entries:
                    events, ended = cursor.take(entries, with_end=with_end)
                    del entries  # the taker alone holds them while it is away
                    if events:
                        yield events
                    if ended:
                        return
                elif feed.over:
                    break
                else:
                    await news.wait()
            if cursor is not None and (rest := feed.rest(cursor, after, began)) is not None:
                yield [rest]

    async def ended(self, run_id: str) -> None:
        """See ``EventReader.ended``."""
        with self._watching(run_id, reading=False) as feed:
            await feed.ended.wait()

    async def tip(self, run_id: str) -> str:
        """See ``EventReader.tip``."""
        try:
            reply = await self._asked(latest(self._redis, events_key(str(UUID(run_id))), 1))
        except (RedisError, OSError):
            return START
        last = entries_of(reply)
        return last[0].event.id if last else START

    def runs_of(self, thread_id: UUID) -> AsyncGenerator[list[StartedRun], None]:
        """See ``EventReader.runs_of``."""
        return self._threads.runs_of(thread_id)

    def updates_of(self, thread_id: UUID, after: str = LIVE) -> AsyncGenerator[list[Event], None]:
        """See ``EventReader.updates_of``."""
        return self._updates.follow(thread_id, after)

    async def note_update(self, thread_id: UUID, data: bytes) -> None:
        """See ``EventReader.note_update``."""
        await self._updates.note(thread_id, data)

    @contextmanager
    def _watching(self, run_id: str, *, reading: bool, over: bool = False) -> Iterator[RunFeed]:
        run_id = str(UUID(run_id))  # an odd one must not fail the statement that asks for many
        feed = self._feeds.get(run_id)
        if feed is None:
            feed = self._feeds[run_id] = RunFeed(run_id, self._ring_events, self._ring_bytes)
        feed.watchers += 1
        feed.readers += reading
        feed.terminal |= over
        if reading and (over or not feed.placed):
            self._wake(feed)
        if not over and not feed.ended.is_set():
            self._rows.watch(run_id, _SOON_SECONDS if reading else 0)
        try:
            yield feed
        finally:
            feed.watchers -= 1
            feed.readers -= reading
            if not feed.watchers:
                del self._feeds[run_id]
                self._dirty.pop(feed, None)
                self._rows.forget(run_id)

    async def _cursor(self, feed: RunFeed, after: str) -> Cursor | None:
        """The subscriber's place. None when there is nothing after it and never will be."""
        at = parse_cursor(after)
        if at == FIRST:
            return Cursor()
        upper = "+" if at is None else format_id(at)
        while True:
            news = feed.news
            try:
                reply = await self._asked(latest(self._redis, feed.key, _ENTRIES_BEHIND, upper))
            except (RedisError, OSError):
                if feed.over:
                    return Cursor(at or FIRST, known=False)
                await _wait(news, _PAUSE_MAX)
                continue
            found = entries_of(reply)
            if not found and at is None:
                return Cursor()
            cursor = Cursor(known=False)
            _, ended = cursor.take(reversed(found))
            cursor.at = at or cursor.at
            return None if ended else cursor

    async def _page(self, feed: RunFeed, cursor: Cursor) -> list[Entry] | None:
        """The next entries for a cursor before the ring; None while Redis is away.

        Nothing there although the ring is ahead: it was trimmed or flushed. The cursor goes on at
        the ring, and the numbers it meets there tell what is missing.
        """
        try:
            reply = await self._asked(page(self._redis, feed.key, cursor.at))
        except (RedisError, OSError):
            return None
        entries = entries_of(reply)
        if not entries:
            cursor.at = max(cursor.at, feed.floor)
        return entries

    async def _asked(self, command: Awaitable[Any]) -> Any:
        """One command for one subscriber, who may leave meanwhile."""
        try:
            async with self._behind:
                return await command
        finally:
            raise_if_cancelled()

    # ── what moves the feeds ─────────────────────────────────────────────────────────────────────

    def _wake(self, feed: RunFeed) -> None:
        self._dirty[feed] = None
        self._woken.set()

    def _wake_all(self) -> None:
        for feed in self._feeds.values():
            if feed.readers and not feed.over:
                self._wake(feed)

    async def _listen(self) -> None:
        """Hears wake-ups, on one connection, and connects again whenever that is lost."""
        pause = _PAUSE_MIN
        while True:
            connection = self._redis.connection_pool.make_connection()  # type: ignore[no-untyped-call]  # redis-py
            try:
                await connection.send_command("SUBSCRIBE", WAKE_CHANNEL)
                pinged = False
                while True:
                    reply = await connection.read_response(
                        disable_decoding=True, timeout=_QUIET_SECONDS
                    )
                    if reply is not None:
                        pinged, pause = False, _PAUSE_MIN
                        self._heard(reply)
                    elif pinged:
                        raise RedisConnectionError("no answer to a ping")
                    else:
                        await connection.send_command("PING", check_health=False)
                        pinged = True
            except (RedisError, OSError) as error:
                log.warning("event wake-ups interrupted", error=str(error), pause=pause)
            finally:
                await connection.disconnect(nowait=True)
            self._wake_all()  # notices at once when Redis is gone altogether
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - jitter, not a secret
            pause = min(pause * 2, _PAUSE_MAX)

    def _heard(self, reply: Any) -> None:
        match reply:
            case [b"message", _, bytes(payload)]:
                text = payload.decode(errors="replace")
                if text.startswith(THREAD_MARK):
                    self._threads.wake(UUID(text.removeprefix(THREAD_MARK)))
                    return
                if text.startswith(UPDATE_MARK):
                    self._updates.wake(UUID(text.removeprefix(UPDATE_MARK)))
                    return
                run_id, mark, rest = text.partition(END_MARK)
                feed = self._feeds.get(run_id)
                if feed is None:
                    return
                if mark:
                    feed.ended.set()
                    if rest == OVER:
                        feed.terminal = True
                    elif feed.readers and not feed.over:  # in case Redis refused the end itself
                        self._rows.watch(run_id, _END_GRACE_SECONDS)
                if feed.readers and not feed.over:
                    self._wake(feed)
            case [b"subscribe", *_]:
                # Whatever was published while nobody listened: read every run on once.
                self._set_reachable(True)
                self._wake_all()
                self._rows.watch_all(0)
                self._threads.wake_all()
                self._updates.wake_all()
            case _:
                pass  # the answer to a ping

    async def _read_on(self) -> None:
        """Reads the feeds that were woken, many in one round trip; then those woken meanwhile."""
        pause = _PAUSE_MIN
        while True:
            await self._woken.wait()
            self._woken.clear()
            while self._dirty:
                batch = list(self._dirty)[:_FEEDS_PER_ROUND_TRIP]
                for feed in batch:
                    del self._dirty[feed]
                final = [feed.terminal for feed in batch]
                asked = [feed.page for feed in batch]
                try:
                    replies = await self._replies(batch)
                except (RedisError, OSError) as error:
                    self._set_reachable(False, error)
                    for feed in batch:
                        if feed.readers and not feed.over:
                            self._dirty[feed] = None
                    await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - jitter
                    pause = min(pause * 2, _PAUSE_MAX)
                    continue
                self._set_reachable(True)
                pause = _PAUSE_MIN
                for feed, reply, is_final, count in zip(batch, replies, final, asked, strict=True):
                    self._arrived(feed, reply, is_final, count)

    async def _replies(self, batch: list[RunFeed]) -> list[Any]:
        async with self._redis.pipeline(transaction=False) as pipeline:
            for feed in batch:
                if feed.placed:
                    _ = pipeline.xrange(feed.key, f"({format_id(feed.last)}", "+", count=feed.page)
                else:
                    _ = pipeline.xrevrange(feed.key, "+", "-", count=1)
            return await pipeline.execute(raise_on_error=False)

    def _arrived(self, feed: RunFeed, reply: Any, final: bool, count: int) -> None:
        if self._feeds.get(feed.run_id) is not feed:
            return  # the last watcher left meanwhile
        feed.failed = isinstance(reply, RedisError)
        if feed.failed:
            # Not a lost connection but this one command: again after the next look at the row.
            log.warning("events of a run cannot be read", run_id=feed.run_id, error=str(reply))
            self._rows.watch(feed.run_id, _OUTAGE_SECONDS)
            return
        # redis-py gives None for the fields of an entry that was deleted while it was read.
        entries = [entry(entry_id, fields) for entry_id, fields in reply if fields]
        feed.measure(entries)
        if not feed.placed:
            feed.place(entries)
        elif entries:
            feed.add(entries)
            self._rows.postpone(feed.run_id, _IDLE_SECONDS)
            if len(entries) == count and not feed.over:
                self._wake(feed)
                return
        if feed.over:
            self._rows.forget(feed.run_id)
        elif final:
            feed.close()
            self._rows.forget(feed.run_id)

    def _set_reachable(self, reachable: bool, error: Exception | None = None) -> None:
        if reachable == self._reachable:
            return
        self._reachable = reachable
        self._changed_at = asyncio.get_running_loop().time()
        if reachable:
            log.info("redis is back, events are read on")
            self._wake_all()
        else:
            log.warning("redis is away, open streams wait", error=str(error))
            self._rows.watch_all(_OUTAGE_SECONDS)

    def _row_seen(self, run_id: str, row: Finished | None) -> float:
        """What a look at the row says about the run's feed; returns seconds until the next look."""
        feed = self._feeds[run_id]
        if row is None:
            if not self._reachable:
                return _OUTAGE_SECONDS
            if feed.failed:
                self._wake(feed)
            return _IDLE_SECONDS
        feed.note_row(row)
        if not feed.readers or feed.over:
            return _IDLE_SECONDS
        since_change = asyncio.get_running_loop().time() - self._changed_at
        grace = _END_GRACE_SECONDS - row.seconds
        if not self._reachable:
            grace = _OUTAGE_GRACE_SECONDS - min(row.seconds, since_change)
        elif self._changed_at:
            grace = max(grace, _OUTAGE_GRACE_SECONDS - since_change)
        if grace > 0:
            return min(grace + 0.01, _OUTAGE_SECONDS)
        if self._reachable:
            feed.terminal = True
            self._wake(feed)
        else:
            feed.close()
        return _OUTAGE_SECONDS


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Returns when the event is set, or after so many seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()

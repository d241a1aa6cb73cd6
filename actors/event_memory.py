"""The events of runs within one process: writer, ends and reader over lists, for the debugger.

The same cursor as over Redis, so the same events in the same order; bounded per run in number and
bytes, and in time after the end. A reader who is slower than the bound meets a gap, marked as such.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from uuid import UUID

import orjson

from actors.child.event_names import END_EVENT
from actors.child.event_retention import FRESH_BYTES, FRESH_SECONDS
from actors.event_cursor import FIRST, Cursor, Entry, EntryId, format_id, parse_cursor
from actors.event_feed import Feed
from actors.event_rows import RowWatch
from actors.event_threads import ThreadWatch
from actors.events import LIVE, START, UPDATE_EVENT, End, Event
from actors.tasks import stop, supervise
from persistence.engine import Database
from persistence.runs import Finished
from persistence.thread_runs import StartedRun

_SOON_SECONDS = 0.1
_IDLE_SECONDS = 3.0
_END_GRACE_SECONDS = 0.5
_KEEP_UPDATES = 100


class _Log(Feed):
    """All there is of one run's events, and who waits for more."""

    def __init__(self, most: int, most_bytes: int, fresh_seconds: float) -> None:
        super().__init__(most, most_bytes)
        self._fresh_milliseconds = fresh_seconds * 1000
        self.last: EntryId = FIRST
        self.seq: dict[int, int] = {}
        """By attempt, the number of its latest event."""

    def _is_fresh(self, oldest: Entry) -> bool:
        age = self.last[0] - oldest.at[0]
        return age < self._fresh_milliseconds and self._bytes <= FRESH_BYTES


class MemoryEventLog:
    """``EventReader``, ``EventEnds``, and the writer that a runner puts its events into.

    database: asked, now and then, whether a silent run is over.
    maxlen, max_bytes: what one run keeps; the oldest go first. As over Redis, more events than
    ``maxlen`` are kept as long as they are no older than ``fresh_seconds``.
    ttl: seconds that events are kept after the end.
    """

    def __init__(
        self,
        database: Database,
        *,
        maxlen: int = 10_000,
        max_bytes: int = 64 * 1024 * 1024,
        ttl: float = 3600,
        fresh_seconds: float = FRESH_SECONDS,
    ) -> None:
        self._fresh_seconds = fresh_seconds
        self._maxlen = maxlen
        self._max_bytes = max_bytes
        self._ttl = ttl
        self._logs: dict[str, _Log] = {}
        self._expiries: dict[str, asyncio.TimerHandle] = {}
        self._rows = RowWatch(database, self._row_seen)
        self._threads = ThreadWatch(database)
        self._updates: dict[UUID, _Log] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Starts looking at the rows of silent runs and of followed threads."""
        loops = (self._rows.run, self._threads.run)
        self._tasks = [asyncio.create_task(supervise(loop)) for loop in loops]

    async def close(self) -> None:
        """Ends every subscription and forgets everything."""
        await stop(*self._tasks)
        for timer in self._expiries.values():
            timer.cancel()
        for log in self._logs.values():
            log.close()
        self._logs.clear()

    # ── the runner's side ────────────────────────────────────────────────────────────────────────

    async def put(self, run_id: str, attempt: int, name: str, data: bytes) -> None:
        """Appends one event. Never waits: what is too much pushes out the oldest."""
        log = self._log(run_id)
        seq = log.seq[attempt] = log.seq.get(attempt, 0) + 1
        self._append(log, name, data, attempt, seq)

    def count(self, run_id: str, attempt: int) -> int:
        """How many events an attempt has put."""
        return self._log(run_id).seq.get(attempt, 0)

    async def settle(self, run_id: str) -> None:
        """Returns at once: what was put is there."""

    # ── the end ──────────────────────────────────────────────────────────────────────────────────

    def begin(self, thread_id: UUID) -> None:
        """See ``EventEnds.begin``."""
        self._threads.wake(thread_id)

    async def end(self, end: End) -> None:
        """See ``EventEnds.end``."""
        log = self._log(end.run_id)
        if end.error is not None:
            self._append(log, "error", end.error, end.attempt, 0)
        self._append(log, END_EVENT, orjson.dumps({"status": end.status}), end.attempt, 0)
        self._close(end.run_id, log)
        self._rows.forget(end.run_id)

    def over(self, run_id: UUID) -> None:
        """Ends the run's readers after what there is: the row is settled, or gone."""
        if (log := self._logs.get(str(run_id))) is not None:
            self._close(str(run_id), log)
            self._rows.forget(str(run_id))

    # ── the subscriber's side ────────────────────────────────────────────────────────────────────

    async def follow(
        self, run_id: str, after: str = START, *, with_end: bool = False, over: bool = False
    ) -> AsyncGenerator[list[Event], None]:
        """See ``EventReader.follow``."""
        with self._watching(run_id, _SOON_SECONDS) as log:
            if over:
                log.close()
            began = asyncio.get_running_loop().time()
            cursor = _place(log, after)
            while True:
                news = log.news
                if entries := log.after(cursor.at):
                    events, ended = cursor.take(entries, with_end=with_end)
                    if events:
                        yield events
                    if ended:
                        return
                elif log.over:
                    if (rest := log.rest(cursor, after, began)) is not None:
                        yield [rest]
                    return
                else:
                    await news.wait()

    async def ended(self, run_id: str) -> None:
        """See ``EventReader.ended``."""
        with self._watching(run_id, 0) as log:
            await log.ended.wait()

    async def tip(self, run_id: str) -> str:
        """See ``EventReader.tip``."""
        log = self._logs.get(str(UUID(run_id)))
        return format_id(log.last) if log is not None else START

    def runs_of(self, thread_id: UUID) -> AsyncGenerator[list[StartedRun], None]:
        """See ``EventReader.runs_of``."""
        return self._threads.runs_of(thread_id)

    async def updates_of(
        self, thread_id: UUID, after: str = LIVE
    ) -> AsyncGenerator[list[Event], None]:
        """See ``EventReader.updates_of``."""
        log = self._updates_log(thread_id)
        cursor = _place(log, after)
        log.watchers += 1
        try:
            yield []
            while True:
                news = log.news
                if entries := log.after(cursor.at):
                    yield cursor.take(entries)[0]
                else:
                    await news.wait()
        finally:
            log.watchers -= 1
            if not log.watchers and not log.entries:
                self._updates.pop(thread_id, None)

    async def note_update(self, thread_id: UUID, data: bytes) -> None:
        """See ``EventReader.note_update``. The last ones are kept."""
        log = self._updates_log(thread_id)
        self._append(log, UPDATE_EVENT, data, 1, 0)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────

    def _log(self, run_id: str) -> _Log:
        return self._logs.setdefault(
            run_id, _Log(self._maxlen, self._max_bytes, self._fresh_seconds)
        )

    def _updates_log(self, thread_id: UUID) -> _Log:
        return self._updates.setdefault(thread_id, _Log(_KEEP_UPDATES, self._max_bytes, 0))

    def _append(self, log: _Log, name: str, data: bytes, attempt: int, seq: int) -> None:
        # As Redis numbers its entries: the clock, but never backwards.
        milliseconds, number = log.last
        now = time.time_ns() // 1_000_000
        log.last = (now, 0) if now > milliseconds else (milliseconds, number + 1)
        added = Entry(log.last, Event(format_id(log.last), name, data, attempt), seq)
        log.keep([added])

    def _close(self, run_id: str, log: _Log) -> None:
        log.close()
        if run_id not in self._expiries:
            loop = asyncio.get_running_loop()
            self._expiries[run_id] = loop.call_later(self._ttl, self._expire, run_id)

    def _expire(self, run_id: str) -> None:
        del self._expiries[run_id]
        self._logs.pop(run_id, None)

    @contextmanager
    def _watching(self, run_id: str, within: float) -> Iterator[_Log]:
        run_id = str(UUID(run_id))
        log = self._log(run_id)
        log.watchers += 1
        if not log.ended.is_set():
            self._rows.watch(run_id, within)
        try:
            yield log
        finally:
            log.watchers -= 1
            if not log.watchers and self._logs.get(run_id) is log:
                self._rows.forget(run_id)
                if not log.entries:
                    del self._logs[run_id]

    def _row_seen(self, run_id: str, row: Finished | None) -> float:
        if row is None:
            return _IDLE_SECONDS
        log = self._logs[run_id]
        log.note_row(row)
        if row.seconds < _END_GRACE_SECONDS:
            return _END_GRACE_SECONDS - row.seconds
        self._close(run_id, log)
        return _IDLE_SECONDS


def _place(log: _Log, after: str) -> Cursor:
    at = parse_cursor(after)
    if at == FIRST:
        return Cursor()
    seen = [entry for entry in log.entries if at is None or entry.at <= at]
    cursor = Cursor(known=at is None and not log.entries)
    _, _ = cursor.take(entry for entry in seen if entry.event.name != END_EVENT)
    cursor.at = at or log.last
    return cursor

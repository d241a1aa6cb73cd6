"""Checkpoint rows of all runs of a process, written in self-clocking batches.

What arrives while a flush is under way goes with the next one; an idle writer flushes at once,
there is no timer. So a lone run waits for nothing but its own commit, and a busy process commits
once for many puts. A put is told of its own commit, or of its own failure.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeVar

import psycopg
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool, PoolClosed

from actors.child.checkpoint_rows import (
    FLUSH,
    Fence,
    PackedArray,
    PackedArrayDumper,
    Rows,
    arrays,
)

T = TypeVar("T")

CONNECTION_WAIT_SECONDS = 5.0
"""How long one try waits for a connection from the pool."""


class StaleAttempt(Exception):
    """The attempt is over: its run ended, or another attempt owns it. Nothing was written."""


class RunRowLocked(Exception):
    """Another transaction has kept the run's row locked for longer than we have patience."""


class WriterClosed(Exception):
    """The process is ending and takes no more checkpoints."""


@dataclass(eq=False, slots=True)
class Put:
    """Rows on their way to the database. ``stored`` is done when they are committed or failed."""

    fence: Fence | None
    rows: Rows
    size: int
    stored: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    refused_since: float | None = None
    """Monotonic time of the first refusal because the run's row was locked."""

    def succeed(self) -> None:
        """The rows are committed."""
        if not self.stored.done():
            self.stored.set_result(None)

    def fail(self, error: BaseException) -> None:
        """The rows are not stored and nobody will try again."""
        if not self.stored.done():
            self.stored.set_exception(error)


class Patience:
    """Sees work through a lost connection: tries again with growing pauses, for a bounded time.

    The time counts from the first failure of an outage, not of each piece of work: when it has run
    out, everything fails after one try until something succeeds again. The work must be harmless
    to repeat, since a commit may have happened although its answer was lost.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._failing_since: float | None = None

    async def see_through(self, work: Callable[[], Awaitable[T]]) -> T:
        """What ``work`` returns. Raises its error when it is no outage, or patience has ended."""
        pause = 0.0  # a single dead connection of the pool costs no pause
        while True:
            try:
                result = await work()
            except psycopg.Error as error:
                if not is_outage(error):
                    raise
                now = monotonic()
                if self._failing_since is None:
                    self._failing_since = now
                if now - self._failing_since >= self.seconds:
                    raise
                await asyncio.sleep(pause)
                pause = min(max(2 * pause, 0.05), 2.0)
            else:
                self._failing_since = None
                return result


def is_outage(error: BaseException) -> bool:
    """Whether the error is about the database's availability, so that trying again makes sense."""
    if not isinstance(error, psycopg.Error) or isinstance(error, PoolClosed):
        return False
    state = error.sqlstate
    if state is None:
        return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
    # Connection lost; deadlock or serialization failure; out of connections, memory or disk; server
    # shuts down or starts up (but not 57014, a statement's timeout); a standby after failover.
    return state[:2] in ("08", "40", "53") or state[:3] == "57P" or state == "25006"


class CheckpointWriter:
    """One queue of puts, one flush at a time. Lives on one event loop.

    Holds a connection only while it flushes.
    """

    def __init__(
        self,
        pool: AsyncConnectionPool[Any],
        patience: Patience,
        *,
        max_queued_bytes: int,
        max_flush_bytes: int,
    ) -> None:
        self._pool = pool
        self._patience = patience
        self._max_queued_bytes = max_queued_bytes
        self._max_flush_bytes = max_flush_bytes
        self._queue: deque[Put] = deque()
        self._queued_bytes = 0
        self._turn = asyncio.Lock()
        self._room = asyncio.Event()
        self._flushing: asyncio.Task[None] | None = None
        self._refusals = 0
        self._closed = False
        # Flushes serve all runs: none may run in the context of the run that happened to start it,
        # where an interrupt meant for that run alone would hit it.
        self._context = contextvars.copy_context()

    async def enqueue(self, put: Put) -> None:
        """Takes ``put`` on, in order of arrival; waits while too many bytes are queued.

        Await ``put.stored`` for the commit. Raises WriterClosed, or StaleAttempt for an attempt
        that was refused before.
        """
        async with self._turn:
            while self._queued_bytes >= self._max_queued_bytes:
                self._room.clear()
                await self._room.wait()
        if self._closed:
            raise WriterClosed
        if put.fence is not None and put.fence.lost:
            raise StaleAttempt
        self._queue.append(put)
        self._queued_bytes += put.size
        self._start()

    async def aclose(self) -> None:
        """Takes no more puts, and waits until those taken on are stored or failed."""
        self._closed = True
        while self._flushing is not None:
            await asyncio.wait([self._flushing])

    def _start(self) -> None:
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().create_task(
                self._flush_all(), name="checkpoints", context=self._context
            )
            self._flushing.add_done_callback(self._ended, context=self._context)

    def _ended(self, _: "asyncio.Task[None]") -> None:
        self._flushing = None
        if self._queue:
            self._start()

    async def _flush_all(self) -> None:
        while self._queue:
            batch = self._take()
            try:
                await self._flush(batch)
            except BaseException as error:
                # Only for what nobody foresaw, a cancelled task among it: no put may wait for ever.
                for put in batch:
                    if put not in self._queue:
                        put.fail(error)
                raise

    def _take(self) -> list[Put]:
        """The next batch; what was cancelled meanwhile is left out."""
        batch: list[Put] = []
        size = 0
        while self._queue and (not batch or size + self._queue[0].size <= self._max_flush_bytes):
            put = self._queue.popleft()
            self._queued_bytes -= put.size
            if not put.stored.done():
                batch.append(put)
                size += put.size
        if self._queued_bytes < self._max_queued_bytes:
            self._room.set()
        return batch

    async def _flush(self, batch: Sequence[Put]) -> None:
        """Writes the batch and tells each put; one by one when something in it cannot be stored."""
        if not batch:
            return
        try:
            verdicts = await self._patience.see_through(lambda: self._write(batch))
        except (psycopg.Error, ValueError) as error:
            if len(batch) > 1 and not is_outage(error):
                for put in batch:
                    await self._flush([put])
                return
            for put in batch:
                put.fail(error)
            return
        locked = [put for put in batch if not self._tell(put, verdicts)]
        if locked:
            await self._put_back(locked)
        else:
            self._refusals = 0

    def _tell(self, put: Put, verdicts: dict[Fence, tuple[bool, bool]]) -> bool:
        """Tells the put what became of it; False if it has to be sent again."""
        held, current = (True, True) if put.fence is None else verdicts[put.fence]
        if held:
            put.succeed()
        elif not current and put.fence is not None:
            put.fence.lost = True
            put.fail(StaleAttempt())
        elif (
            put.refused_since is not None
            and monotonic() - put.refused_since > self._patience.seconds
        ):
            put.fail(RunRowLocked())
        else:
            return False
        return True

    async def _put_back(self, locked: Sequence[Put]) -> None:
        """Puts of runs whose row is locked, say by a heartbeat, go first in the next batch."""
        for put in reversed(locked):
            if put.refused_since is None:
                put.refused_since = monotonic()
            self._queue.appendleft(put)
            self._queued_bytes += put.size
        self._refusals += 1
        await asyncio.sleep(min(0.001 * 2**self._refusals, 0.1))

    async def _write(self, batch: Sequence[Put]) -> dict[Fence, tuple[bool, bool]]:
        """One statement, one transaction. For each fence: whether held, and whether current."""
        fences, params = arrays([(put.fence, put.rows) for put in batch])
        async with self._pool.connection(timeout=CONNECTION_WAIT_SECONDS) as connection:
            cursor = connection.cursor(binary=True, row_factory=tuple_row)
            cursor.adapters.register_dumper(PackedArray, PackedArrayDumper)
            await cursor.execute(FLUSH, params)
            rows = await cursor.fetchall()
        return {fences[no - 1]: (held, current) for no, held, current in rows}

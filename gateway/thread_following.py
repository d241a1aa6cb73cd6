"""Follows a thread over all its runs: those there are, then each new one as it starts.

One run of a thread executes at a time, so the thread's events are those of its runs one after the
other, and every gateway reads them in the same order from the same durable streams.
"""

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any
from uuid import UUID

import orjson
import structlog

from actors.events import END_EVENT, START, Event
from gateway.context import Context
from gateway.protocol import ProtocolEvent, RunTranslation, milliseconds_of, tree
from gateway.waiting import when_available
from persistence import runs, threads
from persistence.errors import ThreadNotFound, Unavailable
from persistence.thread_runs import StartedRun
from persistence.visibility import Filter

log = structlog.get_logger()

_LONG_OVER_SECONDS = 5.0
"""A run that ended so long ago will get no more events, whatever was delayed."""
_CLOCKS_APART_MS = 60_000
"""Rows have the database's time, events that of Redis: so far they may differ."""


def is_long_over(run: StartedRun) -> bool:
    """Whether what is stored of the run now is all that there will ever be."""
    return run.over is not None and run.over > _LONG_OVER_SECONDS


async def visible_runs(
    context: Context, thread_id: UUID, allowed: Filter | None
) -> AsyncGenerator[list[StartedRun], None]:
    """The thread's runs as they start (see ``EventReader.runs_of``).

    A thread that the caller may not see has none, as one that does not exist yet.
    """
    lists = context.events.runs_of(thread_id)
    async with contextlib.aclosing(lists):
        async for found in lists:
            if found and allowed and not await _is_visible(context, thread_id, allowed):
                found = []
            yield found


async def _is_visible(context: Context, thread_id: UUID, allowed: Filter) -> bool:
    try:
        await when_available(lambda: threads.head(context.database, thread_id, allowed=allowed))
    except ThreadNotFound:
        return False
    return True


# The frames of the older protocol


async def run_frames(
    context: Context, thread_id: UUID, after: str | None, allowed: Filter | None
) -> AsyncGenerator[list[Event], None]:
    """The events of the thread's runs, each run's end as ``metadata`` with ``run_done``.

    after: None for what happens from now on; else the place of an event: then what is stored after
    it of runs that can be rejoined comes first. Yields an empty list first, when it has begun:
    nothing that happens after that is missed.
    """
    lists = visible_runs(context, thread_id, allowed)
    async with contextlib.aclosing(lists):
        begun = [(run, await _place(context, run, after)) for run in await anext(lists)]
        yield []
        for run, place in begun:
            if place is not None:
                async for batch in _run_frames(context, run, place):
                    yield batch
        async for found in lists:
            for run in found:
                async for batch in _run_frames(context, run, START):
                    yield batch


async def _place(context: Context, run: StartedRun, after: str | None) -> str | None:
    """Where to begin in a run that has started before; None when nothing of it is wanted."""
    if after is None:
        return None if run.finished_at is not None else await context.events.tip(str(run.run_id))
    return after if run.finished_at is None or run.resumable else None


async def _run_frames(
    context: Context, run: StartedRun, after: str
) -> AsyncGenerator[list[Event], None]:
    run_id = str(run.run_id)
    batches = context.events.follow(run_id, after, with_end=True, over=is_long_over(run))
    done = orjson.dumps({"status": "run_done", "run_id": run_id})
    last, is_done = None, False
    async with contextlib.aclosing(batches):
        async for batch in batches:
            last = batch[-1]
            is_done = last.name == END_EVENT
            yield [*batch[:-1], replace(last, name="metadata", data=done)] if is_done else batch
    if last is not None and not is_done:  # the end was lost, but the row says that it came
        yield [Event(_next_id(last.id), "metadata", done, last.attempt)]


def _id(event_id: str) -> tuple[int, int]:
    milliseconds, _, number = event_id.partition("-")
    return int(milliseconds), int(number or 0)


def _next_id(event_id: str) -> str:
    milliseconds, number = _id(event_id)
    return f"{milliseconds}-{number + 1}"


# The events of the thread protocol


class ThreadEvents:
    """The thread protocol's events of a thread, for one connection.

    seq: of the latest event that was read, whether or not somebody wanted it.
    """

    def __init__(self, context: Context, thread_id: UUID, allowed: Filter | None = None) -> None:
        self._context = context
        self._thread_id = thread_id
        self._allowed = allowed
        self.seq = 0

    async def follow(self, since: int = 0) -> AsyncGenerator[list[ProtocolEvent] | None, None]:
        """Yields the events in order, first all that are kept, then as they come. Never ends.

        None is yielded once, between what had been stored when this began and what comes live.
        since: runs that were over long before this sequence number are not read.
        """
        is_caught_up = False
        lists = visible_runs(self._context, self._thread_id, self._allowed)
        async with contextlib.aclosing(lists):
            async for found in lists:
                expired: StartedRun | None = None
                for run in found:
                    if is_long_over(run) and _ends_before(run, since):
                        continue
                    is_kept = False
                    tip = None
                    if not is_caught_up and run is found[-1] and not is_long_over(run):
                        tip = _id(await self._context.events.tip(str(run.run_id)))
                        if tip == _id(START):
                            tip, is_caught_up = None, True
                            yield None
                    async for batch in self._run(run):
                        if not is_kept and expired is not None:
                            yield self._in_order(await self._expired(expired, is_last=False))
                            expired = None
                        is_kept = True
                        told, last = batch
                        yield self._in_order(told)
                        if tip is not None and (last is None or last >= tip):
                            tip, is_caught_up = None, True
                            yield None
                    if not is_kept:
                        expired = run
                if expired is not None:
                    yield self._in_order(await self._expired(expired, is_last=True))
                if not is_caught_up:
                    is_caught_up = True
                    yield None

    async def _run(
        self, run: StartedRun
    ) -> AsyncGenerator[tuple[list[ProtocolEvent], tuple[int, int] | None], None]:
        """What the protocol says of the run's events, and the place of the last of each batch."""
        translation = RunTranslation(run.run_id, run.graph_id)
        batches = self._context.events.follow(
            str(run.run_id), START, with_end=True, over=is_long_over(run)
        )
        is_empty = True
        async with contextlib.aclosing(batches):
            async for batch in batches:
                is_empty = False
                told = [one for event in batch for one in translation.translate(event)]
                yield told, _id(batch[-1].id)
        if is_empty and is_long_over(run):
            return
        if not translation.is_over:
            yield await self._settled(run, translation), None

    async def tree(self) -> dict[str, Any] | None:
        """The agents of the thread's latest run and how they stand; None before there was one."""
        lists = visible_runs(self._context, self._thread_id, self._allowed)
        async with contextlib.aclosing(lists):
            found = await anext(lists)
        if not found:
            return None
        run, told = found[-1], list[ProtocolEvent]()
        tip = _id(await self._context.events.tip(str(run.run_id)))
        batches = self._run(run)
        async with contextlib.aclosing(batches):
            while tip > _id(START) and (batch := await anext(batches, None)) is not None:
                told += (one for one in batch[0] if one.method == "lifecycle")
                if batch[1] is None or batch[1] >= tip:
                    break
        return tree(told)

    async def _settled(self, run: StartedRun, translation: RunTranslation) -> list[ProtocolEvent]:
        """The end of a run by its row: its stored events do not tell it."""
        result = await when_available(lambda: runs.result(self._context.database, run.run_id))
        at = int(run.started_at.timestamp() * 1000)
        if result is None:
            return list(translation.settle(None, None, at))
        message = (result.error or {}).get("message")
        return list(translation.settle(result.status, message, at))

    async def _expired(self, run: StartedRun, *, is_last: bool) -> list[ProtocolEvent]:
        """What is still known of a run whose events are gone. Those before it are not told of."""
        questions = None
        if is_last:
            with contextlib.suppress(ThreadNotFound, Unavailable):
                thread = await threads.head(self._context.database, self._thread_id)
                questions = orjson.loads(thread.interrupts or b"{}")
        return list(RunTranslation(run.run_id, run.graph_id).expired(run, questions))

    def _in_order(self, told: list[ProtocolEvent]) -> list[ProtocolEvent]:
        """Sees to it that the sequence rises, whatever happened to the clocks."""
        ordered = []
        for event in told:
            if event.seq <= self.seq:
                event = replace(event, seq=self.seq + 1)
            self.seq = event.seq
            ordered.append(event)
        return ordered


def _ends_before(run: StartedRun, since: int) -> bool:
    finished = run.finished_at
    if finished is None or since <= 0:
        return False
    return finished.timestamp() * 1000 + _CLOCKS_APART_MS < milliseconds_of(since)

"""The events of runs: what an event is, and how it is read and ended, whatever carries it.

Carriers: ``event_reader`` and ``event_ends`` over Redis, ``event_memory`` within one process. Both
read through a ``event_cursor.Cursor``, so both drop, mark and end alike.
"""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from actors.child.event_names import END_EVENT as END_EVENT
from actors.child.event_names import GAP_EVENT as GAP_EVENT
from persistence.thread_runs import StartedRun


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a run.

    id: ``<ms>-<n>``, rising and unique within the run; what ``Last-Event-ID`` names.
    name: as the wire has it (``values``, ``updates|child:uuid``, ``metadata``, ``error`` …).
    data: JSON bytes on one line.
    attempt: the attempt that wrote it.
    """

    id: str
    name: str
    data: bytes
    attempt: int


START = "0-0"
"""Cursor before the first event."""
LIVE = "$"
"""Cursor after the last event that exists when the subscription begins."""
OVER = " for good"
"""What follows the end mark of a wake-up when the row is settled or gone and no event will come."""
UPDATE_EVENT = "state_update"
"""Name of the event that tells of a change of state which no run made."""
THREAD_MARK, UPDATE_MARK = "thread ", "update "
"""What a wake-up begins with that names a thread: a run of it started, its state was updated."""


@dataclass(frozen=True, slots=True)
class End:
    """What a run's readers are told last.

    error: JSON bytes ``{"error": class, "message": text}``. events: how many the attempt wrote, if
    that is known: readers then see whether the last of them are missing.
    """

    run_id: str
    attempt: int
    status: str
    error: bytes | None = None
    events: int | None = None


class EventReader(Protocol):
    """The gateway's side. Every subscriber is a cursor; slow ones cost a cursor, not memory."""

    def follow(
        self, run_id: str, after: str = START, *, with_end: bool = False, over: bool = False
    ) -> AsyncGenerator[list[Event], None]:
        """Yields batches of events after the cursor, in order and each once, until the run's end.

        Ends by itself after the end marker, or when the row is terminal and nothing more is
        stored, or when the row is gone. An empty batch is never yielded, and one that is yielded
        is its taker's own: in bytes a page at most (see ``event_feed``). Entries of an attempt
        older than one already seen are dropped, and so are repeats of a batch sent twice; what is
        missing is marked by a ``GAP_EVENT``. ``after`` is START, LIVE, or an event's id (a text
        that is none counts as LIVE). The subscription begins when the first batch is asked for.
        Heartbeats are the caller's. While Redis is away the iterator waits.

        with_end: yields ``END_EVENT`` as well, if it is stored: data ``{"status"}``.
        over: the caller knows that the run ended long ago: what is not stored will never be.
        """
        ...

    async def tip(self, run_id: str) -> str:
        """The id of the run's last stored event, START if there is none or nobody can say."""
        ...

    def runs_of(self, thread_id: UUID) -> AsyncGenerator[list[StartedRun], None]:
        """Yields the thread's runs in the order of their start: those there are, then new ones.

        The first list may be empty: the thread need not exist yet. Never ends by itself.
        """
        ...

    def updates_of(self, thread_id: UUID, after: str = LIVE) -> AsyncGenerator[list[Event], None]:
        """Yields the thread's changes of state that no run made, as ``state_update`` events.

        Yields an empty list first, when it has begun. Never ends by itself. They are kept for a
        while only.
        """
        ...

    async def note_update(self, thread_id: UUID, data: bytes) -> None:
        """Tells followers of the thread, at any gateway, of a change of state that no run made.

        data: JSON of the ``state_update`` event. Never raises for a Redis that is gone.
        """
        ...

    async def ended(self, run_id: str) -> None:
        """Returns as soon as the run is terminal (or gone), within milliseconds of its end."""
        ...


class EventEnds(Protocol):
    """The worker's side: says when a run begins, and writes what comes after it is settled."""

    def begin(self, thread_id: UUID) -> None:
        """Wakes who follows the thread: a run of it has started. Neither waits nor raises."""
        ...

    async def end(self, end: End) -> None:
        """Appends the ``error`` event, if any, and the end marker, and wakes all readers.

        Never raises for a Redis that is gone: readers find the end in the row.
        """
        ...

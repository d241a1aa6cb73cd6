"""A subscriber's place in the events of a run, and what of the next entries is news to it. Pure.

Three things are settled here, once for every carrier: what a stale attempt still wrote is dropped,
a batch that was sent twice is seen once, and what is missing is marked instead of passed over.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from actors.child.event_names import END_EVENT, FIELD_ATTEMPT, FIELD_DATA, FIELD_NAME, FIELD_SEQ
from actors.events import GAP_EVENT, LIVE, Event

EntryId = tuple[int, int]
"""Milliseconds and a number within them: an id that compares as Redis compares it."""

FIRST: EntryId = (0, 0)
"""Before every entry."""

_ID = re.compile(r"([0-9]{1,20})(?:-([0-9]{1,20}))?")
_LAST_NUMBER = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored entry: the event, its id as numbers, and its number within the attempt.

    seq is 0 for entries that are not numbered, and for the error and the end of an attempt of which
    nobody knows how many events it wrote; else the first of these takes the number after the last.
    """

    at: EntryId
    event: Event
    seq: int

    @property
    def size(self) -> int:
        """About how many bytes the entry takes in memory."""
        return len(self.event.data) + 400  # two slotted objects, a tuple, an id and a name


@dataclass(frozen=True, slots=True)
class Tail:
    """What a run wrote, as its row says: its last attempt, and how many events that one has.

    finished_at: when the run ended, by the loop's clock.
    """

    attempt: int
    events: int
    finished_at: float


def entry(entry_id: bytes, fields: Mapping[bytes, bytes]) -> Entry:
    """The entry that Redis stores as ``fields``. Fields that are missing or odd count as 0."""
    text = entry_id.decode()
    milliseconds, _, number = text.partition("-")
    event = Event(
        id=text,
        name=fields.get(FIELD_NAME, b"").decode(errors="replace"),
        data=fields.get(FIELD_DATA, b"null"),
        attempt=_number(fields.get(FIELD_ATTEMPT, b"0")),
    )
    return Entry((int(milliseconds), int(number)), event, _number(fields.get(FIELD_SEQ, b"0")))


def _number(digits: bytes) -> int:
    return int(digits) if digits.isdigit() else 0


def parse_cursor(after: str) -> EntryId | None:
    """The place that ``after`` names; None for LIVE and for a text that names no place.

    ``-1`` is how clients say "from the start".
    """
    if after == "-1":
        return FIRST
    found = None if after == LIVE else _ID.fullmatch(after)
    if found is None:
        return None
    milliseconds, number = found.groups("0")
    return min(int(milliseconds), _LAST_NUMBER), min(int(number), _LAST_NUMBER)


def format_id(at: EntryId) -> str:
    """The id as Redis and clients write it."""
    return f"{at[0]}-{at[1]}"


class Cursor:
    """What one subscriber has seen: up to which entry, of which attempt, up to which number.

    A writer that drops events puts a ``GAP_EVENT`` in their place itself, with the last one's
    number; elsewhere a jump in the numbers tells.

    known: whether attempt and number are those of the entry at ``at``. A cursor that starts in the
    middle learns them from the first entry it meets.
    """

    __slots__ = ("at", "attempt", "known", "seq")

    def __init__(self, at: EntryId = FIRST, *, known: bool = True) -> None:
        self.at = at
        self.attempt = 0
        self.seq = 0
        self.known = known

    def take(self, entries: Iterable[Entry], *, with_end: bool = False) -> tuple[list[Event], bool]:
        """Moves past the entries: returns the events that are news, and whether the run ended.

        with_end: whether the end is told as the last event too.
        """
        news: list[Event] = []
        for entry in entries:
            self.at = entry.at
            event = entry.event
            if event.attempt < self.attempt:
                continue
            if event.attempt > self.attempt:
                self.attempt, self.seq = event.attempt, 0
            if event.name == END_EVENT:
                # One that starts in the middle and meets nothing but the end has missed nothing.
                if self.known and entry.seq > self.seq + 1:
                    news.append(self._gap(entry))
                return [*news, event] if with_end else news, True
            if entry.seq:
                if entry.seq <= self.seq:
                    continue
                if entry.seq > self.seq + 1 and event.name != GAP_EVENT:
                    news.append(self._gap(entry))
                self.seq = entry.seq
                self.known = True
            news.append(event)
        return news, False

    def rest(self, tail: Tail) -> Event | None:
        """The mark at the end of a stream that breaks off; None when nothing is missing.

        Who comes back with a place in a stream that is gone may have seen all of it, or not.
        """
        is_counted = self.known and (self.attempt or 1) == tail.attempt
        if tail.events <= (self.seq if is_counted else 0):
            return None
        missed = str(tail.events - self.seq) if is_counted else "null"
        data = b'{"missed":%s}' % missed.encode()
        return Event(format_id(self.at), GAP_EVENT, data, tail.attempt)

    def _gap(self, before: Entry) -> Event:
        """The mark in front of an entry whose predecessors are missing.

        Its id is the greatest below the entry's: a client that goes on from there misses nothing.
        """
        milliseconds, number = before.at
        at = (milliseconds, number - 1) if number else (milliseconds - 1, _LAST_NUMBER)
        missed = before.seq - self.seq - 1 if self.known else "null"
        data = b'{"missed":%s}' % str(missed).encode()
        return Event(format_id(at), GAP_EVENT, data, before.event.attempt)

"""A run that is watched over Redis."""

from collections.abc import Sequence

from actors.child.event_names import END_EVENT, events_key
from actors.event_cursor import FIRST, Entry, EntryId
from actors.event_feed import PAGE_BYTES, PAGE_EVENTS, Feed

RING_EVENTS = 256
RING_BYTES = 256 * 1024
"""What one watched run keeps at hand, at most (a single greater event is kept none the less)."""

_SMALL_PAGE = 8


class RunFeed(Feed):
    """The latest of the stream, for all who keep up (the ring), and how far the stream was read."""

    def __init__(self, run_id: str, ring_events: int, ring_bytes: int) -> None:
        super().__init__(ring_events, ring_bytes)
        self.run_id = run_id
        self.key = events_key(run_id)
        self.readers = 0
        self.placed = False
        """Whether ``floor`` and ``last`` are known: the first reply from Redis tells."""
        self.last = FIRST
        """The ring holds every entry after ``floor``, up to this one."""
        self.page = _SMALL_PAGE
        """How many entries the next page has at most."""
        self.terminal = False
        """The row is terminal: a read that began after this was known, and found nothing, ends."""
        self.failed = False
        """The last read was refused, though Redis was there."""

    def place(self, last: Sequence[Entry]) -> None:
        """Begins after the stream's last entry, of which ``last`` consists if there is one.

        Up to there the subscribers read for themselves.
        """
        self.placed = True
        if last:
            self.floor = self.last = last[-1].at
            self._note_end(last[-1])
        self.tell()

    def add(self, entries: Sequence[Entry]) -> None:
        """Puts the next entries of the stream into the ring."""
        for added in entries:
            self._note_end(added)
        self.last = entries[-1].at
        self.keep(entries)

    def held_after(self, at: EntryId) -> list[Entry] | None:
        """The next entries after a place, from the ring; None for who has fallen out of it."""
        return None if at < self.floor else self.after(at)

    def measure(self, entries: Sequence[Entry]) -> None:
        """Fits the next page to what came: as heavy, and never more than twice as many.

        What comes may be much greater than what came; the few of a small page are bearable.
        """
        if entries:
            average = sum(found.size for found in entries) // len(entries) + 1
            many = min(PAGE_EVENTS, max(_SMALL_PAGE, 2 * len(entries)))
            self.page = max(1, min(many, PAGE_BYTES // average))

    def _note_end(self, added: Entry) -> None:
        if added.event.name == END_EVENT:
            self.over = True
            self.ended.set()

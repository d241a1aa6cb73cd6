"""What is shared by all who follow one run: its latest entries, and the word that there is more."""

import asyncio
from bisect import bisect_right
from collections.abc import Iterable
from itertools import islice
from operator import attrgetter

from actors.event_cursor import FIRST, Cursor, Entry, EntryId, Tail, parse_cursor
from actors.events import Event
from persistence.runs import Finished

PAGE_EVENTS = 128
PAGE_BYTES = 64 * 1024
"""A page ends with the entry that reaches either of these: so it holds less than so many bytes, and
one entry more, which may be larger. That much is all that a reader takes at once."""


class Feed:
    """The latest entries of a run, bounded in number and bytes; a single greater one is kept."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self.watchers = 0
        self.entries: list[Entry] = []
        self.floor = FIRST
        """``entries`` are all that were added after this place."""
        self.over = False
        """Nothing will be added any more."""
        self.tail: Tail | None = None
        """What the row says of the run's events, if it was asked and knows."""
        self.ended = asyncio.Event()
        """The run is terminal, whatever is still to be read."""
        self.news = asyncio.Event()
        """Replaced at every change: who looked and found nothing waits for the one it looked at."""
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0

    def keep(self, added: Iterable[Entry]) -> None:
        """Adds entries, lets the oldest go, and lets all who wait look again."""
        for entry in added:
            self.entries.append(entry)
            self._bytes += entry.size
        drop = 0
        while drop < len(self.entries) - 1 and (
            self._bytes > self._most_bytes
            or (len(self.entries) - drop > self._most and not self._is_fresh(self.entries[drop]))
        ):
            self._bytes -= self.entries[drop].size
            drop += 1
        if drop:
            self.floor = self.entries[drop - 1].at
            del self.entries[:drop]
        self.tell()

    def _is_fresh(self, oldest: Entry) -> bool:
        """Whether an entry is kept although there are more than enough, as readers need time."""
        return False

    def after(self, at: EntryId) -> list[Entry]:
        """The next entries after a place, as far as they are held: a page at most."""
        start = bisect_right(self.entries, at, key=attrgetter("at"))
        end, room = start, PAGE_BYTES
        for entry in islice(self.entries, start, start + PAGE_EVENTS):
            if room <= 0:
                break
            end, room = end + 1, room - entry.size
        return self.entries[start:end]

    def note_row(self, row: Finished) -> None:
        """Takes what the row says of the run's end."""
        self.ended.set()
        if row.events is not None:
            finished_at = asyncio.get_running_loop().time() - row.seconds
            self.tail = Tail(row.attempt, row.events, finished_at)

    def rest(self, cursor: Cursor, after: str, began: float) -> Event | None:
        """What a subscriber is told last, whose run is over without an end in its events.

        after, began: where and when it began. Who wanted what comes from then on, of a run that was
        over by then, has missed nothing.
        """
        if self.tail is None:
            return None
        is_late = parse_cursor(after) is None and self.tail.finished_at <= began
        return None if is_late and not cursor.attempt else cursor.rest(self.tail)

    def close(self) -> None:
        """Nothing will come any more."""
        self.over = True
        self.ended.set()
        self.tell()

    def tell(self) -> None:
        """Lets all who wait look again."""
        self.news.set()
        self.news = asyncio.Event()

"""What is shared by all who follow one run: its latest entries, and the word that there is more."""

import asyncio
from bisect import bisect_right
from collections.abc import Iterable
from operator import attrgetter

from actors.event_cursor import FIRST, Entry, EntryId


class Feed:
    """The latest entries of a run, bounded in number and bytes; a single greater one is kept."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self.watchers = 0
        self.entries: list[Entry] = []
        self.floor = FIRST
        """``entries`` are all that were added after this place."""
        self.over = False
        """Nothing will be added any more."""
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
            len(self.entries) - drop > self._most or self._bytes > self._most_bytes
        ):
            self._bytes -= self.entries[drop].size
            drop += 1
        if drop:
            self.floor = self.entries[drop - 1].at
            del self.entries[:drop]
        self.tell()

    def after(self, at: EntryId, most: int) -> list[Entry]:
        """The next entries after a place, as far as they are held."""
        start = bisect_right(self.entries, at, key=attrgetter("at"))
        return self.entries[start : start + most]

    def close(self) -> None:
        """Nothing will come any more."""
        self.over = True
        self.ended.set()
        self.tell()

    def tell(self) -> None:
        """Lets all who wait look again."""
        self.news.set()
        self.news = asyncio.Event()

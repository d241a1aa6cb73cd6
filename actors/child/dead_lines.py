"""Notices a line to Postgres that is dead though nobody hung up, under whoever waits on it.

A proxy or an address translation that has forgotten a connection takes what is sent and answers
nothing; TCP sees only the proxy. Nor does time tell: a checkpoint of 100 MB, or a search through
many vectors, may rightly take minutes. So when nothing has moved on a line for a while, the server
is asked over another one what it does for it. If it waits for us as we wait for it, or knows
nothing of us, the line is dead: it is cut, and whoever waits sees the same as if the server had
hung up. A server that does not answer the question says nothing about the line: it is asked again.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from time import monotonic
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection
from psycopg.abc import PQGen

_log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

_LOOK_SECONDS = 2.0
_SILENCE_SECONDS = 5.0
"""Nothing has moved on a line for so long: the server is asked."""
_ANSWER_SECONDS = 5.0

# An idle session waits for its client, and one in the middle of a message; so does one whose answer
# nobody takes. Behind a pooler numbers are not the server's, not even the one of who asks.
_QUESTION = """
SELECT pg_backend_pid() AS own, ARRAY(
    SELECT pid FROM pg_stat_activity
    WHERE pid = ANY(%s) AND wait_event_type IS DISTINCT FROM 'Client'
) AS working
"""


class DeadLines:
    """Over the connections of one pool. ``run`` it as long as the pool is open."""

    def __init__(self, conninfo: str) -> None:
        """conninfo: how the server is reached for a question."""
        self._conninfo = conninfo
        self.moved_at: dict[AsyncConnection[Any], float] = {}
        """The connections on which somebody waits, and when something last went through them."""
        self._suspects: dict[AsyncConnection[Any], float] = {}

    async def run(self) -> None:
        """Looks until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await self._look()

    async def _look(self) -> None:
        begun = monotonic() - _SILENCE_SECONDS
        silent = {line: at for line, at in self.moved_at.items() if at < begun}
        found = await self._dead(silent) if silent else []
        for line in found:
            # Twice: an answer may have been under way, or our loop was held up and has not read it.
            if silent[line] == self._suspects.get(line) == self.moved_at.get(line):
                _log.warning("a connection to the database is given up: its line is dead")
                _cut(line)
        self._suspects = {line: silent[line] for line in found}

    async def _dead(self, silent: Iterable[AsyncConnection[Any]]) -> list[AsyncConnection[Any]]:
        """Those for which the server does nothing; none if it does not say."""
        numbers = {line: line.info.backend_pid for line in silent if not line.closed}
        try:
            async with (
                asyncio.timeout(_ANSWER_SECONDS),
                await AsyncConnection.connect(self._conninfo, autocommit=True) as other,
            ):
                cursor = await other.execute(_QUESTION, [list(numbers.values())], prepare=False)
                row = await cursor.fetchone()
                if row is None or row[0] != other.info.backend_pid:
                    return []
                return [line for line, number in numbers.items() if number not in row[1]]
        except (psycopg.Error, OSError, TimeoutError):
            return []


class WatchedConnection(AsyncConnection[Any]):
    """A connection that notes when something goes through its line."""

    _moved_at: dict[AsyncConnection[Any], float]

    @classmethod
    async def connect(  # type: ignore[override]  # psycopg's names each of its options
        cls, conninfo: str = "", *, lines: DeadLines, **kwargs: Any
    ) -> "WatchedConnection":
        """lines: by which it is watched; the rest is psycopg's."""
        connection = await super().connect(conninfo, **kwargs)
        connection._moved_at = lines.moved_at
        return connection

    async def wait(self, gen: PQGen[Answer], *args: Any, **kwargs: Any) -> Answer:
        """As psycopg's."""
        self._moved_at[self] = monotonic()
        try:
            return await super().wait(self._noting(gen), *args, **kwargs)
        finally:
            del self._moved_at[self]

    def _noting(self, steps: PQGen[Answer]) -> PQGen[Answer]:
        """The same steps, each of which is told what the line is ready for; 0 for a mere look."""
        try:
            wanted = next(steps)
            while True:
                if ready := (yield wanted):
                    self._moved_at[self] = monotonic()
                wanted = steps.send(ready)
        except StopIteration as end:
            answer: Answer = end.value
            return answer


def _cut(line: AsyncConnection[Any]) -> None:
    with (
        suppress(OSError, psycopg.Error),
        socket.socket(fileno=os.dup(line.fileno())) as connection,
    ):
        connection.shutdown(socket.SHUT_RDWR)

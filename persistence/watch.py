"""Notices a database that hears and does not answer, so that nobody waits for it without end.

A server that is frozen (stopped processes, a hung disk, a machine that sleeps) closes no
connection; its kernel acknowledges what is sent, so TCP sees nothing either, and a Unix socket
never would. Slow is something else: a long statement is the server's to end
(``statement_timeout``). To tell them apart the server is greeted anew as soon as a statement takes
long: one that does not even answer a greeting is frozen, and whoever waits for it is let go.

One that answers is asked what it does for those who wait. If it waits for somebody who waits for
it, or knows nothing of them, the line between them is dead though nobody hung up, as behind a proxy
that has forgotten it. (``actors/child/dead_lines.py`` does the same in graph processes, which may
share no code with us.)
"""

import asyncio
import errno
import os
import socket
from collections.abc import Awaitable, Callable, Container, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

import psycopg
import structlog

log = structlog.get_logger(__name__)

_Connection = psycopg.AsyncConnection[Any]

Greet = Callable[[Sequence[int]], Awaitable[Container[int]]]
"""Connects anew and asks after sessions, by the numbers of their server processes. Returns those
for which the server works; all when it cannot say."""

_LOOK_SECONDS = 1.0
_LONG_SECONDS = 2.0
"""A statement that takes longer makes the watch greet the server."""
_QUEUE_IS_FULL = os.strerror(errno.EAGAIN)
_OVERDUE_SECONDS = 5.0
"""So long after a statement should have ended, its connection is given up."""


class Watch:
    """Over all that waits for one database. ``run`` it as long as the database is open."""

    def __init__(self, greet: Greet, patience: float, limit: float) -> None:
        """greet: raises psycopg's errors, after ``patience`` seconds for silence.

        limit: seconds that a statement may take, 0 for no limit. The server ends it then, unless a
        pooler stands in between.
        """
        self._greet = greet
        self._patience = patience
        self._limit = limit
        self.waiting: dict[_Connection, float] = {}
        """Connections on which something is asked, and when something last went through them. They
        break if the server is frozen. Whoever asks sees to it."""
        self._suspects: dict[_Connection, float] = {}
        self.is_frozen = False
        """Whether the server said nothing when it was last greeted."""

    async def run(self) -> None:
        """Looks until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if self.is_frozen or self._since(_LONG_SECONDS):
                await self._look()
            if self._limit:
                for connection in self._since(self._limit + _OVERDUE_SECONDS):
                    log.warning("a connection to the database is given up: it says nothing")
                    _cut(connection)

    def _since(self, seconds: float) -> dict[_Connection, float]:
        """The connections that have waited so long, and since when."""
        begun = monotonic() - seconds
        return {connection: at for connection, at in self.waiting.items() if at < begun}

    async def _look(self) -> None:
        begun, asking = monotonic(), self._since(_LONG_SECONDS)
        numbers = {line: line.info.backend_pid for line in asking if not line.closed}
        try:
            working = await self._greet(list(numbers.values()))
            self._judge({line: asking[line] for line, no in numbers.items() if no not in working})
            is_silent = False
        except Exception as error:  # noqa: BLE001  # a watch that died would say "frozen" for ever
            # One that refuses, or is gone, says so at once; its connections break by themselves.
            # A Unix socket's queue that is full, since nobody is let in, is silence too.
            is_full = _QUEUE_IS_FULL in str(error)
            is_silent = is_full or monotonic() - begun >= self._patience
        if is_silent != self.is_frozen:
            log.warning("database frozen" if is_silent else "database not frozen any more")
        self.is_frozen = is_silent
        if is_silent:
            for connection in list(self.waiting):
                _cut(connection)

    def _judge(self, idle: dict[_Connection, float]) -> None:
        """Gives up those for which the server does nothing, at the second look.

        At the first an answer may have been under way, or waited for our loop to read it.
        """
        for connection, at in idle.items():
            if at == self._suspects.get(connection) == self.waiting.get(connection):
                log.warning("a connection to the database is given up: its line is dead")
                _cut(connection)
        self._suspects = idle


def _cut(connection: _Connection) -> None:
    """Breaks the line under whoever waits: it sees the same as if the server had hung up."""
    with (
        suppress(OSError, psycopg.Error),
        socket.socket(fileno=os.dup(connection.fileno())) as line,
    ):
        line.shutdown(socket.SHUT_RDWR)

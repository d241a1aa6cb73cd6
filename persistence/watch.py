"""Notices a database that hears and does not answer, so that nobody waits for it without end.

A server that is frozen (stopped processes, a hung disk, a machine that sleeps) closes no
connection; its kernel acknowledges what is sent, so TCP sees nothing either, and a Unix socket
never would. Slow is something else: a long statement is the server's to end
(``statement_timeout``). To tell them apart the server is greeted anew as soon as a statement takes
long: one that does not even answer a greeting is frozen, and whoever waits for it is let go.
"""

import asyncio
import errno
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import monotonic
from typing import Any

import psycopg
import structlog

log = structlog.get_logger(__name__)

_Connection = psycopg.AsyncConnection[Any]

_LOOK_SECONDS = 1.0
_LONG_SECONDS = 2.0
"""A statement that takes longer makes the watch greet the server."""
_QUEUE_IS_FULL = os.strerror(errno.EAGAIN)
_OVERDUE_SECONDS = 5.0
"""So long after the server should have ended a statement itself, its connection is given up."""


class Watch:
    """Over all that waits for one database. ``run`` it as long as the database is open."""

    def __init__(self, greet: Callable[[], Awaitable[None]], patience: float, limit: float) -> None:
        """greet: connects anew; raises psycopg's errors, after ``patience`` seconds for silence.

        limit: seconds after which the server ends a statement itself; 0 when it does not.
        """
        self._greet = greet
        self._patience = patience
        self._limit = limit
        self.waiting: dict[_Connection, float] = {}
        """Connections on which something is asked, and since when. They break if the server is
        frozen. Whoever asks sees to it."""
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

    def _since(self, seconds: float) -> list[_Connection]:
        """The connections that have waited so long."""
        begun = monotonic() - seconds
        return [connection for connection, at in self.waiting.items() if at < begun]

    async def _look(self) -> None:
        begun = monotonic()
        try:
            await self._greet()
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


def _cut(connection: _Connection) -> None:
    """Breaks the line under whoever waits: it sees the same as if the server had hung up."""
    with (
        suppress(OSError, psycopg.Error),
        socket.socket(fileno=os.dup(connection.fileno())) as line,
    ):
        line.shutdown(socket.SHUT_RDWR)

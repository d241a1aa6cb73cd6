"""TCP lines to a server that can be cut, or fall silent and tell nobody."""

import asyncio
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit, urlunsplit

from psycopg.conninfo import conninfo_to_dict

Address = str | tuple[str, int]
"""A Unix socket's path, or host and port."""


@dataclass
class _Era:
    """The connections from one mending to the next; once silent, they stay so."""

    is_silent: bool = False


class Line:
    """A TCP proxy in a thread of its own, so that tests may block.

    Cut, it ends its connections and every new one. Held, it takes whatever either side says and
    passes nothing on, not even that a side hung up: both ends are half open.
    """

    def __init__(self, target: Address, url: str) -> None:
        """url: of the server through this line, with ``{port}`` in it."""
        self._target = target
        self._url = url
        self._era = _Era()
        self._is_cut = False
        self._connections: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self) -> None:
        """Ends all connections, and those that are opened from now on."""
        self._is_cut = True
        asyncio.run_coroutine_threadsafe(self._end_all(), self._loop).result(10)

    def hold(self) -> None:
        """Falls silent, for the connections there are and those that are opened from now on."""
        self._era.is_silent = True

    def mend(self) -> None:
        """New connections pass. Those that were held stay silent for ever."""
        self._is_cut = False
        self._era = _Era()

    async def _open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = self._url.format(port=port)
        """Leads to the server, once the line is open."""

    async def _close(self) -> None:
        self._server.close()
        await self._end_all()

    async def _end_all(self) -> None:
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        self._connections.add(connection)
        writers = [writer]
        try:
            if self._is_cut:
                return
            era = self._era
            if era.is_silent:
                await self._pump(reader, None, era)
                return
            there, back = await self._connect()
            writers.append(back)
            await asyncio.gather(
                self._pump(reader, back, era),
                self._pump(there, writer, era),
            )
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for one in writers:
                one.transport.abort()
                with suppress(OSError):
                    await one.wait_closed()
            self._connections.discard(connection)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._target, str):
            return await asyncio.open_unix_connection(self._target)
        return await asyncio.open_connection(*self._target)

    @staticmethod
    async def _pump(
        source: asyncio.StreamReader, target: asyncio.StreamWriter | None, era: _Era
    ) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                if target is not None and not era.is_silent:
                    target.write(data)
                    await target.drain()
        if target is not None and not era.is_silent:
            target.close()


def to_postgres(url: str) -> Line:
    """A line to the database of a URL."""
    parts = conninfo_to_dict(url)
    host, port = str(parts["host"]), int(parts.get("port") or 5432)
    return Line(
        f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port),
        f"postgresql://{parts['user']}@127.0.0.1:{{port}}/{parts['dbname']}",
    )


def to_redis(url: str) -> Line:
    """A line to the Redis of a URL, which must be one of TCP."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    through = parts._replace(netloc="127.0.0.1:{port}")
    return Line((parts.hostname, parts.port), urlunsplit(through))

"""Listens on an address that others may share, and leaves it without losing a connection."""

import asyncio
import contextlib
import socket
from collections.abc import Callable

Factory = Callable[[], asyncio.Protocol]


class Listener:
    """Accepts connections and gives each to a protocol that ``factory`` makes."""

    def __init__(self, factory: Factory, server: asyncio.Server) -> None:
        self._factory, self._server = factory, server

    @classmethod
    async def open(cls, factory: Factory, host: str, port: int, backlog: int) -> "Listener":
        """Listens. Raises OSError.

        Several processes may listen on one port: the kernel spreads connections over them.
        """
        server = await asyncio.get_running_loop().create_server(
            factory,
            host,
            port,
            backlog=backlog,
            reuse_port=hasattr(socket, "SO_REUSEPORT") or None,
        )
        return cls(factory, server)

    @property
    def port(self) -> int:
        """The port; a free one was chosen if 0 was asked for."""
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Takes what the kernel has accepted for us already, and leaves the rest to others.

        It resets whoever still waits in the line of a socket that is closed, though it would give
        those who come a moment later to another gateway.
        """
        kept = [listening.dup() for listening in self._server.sockets]
        self._server.close()
        loop = asyncio.get_running_loop()
        waiting: list[socket.socket] = []
        for listening in kept:
            with listening, contextlib.suppress(OSError):  # nobody waits, or no descriptor is left
                listening.setblocking(False)
                while True:
                    connection, _address = listening.accept()
                    waiting.append(connection)
        for connection in waiting:
            connection.setblocking(False)
            with contextlib.suppress(OSError):  # it has left meanwhile
                await loop.connect_accepted_socket(self._factory, connection)

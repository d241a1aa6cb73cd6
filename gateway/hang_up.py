"""How an answer that was begun is broken off, such that nobody takes it for whole."""

import contextlib
import socket
import struct

from aiohttp import HttpVersion11, web

_AT_ONCE = struct.pack("ii", 1, 0)
"""``struct linger``: a close throws away what was not sent, and resets the line."""


def hang_up(request: web.Request) -> None:
    """Closes the line under the answer to the request.

    An answer of HTTP/1.1 lacks its end then. One of HTTP/1.0, which nginx asks for unless it is
    told otherwise, ends where its line is closed: only a reset tells that from a whole one.
    """
    transport = request.transport
    if transport is None:
        return
    line = transport.get_extra_info("socket")
    if request.version >= HttpVersion11 or line is None:
        transport.close()
        return
    with contextlib.suppress(OSError):
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    transport.abort()

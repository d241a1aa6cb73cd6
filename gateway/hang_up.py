"""How an answer that was begun is broken off, such that nobody takes it for whole."""

import contextlib
import socket
import struct

from aiohttp import HttpVersion11, web

_AT_ONCE = struct.pack("ii", 1, 0)
"""``struct linger``: a close throws away what was not sent, and resets the line."""


def hang_up(request: web.BaseRequest) -> None:
    """Closes the line under the answer to the request.

    An answer of HTTP/1.1 lacks its end then. One of HTTP/1.0, which nginx asks for unless it is
    told otherwise, ends where its line is closed: only a reset tells that from a whole one.
    """
    if request.version < HttpVersion11:
        cut(request)
    elif request.transport is not None:
        request.transport.close()


def cut(request: web.BaseRequest) -> None:
    """Resets the line at once, and throws away what the client has not read."""
    if request.transport is None:
        return
    line = request.transport.get_extra_info("socket")
    if line is not None:
        with contextlib.suppress(OSError):
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    request.transport.abort()

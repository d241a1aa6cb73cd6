"""Our own routes as an ASGI application, so that the project's middleware can stand around them."""

import asyncio
from typing import Any

from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.typedefs import Handler
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.asgi import Exchange, Receive, Scope, Send

EXCHANGE = "callboard.exchange"
"""Key of a scope under which the inner application finds the request that it is about."""


class Inner:
    """The rest of aiohttp's chain for one request: its middlewares, its route, its handler."""

    def __init__(self, exchange: Exchange, handler: Handler, *, is_known: bool) -> None:
        """is_known: whether there is a route of ours with this path."""
        self.exchange = exchange
        self.is_known = is_known
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers the request, with the headers and the body that middleware has left of it."""
        body, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        request = _derived(self.exchange.request, scope, bytes(body), _Writer(send))
        answering = asyncio.ensure_future(self._answer(request))
        # A handler learns that its client has left by being cancelled, as without middleware.
        self.exchange.on_disconnect = answering.cancel
        try:
            await answering
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise

    async def _answer(self, request: web.Request) -> None:
        try:
            response = await self._handler(request)
        except web.HTTPException as raised:
            response = raised
        if not response.prepared:
            await response.prepare(request)
            await response.write_eof()


def _derived(
    request: web.Request, scope: Scope, body: bytes, writer: AbstractStreamWriter
) -> web.Request:
    """The request with another body and other headers, whose answer goes to ``writer``.

    ``Request.clone`` would keep both ends of the connection.
    """
    headers = CIMultiDict(
        (name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]
    )
    message = request._message._replace(
        headers=CIMultiDictProxy(headers), raw_headers=tuple(scope["headers"])
    )
    # With a limit below its content a reader would pause the connection, and never hear of its end.
    payload = StreamReader(request.protocol, max(len(body), 1), loop=request._loop)
    payload.feed_data(body)
    payload.feed_eof()
    derived = type(request)(
        message,
        payload,
        request.protocol,
        writer,
        request.task,
        request._loop,
        client_max_size=request._client_max_size,
        state=dict(request._state),
        scheme=request.scheme,
        host=request.host,
        remote=request.remote,
    )
    derived._match_info = request._match_info
    return derived


class _Writer(AbstractStreamWriter):
    """Writes an answer of aiohttp as messages. ``length`` None: the server at the front counts."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.length = None

    async def write_headers(self, status_line: str, headers: "CIMultiDict[str]") -> None:
        pairs = [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in headers.items()]
        status = int(status_line.split(" ", 2)[1])
        await self._send({"type": "http.response.start", "status": status, "headers": pairs})

    async def write(self, chunk: Any) -> None:
        await self._send({"type": "http.response.body", "body": bytes(chunk), "more_body": True})

    async def write_eof(self, chunk: bytes = b"") -> None:
        await self._send({"type": "http.response.body", "body": bytes(chunk), "more_body": False})

    async def drain(self) -> None:
        """Each write waits for itself."""

    def enable_chunking(self) -> None:
        """The server at the front frames the answer."""

    def enable_compression(self, encoding: str = "deflate", strategy: int | None = None) -> None:
        raise NotImplementedError("our answers are not compressed")

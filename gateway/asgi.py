"""An ASGI application behind aiohttp: requests become scopes, and messages become answers.

Our own, because an application must learn of a client that has left (a server that never says so
lets Starlette spin), cookies must not overwrite each other, and bodies must stay bounded.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from aiohttp import web
from multidict import CIMultiDict

from gateway.hang_up import cut

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

_BY_SERVER = frozenset({b"transfer-encoding", b"connection", b"keep-alive"})
"""Headers that are about the connection, which is not the application's."""


def scope_of(request: web.Request, *, root_path: str = "") -> dict[str, Any]:
    """The request as a scope of type ``http``. root_path: where the application is mounted."""
    transport = request.transport
    peer = transport.get_extra_info("peername") if transport else None
    local = transport.get_extra_info("sockname") if transport else None
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": f"{request.version.major}.{request.version.minor}",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "raw_path": request.rel_url.raw_path.encode(),
        "query_string": request.rel_url.raw_query_string.encode(),
        "root_path": root_path,
        "headers": [(name.lower(), value) for name, value in request.raw_headers],
        "client": tuple(peer[:2]) if isinstance(peer, tuple) else None,
        "server": tuple(local[:2]) if isinstance(local, tuple) else None,
    }


class Disconnected(OSError):
    """The client has left: what an application gets that still sends (ASGI 2.4)."""


class Exchange:
    """One request and its answer. ``disconnect`` ends both ends' waiting when the client left."""

    def __init__(self, request: web.Request, *, max_body_bytes: int, patience: float) -> None:
        """patience: seconds that a client may leave a full buffer unread."""
        self.request = request
        self.response: web.StreamResponse | None = None
        self.is_complete = False
        self.on_disconnect: Callable[[], object] | None = None
        self._limit, self._received = max_body_bytes, 0
        self._patience = patience
        self._body_is_read = False
        self._gone = asyncio.Event()

    def disconnect(self) -> None:
        """The client has left, or is not to be served any longer."""
        self._gone.set()
        if self.on_disconnect is not None:
            self.on_disconnect()

    def shut_down(self) -> None:
        """The gateway stops. What ends by itself then need not be told."""
        if self.on_disconnect is None:
            self._gone.set()

    async def receive(self) -> Message:
        """The application's next message: parts of the body, then, at its time, the end."""
        if self._body_is_read or self._gone.is_set():
            await self._gone.wait()
            return {"type": "http.disconnect"}
        if (self.request.content_length or 0) > self._limit:
            return await self._refuse_body(413, "Request Entity Too Large")
        content = self.request.content
        try:
            # Authentication may have read all of it before.
            body = await self.request.read() if content.at_eof() else await content.readany()
        except web.RequestPayloadError as error:
            return await self._refuse_body(400, f"The request's body cannot be read: {error}")
        except ConnectionError:
            self.disconnect()
            return {"type": "http.disconnect"}
        self._received += len(body)
        if self._received > self._limit:
            return await self._refuse_body(413, "Request Entity Too Large")
        self._body_is_read = content.at_eof()
        return {"type": "http.request", "body": body, "more_body": not self._body_is_read}

    async def send(self, message: Message) -> None:
        """Takes the application's next message. Raises Disconnected."""
        if self._gone.is_set():
            raise Disconnected("the client has left")
        try:
            async with asyncio.timeout(self._patience):
                await self._send(message)
        except TimeoutError:
            cut(self.request)
            self.disconnect()
            raise Disconnected("the client does not read") from None
        except ConnectionError as error:
            self.disconnect()
            raise Disconnected("the client has left") from error

    async def _refuse_body(self, status: int, detail: str) -> Message:
        """Answers in the application's place, which then sees that nobody is there any more."""
        if self.response is None:
            self.response = web.json_response({"detail": detail}, status=status)
            self.is_complete = True
            await self.response.prepare(self.request)
            await self.response.write_eof()
        self._gone.set()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        match message["type"]:
            case "http.response.start" if self.response is None:
                self.response = web.StreamResponse(
                    status=message["status"], headers=headers_of(message.get("headers", ()))
                )
                await self.response.prepare(self.request)
            case "http.response.body" if self.response is not None and not self.is_complete:
                body = message.get("body", b"")
                if body and self.request.method != "HEAD":
                    await self.response.write(bytes(body))
                if not message.get("more_body", False):
                    self.is_complete = True
                    await self.response.write_eof()
                    self._gone.set()  # nothing more to wait for
            case kind:
                raise RuntimeError(f"the application sent {kind!r}, which does not fit here")


def headers_of(pairs: Any) -> CIMultiDict[str]:
    """Headers as aiohttp takes them: several of a name stay several."""
    return CIMultiDict(
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in pairs
        if name.lower() not in _BY_SERVER
    )

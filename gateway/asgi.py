"""An ASGI application behind aiohttp: requests become scopes, and messages become answers.

Our own, because an application must learn of a client that has left (a server that never says so
lets Starlette spin), cookies must not overwrite each other, and bodies must stay bounded.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import structlog
from aiohttp import WSMsgType, web
from multidict import CIMultiDict

log = structlog.get_logger()

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

_BY_SERVER = frozenset({b"transfer-encoding", b"connection", b"keep-alive"})
"""Headers that are about the connection, which is not the application's."""
_GONE, _RESTART, _FAILED, _NORMAL = 1006, 1012, 1011, 1000


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

    @property
    def is_disconnected(self) -> bool:
        """Whether the client has left."""
        return self._gone.is_set()

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
            return await self._refuse_body()
        content = self.request.content
        try:
            # Authentication may have read all of it before.
            body = await self.request.read() if content.at_eof() else await content.readany()
        except ConnectionError:
            self.disconnect()
            return {"type": "http.disconnect"}
        self._received += len(body)
        if self._received > self._limit:
            return await self._refuse_body()
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
            if self.request.transport is not None:
                self.request.transport.abort()
            self.disconnect()
            raise Disconnected("the client does not read") from None
        except ConnectionError as error:
            self.disconnect()
            raise Disconnected("the client has left") from error

    async def _refuse_body(self) -> Message:
        """Answers in the application's place, which then sees that nobody is there any more."""
        if self.response is None:
            self.response = web.json_response({"detail": "Request Entity Too Large"}, status=413)
            self.is_complete = True
            await self.response.prepare(self.request)
            await self.response.write_eof()
        self._gone.set()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        match message["type"]:
            case "http.response.start" if self.response is None:
                self.response = web.StreamResponse(
                    status=message["status"], headers=_headers(message.get("headers", ()))
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


class Running:
    """Requests that applications serve at present. They outlive their clients: what an application
    does after its answer, or instead of it, is its own matter."""

    def __init__(self, *, max_body_bytes: int, patience: float) -> None:
        self._max_body_bytes = max_body_bytes
        self._patience = patience
        self._tasks: set[asyncio.Future[None]] = set()
        self._stops: dict[asyncio.Future[None], Callable[[], object]] = {}

    def exchange(self, request: web.Request) -> Exchange:
        """A new exchange for the request."""
        return Exchange(request, max_body_bytes=self._max_body_bytes, patience=self._patience)

    async def serve(self, app: Asgi, scope: Scope, exchange: Exchange) -> web.StreamResponse:
        """The application's answer, sent. Raises what the application raised before its answer."""
        work = app(scope, exchange.receive, exchange.send)
        try:
            await self._run(work, exchange.disconnect, exchange.shut_down)
        except Exception:
            if exchange.response is None:
                raise
        if exchange.response is None:
            raise RuntimeError("the application did not answer")
        if not exchange.is_complete and exchange.request.transport is not None:
            exchange.request.transport.close()  # a cut line says that this is not the end
        return exchange.response

    async def serve_websocket(
        self, app: Asgi, scope: Scope, request: web.Request
    ) -> web.StreamResponse:
        """The application's conversation over a WebSocket, to its end."""
        socket = Socket(request, max_message_bytes=self._max_body_bytes)
        try:
            work = app(scope, socket.receive, socket.send)
            await self._run(work, socket.disconnect, socket.disconnect)
        except Exception:
            await socket.close(_FAILED)
            if socket.response is None:
                raise
        await socket.close(_NORMAL)
        if socket.refusal is not None:
            return socket.refusal
        if socket.response is None:
            raise RuntimeError("the application did not answer")
        return socket.response

    def stop(self) -> None:
        """Tells all applications that their clients are gone, because we will be."""
        for stop in list(self._stops.values()):
            stop()

    async def drain(self, seconds: float) -> None:
        """Waits for the applications to end, then ends them."""
        if tasks := set(self._tasks):
            _, running = await asyncio.wait(tasks, timeout=seconds)
            for task in running:
                task.cancel()
            await asyncio.wait(tasks)

    async def _run(
        self, work: Awaitable[None], leave: Callable[[], object], stop: Callable[[], object]
    ) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        self._stops[task] = stop
        task.add_done_callback(self._ended)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            leave()
            raise

    def _ended(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        del self._stops[task]
        # The client may have left before the application failed: then nobody else tells of it.
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, Disconnected):
            log.error("the project's application failed", exc_info=error)


class Socket:
    """One WebSocket, from the question for it to its end."""

    def __init__(self, request: web.Request, *, max_message_bytes: int) -> None:
        self.response: web.WebSocketResponse | None = None
        self.refusal: web.Response | None = None
        self._request = request
        self._limit = max_message_bytes
        self._is_asked = False
        self._gone = asyncio.Event()
        self._denial: Message | None = None

    def disconnect(self) -> None:
        """The client has left, or is not to be served any longer."""
        self._gone.set()

    async def receive(self) -> Message:
        """The application's next message."""
        if not self._is_asked:
            self._is_asked = True
            return {"type": "websocket.connect"}
        if self.response is None:
            await self._gone.wait()
            return {"type": "websocket.disconnect", "code": _GONE, "reason": ""}
        reading = asyncio.ensure_future(self.response.receive())
        going = asyncio.ensure_future(self._gone.wait())
        try:
            await asyncio.wait({reading, going}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            going.cancel()
            if not reading.done():
                reading.cancel()
        if not reading.done() or reading.cancelled():
            return {"type": "websocket.disconnect", "code": _RESTART, "reason": ""}
        message = reading.result()
        match message.type:
            case WSMsgType.TEXT:
                return {"type": "websocket.receive", "text": message.data}
            case WSMsgType.BINARY:
                return {"type": "websocket.receive", "bytes": message.data}
            case _:
                self._gone.set()
                code = self.response.close_code or _GONE
                reason = message.extra if message.type is WSMsgType.CLOSE else ""
                return {"type": "websocket.disconnect", "code": code, "reason": reason or ""}

    async def send(self, message: Message) -> None:
        """Takes the application's next message. Raises Disconnected."""
        match message["type"]:
            case "websocket.accept" if self.response is None:
                await self._accept(message)
            case "websocket.close" if self.response is None:
                self.refusal = web.Response(status=403)
            case "websocket.http.response.start" if self.response is None:
                self._denial = message
            case "websocket.http.response.body" if self._denial is not None:
                self._deny(message)
            case "websocket.send" if self.response is not None:
                await self._pass_on(self.response, message)
            case "websocket.close":
                await self.close(message.get("code", _NORMAL), message.get("reason") or "")
            case kind:
                raise RuntimeError(f"the application sent {kind!r}, which does not fit here")

    async def close(self, code: int, reason: str = "") -> None:
        """Closes what is open."""
        if self.response is not None and not self.response.closed:
            code = _RESTART if self._gone.is_set() and code == _NORMAL else code
            await self.response.close(code=code, message=reason.encode())

    async def _accept(self, message: Message) -> None:
        chosen = message.get("subprotocol")
        self.response = web.WebSocketResponse(
            protocols=(chosen,) if chosen else (), max_msg_size=self._limit
        )
        self.response.headers.extend(_headers(message.get("headers", ())))
        await self.response.prepare(self._request)

    def _deny(self, message: Message) -> None:
        """The answer in place of a WebSocket; only its first part, which is all that is sent."""
        start = self._denial or {"status": 403}
        self.refusal = web.Response(
            status=start["status"],
            headers=_headers(start.get("headers", ())),
            body=message.get("body", b""),
        )
        self._denial = None

    async def _pass_on(self, response: web.WebSocketResponse, message: Message) -> None:
        try:
            if (text := message.get("text")) is not None:
                await response.send_str(text)
            else:
                await response.send_bytes(message["bytes"])
        except ConnectionError as error:
            self._gone.set()
            raise Disconnected("the client has left") from error


class Lifespan:
    """An application's start and stop, and what it keeps between them for its requests."""

    def __init__(self, app: Asgi) -> None:
        self.state: dict[str, Any] = {}
        self._app = app
        self._to_app: asyncio.Queue[Message] = asyncio.Queue()
        self._started: asyncio.Future[str | None] | None = None
        self._stopped = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when the application is ready, or wants no lifespan. Raises when it refuses."""
        self._started = asyncio.get_running_loop().create_future()
        self._to_app.put_nowait({"type": "lifespan.startup"})
        self._task = asyncio.create_task(self._run())
        waiting: set[asyncio.Future[Any]] = {self._started, self._task}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if self._started.done():
            if (problem := self._started.result()) is not None:
                raise StartupFailed(problem)
        elif (error := self._task.exception()) is not None:
            # As other servers have it: whoever does not know lifespans fails on them.
            log.info("the project's application takes no lifespan", error=repr(error))

    async def stop(self) -> None:
        """Returns when the application has let go of everything."""
        if self._task is None:
            return
        if not self._task.done():
            self._to_app.put_nowait({"type": "lifespan.shutdown"})
            stopped = asyncio.create_task(self._stopped.wait())
            await asyncio.wait({stopped, self._task}, return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        scope = {
            "type": "lifespan",
            "asgi": {"version": "3.0", "spec_version": "2.0"},
            "state": self.state,
        }
        await self._app(scope, self._to_app.get, self._heard)

    async def _heard(self, message: Message) -> None:
        match message["type"]:
            case "lifespan.startup.complete" if self._started and not self._started.done():
                self._started.set_result(None)
            case "lifespan.startup.failed" if self._started and not self._started.done():
                self._started.set_result(message.get("message", "") or "no reason given")
            case "lifespan.shutdown.complete":
                self._stopped.set()
            case "lifespan.shutdown.failed":
                log.error("the project's application failed to stop", reason=message.get("message"))
                self._stopped.set()
            case _:
                pass


class StartupFailed(Exception):
    """The application said that it cannot start; the text says why."""


def _headers(pairs: Any) -> CIMultiDict[str]:
    """Headers as aiohttp takes them: several of a name stay several."""
    return CIMultiDict(
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in pairs
        if name.lower() not in _BY_SERVER
    )

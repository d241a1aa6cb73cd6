"""What ASGI applications serve at present, over HTTP and WebSockets, and how that ends."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from aiohttp import web

from gateway.asgi import Asgi, Disconnected, Exchange, Scope
from gateway.asgi_socket import FAILED, NORMAL, Socket
from gateway.hang_up import hang_up

log = structlog.get_logger()


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
        if not exchange.is_complete:
            hang_up(exchange.request)
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
            await socket.close(FAILED)
            if socket.response is None:
                raise
        await socket.close(NORMAL)
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

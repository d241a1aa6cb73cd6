"""An answer that stays open: headers at once, a steady sign of life, and a bounded buffer.

Three things may end it before its work is done, and they are told apart: the client leaves (the
handler is cancelled), the client stops reading (``ClientGone``), or the gateway stops (``Closing``:
the run goes on, and the client comes back to another gateway).
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Self

import structlog
from aiohttp import web

from gateway.context import Context
from gateway.hang_up import cut, hang_up
from gateway.routing import Call

log = structlog.get_logger()


_KERNEL_BUFFER_BYTES = 128 * 1024
_SLICE_BYTES = 256 * 1024
"""What is written at once: the transport copies what the kernel has no room for."""


class ClientGone(Exception):
    """The client's line broke, or was cut because the client did not read."""


class Closing(Exception):
    """The gateway stops; the answer is ended early."""


async def serve(
    call: Call,
    pieces: AsyncGenerator[bytes, None],
    *,
    headers: Mapping[str, str],
    heartbeat: bytes,
    on_disconnect: Callable[[], Coroutine[Any, Any, Any]] | None = None,
) -> web.StreamResponse:
    """Sends the pieces until there are no more, the client leaves or the gateway stops.

    ``heartbeat`` is sent every ``stream_heartbeat_seconds``. ``on_disconnect`` is started when the
    client left, and only then.
    """
    answer = LongResponse(call.context, call.request, headers, heartbeat)
    try:
        async with answer, contextlib.aclosing(pieces):
            async for piece in pieces:
                if piece:
                    await answer.send(piece)
            await answer.finish()
    except Closing:
        # A cut line brings clients back with their cursor. After an end that looks whole they ask
        # for the run's status, and if it has ended meanwhile they miss what it said in between.
        hang_up(call.request)
    except (asyncio.CancelledError, ClientGone) as left:
        if on_disconnect is not None:
            call.context.background.start(on_disconnect())
        if isinstance(left, asyncio.CancelledError):
            raise
    except Exception:
        # Headers are out: a cut line is the only way left to say that this is not the end.
        log.exception("answer broken", path=call.request.path)
        hang_up(call.request)
    return answer.response


class LongResponse:
    """Wraps a StreamResponse; used as an async context manager, in which the answer is written.

    ``heartbeat`` is sent every ``stream_heartbeat_seconds``, counted from the opening. Inside the
    context a disconnect is a CancelledError and a stop of the gateway is ``Closing``.
    """

    def __init__(
        self, context: Context, request: web.Request, headers: Mapping[str, str], heartbeat: bytes
    ) -> None:
        self.response = web.StreamResponse(headers=headers)
        self._context = context
        self._request = request
        self._heartbeat = heartbeat
        self._patience = context.settings.slow_client_timeout_seconds
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._beat: asyncio.Task[None] | None = None
        self._is_sending = False
        self._handler = asyncio.current_task()
        self._closing = False

    async def __aenter__(self) -> Self:
        try:
            await self.response.prepare(self._request)
        except (ConnectionError, web.HTTPException) as error:
            raise ClientGone from error
        self._bound_kernel_buffer()
        self._context.open_answers.add(self)
        self._schedule(self._loop.time() + self._context.settings.stream_heartbeat_seconds)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._context.open_answers.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._beat is not None:
            self._beat.cancel()
        if kind is asyncio.CancelledError and self._closing:
            if self._handler is not None:
                self._handler.uncancel()
            raise Closing from error

    async def send(self, data: bytes) -> None:
        """Writes and waits until the buffer has room. Raises ClientGone when it gets none."""
        self._is_sending = True
        try:
            for start in range(0, len(data), _SLICE_BYTES):
                async with asyncio.timeout(self._patience):
                    await self.response.write(memoryview(data)[start : start + _SLICE_BYTES])
        except TimeoutError:
            log.info("client does not read: line cut", path=self._request.path)
            self.cut()
            raise ClientGone from None
        except ConnectionError as error:
            raise ClientGone from error
        finally:
            self._is_sending = False

    async def finish(self) -> None:
        """Ends the answer as complete."""
        try:
            async with asyncio.timeout(self._patience):
                await self.response.write_eof()
        except TimeoutError:
            self.cut()
            raise ClientGone from None
        except ConnectionError as error:
            raise ClientGone from error

    def cut(self) -> None:
        """Breaks the line at once and throws away what the client has not read."""
        cut(self._request)

    def interrupt(self) -> None:
        """Ends the work inside the context with ``Closing``; called when the gateway stops."""
        self._closing = True
        if self._handler is not None:
            self._handler.cancel()

    def _bound_kernel_buffer(self) -> None:
        """Left alone, the kernel keeps up to 4 MB for a client that does not read."""
        transport = self._request.transport
        connection = None if transport is None else transport.get_extra_info("socket")
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL_BUFFER_BYTES)

    def _schedule(self, at: float) -> None:
        self._timer = self._loop.call_at(at, self._on_time, at)

    def _on_time(self, at: float) -> None:
        # A write that still waits for room needs no second sign of life behind it, and one within
        # what is sent would tear it apart.
        if not self._is_sending and (self._beat is None or self._beat.done()):
            self._beat = self._loop.create_task(self._send_heartbeat())
        self._schedule(at + self._context.settings.stream_heartbeat_seconds)

    async def _send_heartbeat(self) -> None:
        # The handler learns of a broken line by itself.
        with contextlib.suppress(ConnectionError):
            await self.response.write(self._heartbeat)

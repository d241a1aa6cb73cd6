"""The thread protocol over a WebSocket: commands come in, answers and events go out."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any
from uuid import UUID, uuid4

import orjson
import structlog
from aiohttp import WSCloseCode, WSMsgType, web

from gateway.commands import CommandRefused, carry_out, failure, malformed, success
from gateway.errors import Unprocessable
from gateway.routing import Call
from gateway.subscription import Subscription, subscription
from gateway.thread_following import ThreadEvents

log = structlog.get_logger()

_NO_JSON = "Protocol commands must be valid JSON."
_UNPROCESSABLE = 4422
"""Clients take 4000 and more for an HTTP status: this one they do not try again."""
_MAX_SUBSCRIPTIONS = 100


class ProtocolSocket:
    """One connection, with its subscriptions. Each of them reads the thread for itself."""

    def __init__(self, call: Call, thread_id: str) -> None:
        self._call = call
        self._thread_id = thread_id
        self._place: UUID | None = None
        with contextlib.suppress(ValueError):
            self._place = UUID(thread_id)
        settings = call.context.settings
        self._patience = settings.slow_client_timeout_seconds
        self._socket = web.WebSocketResponse(
            heartbeat=settings.stream_heartbeat_seconds * 4,
            max_msg_size=settings.max_body_bytes,
            compress=False,
        )
        self._subscriptions: dict[str, asyncio.Task[None]] = {}
        self._sending = asyncio.Lock()
        self._handler = asyncio.current_task()
        self._closing = False
        self.seq = 0

    async def serve(self) -> web.WebSocketResponse:
        """Speaks until the client leaves or the gateway stops."""
        await self._socket.prepare(self._call.request)
        if self._place is None:
            await self._socket.close(code=_UNPROCESSABLE, message=b"Invalid thread ID")
            return self._socket
        open_answers = self._call.context.open_answers
        open_answers.add(self)
        try:
            async for message in self._socket:
                if message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
                    await self._heard(message.data)
        except asyncio.CancelledError:
            if not self._closing:
                raise
            if self._handler is not None:
                self._handler.uncancel()
        except ConnectionError:
            log.info("websocket broken", path=self._call.request.path)
        finally:
            open_answers.discard(self)
            for task in self._subscriptions.values():
                task.cancel()
        if self._closing:
            await self._socket.close(code=WSCloseCode.SERVICE_RESTART)
        return self._socket

    def interrupt(self) -> None:
        """Ends the connection because the gateway stops: the client comes back to another one."""
        self._closing = True
        if self._handler is not None:
            self._handler.cancel()

    async def _heard(self, text: str | bytes) -> None:
        try:
            command = orjson.loads(text)
        except orjson.JSONDecodeError:
            await self._tell(failure(None, CommandRefused("invalid_argument", _NO_JSON)))
            return
        told = malformed(command) or await carry_out(self._call, self._thread_id, command, self)
        if told is not None:
            await self._tell(told)

    # What commands may ask of the connection

    async def subscribe(self, command_id: int, params: Mapping[str, Any]) -> None:
        """See ``Connection.subscribe``."""
        if len(self._subscriptions) >= _MAX_SUBSCRIPTIONS:
            many = f"A connection can have {_MAX_SUBSCRIPTIONS} subscriptions."
            raise CommandRefused("invalid_argument", many, seq=self.seq)
        subscription_id = str(uuid4())
        try:
            wanted = subscription(params)
        except Unprocessable as error:
            raise CommandRefused("invalid_argument", error.detail, seq=self.seq) from None
        sending = self._send_events(command_id, subscription_id, wanted)
        self._subscriptions[subscription_id] = asyncio.create_task(sending)

    async def unsubscribe(self, subscription_id: str) -> None:
        """See ``Connection.unsubscribe``."""
        task = self._subscriptions.pop(subscription_id, None)
        if task is None:
            unknown = f"Unknown subscription: {subscription_id}"
            raise CommandRefused("no_such_subscription", unknown, seq=self.seq)
        task.cancel()

    async def tree(self) -> dict[str, Any] | None:
        """See ``Connection.tree``."""
        return await self._events().tree()

    def _events(self) -> ThreadEvents:
        if self._place is None:
            raise RuntimeError("the connection is closed when there is no place")
        return ThreadEvents(self._call.context, self._place, self._call.allowed)

    async def _send_events(
        self, command_id: int, subscription_id: str, wanted: Subscription
    ) -> None:
        """Replays, says how much that was, and goes on live."""
        events, replayed = self._events(), 0
        batches = events.follow(wanted.since)
        try:
            async with contextlib.aclosing(batches):
                async for batch in batches:
                    if batch is None:
                        told = {"subscription_id": subscription_id, "replayed_events": replayed}
                        await self._tell(success(command_id, told, self.seq))
                        continue
                    self.seq = max(self.seq, events.seq)
                    for event in batch:
                        if wanted.wants(event):
                            replayed += 1
                            await self._send(event.encode())
        except (ConnectionError, TimeoutError):
            log.info("websocket client left or does not read", path=self._call.request.path)
            self._cut()
        except Exception:
            log.exception("subscription broken", path=self._call.request.path)
            self._cut()

    async def _tell(self, envelope: Mapping[str, Any]) -> None:
        await self._send(orjson.dumps(envelope))

    async def _send(self, text: bytes) -> None:
        async with asyncio.timeout(self._patience), self._sending:
            await self._socket.send_frame(text, WSMsgType.TEXT)

    def _cut(self) -> None:
        """A broken line is the only way left to say that something is missing."""
        if self._call.request.transport is not None:
            self._call.request.transport.abort()

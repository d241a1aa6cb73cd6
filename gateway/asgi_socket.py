"""A WebSocket of an ASGI application behind aiohttp."""

import asyncio

from aiohttp import WSMsgType, web

from gateway.asgi import Disconnected, Message, headers_of

GONE, RESTART, FAILED, NORMAL = 1006, 1012, 1011, 1000
"""Codes that say why a WebSocket was closed."""


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
            return {"type": "websocket.disconnect", "code": GONE, "reason": ""}
        reading = asyncio.ensure_future(self.response.receive())
        going = asyncio.ensure_future(self._gone.wait())
        try:
            await asyncio.wait({reading, going}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            going.cancel()
            if not reading.done():
                reading.cancel()
        if not reading.done() or reading.cancelled():
            return {"type": "websocket.disconnect", "code": RESTART, "reason": ""}
        message = reading.result()
        match message.type:
            case WSMsgType.TEXT:
                return {"type": "websocket.receive", "text": message.data}
            case WSMsgType.BINARY:
                return {"type": "websocket.receive", "bytes": message.data}
            case _:
                self._gone.set()
                code = self.response.close_code or GONE
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
                await self.close(message.get("code", NORMAL), message.get("reason") or "")
            case kind:
                raise RuntimeError(f"the application sent {kind!r}, which does not fit here")

    async def close(self, code: int, reason: str = "") -> None:
        """Closes what is open."""
        if self.response is not None and not self.response.closed:
            code = RESTART if self._gone.is_set() and code == NORMAL else code
            await self.response.close(code=code, message=reason.encode())

    async def _accept(self, message: Message) -> None:
        chosen = message.get("subprotocol")
        self.response = web.WebSocketResponse(
            protocols=(chosen,) if chosen else (), max_msg_size=self._limit
        )
        self.response.headers.extend(headers_of(message.get("headers", ())))
        await self.response.prepare(self._request)

    def _deny(self, message: Message) -> None:
        """The answer in place of a WebSocket; only its first part, which is all that is sent."""
        start = self._denial or {"status": 403}
        self.refusal = web.Response(
            status=start["status"],
            headers=headers_of(start.get("headers", ())),
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

"""What surrounds every request, with a server of its own."""

import asyncio

from aiohttp import web
from structlog.testing import capture_logs

from gateway.metrics import LEFT
from gateway.middleware import answer_errors

ASKS = b"""GET / HTTP/1.1\r
Host: here\r
Connection: Upgrade\r
Upgrade: websocket\r
Sec-WebSocket-Version: 13\r
Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r
\r
"""


async def test_a_client_that_leaves_before_it_is_answered_is_no_error() -> None:
    asked: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()
    left = asyncio.Event()
    answered: asyncio.Future[web.StreamResponse] = asyncio.get_running_loop().create_future()

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.set_result(request.transport)
        await left.wait()
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        return socket

    @web.middleware
    async def watch(request: web.Request, handler: object) -> web.StreamResponse:
        response = await handler(request)
        answered.set_result(response)
        return response

    app = web.Application(middlewares=[watch, answer_errors])
    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    _, writer = await asyncio.open_connection(host, port)
    with capture_logs() as logs:
        writer.write(ASKS)
        transport = await asked
        writer.transport.abort()
        while not transport.is_closing():
            await asyncio.sleep(0)
        left.set()
        assert (await answered).status == LEFT
    await runner.cleanup()
    assert [line["log_level"] for line in logs] == ["info"]

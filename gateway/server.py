"""Runs the application: listens, and stops within seconds when told to."""

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog
from aiohttp import web

from gateway.app import take_leave
from gateway.connection import Connection
from gateway.context import CONTEXT
from gateway.listener import Listener
from gateway.logged_headers import access_log
from gateway.settings import GatewaySettings

log = structlog.get_logger()

_LONGEST_LINE_BYTES = 64 * 1024
_FAREWELL_SECONDS = 1.0
"""How long requests on connections that are open already are still answered after SIGTERM, each
with the word that the connection closes. A client whose request met a closed line would not know
whether it was heard, so none but those that were silent so long are closed unasked."""
_LOOK_SECONDS = 0.02


def serve(app: web.Application, settings: GatewaySettings) -> None:
    """Serves until SIGTERM or SIGINT; ends open streams, finishes requests, and returns."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve_until_signal(app, settings))


async def serve_until(
    app: web.Application,
    settings: GatewaySettings,
    stop: asyncio.Event,
    *,
    listening: Callable[[int], None] = lambda port: None,
    farewell_seconds: float = 0.0,
) -> None:
    """Serves until ``stop`` is set. ``listening`` is told the port, once connections are accepted.

    farewell_seconds: how long idle connections are left open after ``stop``, see above.
    """
    runner = web.AppRunner(
        app,
        handle_signals=False,
        # Without it the handler of a quiet stream never learns that its client has left.
        handler_cancellation=True,
        shutdown_timeout=settings.gateway_shutdown_seconds,
    )
    of_connections: dict[str, Any] = {
        # Query strings with many keys, and tokens in headers, are longer than aiohttp's 8 KiB.
        "max_line_size": _LONGEST_LINE_BYTES,
        "max_field_size": _LONGEST_LINE_BYTES,
        "access_log": logging.getLogger("aiohttp.access") if settings.access_log else None,
        "access_log_class": access_log(app[CONTEXT].http.logging_headers),
    }
    try:
        await runner.setup()
        if runner.server is None:
            raise RuntimeError("the runner is set up")
        loop = asyncio.get_running_loop()
        connection = partial(Connection, runner.server, loop=loop, **of_connections)
        listener = await Listener.open(
            connection, settings.host, settings.port, settings.listen_backlog
        )
        log.info("gateway listens", host=settings.host, port=listener.port)
        listening(listener.port)
        try:
            await stop.wait()
            log.info("gateway stops")
        finally:
            await listener.close()
        await take_leave(app)
        await _connections_closed(runner, farewell_seconds)
    finally:
        await runner.cleanup()


async def _connections_closed(runner: web.AppRunner, seconds: float) -> None:
    """Returns when every client has gone, or after so many seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            # aiohttp tells nobody when a connection is closed.
            while runner.server is not None and runner.server.connections:  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_SECONDS)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:  # there is none for Windows
        return asyncio.new_event_loop
    return uvloop.new_event_loop


async def _serve_until_signal(app: web.Application, settings: GatewaySettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    farewell = min(_FAREWELL_SECONDS, settings.gateway_shutdown_seconds)
    await serve_until(app, settings, stop, farewell_seconds=farewell)

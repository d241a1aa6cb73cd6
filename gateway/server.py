"""Runs the application: listens, and stops within seconds when told to."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable

import structlog
from aiohttp import web

from gateway.settings import GatewaySettings

log = structlog.get_logger()

_LONGEST_LINE_BYTES = 64 * 1024


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
) -> None:
    """Serves until ``stop`` is set. ``listening`` is told the port, once connections are accepted.

    Several processes may listen on one port: the kernel spreads connections over them.
    """
    runner = web.AppRunner(
        app,
        handle_signals=False,
        # Without it the handler of a quiet stream never learns that its client has left.
        handler_cancellation=True,
        shutdown_timeout=settings.gateway_shutdown_seconds,
        # Query strings with many keys, and tokens in headers, are longer than aiohttp's 8 KiB.
        max_line_size=_LONGEST_LINE_BYTES,
        max_field_size=_LONGEST_LINE_BYTES,
        access_log=logging.getLogger("aiohttp.access") if settings.access_log else None,
    )
    try:
        await runner.setup()
        site = web.TCPSite(
            runner,
            settings.host,
            settings.port,
            backlog=settings.listen_backlog,
            reuse_port=hasattr(socket, "SO_REUSEPORT") or None,
        )
        await site.start()
        port = runner.addresses[0][1]
        log.info("gateway listens", host=settings.host, port=port)
        listening(port)
        await stop.wait()
        log.info("gateway stops")
    finally:
        await runner.cleanup()


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
    await serve_until(app, settings, stop)

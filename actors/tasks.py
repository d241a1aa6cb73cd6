"""Keeping background tasks alive, and ending them, for certain."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

log = structlog.get_logger(__name__)

_AGAIN_SECONDS = 0.5
_RESTART_SECONDS = 1.0


async def supervise(loop: Callable[[], Awaitable[None]]) -> None:
    """Starts a loop again whenever it ends by an error: what it serves would hang without it."""
    while True:
        try:
            await loop()
        except Exception:
            log.exception("background loop failed, starting it again", loop=repr(loop))
            await asyncio.sleep(_RESTART_SECONDS)


def raise_if_cancelled() -> None:
    """Raises CancelledError if somebody cancelled the current task and was not heard.

    ``asyncio.wait_for``, which redis-py and psycopg use, loses a cancellation on Python 3.11 when
    it comes in the same turn of the loop as the result. Call this after awaiting them, where what
    follows might wait for long.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def stop(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancels the tasks until they have ended, whatever they end with.

    One cancellation may be lost (see ``raise_if_cancelled``), so it is repeated.
    """
    running = {task for task in tasks if task is not None and not task.done()}
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=_AGAIN_SECONDS)

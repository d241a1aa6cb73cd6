"""Ending background tasks, for certain."""

import asyncio
from typing import Any

_AGAIN_SECONDS = 0.5


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

"""Answers that wait for a run: headers at once, a newline now and then, the JSON in the end."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar
from uuid import UUID

from aiohttp import web

from gateway.long_response import serve
from gateway.routing import Call
from persistence.errors import Unavailable

T = TypeVar("T")

_HEARTBEAT = b"\n"
_RETRY_SECONDS = 1.0


async def wait_for_end(
    call: Call,
    run_id: UUID,
    result: Callable[[], Awaitable[bytes]],
    *,
    headers: Mapping[str, str],
    on_disconnect: Callable[[], Coroutine[Any, Any, Any]] | None = None,
) -> web.StreamResponse:
    """Answers with ``result()`` as soon as the run has ended, however long that takes.

    Holds no database connection meanwhile. ``on_disconnect`` is started when the client left.
    """

    async def answer() -> AsyncGenerator[bytes, None]:
        await call.context.events.ended(str(run_id))
        yield await when_available(result)

    return await serve(
        call,
        answer(),
        headers={"Content-Type": "application/json", **headers},
        heartbeat=_HEARTBEAT,
        on_disconnect=on_disconnect,
    )


async def when_available(read: Callable[[], Awaitable[T]]) -> T:
    """The headers are out, so a database that is gone can only be waited for."""
    while True:
        with contextlib.suppress(Unavailable):
            return await read()
        await asyncio.sleep(_RETRY_SECONDS)

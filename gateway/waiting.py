"""Answers that wait for a run: headers at once, a newline now and then, the JSON in the end."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar
from uuid import UUID

import structlog
from aiohttp import web

from gateway.long_response import ClientGone, Closing, LongResponse
from gateway.routing import Call
from persistence.errors import Unavailable

log = structlog.get_logger()

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
    content = {"Content-Type": "application/json", **headers}
    answer = LongResponse(call.context, call.request, content, _HEARTBEAT)
    try:
        async with answer:
            await call.context.events.ended(str(run_id))
            await answer.send(await when_available(result))
            await answer.finish()
    except Closing:
        answer.hang_up()
    except (asyncio.CancelledError, ClientGone) as left:
        if on_disconnect is not None:
            call.context.background.start(on_disconnect())
        if isinstance(left, asyncio.CancelledError):
            raise
    except Exception:
        log.exception("wait broken", path=call.request.path)
        answer.hang_up()
    return answer.response


async def when_available(read: Callable[[], Awaitable[T]]) -> T:
    """The headers are out, so a database that is gone can only be waited for."""
    while True:
        with contextlib.suppress(Unavailable):
            return await read()
        await asyncio.sleep(_RETRY_SECONDS)

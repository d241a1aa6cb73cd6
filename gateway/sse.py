"""Event log → ``text/event-stream``: frames as the SDKs read them, one write a batch."""

import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from actors.events import GAP_EVENT, Event
from gateway.long_response import serve
from gateway.routing import Call

HEARTBEAT = b": heartbeat\r\n\r\n"

_ALWAYS = frozenset({"error", GAP_EVENT})

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "Connection": "keep-alive",
    "X-Accel-Buffering": "no",
}


@dataclass(frozen=True, slots=True)
class Filter:
    """Which events a subscriber wants, by stream mode; errors and gaps always pass.

    A mode names its events without their namespace; ``messages-tuple`` comes as ``messages``, and
    ``messages`` as ``messages/partial`` and its kin. A run sends either of the two, so asking for
    ``messages`` takes whichever comes.
    """

    modes: frozenset[str] = frozenset()

    def wants(self, name: str) -> bool:
        """Whether an event of this name passes. No modes: all do."""
        if not self.modes or name in _ALWAYS:
            return True
        kind = name.partition("|")[0].partition("/")[0]
        return kind in self.modes or (kind == "messages" and "messages-tuple" in self.modes)


def frame(event: Event, *, with_id: bool) -> bytes:
    """One event as it goes over the line."""
    head = b"event: " + event.name.encode() + b"\r\ndata: " + event.data + b"\r\n"
    return head + (b"id: " + event.id.encode() + b"\r\n\r\n" if with_id else b"\r\n")


async def stream(
    call: Call,
    batches: AsyncGenerator[list[Event], None],
    *,
    headers: Mapping[str, str],
    with_ids: bool,
    only: Filter = Filter(),
    on_disconnect: Callable[[], Coroutine[Any, Any, Any]] | None = None,
) -> web.StreamResponse:
    """Sends the events until there are no more, the client leaves or the gateway stops.

    ``on_disconnect`` is started when the client left, and only then.
    """
    frames = _frames(batches, with_ids, only)
    return await send_frames(call, frames, headers=headers, on_disconnect=on_disconnect)


async def _frames(
    batches: AsyncGenerator[list[Event], None], with_ids: bool, only: Filter
) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(batches):
        async for batch in batches:
            piece = b"".join(frame(e, with_id=with_ids) for e in batch if only.wants(e.name))
            batch.clear()  # it may take long until somebody comes back for the next one
            yield piece


async def send_frames(
    call: Call,
    frames: AsyncGenerator[bytes, None],
    *,
    headers: Mapping[str, str],
    on_disconnect: Callable[[], Coroutine[Any, Any, Any]] | None = None,
) -> web.StreamResponse:
    """Sends what is ready to be sent, one write a piece; see ``stream``."""
    return await serve(
        call,
        frames,
        headers={**_HEADERS, **headers},
        heartbeat=HEARTBEAT,
        on_disconnect=on_disconnect,
    )

"""Streams that follow a thread over several runs: the older one, and the thread protocol."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any
from uuid import UUID

import orjson
from aiohttp import web

from actors.events import GAP_EVENT, LIVE, START, Event
from gateway.commands import carry_out, malformed
from gateway.errors import BadRequest, Unprocessable
from gateway.protocol_socket import ProtocolSocket
from gateway.responses import Response, events
from gateway.routing import Call, Routes
from gateway.sse import frame, send_frames
from gateway.subscription import ALLOWED, Subscription, subscription, unknown_channels
from gateway.thread_following import ThreadEvents, run_frames
from gateway.wire.answers import answer
from gateway.wire.body import whole_body
from gateway.wire.streams import (
    THREAD_MODES,
    EventSubscription,
    ThreadCommand,
    ThreadStream,
)
from persistence import threads
from persistence.visibility import Filter

routes = Routes()

_NO_JSON = "Invalid JSON body"
_NO_CHANNELS = "channels is required and must be a non-empty array"


@routes.get(
    "/threads/{thread_id}/stream",
    on="threads.read",
    responses={200: events(Location="where to go on"), 404: "No such thread"},
)
async def follow(call: Call, thread_id: UUID, query: ThreadStream) -> web.StreamResponse:
    """Follows a thread over its runs; never ends by itself.

    From now on, or with ``Last-Event-ID`` after that event. Modes: ``run_modes``, what runs stream;
    ``lifecycle``, only when they begin and end; ``state_update``, changes that no run made.
    """
    wanted = frozenset([*query.stream_mode, *query.stream_modes] or ["run_modes"])
    for mode in sorted(wanted - frozenset(THREAD_MODES)):
        raise Unprocessable(f"Invalid stream mode: {mode}")
    after = _after(call.request.headers.get("Last-Event-ID"))
    await threads.head(call.context.database, thread_id, allowed=call.allowed)
    frames = _frames(call, thread_id, wanted, after)
    await anext(frames)  # so that who has the headers misses nothing
    return await send_frames(
        call,
        frames,
        headers={"Location": f"/threads/{thread_id}/stream{_query(call)}"},
    )


def _query(call: Call) -> str:
    """The query as it came. Clients put their base URL, and so a prefix, before a place."""
    raw = call.request.rel_url.raw_query_string
    return f"?{raw}" if raw else ""


def _after(last_event_id: str | None) -> str | None:
    """The place that the client names; None for none. Raises Unprocessable for what is no place."""
    if last_event_id is None or not (text := last_event_id.strip()):
        return None
    if text == "-":
        return START
    number, dash, part = text.partition("-")
    if not (text.isascii() and number.isdecimal() and (part.isdecimal() or not dash)):
        raise Unprocessable("Invalid last-event-id: must be a valid Redis stream ID")
    return text


async def _frames(
    call: Call, thread_id: UUID, wanted: frozenset[str], after: str | None
) -> AsyncGenerator[bytes, None]:
    followed: list[AsyncGenerator[list[Event], None]] = []
    if wanted & {"run_modes", "lifecycle"}:
        followed.append(run_frames(call.context, thread_id, after, call.allowed))
    if "state_update" in wanted:
        place = LIVE if after is None else after
        followed.append(call.context.events.updates_of(thread_id, place))
    names = None if "run_modes" in wanted else frozenset({"metadata", "state_update", GAP_EVENT})
    for source in followed:
        await anext(source)
    yield b""
    async with contextlib.aclosing(_together(followed)) as batches:
        async for batch in batches:
            piece = b"".join(
                frame(event, with_id=True)
                for event in batch
                if names is None or event.name in names
            )
            batch.clear()  # it may take long until somebody comes back for the next one
            yield piece


async def _together(
    sources: list[AsyncGenerator[list[Event], None]],
) -> AsyncGenerator[list[Event], None]:
    """What any of the sources yields, as it comes; each waits until the last one was taken."""
    if len(sources) == 1:
        async with contextlib.aclosing(sources[0]) as only:
            async for batch in only:
                yield batch
        return
    queue: asyncio.Queue[list[Event] | Exception] = asyncio.Queue(1)

    async def drain(source: AsyncGenerator[list[Event], None]) -> None:
        try:
            async with contextlib.aclosing(source) as batches:
                async for batch in batches:
                    await queue.put(batch)
        except Exception as error:  # noqa: BLE001  # raised where it is heard, below
            await queue.put(error)

    tasks = [asyncio.create_task(drain(source)) for source in sources]
    try:
        while True:
            taken = await queue.get()
            if isinstance(taken, Exception):
                raise taken
            yield taken
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


# The thread protocol


_COMMAND = Response(
    "The answer in the protocol's envelope: ``success`` with a result, or ``error``.", Any
)


@routes.post(
    "/threads/{thread_id}/commands",
    on="threads.read",
    content=ThreadCommand,
    responses={200: _COMMAND, 400: Response("No command of the protocol.", Any)},
)
async def command(call: Call, thread_id: str) -> web.Response:
    """Carries out a command of the thread protocol: starts a run, or answers a question."""
    content = await _content(call.request)
    if problem := malformed(content):
        return answer(problem, status=400)
    return answer(await carry_out(call, thread_id, content))


@routes.post(
    "/threads/{thread_id}/stream/events",
    on="threads.read",
    content=EventSubscription,
    responses={200: events(), 400: "No subscription of the protocol"},
)
async def protocol_events(call: Call, thread_id: str) -> web.StreamResponse:
    """Sends the events of a thread by the thread protocol: all that are kept, then live ones.

    The thread need not exist yet. Never ends by itself.
    """
    content = await _content(call.request)
    channels = content.get("channels") if isinstance(content, dict) else None
    if not isinstance(channels, list) or not channels:
        raise BadRequest(_NO_CHANNELS)
    if unknown := unknown_channels(channels):
        raise BadRequest(
            f"channels contains unsupported entries: {', '.join(unknown)}. Allowed: {ALLOWED}."
        )
    try:
        place = UUID(thread_id)
    except ValueError:
        raise Unprocessable("Invalid thread ID: must be a UUID") from None
    frames = _protocol_frames(call, place, subscription(content), call.allowed)
    return await send_frames(call, frames, headers={})


async def _protocol_frames(
    call: Call, thread_id: UUID, wanted: Subscription, allowed: Filter | None
) -> AsyncGenerator[bytes, None]:
    batches = ThreadEvents(call.context, thread_id, allowed).follow(wanted.since)
    async with contextlib.aclosing(batches):
        async for batch in batches:
            yield b"".join(
                b"event: %b\r\ndata: %b\r\nid: %d\r\n\r\n"
                % (event.method.encode(), event.encode(), event.seq)
                for event in batch or ()
                if wanted.wants(event)
            )


@routes.get(
    "/threads/{thread_id}/stream/events",
    on="threads.read",
    responses={101: "A WebSocket that speaks the thread protocol", 405: "No WebSocket asked for"},
)
async def protocol_socket(call: Call, thread_id: str) -> web.StreamResponse:
    """Opens a WebSocket for commands and events of the thread protocol."""
    if call.request.headers.get("Upgrade", "").lower() != "websocket":
        raise web.HTTPMethodNotAllowed("GET", ["POST"])
    return await ProtocolSocket(call, thread_id).serve()


async def _content(request: web.Request) -> Any:
    try:
        return orjson.loads(await whole_body(request))
    except orjson.JSONDecodeError:
        raise BadRequest(_NO_JSON) from None

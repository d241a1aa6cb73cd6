"""Creating, following and awaiting runs: what the routes with and without a thread share."""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any
from uuid import UUID

from aiohttp import web

from actors.events import LIVE, START
from gateway.admission import admit
from gateway.auth import credential
from gateway.errors import Conflict
from gateway.outcome import outcome
from gateway.routing import Call
from gateway.sse import Filter, stream
from gateway.stopping import stop_abandoned
from gateway.waiting import wait_for_end
from gateway.wire.runs import Join, JoinStream, RunCreate
from persistence.lifecycle import TERMINAL, RunStatus
from persistence.runs import RunRow


def place(run: RunRow) -> str:
    """Path of a run."""
    return f"/threads/{run.thread_id}/runs/{run.run_id}"


async def create_and_stream(
    call: Call, body: RunCreate, thread_id: UUID | None
) -> web.StreamResponse:
    """Creates a run and streams all its events."""
    cancels = body.on_disconnect == "cancel"
    await _refuse_to_wait_for_itself(call, body, thread_id)
    run = await admit(call, body, thread_id, awaited=True, stop_if_abandoned=cancels)
    return await _stream(call, run, after=START, cancel_on_disconnect=cancels)


async def create_and_wait(
    call: Call, body: RunCreate, thread_id: UUID | None
) -> web.StreamResponse:
    """Creates a run and answers with its result."""
    cancels = body.on_disconnect == "cancel"
    await _refuse_to_wait_for_itself(call, body, thread_id)
    run = await admit(call, body, thread_id, awaited=True, stop_if_abandoned=cancels)
    return await _wait(call, run, cancel_on_disconnect=cancels)


async def _refuse_to_wait_for_itself(call: Call, body: RunCreate, thread_id: UUID | None) -> None:
    """Raises Conflict when a run asks for one behind itself and would wait for that one's end."""
    if thread_id is None or body.multitask_strategy != "enqueue":
        return
    if await credential.comes_from(call.request, call.context.database, thread_id):
        raise Conflict(
            "The run that asks for this is itself active on the thread, and would wait for ever:"
            " name another thread, or none"
        )


async def join(call: Call, run: RunRow, query: Join) -> web.StreamResponse:
    """Answers with the result of a run that exists already."""
    return await _wait(call, run, cancel_on_disconnect=query.cancel_on_disconnect)


async def join_stream(call: Call, run: RunRow, query: JoinStream) -> web.StreamResponse:
    """Streams the events of a run that exists already.

    Without ``Last-Event-ID`` those from now on. With it those after it: as long as the run is
    active, and later when it was made resumable.
    """
    after = _cursor(call.request.headers.get("Last-Event-ID", query.last_event_id))
    if after is None or (run.status in TERMINAL and not run.resumable):
        # A run that nobody has started yet has no past to leave out, and may start any moment.
        after = START if run.attempt == 0 and run.status is RunStatus.PENDING else LIVE
    return await _stream(
        call,
        run,
        after=after,
        only=Filter(frozenset(query.stream_mode)),
        cancel_on_disconnect=query.cancel_on_disconnect,
    )


def _on_again(run: RunRow, after: str) -> str:
    """Where a client goes on that is cut off. One that saw nothing misses nothing of what has ids:
    of anything else it would be told twice what it has seen."""
    return "/stream?last_event_id=-1" if run.resumable and after == START else "/stream"


def _cursor(last_event_id: str | None) -> str | None:
    """The place that the client names; None for none and for a text that names no place."""
    if last_event_id is None:
        return None
    text = last_event_id.strip()
    if text in ("-1", "0", "-"):
        return START
    number, dash, part = text.partition("-")
    is_id = number.isdecimal() and (part.isdecimal() if dash else True)
    return text if is_id and text.isascii() else None


async def _stream(
    call: Call,
    run: RunRow,
    *,
    after: str,
    only: Filter = Filter(),  # noqa: B008 - frozen
    cancel_on_disconnect: bool,
) -> web.StreamResponse:
    return await stream(
        call,
        call.context.events.follow(str(run.run_id), after),
        headers={"Location": place(run) + _on_again(run, after), "Content-Location": place(run)},
        with_ids=run.resumable,
        only=only,
        on_disconnect=_abandoned(call, run) if cancel_on_disconnect else None,
    )


async def _wait(call: Call, run: RunRow, *, cancel_on_disconnect: bool) -> web.StreamResponse:
    return await wait_for_end(
        call,
        run.run_id,
        partial(outcome, call.context.database, run.run_id),
        headers={"Location": f"{place(run)}/join", "Content-Location": place(run)},
        on_disconnect=_abandoned(call, run) if cancel_on_disconnect else None,
    )


def _abandoned(call: Call, run: RunRow) -> Callable[[], Coroutine[Any, Any, None]]:
    return partial(stop_abandoned, call.context, run.thread_id, run.run_id)

"""The A2A protocol: every assistant is an agent, a context is a thread, a task is a run."""

import contextlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

import orjson
from aiohttp import web
from pydantic import TypeAdapter

from actors.events import START
from gateway import stopping
from gateway.a2a import V03, V1, Ended, Form, Speech, State, Task, card, task_of
from gateway.a2a_incoming import (
    NOT_CANCELABLE,
    NOT_SUPPORTED,
    TASK_NOT_FOUND,
    Incoming,
    context_of,
    incoming,
    number,
    task_id,
)
from gateway.admission import admit, find_assistant, permit
from gateway.errors import BadRequest, refusal
from gateway.inspection import ask
from gateway.jsonrpc import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Request,
    RpcError,
    accepts,
    failure,
    read,
    success,
)
from gateway.responses import Response
from gateway.routing import Call, Routes
from gateway.sse import send_frames
from gateway.waiting import wait_for_end, when_available
from gateway.wire.answers import answer, relay
from gateway.wire.body import Query, checked, whole_body
from gateway.wire.jsonrpc import NoRpc, RpcAnswer, RpcMessage
from gateway.wire.runs import RunCreate
from persistence import runs, threads
from persistence.assistants import AssistantRow
from persistence.errors import RunNotFound, ThreadNotFound
from persistence.ids import uuid7
from persistence.lifecycle import TERMINAL, CancelAction, RunStatus, ThreadStatus
from persistence.runs import RunRow

routes = Routes()

_RUN = TypeAdapter(RunCreate)
_CARD = Response("The agent's card, for both versions of the protocol.", dict[str, Any])
_LARGEST_PAGE = 100


class _Does(StrEnum):
    """What a method asks for, in either form."""

    SEND = "send"
    STREAM = "stream"
    FOLLOW = "follow"
    GET = "get"
    CANCEL = "cancel"
    LIST = "list"
    SHOW_CARD = "show card"


_METHODS: Mapping[str, tuple[_Does, Form]] = {
    "SendMessage": (_Does.SEND, V1),
    "SendStreamingMessage": (_Does.STREAM, V1),
    "SubscribeToTask": (_Does.FOLLOW, V1),
    "GetTask": (_Does.GET, V1),
    "CancelTask": (_Does.CANCEL, V1),
    "ListTasks": (_Does.LIST, V1),
    "GetExtendedAgentCard": (_Does.SHOW_CARD, V1),
    "message/send": (_Does.SEND, V03),
    "message/stream": (_Does.STREAM, V03),
    "tasks/resubscribe": (_Does.FOLLOW, V03),
    "tasks/get": (_Does.GET, V03),
    "tasks/cancel": (_Does.CANCEL, V03),
    "agent/getAuthenticatedExtendedCard": (_Does.SHOW_CARD, V03),
}


class CardQuery(Query):
    """Whose card."""

    assistant_id: str = ""


@routes.get(
    "/.well-known/agent-card.json",
    on="assistants.read",
    responses={200: _CARD, 400: "No assistant_id", 404: "No such assistant"},
)
async def find_card(call: Call, query: CardQuery) -> web.Response:
    """Shows the card of the agent that an assistant is."""
    if not query.assistant_id:
        raise BadRequest("assistant_id is missing: every assistant is an agent of its own")
    return await _show(call, query.assistant_id)


@routes.get(
    "/a2a/{assistant_id}/.well-known/agent-card.json",
    on="assistants.read",
    responses={200: _CARD, 404: "No such assistant"},
)
@routes.get(
    "/a2a/{assistant_id}/.well-known/agent.json",
    on="assistants.read",
    responses={200: _CARD, 404: "No such assistant"},
)
@routes.get(
    "/a2a/{assistant_id}",
    on="assistants.read",
    responses={200: _CARD, 404: "No such assistant"},
)
async def show_card(call: Call, assistant_id: str) -> web.Response:
    """Shows the card of the agent that an assistant is."""
    return await _show(call, assistant_id)


@routes.post(
    "/a2a/{assistant_id}",
    on="threads.read",
    content=RpcMessage,
    responses={
        200: Response(
            "The answer; of streaming methods one answer an event.",
            RpcAnswer,
            others={"text/event-stream": Any},
        ),
        400: Response("Neither JSON nor events are wanted.", NoRpc),
    },
)
async def message(call: Call, assistant_id: str) -> web.StreamResponse:
    """Takes one message of the A2A protocol; errors are answered inside it, with 200."""
    request_id, body = None, await whole_body(call.request)
    try:
        request = read(body)
        if request is None or request.is_notification:
            raise RpcError(INVALID_REQUEST, "Expected a request with an id")
        request_id = request.id
        if request.method not in _METHODS:
            raise RpcError(METHOD_NOT_FOUND, f"Method not found: {request.method}")
        does, form = _METHODS[request.method]
        kind = "text/event-stream" if does in (_Does.STREAM, _Does.FOLLOW) else "application/json"
        if not accepts(call.request.headers.get("Accept"), kind):
            return answer({"error": f"Accept must allow {kind}"}, status=400)
        return await _answer(call, assistant_id, request, does, form)
    except RpcError as error:
        return relay(failure(request_id, error))
    except Exception as error:
        refused = refusal(error)
        if refused is None or refused.status not in (400, 404, 409, 422):
            raise
        return relay(failure(request_id, RpcError(INVALID_PARAMS, refused.detail)))


@dataclass(frozen=True, slots=True)
class _Exchange:
    """A request to an agent, and the form in which it is answered."""

    call: Call
    assistant: AssistantRow
    request: Request
    form: Form

    @property
    def params(self) -> Mapping[str, Any]:
        return self.request.params

    @property
    def history(self) -> int | None:
        """How many messages of a task's history are wanted; None: all."""
        asked = self.params.get("configuration")
        place = asked if isinstance(asked, dict) else self.params
        wanted = number(place, "historyLength", 1000, -1)
        return None if wanted < 0 else wanted

    def told(self, result: Any) -> bytes:
        """The answer with a result."""
        return success(self.request.id, result)


async def _answer(
    call: Call, assistant_id: str, request: Request, does: _Does, form: Form
) -> web.StreamResponse:
    exchange = _Exchange(call, await find_assistant(call, assistant_id), request, form)
    match does:
        case _Does.SEND:
            return await _send(exchange)
        case _Does.STREAM:
            return await _follow(exchange, await _start(exchange, awaited=True))
        case _Does.FOLLOW:
            return await _follow(exchange, await _active(exchange))
        case _Does.GET:
            run = await _run(exchange, task_id(request.params.get("id")))
            task = await _task(call, run)
            return relay(exchange.told(form.task(task, exchange.history)))
        case _Does.CANCEL:
            return await _cancel(exchange)
        case _Does.LIST:
            return relay(exchange.told(await _list(exchange)))
        case _Does.SHOW_CARD:
            shown = card(exchange.assistant, _url(call, exchange.assistant))
            return relay(exchange.told(shown))


async def _send(exchange: _Exchange) -> web.StreamResponse:
    """Starts a run, and answers with its task: when it has ended, unless it is not to be waited."""
    asked = exchange.params.get("configuration")
    wishes = asked if isinstance(asked, dict) else {}
    awaited = not (wishes.get("returnImmediately") is True or wishes.get("blocking") is False)
    run = await _start(exchange, awaited=awaited)
    if not awaited:
        task = await _task(exchange.call, run)
        return relay(exchange.told(exchange.form.sent(task, exchange.history)))

    async def result() -> bytes:
        task = await _task(exchange.call, run, is_over=True)
        return exchange.told(exchange.form.sent(task, exchange.history))

    return await wait_for_end(exchange.call, run.run_id, result, headers={})


async def _start(exchange: _Exchange, *, awaited: bool) -> RunRow:
    """The run that the message makes: a new turn, or the answer to a question. Raises RpcError."""
    call, sent = exchange.call, incoming(exchange.params)
    body: dict[str, Any] = {
        "assistant_id": str(exchange.assistant.assistant_id),
        "stream_mode": ["values", "messages-tuple"],
        "if_not_exists": "create",
    }
    if sent.task is not None:
        await _check_waits(exchange, sent.task)
        body["command"] = {"resume": sent.value}
    else:
        await _check_input(exchange, sent)
        body["input"] = sent.input
    thread_id = sent.thread_id or uuid7()
    asked = checked(body, _RUN)
    grant = await permit(call, asked, thread_id)
    return await admit(call, asked, thread_id, awaited=awaited, grant=grant)


async def _check_waits(exchange: _Exchange, named: tuple[UUID, UUID]) -> None:
    """Raises RpcError for a task that waits for no answer (any more)."""
    run = await _run(exchange, named)
    task = await _task(exchange.call, run)
    head = await threads.head(
        exchange.call.context.database, run.thread_id, allowed=exchange.call.allowed
    )
    if task.state is not State.INPUT_REQUIRED or head.status is not ThreadStatus.INTERRUPTED:
        raise RpcError(NOT_SUPPORTED, "The task does not wait for a message")


async def _check_input(exchange: _Exchange, sent: Incoming) -> None:
    """Raises RpcError for a text to a graph that takes no messages."""
    if sent.content is None:
        return
    row = exchange.assistant
    status, body = await ask(
        exchange.call, "schemas", {"graph_id": row.graph_id, "config": orjson.loads(row.config)}
    )
    schema = orjson.loads(body).get("input_schema") if status == 200 else None
    if "messages" not in ((schema or {}).get("properties") or {}):
        raise RpcError(
            INVALID_PARAMS, "The graph has no messages in its input: send it a data part"
        )


async def _active(exchange: _Exchange) -> RunRow:
    run = await _run(exchange, task_id(exchange.params.get("id")))
    if run.status in TERMINAL:
        raise RpcError(NOT_SUPPORTED, "The task is not under way any more")
    return run


async def _follow(exchange: _Exchange, run: RunRow) -> web.StreamResponse:
    return await send_frames(exchange.call, _frames(exchange, run), headers={})


async def _frames(exchange: _Exchange, run: RunRow) -> AsyncGenerator[bytes, None]:
    """The task, what is said so far as it grows, and what came of it."""
    call, form, speech = exchange.call, exchange.form, Speech()
    task = await _task(call, run)
    yield _frame(exchange, form.sent(task, exchange.history))
    batches = call.context.events.follow(str(run.run_id), START)
    async with contextlib.aclosing(batches):
        async for batch in batches:
            heard = [speech.hear(event.data) for event in batch if event.name == "messages"]
            if any(heard):  # one update a batch: each has the whole text, more would only cost
                said = form.working(task, datetime.now(UTC), speech.message_id, speech.text)
                yield _frame(exchange, said)
    ended = await _task(call, run, is_over=True)
    for event in form.ends(ended):
        yield _frame(exchange, event)


def _frame(exchange: _Exchange, event: dict[str, Any]) -> bytes:
    return b"event: message\r\ndata: %b\r\n\r\n" % exchange.told(event)


async def _cancel(exchange: _Exchange) -> web.StreamResponse:
    """Stops a task, and answers with it when it has stopped."""
    call, named = exchange.call, task_id(exchange.params.get("id"))
    run = await _run(exchange, named)
    value = {"thread_id": run.thread_id, "run_id": run.run_id}
    grant = await call.authorize("threads.update", value)
    try:
        requested = await stopping.stop(
            call.context, run.thread_id, run.run_id, CancelAction.INTERRUPT, allowed=grant.allowed
        )
    except RunNotFound:
        raise RpcError(TASK_NOT_FOUND, "Task not found") from None
    if requested.kind == "finished":
        raise RpcError(NOT_CANCELABLE, "The task has ended already")

    async def result() -> bytes:
        return exchange.told(exchange.form.task(await _task(call, run, is_over=True)))

    return await wait_for_end(call, run.run_id, result, headers={})


async def _list(exchange: _Exchange) -> dict[str, Any]:
    """The tasks of a context, newest first. A page may have fewer than asked for, and more follow.

    The total is the least that it can be, as in every search.
    """
    call, params = exchange.call, exchange.params
    size = number(params, "pageSize", _LARGEST_PAGE, 50) or 50
    offset = number(params, "pageToken", 10**9, 0)
    wanted = str(params.get("status") or "").removeprefix("TASK_STATE_").replace("_", "-").lower()
    rows = await runs.list_for_thread(
        call.context.database,
        context_of(params),
        limit=size + 1,
        offset=offset,
        allowed=call.allowed,
    )
    found = [
        await _task(call, row)
        for row in rows[:size]
        if row.assistant_id == exchange.assistant.assistant_id
    ]
    with_artifacts = params.get("includeArtifacts") is True
    tasks = [
        exchange.form.task(task if with_artifacts else replace(task, response=()), exchange.history)
        for task in found
        if wanted in ("", "unspecified", task.state)
    ]
    return {
        "tasks": tasks,
        "nextPageToken": str(offset + size) if len(rows) > size else "",
        "pageSize": size,
        "totalSize": offset + len(rows),
    }


async def _run(exchange: _Exchange, named: tuple[UUID, UUID]) -> RunRow:
    """The run that is a task of this agent. Raises RpcError."""
    call = exchange.call
    try:
        run = await runs.get(call.context.database, *named, allowed=call.allowed)
    except (RunNotFound, ThreadNotFound):
        raise RpcError(TASK_NOT_FOUND, "Task not found") from None
    if run.assistant_id != exchange.assistant.assistant_id:
        raise RpcError(TASK_NOT_FOUND, "Task not found")
    return run


async def _task(call: Call, run: RunRow, *, is_over: bool = False) -> Task:
    """The task that a run is. is_over: the run has ended since its row was read."""
    ended, at = None, run.updated_at
    if is_over or run.status in TERMINAL:
        result = await when_available(lambda: runs.result(call.context.database, run.run_id))
        if result is None:  # deleted meanwhile
            ended = Ended(RunStatus.INTERRUPTED, None, None)
        else:
            ended = Ended(result.status, result.output, result.error)
        at = run.finished_at or datetime.now(UTC)
    return task_of(
        run.thread_id,
        run.run_id,
        at,
        run.kwargs,
        ended,
        begun=run.status is not RunStatus.PENDING,
    )


async def _show(call: Call, assistant_id: str) -> web.Response:
    assistant = await find_assistant(call, assistant_id)
    return answer(card(assistant, _url(call, assistant)))


def _url(call: Call, assistant: AssistantRow) -> str:
    """Where the agent is spoken to, as the client of this request sees it."""
    request = call.request
    forwarded = request.headers.get("X-Forwarded-Proto", "")
    scheme = forwarded if forwarded in ("http", "https") else request.scheme
    prefix = call.context.http.mount_prefix
    return f"{scheme}://{request.host}{prefix}/a2a/{assistant.assistant_id}"

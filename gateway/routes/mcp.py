"""The Model Context Protocol over stateless HTTP: every assistant is a tool, a call is a run."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
from aiohttp import web
from pydantic import TypeAdapter

from gateway.admission import admit, permit
from gateway.errors import NotFound, ProjectFailed, refusal
from gateway.inspection import ask
from gateway.jsonrpc import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Request,
    RpcError,
    accepts,
    failure,
    read,
    success,
)
from gateway.mcp import (
    PAGE,
    ToolCall,
    call_result,
    initialized,
    offset_of,
    tool,
    tool_call,
    tool_name,
)
from gateway.outcome import outcome
from gateway.responses import Response
from gateway.routing import Call, Routes
from gateway.waiting import wait_for_end
from gateway.wire.answers import answer, relay
from gateway.wire.body import checked, whole_body
from gateway.wire.jsonrpc import NoRpc, RpcAnswer, RpcMessage
from gateway.wire.runs import RunCreate
from persistence import assistants
from persistence.assistants import AssistantRow

routes = Routes()

_RUN = TypeAdapter(RunCreate)


@routes.post(
    "/mcp",
    on="assistants.search",
    content=RpcMessage,
    responses={
        200: Response("The answer.", RpcAnswer),
        202: "A notification or a response, taken note of",
        400: Response("No message of the protocol, or no JSON wanted.", NoRpc),
    },
)
async def message(call: Call) -> web.StreamResponse:
    """Takes one message of the Model Context Protocol: tools are listed and called."""
    if not accepts(call.request.headers.get("Accept"), "application/json", "text/event-stream"):
        needed = "Accept must allow application/json or text/event-stream"
        return answer({"error": needed}, status=400)
    try:
        request = read(await whole_body(call.request))
    except RpcError as error:
        return answer({"error": error.message}, status=400)
    if request is None or request.is_notification:
        return web.Response(status=202)
    try:
        if request.method == "tools/call":
            return await _call(call, request, tool_call(request.params))
        return relay(success(request.id, await _result(call, request)))
    except RpcError as error:
        return relay(failure(request.id, error))


@routes.delete("/mcp", on="assistants.search", responses={404: "There is no session"})
async def end_session(call: Call) -> web.Response:
    """Ends a session: there is none, every message stands by itself."""
    raise NotFound("Session not found")


async def _result(call: Call, request: Request) -> dict[str, Any]:
    match request.method:
        case "initialize":
            return initialized(request.params, call.context.version)
        case "ping":
            return {}
        case "tools/list":
            return await _list(call, offset_of(request.params))
        case method:
            raise RpcError(METHOD_NOT_FOUND, f"Method not found: {method}")


async def _list(call: Call, offset: int) -> dict[str, Any]:
    rows = await _page(call, offset)
    shown = rows[:PAGE]
    tools: dict[str, dict[str, Any]] = {}
    for row, schema in zip(shown, await _schemas(call, shown), strict=True):
        if (found := tool(row, schema)) is not None:
            tools.setdefault(found["name"], found)
    more = {"nextCursor": str(offset + PAGE)} if len(rows) > PAGE else {}
    return {"tools": list(tools.values()), **more}


async def _call(call: Call, request: Request, asked: ToolCall) -> web.StreamResponse:
    """Runs the assistant and answers with its result, however long that takes."""
    assistant = await _find(call, asked.name)
    try:
        body = checked(
            {
                "assistant_id": str(assistant.assistant_id),
                "input": asked.arguments,
                "context": asked.context,
            },
            _RUN,
        )
        grant = await permit(call, body, None)
        run = await admit(call, body, None, awaited=True, grant=grant)
    except Exception as error:
        refused = refusal(error)
        if refused is None or refused.status not in (400, 404, 409, 422):
            raise
        raise RpcError(INVALID_PARAMS, refused.detail) from None

    async def result() -> bytes:
        return success(request.id, call_result(await outcome(call.context.database, run.run_id)))

    return await wait_for_end(call, run.run_id, result, headers={})


async def _find(call: Call, name: str) -> AssistantRow:
    """The assistant whose tool has this name: the one that is listed first. Raises RpcError."""
    async for row in _all(call):
        if tool_name(row) == name:
            return row
    raise RpcError(INVALID_PARAMS, f"Unknown tool: {name}")


async def _all(call: Call) -> AsyncIterator[AssistantRow]:
    offset, more = 0, True
    while more:
        rows = await _page(call, offset)
        for row in rows[:PAGE]:
            yield row
        offset, more = offset + PAGE, len(rows) > PAGE


async def _page(call: Call, offset: int) -> list[AssistantRow]:
    """Assistants that the caller may see, newest first; one too many says that more follow."""
    return await assistants.search(
        call.context.database, limit=PAGE + 1, offset=offset, allowed=call.allowed
    )


async def _schemas(call: Call, rows: list[AssistantRow]) -> list[Any]:
    """The schemas of the assistants' input; None for a graph that has none or cannot be made.

    Assistants that differ in nothing that makes their graph are asked for once.
    """
    makings = {row.assistant_id: (row.graph_id, row.config) for row in rows}
    distinct = list(dict.fromkeys(makings.values()))
    found = await asyncio.gather(*(_schema(call, *making) for making in distinct))
    schemas = dict(zip(distinct, found, strict=True))
    return [schemas[makings[row.assistant_id]] for row in rows]


async def _schema(call: Call, graph_id: str, config: bytes) -> Any:
    try:
        status, body = await ask(
            call, "schemas", {"graph_id": graph_id, "config": orjson.loads(config)}
        )
    except ProjectFailed:
        return None
    return orjson.loads(body).get("input_schema") if status == 200 else None

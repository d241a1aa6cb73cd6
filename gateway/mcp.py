"""Assistants as tools of the Model Context Protocol: its words for what Callboard knows. Pure."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.jsonrpc import INVALID_PARAMS, RpcError, natural
from persistence.assistants import AssistantRow

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
PAGE = 100
"""Assistants looked at for one answer to tools/list."""

_ODD = re.compile(r"[^A-Za-z0-9_.-]")
_LONGEST_NAME = 128
_DEFINITION = "#/$defs/"
_MESSAGE = f"{_DEFINITION}HumanMessage"
_ERROR = "__error__"


def initialized(params: Mapping[str, Any], version: str) -> dict[str, Any]:
    """The answer to ``initialize``: the protocol's version as asked, or the newest one."""
    asked = params.get("protocolVersion")
    return {
        "protocolVersion": asked if asked in VERSIONS else VERSIONS[-1],
        "capabilities": {"tools": {"listChanged": False}},
        "serverInfo": {"name": "Callboard", "version": version},
    }


def offset_of(params: Mapping[str, Any]) -> int:
    """Where the page begins that a cursor names. Raises RpcError."""
    cursor = params.get("cursor")
    if cursor is None:
        return 0
    # The reference's cursors are numbers, so clients of its may hold one.
    offset = natural(cursor)
    if offset is None:
        raise RpcError(INVALID_PARAMS, "Invalid cursor")
    return offset


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What ``tools/call`` asks for."""

    name: str
    arguments: dict[str, Any]
    context: dict[str, Any]


def tool_call(params: Mapping[str, Any]) -> ToolCall:
    """Reads the parameters of ``tools/call``. Raises RpcError."""
    name, arguments, context = (params.get(key) for key in ("name", "arguments", "context"))
    if not isinstance(name, str):
        raise RpcError(INVALID_PARAMS, "Expected the name of a tool")
    if not isinstance(arguments, dict | None) or not isinstance(context, dict | None):
        raise RpcError(INVALID_PARAMS, "Expected arguments and context to be objects")
    return ToolCall(name, arguments or {}, context or {})


def tool_name(assistant: AssistantRow) -> str:
    """The name of an assistant's tool: its own, with what the protocol forbids as ``_``."""
    return _ODD.sub("_", assistant.name)[:_LONGEST_NAME] or str(assistant.assistant_id)


def tool(assistant: AssistantRow, schema: Any) -> dict[str, Any] | None:
    """The tool of an assistant; None when its input is no object, which arguments have to be.

    schema: JSON schema of the graph's input, None when it has none.
    """
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return None
    return {
        "name": tool_name(assistant),
        "title": assistant.name,
        "description": assistant.description or f"Tool based on the {assistant.name} assistant",
        "inputSchema": _simplified(schema),
        "annotations": {"title": assistant.name},
    }


def call_result(outcome: bytes) -> dict[str, Any]:
    """The result of a call, from what a wait for its run answers: its JSON as text."""
    if outcome.startswith(b'{"__error__"'):
        error = orjson.loads(outcome)[_ERROR] or {}
        return _text(f"{error.get('error')}: {error.get('message')}", is_error=True)
    return _text(outcome.decode(), is_error=False)


def _text(text: str, *, is_error: bool) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


def _simplified(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with a text for a list of messages (LangGraph takes both), and no spare parts.

    A model that calls the tool is spared the forms that messages have: they are long.
    """
    properties = {
        name: _message_text(content) if _is_messages(content) else content
        for name, content in schema.get("properties", {}).items()
    }
    simple = {key: value for key, value in schema.items() if key != "$defs"}
    if properties:
        simple["properties"] = properties
    definitions = schema.get("$defs", {})
    used: dict[str, Any] = {}
    waiting = list(_references(simple))
    while waiting:
        name = waiting.pop()
        if name in definitions and name not in used:
            used[name] = definitions[name]
            waiting += _references(definitions[name])
    return simple | ({"$defs": used} if used else {})


def _message_text(content: dict[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {"description": "A message from the user", **content}
    kept = ("title", "description")
    return {"type": "string"} | {key: described[key] for key in kept if key in described}


def _is_messages(content: Any) -> bool:
    if not isinstance(content, dict) or content.get("type") != "array":
        return False
    items = content.get("items")
    forms = (items.get("oneOf") or items.get("anyOf")) if isinstance(items, dict) else None
    return any(form.get("$ref") == _MESSAGE for form in forms or ())


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        reference = schema.get("$ref")
        if isinstance(reference, str):
            yield reference.removeprefix(_DEFINITION)
        for part in schema.values():
            yield from _references(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _references(part)

"""JSON-RPC 2.0, as MCP and A2A speak it over one POST a message: the envelope and its errors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602

Id = str | int | float | None


class RpcError(Exception):
    """The request is answered with an error: a code of the protocol, and a sentence for people."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Request:
    """A request; one without an id is a notification, which nobody answers."""

    id: Id
    method: str
    params: Mapping[str, Any]
    is_notification: bool = False


def read(body: bytes) -> Request | None:
    """The request that a body holds; None for a response, which is only taken note of.

    Raises RpcError.
    """
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise RpcError(PARSE_ERROR, "Invalid JSON") from None
    if not isinstance(content, dict) or content.get("jsonrpc") != "2.0":
        raise RpcError(INVALID_REQUEST, 'Expected one JSON-RPC message, with "jsonrpc": "2.0"')
    method, request_id = content.get("method"), content.get("id")
    if method is None and ("result" in content or "error" in content):
        return None
    params = content.get("params")
    if not isinstance(method, str) or isinstance(request_id, bool | dict | list):
        raise RpcError(INVALID_REQUEST, "Expected a method, and an id that is a text or a number")
    if not isinstance(params, dict | None):
        raise RpcError(INVALID_PARAMS, "Expected params to be an object")
    return Request(request_id, method, params or {}, is_notification="id" not in content)


def natural(given: Any) -> int | None:
    """A number from 0 on, also when it is written as a text; None for anything else."""
    text = str(given)
    if isinstance(given, bool) or not (text.isascii() and text.isdecimal() and len(text) < 10):
        return None
    return int(text)


def success(request_id: Id, result: Any) -> bytes:
    """The answer with a result. Fragments of JSON are not read again."""
    return orjson.dumps({"jsonrpc": "2.0", "id": request_id, "result": result})


def failure(request_id: Id, error: RpcError) -> bytes:
    """The answer with an error."""
    told = {"code": error.code, "message": error.message}
    return orjson.dumps({"jsonrpc": "2.0", "id": request_id, "error": told})


def accepts(accept: str | None, *media_types: str) -> bool:
    """Whether an ``Accept`` header allows one of the types; none at all allows everything."""
    if accept is None or not accept.strip():
        return True
    named = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    wanted = {"*/*", *media_types, *(f"{kind.partition('/')[0]}/*" for kind in media_types)}
    return bool(named & wanted)

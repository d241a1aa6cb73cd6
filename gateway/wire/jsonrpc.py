"""JSON-RPC messages as the OpenAPI document describes them; ``gateway.jsonrpc`` reads them."""

from typing import Any, Literal

from gateway.responses import Shown
from gateway.wire.body import Body


class RpcMessage(Body):
    """A request; without an id a notification."""

    jsonrpc: Literal["2.0"]
    method: str
    id: str | int | float | None = None
    params: dict[str, Any] | None = None


class RpcAnswer(Shown):
    """The answer to a request: a result, or an error with ``code`` and ``message``."""

    jsonrpc: Literal["2.0"]
    id: str | int | float | None
    result: dict[str, Any] = {}
    error: dict[str, Any] = {}


class NoRpc(Shown):
    """Why something is no message of the protocol."""

    error: str

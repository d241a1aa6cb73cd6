"""A request as authentication handlers see it: the parameters that they may ask for by name."""

import functools
import importlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

import orjson
from aiohttp import web
from multidict import CIMultiDict

from gateway.asgi import Message, Receive, Scope, scope_of
from gateway.wire.body import whole_body

PARAMETERS = frozenset(
    {
        *("request", "scope", "body", "path", "method", "headers", "authorization"),
        *("path_params", "query_params"),
    }
)
"""What a handler may take."""


class Headers(dict[bytes, bytes]):
    """Headers by name, in small letters and in bytes, as ASGI has them.

    Asked with a text it answers with a text: both are written in the wild.
    """

    def __getitem__(self, name: Any) -> Any:
        if isinstance(name, str):
            return super().__getitem__(name.lower().encode("latin-1")).decode("latin-1")
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        if isinstance(name, str):
            name = name.lower().encode("latin-1", "replace")
        return super().__contains__(name)

    def get(self, name: Any, default: Any = None) -> Any:
        """The header's value, or ``default``."""
        try:
            return self[name]
        except KeyError:
            return default


class Query(dict[str, str]):
    """The last value of each parameter; written out it is the query string."""

    def __init__(self, request: web.Request) -> None:
        super().__init__(request.query.items())
        self._text = request.rel_url.raw_query_string

    def __str__(self) -> str:
        return self._text


class Request:
    """The request for handlers of projects without Starlette: its most used half.

    Where Starlette can be imported, handlers get its ``Request`` instead.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.headers: Mapping[str, str] = CIMultiDict(
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]
        )
        self.query_params = dict(parse_qsl(scope["query_string"].decode(), keep_blank_values=True))
        self.path_params: Mapping[str, Any] = scope["path_params"]
        self.client = scope["client"]
        self._receive = receive
        self._body: bytes | None = None

    async def body(self) -> bytes:
        """The whole body."""
        if self._body is None:
            self._body = (await self._receive())["body"]
        return self._body

    async def json(self) -> Any:
        """The body, read as JSON. Raises ValueError."""
        return orjson.loads(await self.body())


async def arguments(request: web.Request, wanted: frozenset[str]) -> dict[str, Any]:
    """The arguments for a handler that takes ``wanted``."""
    values: dict[str, Any] = {
        "path": request.path,
        "method": request.method,
        "headers": Headers((name.lower(), value) for name, value in request.raw_headers),
        "authorization": request.headers.get("Authorization"),
        "path_params": dict(request.match_info),
        "query_params": Query(request),
    }
    if wanted & {"scope", "request"}:
        scope = values["scope"] = scope_of(request)
        scope["path_params"] = values["path_params"]
        if "request" in wanted:
            values["request"] = _request_class()(scope, _receive(request))
    if "body" in wanted:
        values["body"] = await _body(request)
    return {name: values[name] for name in wanted}


def _receive(request: web.Request) -> Receive:
    async def receive() -> Message:
        return {"type": "http.request", "body": await whole_body(request), "more_body": False}

    return receive


async def _body(request: web.Request) -> Any:
    """The body as JSON; None for one that is none, which the route will say."""
    try:
        return orjson.loads(await whole_body(request))
    except orjson.JSONDecodeError:
        return None


@functools.cache
def _request_class() -> Any:
    try:
        return importlib.import_module("starlette.requests").Request
    except ImportError:
        return Request

"""Typed routes: a handler says in its signature what it takes, and this reads it from the request.

    @routes.post("/threads/{thread_id}/runs", responses={200: Run, 404: "No such thread"})
    async def create(call: Call, thread_id: UUID, body: RunCreate) -> web.Response: ...

Names in the path become arguments (a ``UUID`` is checked, a ``str`` taken as it is), ``body`` is
read as JSON and ``query`` from the query string, each as the type that is written there. What
cannot be read is refused before the handler is called. A handler's docstring describes it, and
``responses`` what it answers (see ``gateway.responses``): the OpenAPI document is made of both.
"""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints
from uuid import UUID

from aiohttp import web
from pydantic import TypeAdapter

from gateway.context import CONTEXT, Context
from gateway.errors import NotFound, Unprocessable
from gateway.responses import Responses
from gateway.wire.body import Query, read_body, read_query

Answer = Awaitable[web.StreamResponse]
Handler = Callable[..., Answer]
H = TypeVar("H", bound=Handler)

_NONE: Responses = {}


@dataclass(frozen=True, slots=True)
class Call:
    """One request and the parts of the gateway that serve it."""

    request: web.Request
    context: Context


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A route with everything that its signature says about it."""

    method: str
    path: str
    handler: Handler
    ids: dict[str, type]
    body: TypeAdapter[Any] | None
    body_type: Any
    query: type[Query] | None
    is_long: bool
    """Whether the answer stays open: then HEAD would wait for nothing."""
    responses: Responses

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        """Reads the arguments and calls the handler."""
        arguments: dict[str, Any] = {
            name: _argument(name, kind, request.match_info[name]) for name, kind in self.ids.items()
        }
        if self.query is not None:
            arguments["query"] = read_query(request, self.query)
        if self.body is not None:
            arguments["body"] = await read_body(request, self.body)
        return await self.handler(Call(request, request.app[CONTEXT]), **arguments)


class Routes:
    """The endpoints of one file."""

    def __init__(self) -> None:
        self.endpoints: list[Endpoint] = []

    def get(self, path: str, *, responses: Responses = _NONE) -> Callable[[H], H]:
        """Declares a GET endpoint; HEAD is answered too."""
        return self._add("GET", path, responses)

    def post(self, path: str, *, responses: Responses = _NONE) -> Callable[[H], H]:
        """Declares a POST endpoint."""
        return self._add("POST", path, responses)

    def patch(self, path: str, *, responses: Responses = _NONE) -> Callable[[H], H]:
        """Declares a PATCH endpoint."""
        return self._add("PATCH", path, responses)

    def delete(self, path: str, *, responses: Responses = _NONE) -> Callable[[H], H]:
        """Declares a DELETE endpoint."""
        return self._add("DELETE", path, responses)

    def mount(self, app: web.Application) -> None:
        """Adds the endpoints to the application, in the order in which they were declared."""
        for endpoint in self.endpoints:
            app.router.add_route(endpoint.method, endpoint.path, endpoint.__call__)
            if endpoint.method == "GET" and not endpoint.is_long:
                app.router.add_route("HEAD", endpoint.path, endpoint.__call__)

    def _add(self, method: str, path: str, responses: Responses) -> Callable[[H], H]:
        def declare(handler: H) -> H:
            types = get_type_hints(handler, include_extras=True)
            arguments = list(inspect.signature(handler).parameters)[1:]
            body, query = types.get("body"), types.get("query")
            self.endpoints.append(
                Endpoint(
                    method,
                    path,
                    handler,
                    ids={name: types[name] for name in arguments if f"{{{name}" in path},
                    body=None if body is None else TypeAdapter(body),
                    body_type=body,
                    query=query,
                    is_long=types["return"] is web.StreamResponse,
                    responses=responses,
                )
            )
            return handler

        return declare


def _argument(name: str, kind: type, text: str) -> UUID | str:
    if kind is UUID:
        try:
            return UUID(text)
        except ValueError:
            raise Unprocessable(f"Invalid {name.removesuffix('_id')} ID: must be a UUID") from None
    if "\0" in text:
        raise NotFound("Not Found")
    return text

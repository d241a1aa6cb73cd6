"""Typed routes: a handler says in its signature what it takes, and this reads it from the request.

    @routes.patch("/threads/{thread_id}", on="threads.update", responses={200: Thread})
    async def patch(call: Call, thread_id: UUID, body: ThreadPatch) -> web.Response: ...

A route says which action on which resource it is, in the words of ``langgraph_sdk.Auth``, or that
it is ``PUBLIC``. The caller is authenticated before anything is read, and asked for the right to
the action before the handler is called: here, for every route there is.

Names in the path become arguments (a ``UUID`` is checked, a ``str`` taken as it is), ``body`` is
read as JSON and ``query`` from the query string, each as the type that is written there. What
cannot be read is refused before the handler is called. A handler's docstring describes it, and
``responses`` what it answers (see ``gateway.responses``): the OpenAPI document is made of both.
A handler that reads the body by itself, since its protocol has refusals of its own, tells the type
with ``content``: it is described, and not checked here.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast, get_type_hints
from uuid import UUID

from aiohttp import web
from pydantic import TypeAdapter

from gateway.auth import credential
from gateway.auth.grant import Grant, Value, asked, edited
from gateway.auth.user import AnyUser
from gateway.context import CONTEXT, Context
from gateway.errors import NotFound, Unprocessable
from gateway.http_options import RUN_HEADER, HttpOptions
from gateway.responses import Responses
from gateway.wire.body import Query, read_body, read_query
from persistence.visibility import Filter

Answer = Awaitable[web.StreamResponse]
Handler = Callable[..., Answer]
H = TypeVar("H", bound=Handler)

_NONE: Responses = {}

PUBLIC = "public"
"""Of a route that needs no caller."""

AT_ROOT = frozenset({"/", "/ok", "/live", "/ready", "/metrics"})
"""Where whoever looks after a server asks for its state, whatever ``mount_prefix`` says."""

_CRUD = ("create", "read", "update", "delete", "search")
_STORE = ("put", "get", "search", "delete", "list_namespaces")
ACTIONS = frozenset(
    {
        *(f"assistants.{action}" for action in _CRUD),
        *(f"threads.{action}" for action in (*_CRUD, "create_run")),
        *(f"crons.{action}" for action in _CRUD),
        *(f"store.{action}" for action in _STORE),
    }
)
"""What a route can be, as ``langgraph_sdk.Auth`` knows it."""

USER = web.RequestKey("user", object)
"""The caller, once known: whoever has authenticated first need not do it twice."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request, who makes it, and the parts of the gateway that serve it.

    grants: what authorization said of it, one for each thing that is asked for; mostly one.
    """

    request: web.Request
    context: Context
    user: AnyUser | None = None
    grants: tuple[Grant, ...] = (Grant(),)

    @property
    def grant(self) -> Grant:
        """What authorization said of the request."""
        return self.grants[0]

    @property
    def allowed(self) -> Filter | None:
        """Which rows the caller may see by this request; every statement must be told of it."""
        return self.grant.allowed

    async def authorize(self, on: str, value: Value) -> Grant:
        """Asks for the right to another action than the route's own. Raises Denied."""
        access = self.context.access
        if access is None or self.user is None:
            return Grant(value)
        return Grant(value, await access.authorize(self.user, on, value))


ValueOf = Callable[[Call, Mapping[str, Any]], "Value | list[Value]"]
"""From the arguments of a handler to what authorization is asked about; several are all asked."""


async def authenticate(request: web.Request) -> AnyUser | None:
    """Who makes the request; None when the server asks nobody. Raises Denied."""
    context = request.app[CONTEXT]
    if context.access is None:
        return None
    if USER not in request:
        request[USER] = (
            await credential.caller(request, context.database)
            if RUN_HEADER in request.headers
            else await context.access.authenticate(request)
        )
    return cast(AnyUser, request[USER])


@web.middleware
async def authenticate_lost(
    request: web.Request, handler: Callable[[web.Request], Answer]
) -> web.StreamResponse:
    """Nobody learns what there is not before it is known who asks, as of what there is."""
    if request.match_info.http_exception is not None:
        await authenticate(request)
    return await handler(request)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A route with everything that its signature says about it."""

    method: str
    path: str
    handler: Handler
    ids: dict[str, type]
    body: TypeAdapter[Any] | None
    body_type: Any
    """What the body is, for people: also of a handler that reads it by itself."""
    query: type[Query] | None
    is_long: bool
    """Whether the answer stays open: then HEAD would wait for nothing."""
    responses: Responses
    on: str
    """The action that it is, or PUBLIC."""
    value: ValueOf | None

    def mount(self, app: web.Application, prefix: str) -> None:
        """Adds the endpoint to the application, below ``prefix``."""
        path = prefix + self.path if self.path != "/" or not prefix else prefix
        app.router.add_route(self.method, path, self.__call__)
        if self.method == "GET" and not self.is_long:
            app.router.add_route("HEAD", path, self.__call__)

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        """Reads the arguments, asks for the right, and calls the handler."""
        context = request.app[CONTEXT]
        user = None if self.on == PUBLIC else await authenticate(request)
        call, arguments = Call(request, context, user), await self._arguments(request)
        if self.on != PUBLIC:
            call, arguments = await self._authorized(call, arguments)
        return await self.handler(call, **arguments)

    async def _arguments(self, request: web.Request) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            name: _argument(name, kind, request.match_info[name]) for name, kind in self.ids.items()
        }
        if self.query is not None:
            arguments["query"] = read_query(request, self.query)
        if self.body is not None:
            arguments["body"] = await read_body(request, self.body)
        return arguments

    async def _authorized(
        self, call: Call, arguments: dict[str, Any]
    ) -> tuple[Call, dict[str, Any]]:
        """The call with what authorization said, and the arguments as it has changed them."""
        if self.value is not None:
            found = self.value(call, arguments)
            values = found if isinstance(found, list) else [found]
        elif call.user is None:
            return call, arguments
        else:
            values = [asked(arguments)]
        grants = tuple([await call.authorize(self.on, value) for value in values])
        if self.value is None:
            arguments = edited(arguments, grants[0].value)
        return replace(call, grants=grants), arguments


@dataclass(frozen=True, slots=True)
class Declare:
    """Declares endpoints of one HTTP method: what ``@routes.get(...)`` calls."""

    method: str
    endpoints: list[Endpoint]

    def __call__(
        self,
        path: str,
        *,
        on: str,
        value: ValueOf | None = None,
        content: Any = None,
        responses: Responses = _NONE,
    ) -> Callable[[H], H]:
        """Makes an endpoint of the decorated handler; see the module's docstring."""
        if on != PUBLIC and on not in ACTIONS:
            raise ValueError(f"{self.method} {path}: there is no action '{on}'")

        def declare(handler: H) -> H:
            types = get_type_hints(handler, include_extras=True)
            arguments = list(inspect.signature(handler).parameters)[1:]
            body, query = types.get("body"), types.get("query")
            self.endpoints.append(
                Endpoint(
                    self.method,
                    path,
                    handler,
                    ids={name: types[name] for name in arguments if f"{{{name}" in path},
                    body=None if body is None else TypeAdapter(body),
                    body_type=content if body is None else body,
                    query=query,
                    is_long=types["return"] is web.StreamResponse,
                    responses=responses,
                    on=on,
                    value=value,
                )
            )
            return handler

        return declare


class Routes:
    """The endpoints of one file."""

    def __init__(self) -> None:
        self.endpoints: list[Endpoint] = []
        self.get = Declare("GET", self.endpoints)
        """HEAD is answered too."""
        self.post = Declare("POST", self.endpoints)
        self.put = Declare("PUT", self.endpoints)
        self.patch = Declare("PATCH", self.endpoints)
        self.delete = Declare("DELETE", self.endpoints)

    def mount(self, app: web.Application, options: HttpOptions) -> None:
        """Adds the endpoints to the application, in the order in which they were declared."""
        for endpoint in self.endpoints:
            if not options.serves(endpoint.path):
                continue
            prefixes = {options.mount_prefix}
            if endpoint.path in AT_ROOT:
                prefixes.add("")
            for prefix in sorted(prefixes):
                endpoint.mount(app, prefix)


def _argument(name: str, kind: type, text: str) -> UUID | str:
    if kind is UUID:
        try:
            return UUID(text)
        except ValueError:
            raise Unprocessable(f"Invalid {name.removesuffix('_id')} ID: must be a UUID") from None
    if "\0" in text:
        raise NotFound("Not Found")
    return text

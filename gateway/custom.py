"""The project's own ASGI application around and beside our routes.

A Starlette application (FastAPI is one) is asked first: its middleware sees every request, a route
of its own that matches path and method goes before ours, ours go before those of its that match the
path only, and a mount at the root gets what is left. Any other ASGI application has no routes that
we could look at: it gets what is no route of ours, and its middleware stands around nothing else.

Public routes at the root of a server that has a ``mount_prefix`` (``/ok`` and its kin), and our
WebSockets, are no business of the application.
"""

import importlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.asgi import Asgi, Message, Receive, Scope, Send, scope_of
from gateway.asgi_lifespan import Lifespan
from gateway.asgi_running import Running
from gateway.auth.user import AnyUser
from gateway.errors import Refusal, refusal
from gateway.http_options import HttpOptions
from gateway.inner import EXCHANGE, Inner
from gateway.routing import PUBLIC, Endpoint, authenticate


class CustomApp:
    """The application, mounted."""

    def __init__(
        self,
        app: Asgi,
        options: HttpOptions,
        *,
        max_body_bytes: int,
        patience: float,
        shutdown_seconds: float,
    ) -> None:
        """patience: seconds that a client may leave a full buffer unread.

        shutdown_seconds: how long the application may go on when the gateway stops.
        """
        self._app = app
        self._options = options
        self._running = Running(max_body_bytes=max_body_bytes, patience=patience)
        self._lifespan = Lifespan(app)
        self._shutdown_seconds = shutdown_seconds
        self._starlette = is_starlette(app)
        if self._starlette:
            self._install(app)

    async def lifespan(self, _: web.Application) -> AsyncIterator[None]:
        """Starts the application, and lets it go in the end. Raises StartupFailed."""
        await self._lifespan.start()
        yield
        await self._running.drain(self._shutdown_seconds)
        await self._lifespan.stop()

    async def on_shutdown(self, _: web.Application) -> None:
        """Ends what would not end by itself: streams and WebSockets of the application."""
        self._running.stop()

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Hands the request to whom it belongs."""
        prefix = self._options.mount_prefix
        if not (request.path + "/").startswith(prefix + "/"):
            return await handler(request)
        scope = scope_of(request, root_path=prefix) | {"state": dict(self._lifespan.state)}
        if _is_websocket(request):
            return await self._websocket(request, handler, scope)
        is_own = self._is_own(scope) if self._starlette else not _is_ours(request)
        if not is_own and not self._starlette:
            return await handler(request)
        if self._asks_first(is_own) and (not is_own or self._options.enable_custom_route_auth):
            await self._authenticate(request, scope, is_own=is_own)
        exchange = self._running.exchange(request)
        scope[EXCHANGE] = Inner(exchange, handler, is_known=_is_known(request))
        return await self._running.serve(self._app, scope, exchange)

    async def _websocket(
        self, request: web.Request, handler: Handler, scope: dict[str, Any]
    ) -> web.StreamResponse:
        wanted = request.headers.get("Sec-WebSocket-Protocol", "")
        scope |= {
            "type": "websocket",
            "scheme": "wss" if request.secure else "ws",
            "subprotocols": [name.strip() for name in wanted.split(",") if name.strip()],
            "extensions": {"websocket.http.response": {}},
        }
        del scope["method"]
        if not (self._is_own(scope) if self._starlette else not _is_ours(request)):
            return await handler(request)
        if self._options.enable_custom_route_auth:
            await self._authenticate(request, scope, is_own=True)
        return await self._running.serve_websocket(self._app, scope, request)

    def _asks_first(self, is_own: bool) -> bool:
        """Whether the caller is authenticated before the application's middleware."""
        return self._options.middleware_order == "auth_first" or (is_own and not self._starlette)

    async def _authenticate(
        self, request: web.Request, scope: Scope, *, is_own: bool
    ) -> AnyUser | None:
        """Who calls, also for the application to see. Raises Denied."""
        if not is_own and _is_public(request):
            return None
        user = await authenticate(request)
        if user is not None:
            scope["user"] = user
            scope["auth"] = _Credentials(user.permissions)
        return user

    # --- Starlette --------------------------------------------------------------------------

    def _install(self, app: Any) -> None:
        """Puts our routes behind the application's, inside its middleware."""
        routing = importlib.import_module("starlette.routing")
        self._full, self._none = routing.Match.FULL, routing.Match.NONE
        self._own = app.router.routes
        at_root = [i for i, route in enumerate(self._own) if getattr(route, "path", None) == ""]
        self._ours = _OurRoutes(self._full, self._none, routing.NoMatchFound)
        self._own.insert(at_root[0] if at_root else len(self._own), self._ours)
        app.router.default = self._unmatched
        if self._options.enable_custom_route_auth:
            wrapped = importlib.import_module("starlette.middleware").Middleware
            app.user_middleware.append(wrapped(_RouteAuth, custom=self))

    def _is_own(self, scope: Scope) -> bool:
        """Whether a route of the application matches the request's path and method."""
        return any(
            route.matches(scope)[0] is self._full for route in self._own if route is not self._ours
        )

    async def _unmatched(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What neither of us knows is answered by us, in our shape."""
        if EXCHANGE in scope:
            await scope[EXCHANGE](scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})


class _OurRoutes:
    """All our routes as one of the application's."""

    def __init__(self, full: Any, none: Any, no_match: type[Exception]) -> None:
        self._full, self._none, self._no_match = full, none, no_match

    def matches(self, scope: Scope) -> tuple[Any, Scope]:
        """Starlette's question."""
        inner = scope.get(EXCHANGE)
        is_ours = inner is not None and inner.is_known and scope["type"] == "http"
        return (self._full if is_ours else self._none), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers the request."""
        await scope[EXCHANGE](scope, receive, send)

    def url_path_for(self, name: str, /, **path_params: Any) -> Any:
        """None of our routes has a name."""
        raise self._no_match(name, path_params)


class _RouteAuth:
    """Innermost middleware: authenticates callers of the application's own routes."""

    def __init__(self, app: Asgi, custom: CustomApp) -> None:
        self._app = app
        self._custom = custom

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and EXCHANGE in scope and self._custom._is_own(scope):
            try:
                await self._custom._authenticate(
                    scope[EXCHANGE].exchange.request, scope, is_own=True
                )
            except Exception as error:
                answer = refusal(error)
                if answer is None:
                    raise
                for message in _refused(answer):
                    await send(message)
                return
        await self._app(scope, receive, send)


def _refused(answer: Refusal) -> Sequence[Message]:
    headers = [(k.lower().encode(), v.encode("latin-1")) for k, v in answer.headers.items()]
    body = orjson.dumps({"detail": answer.detail})
    headers += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    return (
        {"type": "http.response.start", "status": answer.status, "headers": headers},
        {"type": "http.response.body", "body": body},
    )


class _Credentials:
    """What Starlette's ``requires`` looks at."""

    def __init__(self, scopes: Sequence[str]) -> None:
        self.scopes = ["authenticated", *scopes]


def is_starlette(app: Any) -> bool:
    """Whether the application is Starlette's, or of a kind with it."""
    return hasattr(getattr(app, "router", None), "routes") and hasattr(app, "user_middleware")


def _is_websocket(request: web.Request) -> bool:
    return request.method == "GET" and request.headers.get("Upgrade", "").lower() == "websocket"


def _is_ours(request: web.Request) -> bool:
    """Whether a route of ours matches the request's path and method."""
    return request.match_info.http_exception is None


def _is_known(request: web.Request) -> bool:
    """Whether a route of ours matches the request's path."""
    problem = request.match_info.http_exception
    return problem is None or problem.status == web.HTTPMethodNotAllowed.status_code


def _is_public(request: web.Request) -> bool:
    endpoint = getattr(request.match_info.handler, "__self__", None)
    return not isinstance(endpoint, Endpoint) or endpoint.on == PUBLIC

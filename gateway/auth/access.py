"""Authenticates callers and asks what they may do: one question a request, before its handler.

The answers of the user's handlers, and what becomes of them:

    authenticate   a user                     who calls
                   HTTPException              its status, text and headers
                   ValueError                 400 with its text
                   AssertionError             403 with its text
                   anything else raised       503, and the log says why
    on …           None, True                 go on
                   False                      403
                   a dict                     only rows whose metadata match it (``visibility``)
                   HTTPException, AssertionError as above; anything else 503

The most specific handler is asked, and no other: resource and action, resource, action, all. With
none, everybody who was authenticated may. Handlers change ``value`` in place.
"""

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import structlog
from aiohttp import web
from langgraph_sdk import Auth
from langgraph_sdk.auth.types import AuthContext

from gateway.auth.cache import CacheOptions, UserCache
from gateway.auth.request import PARAMETERS, arguments
from gateway.auth.user import STUDIO, AnyUser, InvalidUser, User
from gateway.errors import Denied, ProjectFailed, RequestError
from persistence.visibility import Filter, InvalidFilter, clause

log = structlog.get_logger()

Value = dict[str, Any]

_THREADS = 64
"""Plain functions that authenticate at the same time; each may wait for somebody else's server."""


class InvalidAuth(Exception):
    """The user's ``Auth`` object cannot be used; the text says why."""


class Access:
    """The user's ``Auth`` object, asked for each request."""

    def __init__(
        self,
        auth: Auth,
        *,
        studio: "StudioPolicy | None" = None,
        openapi: Mapping[str, Any] | None = None,
        cache: CacheOptions | None = None,
    ) -> None:
        """studio: who is let in as LangGraph Studio without the user's handler; None: nobody.

        openapi: what the OpenAPI document says of it, see ``gateway.openapi``.
        cache: for how long whom is known without asking; None: nobody.
        Raises InvalidAuth.
        """
        if not isinstance(auth, Auth):
            raise InvalidAuth(f"expected a langgraph_sdk.Auth, got {type(auth).__name__}")
        if auth._authenticate_handler is None:
            raise InvalidAuth("it has no @auth.authenticate handler, so nobody could be let in")
        self._auth = auth
        self._authenticate: Callable[..., Any] = auth._authenticate_handler
        self._wanted = _wanted(self._authenticate)
        self._studio = studio
        self.openapi: Mapping[str, Any] = openapi or {}
        self._cache = UserCache(cache) if cache else None
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="authenticate")

    async def authenticate(self, request: web.Request) -> AnyUser:
        """Who calls. Raises Denied when nobody may, ProjectFailed when the handler fails."""
        if self._studio is not None and self._studio(request):
            return STUDIO
        key = self._cache.key(request, self._wanted) if self._cache else None
        if self._cache is None or key is None:
            return await self._authenticated(request)
        user = self._cache.get(key)
        if user is None:
            user = await self._authenticated(request)
            self._cache.put(key, user)
        return user

    async def _authenticated(self, request: web.Request) -> User:
        values = await arguments(request, self._wanted)
        try:
            return User(await self._ask(values))
        except InvalidUser as error:
            log.exception("the authentication handler answered no user")
            raise ProjectFailed(_FAILED.format("authentication")) from error
        except ValueError as error:
            raise _denied(error) or Denied(400, str(error)) from error
        except Exception as error:
            raise _refusal(error, "authentication") from error

    async def authorize(self, user: AnyUser, on: str, value: Value) -> Filter | None:
        """What of ``on`` ("resource.action") the user may see; None: all of it.

        value: what is asked for; the handler may change it. Raises Denied, ProjectFailed.
        """
        resource, _, action = on.partition(".")
        handler = self._handler(resource, action)
        if handler is None:
            return None
        context = AuthContext(
            permissions=user.permissions,
            user=cast("Any", user),
            resource=cast("Any", resource),
            action=cast("Any", action),
        )
        try:
            answer = await handler(ctx=context, value=value)
        except Exception as error:
            raise _refusal(error, "authorization") from error
        return _filter(answer)

    def close(self) -> None:
        """Lets go of the threads; does not wait for handlers that hang."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _handler(self, resource: str, action: str) -> Callable[..., Awaitable[Any]] | None:
        for key in ((resource, action), (resource, "*"), ("*", action)):
            if found := self._auth._handlers.get(key):
                return found[-1]
        return self._auth._global_handlers[-1] if self._auth._global_handlers else None

    async def _ask(self, values: Mapping[str, Any]) -> Any:
        """The authentication handler's answer; a plain function must not hold up the loop."""
        if _is_async(self._authenticate):
            return await self._authenticate(**values)
        call = functools.partial(contextvars.copy_context().run, self._authenticate, **values)
        answer = await asyncio.get_running_loop().run_in_executor(self._threads, call)
        return await answer if inspect.isawaitable(answer) else answer


StudioPolicy = Callable[[web.Request], bool]

_FORWARDED = ("X-Forwarded-For", "Forwarded", "X-Real-IP")
_LOOPBACK = ("127.", "::1", "::ffff:127.")


def studio_from_anywhere(request: web.Request) -> bool:
    """Whoever says that it is Studio. Its header is no credential: to be asked for only."""
    return request.headers.get("X-Auth-Scheme", "").lower() == "langsmith"


def studio_from_here(request: web.Request) -> bool:
    """Studio in a browser on this machine, which has connected without a proxy in between."""
    peer = request.transport.get_extra_info("peername") if request.transport else None
    is_near = isinstance(peer, tuple) and str(peer[0]).startswith(_LOOPBACK)
    is_forwarded = any(name in request.headers for name in _FORWARDED)
    return is_near and not is_forwarded and studio_from_anywhere(request)


def _wanted(handler: Callable[..., Any]) -> frozenset[str]:
    """The parameters that the handler takes. Raises InvalidAuth for one that nobody can give."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    wanted = set()
    for name, parameter in inspect.signature(handler).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        if name in PARAMETERS and parameter.kind in named:
            wanted.add(name)
        elif parameter.default is parameter.empty and (
            parameter.kind is not inspect.Parameter.VAR_POSITIONAL
        ):
            known = ", ".join(sorted(PARAMETERS))
            raise InvalidAuth(
                f"its @auth.authenticate handler wants '{name}'; it may take {known}, by name"
            )
    return frozenset(wanted)


def _is_async(handler: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - its kind is asked for, not its presence
    )


def _filter(answer: Any) -> Filter | None:
    if answer is None or answer is True:
        return None
    if answer is False:
        raise Denied(403, "Forbidden")
    if not isinstance(answer, Mapping):
        log.error("an authorization handler answered what is no filter", got=repr(answer))
        raise ProjectFailed(
            "Auth handler returned invalid result. Expected filter dict, None, or boolean. "
            f"Got {type(answer)} instead.",
        )
    try:
        clause("metadata", answer)
    except InvalidFilter as error:
        log.exception("an authorization handler answered a filter that nobody understands")
        raise ProjectFailed(f"Auth handler returned invalid filter: {error}") from error
    return answer or None


_FAILED = "The project's {} failed"
"""All that the caller is told, who may be anybody: the log has the rest."""


def _refusal(error: Exception, what: str) -> RequestError:
    """What the caller is told of what a handler raised. what: ``authentication`` or so."""
    if denied := _denied(error):
        return denied
    if isinstance(error, AssertionError):
        return Denied(403, str(error) or "Forbidden")
    log.error("a handler failed", of=what, exc_info=error)
    return ProjectFailed(_FAILED.format(what))


def _denied(error: Exception) -> RequestError | None:
    """What an HTTPException says: the SDK's, or that of the framework the user is used to."""
    if isinstance(error, RequestError):
        return error
    status = getattr(error, "status_code", None)
    if not isinstance(status, int) or not 400 <= status <= 599:
        return None
    headers = getattr(error, "headers", None) or {}
    return Denied(status, str(getattr(error, "detail", "")), dict(headers))

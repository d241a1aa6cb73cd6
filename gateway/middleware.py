"""What surrounds every request: errors become JSON, and pages of other origins may read answers."""

import re

import orjson
import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.errors import Refusal, refusal
from gateway.http_options import CorsOptions
from gateway.metrics import LEFT

log = structlog.get_logger()

EXPOSED_HEADERS = "content-location, location, x-pagination-total, x-pagination-next"
"""``location`` is beyond the reference: with it, pages can reconnect a stream by themselves."""

_METHODS = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"
_NEEDED_HEADERS = (
    *("accept", "authorization", "content-type", "last-event-id", "prefer"),
    *("x-api-key", "x-auth-scheme"),
)
"""What the official clients send; allowed whatever a project allows."""
_INTERNAL = Refusal(500, "Internal Server Error")


def refuse(answer: Refusal) -> web.Response:
    """The JSON answer for a refusal."""
    return web.Response(
        status=answer.status,
        body=orjson.dumps({"detail": answer.detail}),
        content_type="application/json",
        headers=answer.headers,
    )


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turns whatever a handler raises into status and ``{"detail": …}``."""
    try:
        return await handler(request)
    except web.HTTPRedirection:
        raise
    except Exception as error:
        if isinstance(error, ConnectionError) and _has_left(request):
            log.info("client left unanswered", method=request.method, path=request.path)
            return web.Response(status=LEFT)  # for whoever counts: nobody reads it
        answer = refusal(error)
        if answer is None:
            log.exception("request failed", method=request.method, path=request.path)
            answer = _INTERNAL
        return refuse(answer)


def _has_left(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


class Cors:
    """Lets pages of the allowed origins ask, and read answers, streams and errors."""

    def __init__(self, origins: tuple[str, ...], options: CorsOptions = CorsOptions()) -> None:  # noqa: B008  # frozen
        """origins: those of the settings, unless the project's options name some."""
        if options.allow_origins is not None or options.allow_origin_regex is not None:
            origins = tuple(options.allow_origins or ())
        self._any = "*" in origins
        self._origins = frozenset(origins)
        # Without one, a pattern that no origin matches.
        self._pattern = re.compile(options.allow_origin_regex or r"(?!)")
        self._with_credentials = options.allow_credentials
        self._methods = _listed(options.allow_methods, ()) or _METHODS
        self._headers = _listed(options.allow_headers, _NEEDED_HEADERS)
        self._exposed = ", ".join(dict.fromkeys([EXPOSED_HEADERS, *options.expose_headers]))
        self._max_age = str(options.max_age)

    @web.middleware
    async def answer_preflights(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answers the question that browsers ask before a request from another origin."""
        wanted = request.headers.get("Access-Control-Request-Method")
        if request.method != "OPTIONS" or wanted is None or "Origin" not in request.headers:
            return await handler(request)
        response = web.Response(
            text="OK",
            headers={
                "Access-Control-Allow-Methods": self._methods,
                "Access-Control-Max-Age": self._max_age,
            },
        )
        asked = request.headers.get("Access-Control-Request-Headers")
        if allowed := self._headers or asked:
            response.headers["Access-Control-Allow-Headers"] = allowed
        if request.headers.get("Access-Control-Request-Private-Network") == "true":
            response.headers["Access-Control-Allow-Private-Network"] = "true"
        return response

    async def on_response_prepare(self, request: web.Request, response: web.StreamResponse) -> None:
        """Signal handler: runs for every response just before its headers are sent.

        A project's application that has its say already keeps it.
        """
        if "Origin" not in response.headers.getall("Vary", ()):
            response.headers.add("Vary", "Origin")
        origin = request.headers.get("Origin")
        if origin is None or "Access-Control-Allow-Origin" in response.headers:
            return
        if not (self._any or origin in self._origins or self._pattern.fullmatch(origin)):
            return
        named = origin if self._with_credentials or not self._any else "*"
        response.headers["Access-Control-Allow-Origin"] = named
        response.headers["Access-Control-Expose-Headers"] = self._exposed
        if self._with_credentials:
            response.headers["Access-Control-Allow-Credentials"] = "true"


def _listed(given: list[str] | None, needed: tuple[str, ...]) -> str:
    """A header's value for what is given and needed; empty when anything goes."""
    if given is None or "*" in given:
        return ""
    return ", ".join(
        dict.fromkeys([*needed, *(name.lower() if needed else name for name in given)])
    )

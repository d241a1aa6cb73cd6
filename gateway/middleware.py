"""What surrounds every request: errors become JSON, and pages of other origins may read answers."""

import orjson
import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.errors import Refusal, refusal

log = structlog.get_logger()

EXPOSED_HEADERS = "content-location, location, x-pagination-total, x-pagination-next"
"""``location`` is beyond the reference: with it, pages can reconnect a stream by themselves."""

_METHODS = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"
_PREFLIGHT_SECONDS = "600"
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
        answer = refusal(error)
        if answer is None:
            log.exception("request failed", method=request.method, path=request.path)
            answer = _INTERNAL
        return refuse(answer)


@web.middleware
async def answer_preflights(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answers the question that browsers ask before a request from another origin."""
    wanted = request.headers.get("Access-Control-Request-Method")
    if request.method != "OPTIONS" or wanted is None or "Origin" not in request.headers:
        return await handler(request)
    response = web.Response(
        text="OK",
        headers={
            "Access-Control-Allow-Methods": _METHODS,
            "Access-Control-Max-Age": _PREFLIGHT_SECONDS,
        },
    )
    if asked := request.headers.get("Access-Control-Request-Headers"):
        response.headers["Access-Control-Allow-Headers"] = asked
    if request.headers.get("Access-Control-Request-Private-Network") == "true":
        response.headers["Access-Control-Allow-Private-Network"] = "true"
    return response


class Cors:
    """Adds the headers that let pages of the allowed origins read answers, streams and errors."""

    def __init__(self, origins: tuple[str, ...]) -> None:
        self._any = "*" in origins
        self._origins = frozenset(origins)

    async def on_response_prepare(self, request: web.Request, response: web.StreamResponse) -> None:
        """Signal handler: runs for every response just before its headers are sent."""
        response.headers.add("Vary", "Origin")
        origin = request.headers.get("Origin")
        if origin is None or not (self._any or origin in self._origins):
            return
        response.headers["Access-Control-Allow-Origin"] = "*" if self._any else origin
        response.headers["Access-Control-Expose-Headers"] = EXPOSED_HEADERS

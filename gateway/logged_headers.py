"""Headers of requests in the log: those that ``http.logging_headers`` names, and no others.

Every line has them that is logged while a request is served, or by what it starts.
"""

from contextlib import AbstractContextManager, nullcontext

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from aiohttp.web_log import AccessLogger
from structlog.contextvars import bound_contextvars

from gateway.http_options import HeaderPatterns


def middleware(patterns: HeaderPatterns) -> Middleware:
    """What has to stand around everything that may log."""

    @web.middleware
    async def log_headers(request: web.Request, handler: Handler) -> web.StreamResponse:
        with _named(patterns, request):
            return await handler(request)

    return log_headers


def access_log(patterns: HeaderPatterns) -> type[AccessLogger]:
    """aiohttp's line a request, which is written when the handler and its context are gone."""

    class AccessLog(AccessLogger):
        def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
            with _named(patterns, request):
                super().log(request, response, time)

    return AccessLog


def _named(
    patterns: HeaderPatterns, request: web.BaseRequest
) -> AbstractContextManager[object | None]:
    headers = {
        # A line of the log is UTF-8; a header is what the client makes of it.
        name: value.encode(errors="surrogateescape").decode(errors="replace")
        for name, value in patterns.of(list(request.headers.items())).items()
    }
    return bound_contextvars(headers=headers) if headers else nullcontext()

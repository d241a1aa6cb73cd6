"""One client's connection: what is no HTTP, or no body, is refused in the words of all refusals."""

import structlog
from aiohttp import web
from aiohttp.web_request import BaseRequest

from gateway.errors import Refusal
from gateway.middleware import refuse

log = structlog.get_logger()


class Connection(web.RequestHandler):
    """aiohttp's, which would answer plain text, and log a client's faults as the server's."""

    __slots__ = ()

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what could not be read; after it the connection closes."""
        if status >= 500 or request.writer.output_size > 0:
            return super().handle_error(request, status, exc, message)
        log.info("request cannot be read", status=status, problem=message)
        answer = refuse(Refusal(status, f"The request cannot be read: {message}"))
        answer.force_close()
        return answer

    def log_exception(self, *args: object, exc_info: object = None, **more: object) -> None:
        """Says what the server failed at; that a body could not be read was answered already."""
        if isinstance(exc_info, web.RequestPayloadError):
            log.info("body cannot be read", problem=str(exc_info))
        else:
            super().log_exception(*args, exc_info=exc_info, **more)

"""What a request can fail with, and the one table that turns failures into answers.

    RequestError          the caller is told ``status`` and ``detail``
    ├── BadRequest        400  understood, but makes no sense
    ├── NotFound          404  not there, or hidden
    ├── Conflict          409  the present state forbids it
    ├── Unprocessable     422  the request has the wrong form
    ├── Denied            as the user's authentication or authorization says
    └── ProjectFailed     503  the project's own code failed that had to say something first

Errors of the layers below are translated here too. ``detail`` is always one string, which clients
show.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from aiohttp import web

from actors.dispatch import InspectorUnavailable
from persistence import errors as persistence

BUSY = (
    "Thread is already running a task. Wait for it to finish or choose a different "
    "multitask strategy."
)

RETRY_AFTER_SECONDS = 2
"""What a client is told to wait when a dependency is gone: about the time of a restart."""
TRY_AGAIN = {"Retry-After": str(RETRY_AFTER_SECONDS)}
"""Headers of every 503."""


class RequestError(Exception):
    """The request cannot be served; ``detail`` says why, for people."""

    status = 500

    def __init__(self, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.headers = headers or {}


class BadRequest(RequestError):
    """The request is well formed but makes no sense."""

    status = 400


class NotFound(RequestError):
    """What the request names is not there."""

    status = 404


class Conflict(RequestError):
    """The present state of what the request names forbids it."""

    status = 409


class Unprocessable(RequestError):
    """The request does not have the form that the endpoint takes."""

    status = 422


class ProjectFailed(RequestError):
    """The project's own code failed that has a part in the answer, so nothing was done.

    Often it is what that code needs: a model, a service of identities. The caller may try again.
    """

    status = 503

    def __init__(self, detail: str) -> None:
        super().__init__(detail, TRY_AGAIN)


class Denied(RequestError):
    """The caller is not known, or may not do this."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail, headers)
        self.status = status


@dataclass(frozen=True, slots=True)
class Refusal:
    """Status, text and extra headers of an error's answer."""

    status: int
    detail: str
    headers: Mapping[str, str] = field(default_factory=dict)


def refusal(error: Exception) -> Refusal | None:
    """The answer for an error; None for one that nobody foresaw (a bug: 500)."""
    match error:
        case RequestError():
            return Refusal(error.status, error.detail, error.headers)
        case persistence.Unavailable():
            return Refusal(503, "The database is not available", TRY_AGAIN)
        case InspectorUnavailable():
            return Refusal(503, "No worker can answer for the graph at present", TRY_AGAIN)
        case persistence.ThreadBusy():
            return Refusal(409, BUSY)
        case persistence.ThreadNotFound():
            return Refusal(404, f"Thread with ID {error} not found")
        case persistence.RunNotFound():
            return Refusal(404, "Run not found")
        case persistence.AssistantNotFound():
            return Refusal(404, f"Assistant {error} not found")
        case persistence.NotFound():
            return Refusal(404, str(error) or "Not Found")
        case persistence.Conflict():
            return Refusal(409, str(error) or "Conflict")
        case web.HTTPException():
            allow = error.headers.get("Allow")
            return Refusal(error.status, error.reason, {"Allow": allow} if allow else {})
        case _:
            return None

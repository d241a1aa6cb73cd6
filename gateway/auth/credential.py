"""Who calls when a graph does: the one who started its run.

A graph process adds the credential of a run's present attempt to what the run's code asks of the
server. It is drawn when the attempt is claimed, and dead when the attempt is over.
"""

from uuid import UUID

import orjson
from aiohttp import web

from gateway.auth.user import STUDIO, AnyUser, InvalidUser, User
from gateway.errors import Denied
from gateway.http_options import RUN_HEADER
from persistence import runs
from persistence.engine import Database
from persistence.errors import RunNotFound
from persistence.lifecycle import ACTIVE


async def caller(request: web.Request, database: Database) -> AnyUser:
    """The caller of the run whose credential the request shows. Raises Denied."""
    credential = request.headers[RUN_HEADER]
    if not credential:
        raise Denied(
            401,
            "A client without a URL acts as the caller of a run, and this code belongs to no run:"
            " it was called at import, or in a thread that was not given the run's context",
        )
    run_id, _, secret = credential.partition(".")
    try:
        found = await runs.caller(database, UUID(run_id), UUID(secret))
    except ValueError:
        raise Denied(401, "The credential is none of a run") from None
    if found is None:
        raise Denied(401, "The run of this credential is over, or nobody is known to have made it")
    try:
        return _user(orjson.loads(found))
    except InvalidUser:
        raise Denied(401, "Nobody is known to have made the run of this credential") from None


async def comes_from(request: web.Request, database: Database, thread_id: UUID) -> bool:
    """Whether code of a run that is active on the thread makes the request."""
    try:
        run_id = UUID(request.headers.get(RUN_HEADER, "").partition(".")[0])
        run = await runs.get(database, thread_id, run_id)
    except (ValueError, RunNotFound):
        return False
    return run.status in ACTIVE


def _user(fields: object) -> AnyUser:
    if isinstance(fields, dict) and fields.get("kind") == "StudioUser":
        return STUDIO
    return User(fields)

"""An application of the project's own around the server's routes: a lifespan and middleware."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


class Mark(BaseHTTPMiddleware):
    """Says on every answer that it was there."""

    async def dispatch(self, request: Request, call_next: Any) -> Any:
        response = await call_next(request)
        response.headers["x-mark"] = request.state.mark
        return response


async def mine(request: Request) -> JSONResponse:
    return JSONResponse({"user": request.user.identity, "mark": request.state.mark})


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[dict[str, str]]:
    yield {"mark": "of the lifespan"}


app = Starlette(routes=[Route("/mine", mine)], middleware=[Middleware(Mark)], lifespan=lifespan)

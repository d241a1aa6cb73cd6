"""The OpenAPI document, and a page to read it with; the page loads nothing from elsewhere."""

from importlib import resources

from aiohttp import web

from gateway.openapi import DOCUMENT
from gateway.responses import Response
from gateway.routing import PUBLIC, Call, Routes
from gateway.wire.answers import relay

routes = Routes()

_PAGE = resources.files("gateway").joinpath("static", "docs.html").read_bytes()

# Everything that the page needs is in it, but for the document.
_ONLY_ITSELF = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
)


@routes.get("/openapi.json", on=PUBLIC, responses={200: dict[str, object]})
async def openapi(call: Call) -> web.Response:
    """Describes this API, in the form of OpenAPI 3.1."""
    return relay(call.request.app[DOCUMENT].body)


@routes.get("/docs", on=PUBLIC, responses={200: Response("A page.", str, "text/html")})
async def page(call: Call) -> web.Response:
    """Shows the API to people."""
    return web.Response(
        body=_PAGE,
        content_type="text/html",
        charset="utf-8",
        headers={"Content-Security-Policy": _ONLY_ITSELF},
    )

"""Headers in the log: the ones that are named, on every line of the request, and no others."""

import asyncio
import logging
from typing import Any
from urllib.parse import urlsplit

from langgraph_sdk import Auth
from structlog.contextvars import get_contextvars

from gateway.auth.access import Access
from gateway.http_options import HeaderPatterns, HttpOptions
from tests.gateway.conftest import House

NAMED = HttpOptions(
    logging_headers=HeaderPatterns(includes=["x-*", "request-id"], excludes=["*token*"])
)


async def test_every_line_has_those_that_are_named(house: House) -> None:
    logged: list[Any] = []
    written = asyncio.Event()

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.append(get_contextvars())
            written.set()

    auth, inside = Auth(), []

    @auth.authenticate
    async def authenticate() -> str:
        inside.append(get_contextvars())
        return "ann"

    lines, log = Lines(), logging.getLogger("aiohttp.access")
    log.addHandler(lines)
    log.setLevel(logging.INFO)
    try:
        client = await house.gateway(http=NAMED, access=Access(auth), access_log=True)
        # By hand: no client sends bytes that are no text.
        address = urlsplit(client.url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(
            b"GET /threads/x HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: secret\r\n"
            b"X-Trace: \xc3\xa9\xff\r\nRequest-ID: 7\r\nX-Token: secret\r\n\r\n"
        )
        assert b" 422 " in await reader.readline()
        writer.close()
        await written.wait()
    finally:
        log.removeHandler(lines)
        log.setLevel(logging.NOTSET)
    assert inside == logged == [{"headers": {"x-trace": "é\ufffd", "request-id": "7"}}]


async def test_without_a_section_there_are_none(house: House) -> None:
    auth, inside = Auth(), []

    @auth.authenticate
    async def authenticate() -> str:
        inside.append(get_contextvars())
        return "ann"

    client = await house.gateway(access=Access(auth))
    await client.post("/threads/search", {}, **{"X-Trace": "1"})
    assert inside == [{}]

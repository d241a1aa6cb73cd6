"""As little HTTP/1.1 as the scenarios need: one kept-alive connection, one request at a time.

A client library costs milliseconds of CPU a request at this concurrency, several times what the
server spends on a run, and it would spend them on the cores that are being measured.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit


class UnexpectedAnswer(Exception):
    """The server answered with another status than 200."""


class Connection:
    """A connection to the server; opened anew after an answer that closes it."""

    def __init__(self, url: str, api_key: str | None = None) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or "127.0.0.1"
        self._tls = parts.scheme == "https"
        self._port = parts.port or (443 if self._tls else 80)
        self._prefix = parts.path.rstrip("/")
        key = f"x-api-key: {api_key}\r\n" if api_key else ""
        self._headers = f"host: {parts.netloc}\r\ncontent-type: application/json\r\n{key}"
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def __aenter__(self) -> "Connection":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def request(self, method: str, path: str, body: Any = None) -> bytes:
        """The whole body of the answer. Raises UnexpectedAnswer unless its status is 200."""
        return b"".join([chunk async for chunk in self.stream(method, path, body)])

    async def stream(self, method: str, path: str, body: Any = None) -> AsyncIterator[bytes]:
        """The parts of the answer's body as they arrive."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(
                self._host, self._port, ssl=self._tls or None, limit=1 << 20
            )
        reader, writer = self._streams
        sent = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {self._prefix}{path} HTTP/1.1\r\n{self._headers}"
        writer.write(f"{head}content-length: {len(sent)}\r\n\r\n".encode() + sent)
        status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines if line)
        whole = status.split(" ")[1] == "200"
        parts = []
        async for part in _body(reader, headers):
            if whole:
                yield part
            else:
                parts.append(part)
        if headers.get("connection") == "close" or not _is_delimited(headers):
            self._close()
        if not whole:
            raise UnexpectedAnswer(f"{method} {path}: {status}: {b''.join(parts)[:500]!r}")


def _is_delimited(headers: dict[str, str]) -> bool:
    return "content-length" in headers or headers.get("transfer-encoding") == "chunked"


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> AsyncIterator[bytes]:
    if headers.get("transfer-encoding") == "chunked":
        while size := int((await reader.readline()).split(b";")[0], 16):
            yield (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    elif "content-length" in headers:
        yield await reader.readexactly(int(headers["content-length"]))
    else:
        while part := await reader.read(1 << 16):
            yield part

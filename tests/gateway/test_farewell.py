"""A gateway that stops leaves no client in doubt whether its request was heard."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
import psycopg
import pytest

from tests.gateway.test_server import PROGRAM


class Line:
    """One connection that is kept."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, method: str, path: str, body: str = "") -> tuple[str, dict[str, str]]:
        """Sends a request; returns the status line and the headers of the answer."""
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        self._writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\n{length}\r\n{body}".encode())
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        status, *lines = head.strip().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        if "content-length" in headers:
            await self._reader.readexactly(int(headers["content-length"]))
        return status, headers

    async def rest(self) -> bytes:
        """What comes until the line is closed."""
        return await self._reader.read()

    async def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def line(port: int) -> AsyncIterator[Line]:
    connection = Line(*await asyncio.open_connection("127.0.0.1", port))
    try:
        yield connection
    finally:
        await connection.close()


@pytest.fixture
async def stopped(database_url: str, redis_url: str, free_port: int) -> AsyncIterator[list[Line]]:
    """Two idle lines to a gateway that has been told to stop and takes no new ones."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, database_url, redis_url, str(free_port)]
    )
    try:
        async with asyncio.timeout(30):
            while True:
                try:
                    async with line(free_port):
                        break
                except ConnectionError:
                    await asyncio.sleep(0.05)
        async with line(free_port) as one, line(free_port) as other:
            for kept in (one, other):
                status, headers = await kept.ask("GET", "/ok")
                assert status == "HTTP/1.1 200 OK"
                assert headers.get("connection") != "close"
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(30):
                while True:
                    try:
                        async with line(free_port):
                            await asyncio.sleep(0.01)
                    except ConnectionError:
                        break
            yield [one, other]
        assert await asyncio.to_thread(process.wait, 20) == 0
    finally:
        process.kill()
        process.wait()


async def test_a_request_on_an_idle_line_is_answered_and_sent_elsewhere(
    stopped: list[Line],
) -> None:
    status, headers = await stopped[0].ask("GET", "/ok")
    assert (status, headers["connection"]) == ("HTTP/1.1 200 OK", "close")
    assert await stopped[0].rest() == b""


async def test_a_wait_that_begins_now_is_cut_and_its_run_goes_on(
    stopped: list[Line], database_url: str
) -> None:
    """Its client learns where to go on, and is not taken for one that left."""
    body = '{"assistant_id": "agent", "on_disconnect": "cancel"}'
    status, headers = await stopped[0].ask("POST", "/runs/wait", body)
    assert status == "HTTP/1.1 200 OK"
    assert headers["location"].endswith("/join")
    assert not (await stopped[0].rest()).endswith(b"0\r\n\r\n"), "the answer is seen to be cut"
    with psycopg.connect(database_url) as connection:
        rows = connection.execute("SELECT status, cancel_requested_at FROM runs").fetchall()
    assert rows == [("pending", None)]


@pytest.mark.parametrize("resumable", [True, False])
async def test_who_was_cut_off_before_the_first_event_goes_on_at_the_location(
    client, stage, resumable
) -> None:
    """SDKs have no id to name then. What has none would be told twice to those who saw it."""
    thread_id = await client.thread()
    start = orjson.dumps({"assistant_id": "agent", "stream_resumable": resumable})
    async with client.session.post(
        f"{client.url}/threads/{thread_id}/runs/stream", data=start
    ) as response:
        run_id = await stage.next_message()
        location = response.headers["Location"]
    await stage.perform(run_id, ("values", {"a": 1}), values={})
    async with client.session.get(client.url + location) as response:
        assert (b'{"a":1}' in await response.read()) is resumable

"""The gateway as a process of its own: uvloop, a shared port, and a stop by signal."""

import asyncio
import os
import signal
import subprocess
import sys

import aiohttp
import pytest

from gateway.context import Background
from gateway.settings import GatewaySettings

PROGRAM = """
import sys
from actors.dispatch import RedisDispatcher
from actors.event_reader import RedisEventReader
from gateway.app import create_app
from gateway.server import serve
from gateway.settings import GatewaySettings
from persistence.engine import Database
from persistence.settings import DatabaseSettings

database_url, redis_url, port = sys.argv[1:]
settings = GatewaySettings(port=int(port))
database = Database(DatabaseSettings(url=database_url))
app = create_app(settings, database=database, dispatcher=RedisDispatcher(redis_url),
    events=RedisEventReader(redis_url, database), graph_ids=frozenset({"agent"}), version="0")
serve(app, settings)
"""


async def test_sigterm_ends_it_at_once_with_streams_open(
    database_url, redis_url, free_port
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, database_url, redis_url, str(free_port)],
        env={**os.environ, "GATEWAY_SHUTDOWN_SECONDS": "60"},  # what streams must not use up
    )
    url = f"http://127.0.0.1:{free_port}"
    try:
        async with aiohttp.ClientSession() as session:
            async with asyncio.timeout(30):
                while True:
                    try:
                        await (await session.get(f"{url}/ok")).read()
                        break
                    except aiohttp.ClientConnectionError:
                        await asyncio.sleep(0.05)
            responses = [
                await session.post(f"{url}/runs/{kind}", json={"assistant_id": "agent"})
                for kind in ("stream", "wait") * 10
            ]
            assert {response.status for response in responses} == {200}
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 40) == 0
            for response in responses:
                response.close()
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("name", "value"),
    [("PORT", "x"), ("PORT", "70000"), ("MAX_BODY_BYTES", "0"), ("STREAM_HEARTBEAT_SECONDS", "0")],
)
def test_a_bad_setting_is_refused_by_name(monkeypatch, name, value) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=name.lower()):
        GatewaySettings()


def test_settings_come_from_the_environment(monkeypatch) -> None:
    monkeypatch.setenv("PORT", "8123")
    monkeypatch.setenv("CORS_ALLOW_ORIGINS", "http://a, http://b")
    settings = GatewaySettings()
    assert (settings.port, settings.cors_allow_origins) == (8123, ("http://a", "http://b"))


async def test_background_work_does_not_hold_up_the_end() -> None:
    background = Background()
    done: list[float] = []

    async def work(seconds: float) -> None:
        await asyncio.sleep(seconds)
        done.append(seconds)

    background.start(work(0.01))
    endless = background.spawn(work(3600))
    await background.drain(0.2)
    assert done == [0.01]
    assert endless.cancelled()

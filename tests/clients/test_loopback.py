"""``get_client()`` and ``get_sync_client()`` without a URL, in graphs."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import AuthenticationError

from tests.clients.conftest import GRAPHS
from tests.contract.conftest import Callboard

pytestmark = pytest.mark.topology


async def ask(client: LangGraphClient, op: str) -> Any:
    values: Any = await client.runs.wait(None, "caller", input={"op": op})
    return values["out"]


@pytest.mark.parametrize("op", ["converse", "converse_sync"])
async def test_a_node_streams_another_graph_while_it_runs(client: LangGraphClient, op: str) -> None:
    """It stops an endless run after its first news: they came before the end."""
    out = await ask(client, op)
    assert out == {"news": [{"heard": "wait"}, {"waited": 0}], "status": "interrupted"}


@pytest.mark.parametrize("op", ["follow", "follow_sync"])
async def test_a_cancel_goes_through_to_the_run_that_a_node_waits_for(
    callboard: Callboard, client: LangGraphClient, op: str
) -> None:
    thread_id = (await client.threads.create())["thread_id"]
    parts = client.runs.stream(thread_id, "caller", input={"op": op}, stream_mode="custom")
    outer = (await anext(parts)).data["run_id"]
    inner = (await anext(parts)).data
    await client.runs.cancel(thread_id, outer, wait=True)
    await client.runs.join(inner["thread_id"], inner["run_id"])
    run = await client.runs.get(inner["thread_id"], inner["run_id"])
    assert run["status"] == "interrupted"
    assert not callboard.has_said("run does not stop"), "the reading thread heard of it"


async def test_a_run_that_would_wait_for_itself_is_refused(client: LangGraphClient) -> None:
    assert "would wait for ever" in await ask(client, "wait_for_itself")


async def test_without_authentication_code_of_no_run_may_call_too(client: LangGraphClient) -> None:
    assert isinstance(await ask(client, "elsewhere"), list)


async def test_a_remote_graph_without_a_url_is_a_node(client: LangGraphClient) -> None:
    values: Any = await client.runs.wait(None, "remote", input={"messages": "hello"})
    assert values["messages"][-1]["content"] == "You said: You said: hello", "async, then sync"


@contextmanager
def in_process(data: Path, port: int) -> Iterator[str]:
    """The URL of a server with authentication, in one process."""
    url = f"http://127.0.0.1:{port}"
    command = [str(Path(sys.executable).parent / "callboard"), "dev", "--in-process"]
    command += ["--config", str(GRAPHS / "with_auth.json"), "--port", str(port)]
    command += ["--data", str(data / "data")]
    environment = {k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "REDIS_URL")}
    with (data / "log").open("wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd="/")
    try:
        transport = httpx.HTTPTransport(retries=8)
        with httpx.Client(base_url=url, transport=transport) as client:
            assert client.get("/ok").status_code == 200, (data / "log").read_text()
        yield url
    finally:
        server.terminate()
        server.wait(30)


@pytest.fixture(scope="module", params=["graph processes", "in process"])
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, module_port: int
) -> Iterator[str]:
    """The URL of a server where everybody sees what they made."""
    data = tmp_path_factory.mktemp("guarded")
    if request.param == "in process":
        with in_process(data, module_port) as url:
            yield url
        return
    config = str(GRAPHS / "with_auth.json")
    running = Callboard("up", "--config", config, "--data", str(data), WORKER_COUNT="1")
    yield running.url
    assert running.stop() == 0


@pytest.fixture
async def ann(guarded: str) -> AsyncIterator[LangGraphClient]:
    async with get_client(url=guarded, headers={"Authorization": "ann"}) as client:
        yield client


@pytest.fixture
async def bob(guarded: str) -> AsyncIterator[LangGraphClient]:
    async with get_client(url=guarded, headers={"Authorization": "bob"}) as client:
        yield client


async def test_a_graph_is_who_started_it(ann: LangGraphClient, bob: LangGraphClient) -> None:
    anns = (await ann.threads.create())["thread_id"]
    bobs = (await bob.threads.create())["thread_id"]
    assert anns in await ask(ann, "look")
    assert bobs not in await ask(ann, "look")
    assert bobs in await ask(bob, "look")
    assert anns not in await ask(bob, "look")


@pytest.mark.parametrize("op", ["converse", "converse_sync"])
async def test_what_a_graph_makes_belongs_to_who_started_it(
    ann: LangGraphClient, bob: LangGraphClient, op: str
) -> None:
    before = {thread["thread_id"] for thread in await ann.threads.search(limit=100)}
    bobs = await bob.threads.count()
    assert (await ask(ann, op))["status"] == "interrupted"
    made = [t for t in await ann.threads.search(limit=100) if t["thread_id"] not in before]
    assert [thread["metadata"]["owner"] for thread in made] == ["ann"]
    assert await bob.threads.count() == bobs


async def test_code_of_no_run_is_nobody(ann: LangGraphClient) -> None:
    assert "this code belongs to no run" in await ask(ann, "elsewhere")


async def test_a_credential_is_dead_when_its_run_is_over(
    guarded: str, ann: LangGraphClient
) -> None:
    shown = await ask(ann, "credential")
    headers = {"X-Callboard-Run": shown, "Authorization": "bob"}
    async with get_client(url=guarded, headers=headers) as thief:
        with pytest.raises(AuthenticationError, match="is over"):
            await thief.threads.search()


async def test_a_credential_cannot_be_made_up(guarded: str, ann: LangGraphClient) -> None:
    run = await ann.runs.create(None, "chat", input={"messages": "wait"})
    for forged in ("", "x", f"{run['run_id']}.", f"{run['run_id']}.{run['run_id']}"):
        headers = {"X-Callboard-Run": forged, "Authorization": "ann"}
        async with get_client(url=guarded, headers=headers) as forger:
            with pytest.raises(AuthenticationError):
                await forger.threads.search()
    await ann.runs.cancel(run["thread_id"], run["run_id"])


async def test_many_runs_call_at_once(client: LangGraphClient) -> None:
    """Each has its own identity, but they share their connections."""
    outs = await asyncio.gather(*(ask(client, "look") for _ in range(6)))
    assert all(isinstance(out, list) for out in outs)

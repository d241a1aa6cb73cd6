"""A project with authentication, as its users meet it: the official client, the whole topology."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import AuthenticationError, ConflictError, NotFoundError

from tests.contract.conftest import Callboard

GUARDED = Path(__file__).parents[1] / "graphs" / "guarded"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callboard]:
    """The guarded project."""
    data = tmp_path_factory.mktemp("guarded")
    running = Callboard("up", "--config", str(GUARDED), "--data", str(data), WORKER_COUNT="1")
    yield running
    assert running.stop() == 0


@pytest.fixture
def as_user(guarded: Callboard) -> Callable[[str], LangGraphClient]:
    """The official client of somebody."""

    def client(name: str) -> LangGraphClient:
        headers = {"Authorization": f"Bearer {name}"}
        return get_client(url=guarded.url, headers=headers)

    return client


async def test_nobody_comes_in_without_a_token(
    guarded: Callboard, as_user: Callable[[str], LangGraphClient]
) -> None:
    async with as_user("ann") as stranger:
        with pytest.raises(AuthenticationError, match="no token"):
            await stranger.threads.search()
    async with httpx.AsyncClient(base_url=guarded.url) as http:
        assert (await http.get("/ok")).status_code == 200
        assert (await http.get("/mine")).status_code == 401
        studio = await http.post("/threads", json={}, headers={"x-auth-scheme": "langsmith"})
        assert studio.status_code == 401
        mine = await http.get("/mine", headers={"Authorization": "Bearer token-ann"})
        assert mine.text == "hello ann"


@pytest.mark.parametrize(("graph", "maker"), [("whoami", ""), ("made", "ann")])
async def test_a_graph_knows_who_runs_it(
    as_user: Callable[[str], LangGraphClient], graph: str, maker: str
) -> None:
    async with as_user("token-ann") as ann:
        thread = await ann.threads.create()
        state: Any = await ann.runs.wait(thread["thread_id"], graph, input={})
        assert state == {
            "maker": maker,
            "node": {
                "identity": "ann",
                "team": "red",
                "id": "ann",
                "permissions": ["use"],
                "runtime": "ann",
            },
        }
        stateless: Any = await ann.runs.wait(None, graph, input={})
        assert stateless == state
        # The inspector builds the graph for whoever asks, too.
        seen = await ann.threads.get_state(thread["thread_id"])
        assert seen["values"] == state
        updated = await ann.threads.update_state(thread["thread_id"], {"maker": "x"})
        assert updated["checkpoint"]


async def test_what_is_anns_is_not_there_for_bob(
    as_user: Callable[[str], LangGraphClient],
) -> None:
    async with as_user("token-ann") as ann, as_user("token-bob") as bob:
        thread_id = (await ann.threads.create())["thread_id"]
        run = await ann.runs.create(thread_id, "whoami", input={})
        await ann.runs.join(thread_id, run["run_id"])
        assert [one["thread_id"] for one in await ann.threads.search(ids=[thread_id])] == [
            thread_id
        ]
        assert await bob.threads.search(ids=[thread_id]) == []
        for attempt in (
            bob.threads.get(thread_id),
            bob.threads.get_state(thread_id),
            bob.threads.get_history(thread_id),
            bob.threads.update_state(thread_id, {"maker": "bob"}),
            bob.runs.list(thread_id),
            bob.runs.get(thread_id, run["run_id"]),
            bob.runs.join(thread_id, run["run_id"]),
            bob.runs.wait(thread_id, "whoami", input={}),
            bob.runs.wait(thread_id, "whoami", input={}, if_not_exists="create"),
            bob.runs.cancel(thread_id, run["run_id"]),
            bob.threads.delete(thread_id),
        ):
            # A join of the client's raises what its HTTP library does.
            with pytest.raises((NotFoundError, httpx.HTTPStatusError)) as refused:
                await attempt
            assert refused.value.response.status_code == 404
        with pytest.raises(ConflictError):
            await bob.threads.create(thread_id=thread_id, if_exists="do_nothing")
        assert (await ann.threads.get(thread_id))["metadata"]["owner"] == "ann"
        await ann.store.put_item(["notes"], "k", {"by": "ann"})
        assert (await ann.store.search_items([]))["items"][0]["value"] == {"by": "ann"}
        assert (await bob.store.search_items([]))["items"] == []
        events = [part.event async for part in ann.runs.stream(thread_id, "whoami", input={})]
        assert events[-1] == "values"

"""A project with authentication, as its users meet it: the official client, the whole topology."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pytest
import redis
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import AuthenticationError, ConflictError, NotFoundError

from callboard import embedded
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


EVERY_MODE: list[Any] = [
    *("values", "messages-tuple", "updates", "events", "tasks", "checkpoints", "debug", "custom"),
]


async def test_secrets_are_for_the_graph_alone(
    guarded: Callboard, as_user: Callable[[str], LangGraphClient]
) -> None:
    """Of a context, and of what authentication says of the user, nothing is left after the run."""
    context = {"token": "CANARY-of-the-context"}
    async with as_user("token-ann") as ann:
        thread = (await ann.threads.create())["thread_id"]
        parts = [
            part
            async for part in ann.runs.stream(
                thread,
                "trusted",
                input={},
                context=context,
                stream_mode=EVERY_MODE,
                stream_subgraphs=True,
                stream_resumable=True,
            )
        ]
        assert {"values", "checkpoints", "debug", "events"} <= {part.event for part in parts}
        known = {"known": ["the-context", "the-context", "the-user"]}
        assert [part.data for part in parts if part.event == "values"][-1] == known
        later = await ann.runs.create(
            thread, "trusted", input={}, context=context, after_seconds=3600
        )
        assert later["kwargs"]["context"] == context
        await ann.runs.cancel(thread, later["run_id"], wait=True)
        stateless: Any = await ann.runs.wait(None, "trusted", input={}, context=context)
        assert stateless == known
        runs = await ann.runs.list(thread)
        states = await ann.threads.get_history(thread)
    assert [(run["kwargs"]["context"], run["status"]) for run in runs] == [
        ({}, "interrupted"),
        ({}, "success"),
    ]
    assert all(run["kwargs"]["config"]["configurable"]["graph_id"] == "trusted" for run in runs)
    for where, text in [
        ("streams", str(parts)),
        ("runs", str(runs)),
        ("states", str(states)),
        *stored(guarded),
    ]:
        at = text.find("CANARY")
        assert at < 0, f"{where}: {text[max(0, at - 300) : at + 50]}"


def stored(callboard: Callboard) -> Iterator[tuple[str, str]]:
    """Everything that is at rest: tables, Redis, logs, and what can be seen of processes."""
    assert callboard.data is not None
    with psycopg.connect(embedded.postgres_url(callboard.data)) as connection:
        tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
        for (name,) in connection.execute(tables).fetchall():
            rows = connection.execute(f'SELECT t::text FROM "{name}" t').fetchall()
            yield name, str(rows).replace(b"CANARY".hex(), "CANARY")  # in bytea
    with redis.Redis.from_url(embedded.valkey_url(callboard.data)) as connection:
        for key in connection.scan_iter():
            yield str(key), str(READ[connection.type(key).decode()](connection, key))
    for log in (callboard.data / "logs").glob("*.log"):
        yield log.name, log.read_text(errors="replace")
    for process in callboard.tree():
        with suppress(psutil.NoSuchProcess):  # a graph process that retired meanwhile
            yield f"process {process.pid}", f"{process.cmdline()} {process.environ()}"


READ: dict[str, Callable[[Any, bytes], Any]] = {
    "string": lambda connection, key: connection.get(key),
    "list": lambda connection, key: connection.lrange(key, 0, -1),
    "set": lambda connection, key: connection.smembers(key),
    "zset": lambda connection, key: connection.zrange(key, 0, -1, withscores=True),
    "hash": lambda connection, key: connection.hgetall(key),
    "stream": lambda connection, key: connection.xrange(key),
}

"""In-process mode has the same store: over HTTP, in graphs, with an index."""

import asyncio
import sys
from pathlib import Path

import pytest
from langgraph_sdk import get_client
from langgraph_sdk.errors import APIStatusError

from actors import inprocess
from actors.child.loader import Graphs
from actors.child.store_config import StoreConfig
from actors.event_memory import MemoryEventLog
from actors.inprocess import LocalDispatcher
from callboard.config import load_project
from gateway.app import create_app
from gateway.server import serve_until
from gateway.settings import GatewaySettings
from persistence import migrate
from persistence.engine import Database
from persistence.settings import DatabaseSettings

ROOT = Path(__file__).parents[1] / "graphs" / "store"


async def test_one_store(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    project = load_project(ROOT)
    graphs = Graphs.import_all(project.to_child())
    assert not graphs.broken
    store = StoreConfig.load(project.to_child())
    await asyncio.to_thread(migrate.upgrade, database_url, vector_dims=project.store.vector_dims)
    of_database = DatabaseSettings(url=database_url)
    database, settings = Database(of_database), GatewaySettings(port=0)
    events = MemoryEventLog(database)
    worker = inprocess.worker_settings(n_jobs_per_worker=2)
    app = create_app(
        settings,
        database=database,
        dispatcher=LocalDispatcher(graphs, database, of_database, events, worker, store),
        events=events,
        graph_ids=frozenset(project.graphs),
        version="0",
        store_config=project.store,
    )
    stop, port = asyncio.Event(), asyncio.get_running_loop().create_future()
    server = asyncio.create_task(serve_until(app, settings, stop, listening=port.set_result))
    try:
        async with get_client(url=f"http://127.0.0.1:{await port}") as client:
            await client.store.put_item(["a"], "k", {"text": "a walrus"})
            put = {"g": {"text": "a penguin"}}
            end = await client.runs.wait(None, "store", input={"put": put, "query": "walrus"})
            assert end["found"][0] == [["a"], "k", {"text": "a walrus"}]
            assert end["threaded"][0] == {"here": True}
            near = await client.store.search_items([], query="penguin", limit=1)
            assert near["items"][0]["namespace"] == ["from", "graph"]
            with pytest.raises(APIStatusError, match="cannot embed this") as refused:
                await client.store.put_item(["a"], "bad", {"text": "indigestible"})
            assert refused.value.status_code == 503
            assert await client.store.get_item(["a"], "bad") is None
            row = await database.fetch_one("SELECT ttl_minutes FROM store WHERE key = 'g'")
            assert row == {"ttl_minutes": 60}  # the project's default, in graphs too
    finally:
        stop.set()
        await server

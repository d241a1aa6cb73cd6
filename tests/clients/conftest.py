"""A Callboard with the graphs of ``tests/graphs/clients``, for every kind of client."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

from tests.contract.conftest import Callboard

GRAPHS = Path(__file__).parents[1] / "graphs" / "clients"


@pytest.fixture(scope="session")
def callboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callboard]:
    """The graphs, served to everybody."""
    data = tmp_path_factory.mktemp("clients")
    # No heartbeats: what is stopped must not depend on them.
    quiet = {"STREAM_HEARTBEAT_SECONDS": "60"}
    running = Callboard("up", "--config", str(GRAPHS), "--data", str(data), **quiet)
    yield running
    assert running.stop() == 0


@pytest.fixture
async def client(callboard: Callboard) -> AsyncIterator[LangGraphClient]:
    """The official client."""
    async with get_client(url=callboard.url) as client:
        yield client

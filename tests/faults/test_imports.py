"""Modules that cannot be imported, take long, or talk, beside a good one."""

from pathlib import Path
from typing import Any

import pytest
from langgraph_sdk.client import LangGraphClient

pytestmark = pytest.mark.topology

REASONS = {
    "broken": "the moon is in the wrong house",
    "nameless": "nameless",
    "unset": "A_KEY_THAT_NOBODY_SET",
}


@pytest.fixture(scope="module")
def graphs() -> Path:
    return Path(__file__).parent.parent / "graphs" / "imports" / "langgraph.json"


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """The import outlasts several leases: starting is not dead."""
    return {
        "WORKER_COUNT": "1",
        "N_JOBS_PER_WORKER": "2",
        "SLOW_IMPORT_SECONDS": "6",
        "LEASE_DURATION_SECONDS": "4",
        "HEARTBEAT_INTERVAL_SECONDS": "1",
    }


async def test_good_graphs_serve_and_broken_ones_say_why(
    topology: Any, client: LangGraphClient
) -> None:
    for graph_id in ("good", "noisy"):
        answer = await client.runs.wait(None, graph_id, input={"question": "well?"})
        assert answer == {"question": "well?"}
    for graph_id, reason in REASONS.items():
        answer = await client.runs.wait(
            None, graph_id, input={"question": "well?"}, raise_error=False
        )
        assert reason in answer["__error__"]["message"]
        (assistant,) = await client.assistants.search(graph_id=graph_id)
        shown = topology.get(f"/assistants/{assistant['assistant_id']}/schemas")
        assert 400 <= shown.status_code < 500 or shown.status_code == 503
        assert reason in shown.text
    children = topology.processes("child")
    assert await client.runs.wait(None, "good", input={"question": "still?"})
    assert topology.processes("child") == children, "nobody was started again"
    log = (topology.folder / "logs" / "worker-0.log").read_bytes()
    assert log.count(b"graph cannot be loaded") <= 3 * len(children), "said once a process"

"""Recorded transcripts: what the reference server sends for the same graphs and requests.

Ids and times are numbered, and the keys that only say which server it was are dropped. To record
again, serve ``tests/graphs/runner/shapes.py`` with the reference server and set
``RECORD_GOLDEN_FROM`` to its address.
"""

import json
import re
import uuid
from pathlib import Path
from typing import Any

import httpx
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver

from actors.child import introspect, runner
from actors.child.loader import Graphs
from tests.graphs.runner import shapes

FOLDER = Path(__file__).parent / "golden"
SCENARIOS: list[dict[str, Any]] = json.loads((FOLDER / "scenarios.json").read_text())

_SERVER = {
    "__after_seconds__",
    "__context_provided__",
    "__request_start_time_ms__",
    "created_by",
    "idempotency_key",
    "langgraph_api_url",
    "langgraph_api_version",
    "langgraph_host",
    "langgraph_plan",
    "langgraph_request_id",
    "langgraph_version",
    "lc_versions",
    "run_attempt",
}
_ID = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])"
)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[^\"]*")


def normal(value: Any) -> Any:
    """The value with ids numbered by their first appearance, and without marks of the server."""
    names: dict[str, str] = {}

    def named(found: "re.Match[str]") -> str:
        return names.setdefault(found[0], f"<id {len(names) + 1}>")

    text = _TIME.sub("<time>", json.dumps(_without_server(value)))
    return json.loads(_ID.sub(named, text))


def _without_server(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_server(v) for k, v in value.items() if k not in _SERVER}
    if isinstance(value, list):
        return [_without_server(item) for item in value]
    return value


def ours(body: dict[str, Any]) -> dict[str, Any]:
    """The run's kwargs, as the gateway makes them of a request's body."""
    kwargs = {key: value for key, value in body.items() if key not in ("metadata", "context")}
    context = body.get("context") or {}
    config = body.get("config") or {}
    configurable = config.get("configurable") or {}
    if context:
        configurable = {**context, "__context_provided__": True}
    return {
        **kwargs,
        "context": context or configurable,
        "config": {**config, "configurable": configurable},
        "subgraphs": body.get("stream_subgraphs", False),
    }


class Executed:
    """Runs of one thread, executed here."""

    def __init__(self, graph_id: str, saver: BaseCheckpointSaver[Any] | None = None) -> None:
        self.graph_id = graph_id
        self.saver = saver or InMemorySaver()
        self.thread_id = str(uuid.uuid4())
        self.assistant_id = str(uuid.uuid4())
        self.result: runner.Result | None = None

    async def run(
        self, body: dict[str, Any], run_id: str | None = None, attempt: int = 1
    ) -> list[list[Any]]:
        """The frames of a run, the final error included, as a client would get them."""
        frames: list[list[Any]] = []

        async def emit(name: str, data: bytes) -> None:
            frames.append([name, json.loads(data)])

        start = runner.Start(
            run_id=run_id or str(uuid.uuid4()),
            thread_id=self.thread_id,
            assistant_id=self.assistant_id,
            graph_id=self.graph_id,
            attempt=attempt,
            kwargs=ours(body),
            metadata={
                "graph_id": self.graph_id,
                "assistant_id": self.assistant_id,
                **(body.get("metadata") or {}),
            },
        )
        graph = getattr(shapes, self.graph_id).copy({"checkpointer": None})
        self.result = await runner.run(start, graph, self.saver, None, emit)
        if self.result.end == "failed":
            frames.append(["error", {"error": self.result.error, "message": self.result.message}])
        return frames

    async def inspect(self, op: str, **args: Any) -> tuple[int, Any]:
        """An answer about the thread."""
        graphs = Graphs(_exports={self.graph_id: getattr(shapes, self.graph_id)})
        asked = {"thread_id": self.thread_id, "graph_id": self.graph_id, **args}
        status, body = await introspect.inspect(op, asked, graphs, self.saver, None)
        return status, json.loads(body)


async def executed(scenario: dict[str, Any]) -> Any:
    """The scenario's transcript, from here."""
    thread = Executed(scenario["graph"])
    runs = [await thread.run(body) for body in scenario["runs"]]
    _, state = await thread.inspect("state")
    _, state_inside = await thread.inspect("state", subgraphs=True)
    _, history = await thread.inspect("history", limit=100)
    return {"runs": runs, "state": state, "state_inside": state_inside, "history": history}


def recorded(scenario: dict[str, Any], address: str) -> Any:
    """The scenario's transcript, from the reference server."""
    with httpx.Client(base_url=address, timeout=60) as client:
        thread_id = client.post("/threads", json={}).json()["thread_id"]
        place = f"/threads/{thread_id}"
        runs = [_streamed(client, place, scenario["graph"], body) for body in scenario["runs"]]
        return {
            "runs": runs,
            "state": client.get(f"{place}/state").json(),
            "state_inside": client.get(f"{place}/state?subgraphs=true").json(),
            "history": client.post(f"{place}/history", json={"limit": 100}).json(),
        }


def _streamed(client: httpx.Client, place: str, graph: str, body: dict[str, Any]) -> Any:
    frames: list[list[Any]] = []
    request = {"assistant_id": graph, **body}
    with client.stream("POST", f"{place}/runs/stream", json=request) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if line.startswith("event: "):
                frames.append([line.removeprefix("event: ")])
            elif line.startswith("data: "):
                frames[-1].append(json.loads(line.removeprefix("data: ")))
    return frames

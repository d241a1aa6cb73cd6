"""State on the wire: what reads and writes a thread's state."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from gateway.responses import Shown
from gateway.wire.body import Body, Query
from gateway.wire.fields import Flag, JsonObject, Key, Limit, NotNull, Storable
from gateway.wire.runs import Checkpoint


def _checkpoint_id(value: Any) -> Any:
    """The three ways in which clients name a checkpoint, as the one that the rest works with."""
    if isinstance(value, dict):
        flat = value.get("configurable", value)
        return flat.get("checkpoint_id") if isinstance(flat, dict) else value
    return value


Before = Annotated[Key | None, BeforeValidator(_checkpoint_id), NotNull]


class StateRead(Query):
    """How to show a state."""

    subgraphs: Flag = False


class StateAt(Body):
    """Which state to show."""

    checkpoint: Checkpoint
    subgraphs: bool = False


class StateUpdate(Body):
    """What to write to a state, as which node, and where."""

    values: Annotated[dict[str, Any] | list[Any] | None, Storable] = None
    as_node: Annotated[str | None, NotNull] = None
    checkpoint: Checkpoint = {}
    checkpoint_id: Key | None = None


class HistorySearch(Body):
    """Which checkpoints to list."""

    limit: Limit = 1
    before: Before = None
    metadata: JsonObject = {}
    checkpoint: Checkpoint = {}


class HistoryRead(Query):
    """Which checkpoints to list, from a query."""

    limit: int = 1
    before: Key | None = None


class Place(Shown):
    """Where in the history of a thread, or of one of its subgraphs."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: Annotated[str, Field(default="")]
    checkpoint_map: Annotated[dict[str, str], Field(default={})]


class Task(Shown):
    """A node that is to run, has run, or waits for an answer."""

    id: str
    name: str
    path: list[Any]
    error: str | None
    interrupts: list[dict[str, Any]]
    checkpoint: Place | None
    state: "ThreadState | None"
    result: Any


class ThreadState(Shown):
    """The state of a thread at a checkpoint. Before the first one all is empty or null."""

    values: Any
    next: list[str]
    tasks: list[Task]
    metadata: dict[str, Any] | None
    created_at: datetime | None
    checkpoint: Place | None
    parent_checkpoint: Place | None
    interrupts: list[dict[str, Any]]
    checkpoint_id: str | None
    parent_checkpoint_id: str | None


class Updated(Shown):
    """The checkpoint that a change of state made, in the three ways in which clients read it."""

    checkpoint: Place
    configurable: Place
    checkpoint_id: str

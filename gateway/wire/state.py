"""State on the wire: what reads and writes a thread's state."""

from typing import Annotated, Any

from pydantic import BeforeValidator

from gateway.wire.body import Body, Query
from gateway.wire.fields import Flag, JsonObject, Key, Limit, NotNull
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

    values: dict[str, Any] | list[Any] | None = None
    as_node: Annotated[str | None, NotNull] = None
    checkpoint: Checkpoint = {}
    checkpoint_id: Annotated[Key | None, NotNull] = None


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

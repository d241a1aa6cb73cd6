"""Threads on the wire: what creates, changes and finds one, and how a row is shown."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, Self
from uuid import UUID

import orjson
from pydantic import Field, PlainValidator, model_validator

from gateway.responses import Shown, selected
from gateway.wire.answers import document, moment
from gateway.wire.body import Body
from gateway.wire.extract import Path, find, parse
from gateway.wire.fields import AsSent, JsonObject, Limit, NotNull, Offset, Uuid
from gateway.wire.runs import Command
from persistence.threads import ThreadRow

ThreadStatus = Literal["idle", "busy", "interrupted", "error"]
ThreadKey = Literal[
    "thread_id",
    "created_at",
    "updated_at",
    "state_updated_at",
    "metadata",
    "config",
    "status",
    "values",
    "interrupts",
]


def _path(text: Any) -> Path:
    if not isinstance(text, str):
        raise ValueError("a path is a text")
    return parse(text)


Extract = Annotated[Path, PlainValidator(_path)]


class UpdateForm(Body):
    """What one node writes in a superstep."""

    values: dict[str, Any] | list[Any] | None = None
    command: Command | None = None
    as_node: str


class SuperstepForm(Body):
    """What nodes write together: one checkpoint."""

    updates: list[UpdateForm]


Superstep = Annotated[dict[str, Any], AsSent(SuperstepForm)]


class _WithoutSweeper(Body):
    """A body in which ``ttl`` is refused by name rather than silently dropped."""

    ttl: Any = None

    @model_validator(mode="after")
    def _refuse_ttl(self) -> Self:
        if "ttl" in self.model_fields_set:
            raise ValueError("ttl: not supported yet")
        return self


class ThreadCreate(_WithoutSweeper):
    """What creates a thread."""

    thread_id: Annotated[Uuid | None, NotNull] = None
    metadata: JsonObject = {}
    if_exists: Literal["raise", "do_nothing"] = "raise"
    supersteps: list[Superstep] = []


class ThreadPatch(_WithoutSweeper):
    """What changes a thread: metadata is merged, key by key."""

    metadata: JsonObject = {}


class ThreadCount(Body):
    """Which threads to count."""

    metadata: JsonObject = {}
    values: JsonObject = {}
    status: Annotated[ThreadStatus | None, NotNull] = None


class ThreadSearch(ThreadCount):
    """Which threads to find, and how to show them."""

    ids: list[Uuid] = []
    limit: Limit = 10
    offset: Offset = 0
    sort_by: Annotated[
        Literal["thread_id", "status", "created_at", "updated_at", "state_updated_at"] | None,
        NotNull,
    ] = None
    sort_order: Annotated[Literal["asc", "desc"] | None, NotNull] = None
    select: Annotated[list[ThreadKey] | None, NotNull] = None
    extract: Annotated[dict[str, Extract], Field(max_length=10)] = {}


class ThreadPrune(Body):
    """Which threads to delete."""

    thread_ids: list[Uuid]
    strategy: Literal["delete", "keep_latest"] = "delete"

    @model_validator(mode="after")
    def _refuse_keep_latest(self) -> Self:
        if self.strategy == "keep_latest":
            raise ValueError("strategy: keep_latest is not supported yet")
        return self


class Thread(Shown):
    """A conversation: its latest state, and how its last run ended.

    Before the first state it has neither ``error`` nor ``interrupts``.
    """

    thread_id: UUID
    created_at: datetime
    updated_at: datetime
    state_updated_at: datetime
    metadata: dict[str, Any]
    status: ThreadStatus
    config: dict[str, Any]
    values: Any
    error: Annotated[Any, Field(default=None)]
    interrupts: Annotated[dict[str, list[Any]], Field(default={})]


SelectedThread = selected(Thread, extracted=dict[str, Any])


class Pruned(Shown):
    """How many threads went."""

    pruned_count: int


def show_thread(row: ThreadRow) -> dict[str, Any]:
    """A thread's row as the wire has it; before its first state without ``interrupts``."""
    shown = {
        "thread_id": row.thread_id,
        "created_at": moment(row.created_at),
        "updated_at": moment(row.updated_at),
        "state_updated_at": moment(row.state_updated_at or row.created_at),
        "metadata": document(row.metadata),
        "status": row.status,
        "config": document(row.config),
        "values": document(row.values),
    }
    if row.interrupts is not None:
        shown["error"] = document(row.error)
        shown["interrupts"] = document(row.interrupts)
    return shown


def extracted(row: ThreadRow, paths: Mapping[str, Path]) -> dict[str, Any]:
    """What lies at each path of a thread."""
    documents: dict[str, Any] = {}
    for root, _ in paths.values():
        text = getattr(row, root)
        documents[root] = None if text is None else orjson.loads(text)
    return {name: find(documents[root], steps) for name, (root, steps) in paths.items()}

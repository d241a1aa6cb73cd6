"""Threads on the wire: what creates, changes and finds one, and how a row is shown."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import orjson
from pydantic import AfterValidator, Field, PlainValidator

from gateway.responses import Shown, selected
from gateway.wire.answers import document, moment
from gateway.wire.body import Body, Query
from gateway.wire.extract import Path, find, parse
from gateway.wire.fields import AsSent, JsonObject, Limit, NotNull, Offset, Storable, Uuid
from gateway.wire.runs import Command
from persistence.checkpoints import Storage
from persistence.ids import uuid7
from persistence.threads import SortBy, ThreadRow
from persistence.ttl import Ttl, TtlStrategy

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


Superstep = Annotated[dict[str, Any], AsSent(SuperstepForm), Storable]


_LONGEST_TTL_MINUTES = 100 * 366 * 24 * 60


class TtlForm(Body):
    """How long a thread lives after its last change, in minutes; and what becomes of it then."""

    ttl: Annotated[float | None, Field(gt=0, le=_LONGEST_TTL_MINUTES), NotNull] = None
    strategy: Literal["delete", "keep_latest"] = "delete"

    def meant(self) -> Ttl | None:
        """None when no time was given."""
        return None if self.ttl is None else Ttl(self.ttl, TtlStrategy(self.strategy))


class ThreadCreate(Body):
    """What creates a thread."""

    thread_id: Annotated[Uuid, NotNull] = Field(default_factory=uuid7)
    metadata: JsonObject = {}
    ttl: Annotated[TtlForm | None, NotNull] = None
    if_exists: Literal["raise", "do_nothing"] = "raise"
    supersteps: list[Superstep] = []


class ThreadPatch(Body):
    """What changes a thread: metadata is merged, key by key; ``ttl`` counts from now on."""

    metadata: JsonObject = {}
    ttl: Annotated[TtlForm | None, NotNull] = None


class ThreadRead(Query):
    """What to show of a thread beside itself."""

    include: Annotated[
        list[str], AfterValidator(lambda given: [name for one in given for name in one.split(",")])
    ] = []


class ThreadCount(Body):
    """Which threads to count."""

    ids: list[Uuid] = []
    metadata: JsonObject = {}
    values: JsonObject = {}
    status: Annotated[ThreadStatus | None, NotNull] = None


class ThreadSearch(ThreadCount):
    """Which threads to find, and how to show them."""

    limit: Limit = 10
    offset: Offset = 0
    sort_by: Annotated[SortBy | None, NotNull] = None
    sort_order: Annotated[Literal["asc", "desc"] | None, NotNull] = None
    select: Annotated[list[ThreadKey] | None, NotNull] = None
    extract: Annotated[dict[str, Extract], Field(max_length=10)] = {}


class ThreadPrune(Body):
    """Which threads to delete, or to free of their history."""

    thread_ids: list[Uuid]
    strategy: Literal["delete", "keep_latest"] = "delete"


class ThreadTtl(Shown):
    """How long a thread lives after its last change."""

    strategy: TtlStrategy
    ttl_minutes: float
    expires_at: datetime | None


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
    ttl: Annotated[ThreadTtl | None, Field(default=None)]


SelectedThread = selected(Thread, extracted=dict[str, Any])


class Pruned(Shown):
    """How many threads went."""

    pruned_count: int


class Size(Shown):
    """Rows, and what they take."""

    count: int
    bytes: int


class ChannelSize(Shown):
    """What a channel's values take."""

    versions: int
    bytes: int


class ChannelsSize(Size):
    """What all channels' values take."""

    by_channel: dict[str, ChannelSize]


class ThreadStorage(Shown):
    """What a thread's history takes."""

    thread_id: UUID
    total_bytes: int
    checkpoints: Size
    channel_values: ChannelsSize
    pending_writes: Size


def show_storage(thread_id: UUID, storage: Storage) -> dict[str, Any]:
    """What is kept of a thread as the wire has it."""
    channels = storage.channels.values()
    values = {
        "count": sum(channel["versions"] for channel in channels),
        "bytes": sum(channel["bytes"] for channel in channels),
        "by_channel": storage.channels,
    }
    parts = (storage.checkpoints, values, storage.writes)
    return {
        "thread_id": thread_id,
        "total_bytes": sum(part["bytes"] for part in parts),
        "checkpoints": storage.checkpoints,
        "channel_values": values,
        "pending_writes": storage.writes,
    }


def show_ttl(row: ThreadRow) -> dict[str, Any] | None:
    """A thread's lifetime as the wire has it."""
    if row.ttl_minutes is None:
        return None
    return {
        "strategy": row.ttl_strategy,
        "ttl_minutes": row.ttl_minutes,
        "expires_at": row.expires_at and moment(row.expires_at),
    }


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
    if row.interrupts is not None or row.status in ("error", "interrupted"):
        shown["error"] = document(row.error)
    if row.interrupts is not None:
        shown["interrupts"] = document(row.interrupts)
    return shown


def extracted(row: ThreadRow, paths: Mapping[str, Path]) -> dict[str, Any]:
    """What lies at each path of a thread."""
    documents: dict[str, Any] = {}
    for root, _ in paths.values():
        text = getattr(row, root)
        documents[root] = None if text is None else orjson.loads(text)
    return {name: find(documents[root], steps) for name, (root, steps) in paths.items()}

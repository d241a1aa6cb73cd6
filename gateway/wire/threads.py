"""Threads on the wire: what creates, changes and finds one, and how a row is shown."""

from typing import Annotated, Any, Literal, Self

from pydantic import model_validator

from gateway.wire.answers import document, moment
from gateway.wire.body import Body
from gateway.wire.fields import JsonObject, Limit, NotNull, Offset, Uuid
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
    supersteps: Any = None

    @model_validator(mode="after")
    def _refuse_supersteps(self) -> Self:
        if "supersteps" in self.model_fields_set:
            raise ValueError("supersteps: not supported yet")
        return self


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
    extract: Any = None

    @model_validator(mode="after")
    def _refuse_extract(self) -> Self:
        if "extract" in self.model_fields_set:
            raise ValueError("extract: not supported yet")
        return self


class ThreadPrune(Body):
    """Which threads to delete."""

    thread_ids: list[Uuid]
    strategy: Literal["delete", "keep_latest"] = "delete"

    @model_validator(mode="after")
    def _refuse_keep_latest(self) -> Self:
        if self.strategy == "keep_latest":
            raise ValueError("strategy: keep_latest is not supported yet")
        return self


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

"""Crons on the wire: what creates, changes and finds one, and how a row is shown."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from gateway.responses import Shown, selected
from gateway.wire.answers import document, moment
from gateway.wire.body import Body
from gateway.wire.fields import AsSent, JsonObject, Limit, NotNull, Offset, Uuid
from gateway.wire.runs import Durability, Nodes, RunConfig, RunCreate, StreamModes, Webhook
from persistence.crons import CronRow, SortBy

OnRunCompleted = Literal["delete", "keep"]
CronKey = Literal[
    "cron_id",
    "assistant_id",
    "thread_id",
    "user_id",
    "end_time",
    "schedule",
    "timezone",
    "payload",
    "next_run_date",
    "metadata",
    "on_run_completed",
    "enabled",
    "created_at",
    "updated_at",
]


class CronCreate(RunCreate):
    """What creates a cron: when, and all that creates a run, so that every firing can make one."""

    schedule: str
    timezone: Annotated[str | None, NotNull] = None
    end_time: str | None = None
    enabled: bool = True
    on_run_completed: OnRunCompleted = "delete"


class CronPatch(Body):
    """What changes a cron. Each field replaces the one before; metadata is merged."""

    schedule: Annotated[str | None, NotNull] = None
    timezone: Annotated[str | None, NotNull] = None
    end_time: str | None = None
    enabled: Annotated[bool | None, NotNull] = None
    on_run_completed: Annotated[OnRunCompleted | None, NotNull] = None
    input: Any = None
    config: RunConfig = {}
    context: JsonObject = {}
    metadata: JsonObject = {}
    webhook: Annotated[Webhook | None, NotNull] = None
    interrupt_before: Nodes = None
    interrupt_after: Nodes = None
    multitask_strategy: Annotated[
        Literal["reject", "rollback", "interrupt", "enqueue"] | None, NotNull
    ] = None
    stream_mode: StreamModes = ["values"]
    stream_subgraphs: Annotated[bool | None, NotNull] = None
    stream_resumable: Annotated[bool | None, NotNull] = None
    durability: Durability = None


NewCron = Annotated[dict[str, Any], AsSent(CronCreate)]
CronChange = Annotated[dict[str, Any], AsSent(CronPatch)]


class CronCount(Body):
    """Which crons to count."""

    assistant_id: Annotated[Uuid | None, NotNull] = None
    thread_id: Annotated[Uuid | None, NotNull] = None
    metadata: JsonObject = {}
    enabled: Annotated[bool | None, NotNull] = None


class CronSearch(CronCount):
    """Which crons to find, and how to show them."""

    limit: Limit = 10
    offset: Offset = 0
    sort_by: Annotated[SortBy | None, NotNull] = None
    sort_order: Annotated[Literal["asc", "desc"] | None, NotNull] = None
    select: Annotated[list[CronKey] | None, NotNull] = None


class Cron(Shown):
    """A request that is run again and again."""

    cron_id: UUID
    assistant_id: UUID
    thread_id: UUID | None
    user_id: str
    end_time: str | None
    schedule: str
    timezone: str | None
    payload: dict[str, Any]
    next_run_date: datetime | None
    metadata: dict[str, Any]
    on_run_completed: OnRunCompleted | None
    enabled: bool
    created_at: datetime
    updated_at: datetime


SelectedCron = selected(Cron)


def show_cron(row: CronRow) -> dict[str, Any]:
    """A cron's row as the wire has it."""
    date = row.next_run_date
    return {
        "cron_id": row.cron_id,
        "assistant_id": row.assistant_id,
        "thread_id": row.thread_id,
        "user_id": row.user_id,
        "end_time": row.end_time,
        "schedule": row.schedule,
        "timezone": row.timezone,
        "payload": document(row.payload),
        "next_run_date": date and date.astimezone(UTC).isoformat(timespec="seconds"),
        "metadata": document(row.metadata),
        "on_run_completed": row.on_run_completed,
        "enabled": row.enabled,
        "created_at": moment(row.created_at),
        "updated_at": moment(row.updated_at),
    }

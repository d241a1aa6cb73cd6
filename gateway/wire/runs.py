"""Runs on the wire: what creates one, how lists and joins are asked for, and how a row is shown."""

from datetime import datetime
from typing import Annotated, Any, Literal, Self
from uuid import UUID

import orjson
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from gateway.responses import Shown, selected
from gateway.wire.answers import document, moment
from gateway.wire.body import Body, Query
from gateway.wire.fields import (
    AsSent,
    AssistantName,
    Flag,
    JsonObject,
    Key,
    NotNull,
    Offset,
    Storable,
    Uuid,
    Whole,
)
from persistence.lifecycle import MultitaskStrategy, RunStatus
from persistence.run_secrets import SHOWN_OF_USERS
from persistence.runs import RunRow

StreamMode = Literal[
    "values",
    "messages",
    "messages-tuple",
    "updates",
    "events",
    "tasks",
    "checkpoints",
    "debug",
    "custom",
    "tools",
]
"""``tools`` is beyond the reference: LangGraph streams it, and a hook of the SDK asks for it."""
Nodes = Annotated[Literal["*"] | list[str] | None, NotNull]


def _or_one(schema: dict[str, Any]) -> None:
    """A single item stands for a list of it."""
    schema["anyOf"] = [schema["items"], {"type": schema.pop("type"), "items": schema.pop("items")}]


StreamModes = Annotated[
    list[StreamMode],
    BeforeValidator(lambda mode: [mode] if isinstance(mode, str) else mode),
    AfterValidator(lambda modes: modes or ["values"]),
    Field(json_schema_extra=_or_one),
]
Durability = Annotated[Literal["sync", "async", "exit"] | None, NotNull]
Webhook = Annotated[Key, Field(min_length=1)]


_LONGEST_DELAY_SECONDS = 10 * 366 * 24 * 3600


class RunConfigForm(BaseModel):
    """A LangChain config; keys beside the known ones are handed through."""

    model_config = ConfigDict(strict=True, extra="allow")

    tags: Annotated[list[str] | None, NotNull] = None
    recursion_limit: Annotated[Whole | None, NotNull] = None
    configurable: JsonObject = {}
    metadata: JsonObject | None = None


class CheckpointForm(Body):
    """A place in a thread's history."""

    checkpoint_id: Annotated[Key | None, NotNull] = None
    checkpoint_ns: Annotated[Key | None, NotNull] = None
    checkpoint_map: JsonObject | None = None


class SendForm(Body):
    """A node to go to, with an input of its own."""

    node: str
    input: Any


class CommandForm(Body):
    """What to do instead of taking an input. Unknown keys are refused: LangGraph fails on them."""

    model_config = ConfigDict(strict=True, extra="forbid")

    resume: Any = None
    update: dict[str, Any] | list[Any] | None = None
    goto: str | SendForm | list[str | SendForm] | None = None


def _place(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Only what names the place; clients send the thread's id along, or leave it out."""
    keys = ("checkpoint_id", "checkpoint_ns", "checkpoint_map")
    return {key: checkpoint[key] for key in keys if checkpoint.get(key) is not None}


def _command(command: dict[str, Any]) -> dict[str, Any]:
    """``resume`` only where it is an answer.

    Null is one too, but beside something else to do it says nothing: some clients fill in all keys.
    """
    is_more = command.get("update") or command.get("goto")
    if is_more and command.get("resume") is None:
        return {key: value for key, value in command.items() if key != "resume"}
    return command


RunConfig = Annotated[dict[str, Any], AsSent(RunConfigForm), Storable]
Checkpoint = Annotated[dict[str, Any], AsSent(CheckpointForm), AfterValidator(_place)]
Command = Annotated[dict[str, Any], AsSent(CommandForm), AfterValidator(_command)]


class RunCreate(Body):
    """What creates a run, on a thread or without one."""

    assistant_id: AssistantName
    input: Any = None
    command: Command | None = None
    config: RunConfig = {}
    context: JsonObject = {}
    metadata: JsonObject = {}
    checkpoint: Checkpoint = {}
    checkpoint_id: Uuid | None = None
    stream_mode: StreamModes = ["values"]
    stream_subgraphs: bool = False
    stream_resumable: bool = False
    interrupt_before: Nodes = None
    interrupt_after: Nodes = None
    multitask_strategy: Literal["reject", "rollback", "interrupt", "enqueue"] = "enqueue"
    if_not_exists: Literal["reject", "create"] = "reject"
    on_disconnect: Literal["continue", "cancel"] = "continue"
    on_completion: Literal["delete", "keep"] = "delete"
    after_seconds: Annotated[float, Field(le=_LONGEST_DELAY_SECONDS)] = 0
    durability: Durability = None
    checkpoint_during: Annotated[bool | None, NotNull] = None
    webhook: Annotated[Webhook | None, NotNull] = None
    feedback_keys: Annotated[list[str] | None, NotNull] = None
    """Asks LangSmith for links to give feedback on; without it they are carried along, no more."""


RunKey = Literal[
    "run_id",
    "thread_id",
    "assistant_id",
    "created_at",
    "updated_at",
    "status",
    "metadata",
    "kwargs",
    "multitask_strategy",
    "langsmith_session_name",
]


class RunList(Query):
    """Which runs of a thread to list."""

    limit: Annotated[int, Field(ge=0, le=10_000)] = 10
    offset: Offset = 0
    status: str | None = None
    select: list[RunKey] = []


class Cancel(Query):
    """How to stop a run, and whether to answer only when it has stopped."""

    wait: Flag = False
    action: Annotated[
        Literal["interrupt", "rollback"],
        BeforeValidator(lambda text: text if text == "rollback" else "interrupt"),
    ] = "interrupt"


class CancelMany(Body):
    """Which runs to stop: all with a status, or some of a thread."""

    status: Annotated[Literal["pending", "running", "all"] | None, NotNull] = None
    thread_id: Annotated[Uuid | None, NotNull] = None
    run_ids: Annotated[list[Uuid] | None, NotNull] = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        named = (self.thread_id is not None, self.run_ids is not None)
        if (self.status is None) != all(named) or (self.status is not None and any(named)):
            raise ValueError("either status, or thread_id and run_ids, must be given")
        return self


class Join(Query):
    """How to wait for a run."""

    cancel_on_disconnect: Flag = False


def modes(given: list[str]) -> list[str]:
    """Repeated parameters, comma lists and JSON lists all mean the same."""
    found: list[str] = []
    for text in given:
        if text.startswith("["):
            try:
                found += [str(mode) for mode in orjson.loads(text)]
            except orjson.JSONDecodeError:
                raise ValueError(f"invalid JSON list {text}") from None
        else:
            found += [mode.strip() for mode in text.split(",") if mode.strip()]
    return found


class JoinStream(Join):
    """How to follow a run's stream.

    last_event_id: stands for the header of that name, for a client that was cut off before it had
    seen an event: SDKs go on at the ``Location`` they were given, which has it.
    """

    stream_mode: Annotated[list[str], AfterValidator(modes)] = []
    last_event_id: str | None = None


class Run(Shown):
    """One execution of an assistant's graph on a thread."""

    run_id: UUID
    thread_id: UUID
    assistant_id: UUID
    metadata: dict[str, Any]
    status: RunStatus
    kwargs: dict[str, Any]
    multitask_strategy: MultitaskStrategy
    created_at: datetime
    updated_at: datetime
    langsmith_session_name: str | None


SelectedRun = selected(Run)


_USER = b'"langgraph_auth_user":{'


def _without_secrets(kwargs: bytes) -> bytes:
    """What others than the run's graph may see of it.

    Authentication may have added tokens to the user for the graph, and a thread may be shared.
    """
    if _USER not in kwargs:
        return kwargs
    shown = orjson.loads(kwargs)
    configurable = shown["config"]["configurable"]
    user = configurable["langgraph_auth_user"]
    configurable["langgraph_auth_user"] = {
        name: user[name] for name in SHOWN_OF_USERS if name in user
    }
    return orjson.dumps(shown)


def show_run(run: RunRow) -> dict[str, Any]:
    """A run's row as the wire has it."""
    return {
        "run_id": run.run_id,
        "thread_id": run.thread_id,
        "assistant_id": run.assistant_id,
        "metadata": document(run.metadata),
        "status": run.status,
        "kwargs": document(_without_secrets(run.kwargs)),
        "multitask_strategy": run.multitask_strategy,
        "created_at": moment(run.created_at),
        "updated_at": moment(run.updated_at),
        "langsmith_session_name": None,
    }

"""What a client asks of a run, checked, and how it becomes one with its assistant's config.

A request is turned into a run when it comes, or again and again when a cron keeps it. Both go
through ``compose``, so a cron's run is what a client's run would be.
"""

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

import orjson

from persistence.assistants import AssistantRow
from persistence.ids import uuid7
from persistence.lifecycle import MultitaskStrategy
from persistence.runs import Answers, NewRun
from persistence.ttl import Ttl, TtlStrategy

_STAMPED_BY_LANGGRAPH = "__pregel_"
"""Keys in ``configurable`` with this prefix steer LangGraph from inside; no client may set them."""

_STAMPED_BY_US = frozenset({"assistant_id", "run_id", "thread_id"})
"""Keys of a run's metadata that say which one it is; what a client says of that is left out."""

NOBODY: Mapping[str, Any] = {
    "langgraph_auth_user": None,
    "langgraph_auth_user_id": "",
    "langgraph_auth_permissions": [],
    "user_id": "",
}
"""What ``configurable`` says of the caller where nobody is asked who it is."""


class TooDeep(ValueError):
    """The request is nested deeper than JSON is written."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A checked request for a run; the names are the wire's.

    config, context: such that ``config.configurable`` and context say the same.
    context_provided: whether the client gave a context, and not only ``configurable``.
    place: ``checkpoint_id``, ``checkpoint_ns`` and ``checkpoint_map`` of where to branch off.
    keep_thread: whether the thread of a stateless run stays after it.
    notify: whether the webhook shall be told.
    ttl: of the thread, if the run makes one.
    caller: what ``configurable`` says of who asks; stronger than what the client sent.
    """

    input: Any = None
    command: dict[str, Any] | None = None
    config: dict[str, Any] = field(default_factory=dict)
    context: dict[str, Any] = field(default_factory=dict)
    context_provided: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    place: dict[str, Any] = field(default_factory=dict)
    stream_mode: list[str] = field(default_factory=lambda: ["values"])
    stream_subgraphs: bool = False
    stream_resumable: bool = False
    interrupt_before: str | list[str] | None = None
    interrupt_after: str | list[str] | None = None
    multitask_strategy: str = MultitaskStrategy.ENQUEUE.value
    if_not_exists: Literal["create", "reject"] = "reject"
    keep_thread: bool = False
    after_seconds: float = 0.0
    durability: str = "async"
    checkpoint_during: bool = True
    webhook: str | None = None
    notify: bool = True
    feedback_keys: list[str] | None = None
    ttl: Ttl | None = None
    caller: dict[str, Any] = field(default_factory=lambda: dict(NOBODY))

    def to_json(self) -> bytes:
        """The request as a cron keeps it. Raises TooDeep."""
        return _encoded(self)

    @classmethod
    def from_json(cls, text: bytes) -> "RunRequest":
        """A request that was kept."""
        kept = orjson.loads(text)
        if ttl := kept["ttl"]:
            kept["ttl"] = Ttl(ttl["minutes"], TtlStrategy(ttl["strategy"]))
        return cls(**kept)


def compose(
    request: RunRequest,
    assistant: AssistantRow,
    thread_id: UUID | None,
    *,
    run_id: UUID | None = None,
) -> NewRun:
    """The run that the request asks for, with its assistant's config under its own.

    thread_id: None for a stateless run, which gets a thread of its own. run_id: None for a new one.
    Pure, but for ids and the time. Raises TooDeep.
    """
    run_id, run_thread_id = run_id or uuid7(), thread_id or uuid7()
    is_temporary = thread_id is None and not request.keep_thread
    given = request.config
    base, base_context = orjson.loads(assistant.config), orjson.loads(assistant.context)
    base_metadata = orjson.loads(assistant.metadata)
    config_metadata, metadata = _said(given.get("metadata") or {}), _said(request.metadata)
    config = {
        **base,
        **given,
        "configurable": {
            **_own(base.get("configurable", {})),
            **_own(given.get("configurable", {})),
            **request.place,
            **({"__context_provided__": True} if request.context_provided else {}),
            **request.caller,
            "langgraph_request_id": str(uuid.uuid4()),
            "__request_start_time_ms__": time.time_ns() // 1_000_000,
            "__after_seconds__": request.after_seconds,
            "run_id": str(run_id),
            "thread_id": str(run_thread_id),
            "graph_id": assistant.graph_id,
            "assistant_id": str(assistant.assistant_id),
        },
        "metadata": {
            **base_metadata,
            "graph_id": assistant.graph_id,
            "assistant_id": str(assistant.assistant_id),
            **config_metadata,
            **metadata,
        },
    }
    kwargs = {
        "input": request.input,
        "command": request.command,
        "config": config,
        "context": {**base_context, **request.context},
        "stream_mode": request.stream_mode,
        "interrupt_before": request.interrupt_before,
        "interrupt_after": request.interrupt_after,
        "webhook": request.webhook,
        "feedback_keys": request.feedback_keys,
        "temporary": is_temporary,
        "subgraphs": request.stream_subgraphs,
        "resumable": request.stream_resumable,
        "checkpoint_during": request.checkpoint_during,
        "durability": request.durability,
    }
    return NewRun(
        run_id=run_id,
        thread_id=run_thread_id,
        assistant_id=assistant.assistant_id,
        graph_id=assistant.graph_id,
        kwargs=_encoded(kwargs),
        metadata=metadata,
        base_metadata=base_metadata,
        config_metadata=config_metadata,
        config=_remembered(given),
        multitask_strategy=MultitaskStrategy(request.multitask_strategy),
        if_not_exists="create" if thread_id is None else request.if_not_exists,
        after_seconds=request.after_seconds,
        temporary=is_temporary,
        resumable=request.stream_resumable,
        answers=_answers(request),
        webhook=request.webhook if request.notify else None,
        ttl=None if is_temporary else request.ttl,
    )


def _answers(request: RunRequest) -> Answers | None:
    """What the run answers, where that can be judged: not with a state of its own making.

    An answer may go along with an update or a jump, and be given at an earlier checkpoint.
    """
    command = request.command or {}
    is_more = command.get("update") or command.get("goto") or request.place
    configurable = request.config.get("configurable") or {}
    if "resume" not in command or is_more or configurable.get("checkpoint_id"):
        return None
    resume = command["resume"]
    ids = resume if isinstance(resume, dict) and all(len(key) == 32 for key in resume) else ()
    return Answers(frozenset(ids))


def _own(configurable: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in configurable.items()
        if not key.startswith(_STAMPED_BY_LANGGRAPH)
    }


def _said(metadata: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in metadata.items() if key not in _STAMPED_BY_US}


def _remembered(config: dict[str, Any]) -> dict[str, Any]:
    """What the thread shows of a run's config: not ``configurable``, which may hold secrets."""
    return {**config, "configurable": {}}


def _encoded(content: Any) -> bytes:
    try:
        return orjson.dumps(content)
    except TypeError:
        raise TooDeep from None

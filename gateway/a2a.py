"""Assistants as agents of the A2A protocol: its words for threads, runs and their ends. Pure.

    context   a thread
    task      a run; its id is "<thread>:<run>"
    artifact  what the run's last message says, or its whole output when it has no messages

Two forms are spoken, told apart by the names of their methods: that of 1.0 and that of 0.3, which
older clients still use.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

import orjson

from persistence.assistants import AssistantRow
from persistence.lifecycle import RunStatus

_INTERRUPT = "__interrupt__"


class State(StrEnum):
    """How a task stands, as 0.3 writes it."""

    SUBMITTED = "submitted"
    WORKING = "working"
    INPUT_REQUIRED = "input-required"
    COMPLETED = "completed"
    CANCELED = "canceled"
    FAILED = "failed"


# What it is told

Part = str | dict[str, Any] | list[Any] | int | float | bool | None
"""A text, or data."""


@dataclass(frozen=True, slots=True)
class Task:
    """A run as a task.

    asked: the message that it was made with. said: what goes with its state: a question, or why it
    failed. response: what its artifact has, nothing unless it is over.
    """

    thread_id: UUID
    run_id: UUID
    state: State
    at: datetime
    asked: Sequence[Part] = ()
    asked_id: str = ""
    said: Sequence[Part] = ()
    response: Sequence[Part] = ()

    @property
    def id(self) -> str:
        """As clients know it."""
        return f"{self.thread_id}:{self.run_id}"


@dataclass(frozen=True, slots=True)
class Ended:
    """What a run has come to. output, error: JSON."""

    status: RunStatus
    output: bytes | None
    error: Any


def task_of(
    thread_id: UUID, run_id: UUID, at: datetime, kwargs: bytes, ended: Ended | None, *, begun: bool
) -> Task:
    """The task that a run is. ended: None as long as it has not; begun: whether it was started."""
    asked_id, asked = _asked(orjson.loads(kwargs))
    if ended is None:
        state = State.WORKING if begun else State.SUBMITTED
        return Task(thread_id, run_id, state, at, asked, asked_id)
    output = orjson.loads(ended.output) if ended.output else {}
    questions = output.get(_INTERRUPT) if isinstance(output, dict) else None
    said: Sequence[Part] = ()
    response: Sequence[Part] = ()
    match ended.status:
        case RunStatus.SUCCESS if questions:
            state, said = State.INPUT_REQUIRED, [question.get("value") for question in questions]
        case RunStatus.SUCCESS:
            state, response = State.COMPLETED, [_response(output)]
        case RunStatus.ERROR | RunStatus.TIMEOUT:
            error = ended.error if isinstance(ended.error, dict) else {}
            state, said = State.FAILED, [f"{error.get('error')}: {error.get('message')}"]
        case RunStatus.INTERRUPTED:
            state = State.CANCELED
        case _:  # it has not ended after all
            state = State.WORKING
    return Task(thread_id, run_id, state, at, asked, asked_id, said, response)


def _asked(kwargs: Mapping[str, Any]) -> tuple[str, list[Part]]:
    """Id and parts of the message that a run was made with."""
    if kwargs.get("command"):
        return "", [kwargs["command"].get("resume")]
    given = kwargs.get("input")
    messages = given.get("messages") if isinstance(given, dict) else None
    if isinstance(messages, list) and messages and isinstance(messages[-1], dict):
        last = messages[-1]
        return str(last.get("id") or ""), [text_of(last.get("content"))]
    return "", [messages if isinstance(messages, str) else given]


def _response(output: Any) -> Part:
    messages = output.get("messages") if isinstance(output, dict) else None
    for message in reversed(messages) if isinstance(messages, list) else ():
        if isinstance(message, dict) and message.get("type") in ("ai", "AIMessageChunk"):
            return text_of(message.get("content"))
    return output  # type: ignore[no-any-return]  # JSON


def text_of(content: Any) -> str:
    """The text of a message's content, which may be a list of blocks."""
    if isinstance(content, str):
        return content
    return "".join(
        block if isinstance(block, str) else str(block.get("text") or "")
        for block in content or ()
        if isinstance(block, str | dict)
    )


@dataclass(slots=True)
class Speech:
    """What a model has said so far, from the pieces of its messages; a new message starts anew."""

    message_id: str = ""
    text: str = ""
    _seen: set[str] = field(default_factory=set)

    def hear(self, data: bytes) -> bool:
        """Takes a piece: ``[message, metadata]``. Returns whether there is more to tell."""
        message = orjson.loads(data)[0]
        if not isinstance(message, dict) or message.get("type") not in ("AIMessageChunk", "ai"):
            return False
        is_whole, message_id = message["type"] == "ai", str(message.get("id") or "")
        if is_whole and message_id in self._seen:
            return False  # its pieces have come already
        if message_id != self.message_id:
            self.message_id, self.text = message_id, ""
        self._seen.add(message_id)
        piece = text_of(message.get("content"))
        self.text += piece
        return bool(piece)


# How it is written


@dataclass(frozen=True, slots=True)
class Form:
    """How one version of the protocol writes what is told; ``V1`` and ``V03`` are the two."""

    is_legacy: bool

    def task(self, task: Task, history: int | None = None) -> dict[str, Any]:
        """A task. history: how many messages to tell at most."""
        messages = []
        if task.asked:
            asked_id = task.asked_id or f"{task.run_id}-asked"
            messages.append(self._message(task, "user", asked_id, task.asked))
        shown = messages if history is None else messages[max(0, len(messages) - history) :]
        written = {
            "id": task.id,
            "contextId": str(task.thread_id),
            "status": self._status(task.state, task.at, self._said(task)),
            "history": shown,
            "artifacts": [self._artifact(task)] if task.response else [],
        }
        return {"kind": "task", **written} if self.is_legacy else written

    def sent(self, task: Task, history: int | None = None) -> dict[str, Any]:
        """A task as the answer to a message, or as the first event of a stream."""
        written = self.task(task, history)
        return written if self.is_legacy else {"task": written}

    def working(self, task: Task, at: datetime, message_id: str, text: str) -> dict[str, Any]:
        """The event that tells what was said so far."""
        said = self._message(task, "agent", message_id or f"{task.run_id}-working", [text])
        return self._status_update(task, self._status(State.WORKING, at, said), is_final=False)

    def ends(self, task: Task) -> list[dict[str, Any]]:
        """The events with which a stream ends: what came of the task, and how it stands."""
        status = self._status(task.state, task.at, self._said(task))
        events = [self._status_update(task, status, is_final=True)]
        if task.response:
            update = {
                **_named(task),
                "artifact": self._artifact(task),
                "append": False,
                "lastChunk": True,
            }
            events.insert(0, self._event("artifact-update", "artifactUpdate", update))
        return events

    def _status_update(self, task: Task, status: Any, *, is_final: bool) -> dict[str, Any]:
        update = {**_named(task), "status": status}
        if self.is_legacy:
            update["final"] = is_final
        return self._event("status-update", "statusUpdate", update)

    def _event(self, kind: str, name: str, update: dict[str, Any]) -> dict[str, Any]:
        # Only wrapped are they understood by clients of 1.0.
        return {"kind": kind, **update} if self.is_legacy else {name: update}

    def _status(self, state: State, at: datetime, said: Any) -> dict[str, Any]:
        word = state.value.replace("-", "_").upper()
        status = {
            "state": state.value if self.is_legacy else f"TASK_STATE_{word}",
            "timestamp": at.astimezone(UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
        }
        return status if said is None else {**status, "message": said}

    def _said(self, task: Task) -> dict[str, Any] | None:
        if not task.said:
            return None
        return self._message(task, "agent", f"{task.run_id}-{task.state}", task.said)

    def _message(
        self, task: Task, role: str, message_id: str, parts: Sequence[Part]
    ) -> dict[str, Any]:
        written = {
            "messageId": message_id,
            "role": role if self.is_legacy else f"ROLE_{role.upper()}",
            "parts": [self._part(part) for part in parts],
            **_named(task),
        }
        return {"kind": "message", **written} if self.is_legacy else written

    def _artifact(self, task: Task) -> dict[str, Any]:
        return {
            "artifactId": str(task.run_id),
            "name": "Assistant Response",
            "description": "What the assistant answered",
            "parts": [self._part(part) for part in task.response],
        }

    def _part(self, content: Part) -> dict[str, Any]:
        if isinstance(content, str):
            return {"kind": "text", "text": content} if self.is_legacy else {"text": content}
        if self.is_legacy:  # data is an object there
            data = content if isinstance(content, dict) else {"value": content}
            return {"kind": "data", "data": data}
        return {"data": content}


V1 = Form(is_legacy=False)
V03 = Form(is_legacy=True)


def _named(task: Task) -> dict[str, str]:
    return {"taskId": task.id, "contextId": str(task.thread_id)}


def card(assistant: AssistantRow, url: str) -> dict[str, Any]:
    """The agent's card, with what both versions look for. url: where the agent is spoken to."""
    modes = ["text/plain", "application/json"]
    description = assistant.description or f"The {assistant.name} assistant"
    return {
        "protocolVersion": "0.3.0",
        "name": assistant.name,
        "description": description,
        "version": str(assistant.version),
        "url": url,
        "preferredTransport": "JSONRPC",
        "supportedInterfaces": [
            {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": version}
            for version in ("1.0", "0.3")
        ],
        "capabilities": {
            "streaming": True,
            "pushNotifications": False,
            "extendedAgentCard": False,
        },
        "defaultInputModes": modes,
        "defaultOutputModes": modes,
        "skills": [
            {
                "id": str(assistant.assistant_id),
                "name": assistant.name,
                "description": description,
                "tags": [assistant.graph_id],
            }
        ],
    }

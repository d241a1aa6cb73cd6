"""What a client of the A2A protocol sends, in either of its two forms. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from gateway.jsonrpc import INVALID_PARAMS, RpcError, natural

TASK_NOT_FOUND = -32001
NOT_CANCELABLE = -32002
NOT_SUPPORTED = -32004
"""Codes of the protocol's own errors."""

_MEDIA = frozenset({"image", "audio", "video"})


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message for an agent.

    content: for a chat model, a text or a list of blocks; None when there is only data.
    data: objects that were sent, one over the other. value: what it is as the answer to a question:
    the data, or else the content.
    """

    message_id: str
    thread_id: UUID | None
    task: "tuple[UUID, UUID] | None"
    content: "str | list[dict[str, Any]] | None"
    data: dict[str, Any]
    value: Any

    @property
    def input(self) -> dict[str, Any]:
        """The message as the input of a graph."""
        if self.content is None:
            return self.data
        said = {"role": "user", "content": self.content, "id": self.message_id}
        return {**self.data, "messages": [said]}


def incoming(params: Mapping[str, Any]) -> Incoming:
    """Reads the message that is sent. Raises RpcError."""
    message = params.get("message")
    if not isinstance(message, dict):
        raise _invalid("message is missing")
    parts, message_id = message.get("parts"), message.get("messageId")
    if not isinstance(parts, list) or not parts or not all(isinstance(p, dict) for p in parts):
        raise _invalid("message.parts must be a list of parts, and not empty")
    if not isinstance(message_id, str) or not message_id:
        raise _invalid("message.messageId is missing")
    task = task_id(message["taskId"]) if message.get("taskId") else None
    thread_id = _context_id(message["contextId"]) if message.get("contextId") else None
    if task is not None and thread_id not in (None, task[0]):
        raise _invalid("message.taskId is not of the context")
    content, data = _content(parts), [part["data"] for part in parts if "data" in part]
    objects = [one for one in data if isinstance(one, dict)]
    if task is None and len(objects) < len(data):
        raise _invalid("data must be an object")
    merged = {key: value for one in objects for key, value in one.items()}
    return Incoming(
        message_id,
        task[0] if task else thread_id,
        task,
        content,
        merged,
        value=(merged or data[-1]) if data else content,
    )


def task_id(text: Any) -> tuple[UUID, UUID]:
    """The thread and the run that a task's id names. Raises RpcError."""
    try:
        thread_id, _, run_id = str(text).partition(":")
        return UUID(thread_id), UUID(run_id)
    except ValueError:
        raise RpcError(TASK_NOT_FOUND, "Task not found") from None


def context_of(params: Mapping[str, Any]) -> UUID:
    """The context whose tasks are asked for. Raises RpcError."""
    if not params.get("contextId"):
        raise _invalid("contextId is missing: tasks are listed by context")
    return _context_id(params["contextId"])


def number(params: Mapping[str, Any], name: str, largest: int, default: int) -> int:
    """A parameter that is a number from 0 on. Raises RpcError."""
    given = params.get(name)
    if given is None or given == "":
        return default
    asked = natural(given)
    if asked is None:
        raise _invalid(f"{name} must be a number")
    return min(asked, largest)


def _context_id(text: Any) -> UUID:
    try:
        return UUID(str(text))
    except ValueError:
        raise _invalid("contextId must be a UUID") from None


def _content(parts: Iterable[dict[str, Any]]) -> str | list[dict[str, Any]] | None:
    """Texts and files as a chat model takes them; None without any."""
    blocks = _blocks(parts)
    if any(block["type"] != "text" for block in blocks):
        return blocks
    return "\n".join(block["text"] for block in blocks) if blocks else None


def _blocks(parts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for part in parts:
        file = part.get("file")
        if isinstance(part.get("text"), str):
            blocks.append({"type": "text", "text": part["text"]})
        elif isinstance(file, dict):
            place, raw = file.get("uri"), file.get("bytes")
            blocks.append(_file(place, raw, file.get("mimeType"), file.get("name")))
        elif "url" in part or "raw" in part:
            named = part.get("mediaType"), part.get("filename")
            blocks.append(_file(part.get("url"), part.get("raw"), *named))
        elif "data" not in part:
            raise _invalid("a part must be a text, a file or data")
    return blocks


def _file(url: Any, raw: Any, media_type: Any, name: Any) -> dict[str, Any]:
    kind = str(media_type or "").partition("/")[0]
    block: dict[str, Any] = {"type": kind if kind in _MEDIA else "file"}
    if isinstance(url, str) and url:
        block["url"] = url
    elif isinstance(raw, str):
        block["base64"] = raw
    else:
        raise _invalid("a file must have its bytes or a URL")
    if media_type:
        block["mime_type"] = str(media_type)
    if name:
        block["extras"] = {"filename": str(name)}
    return block


def _invalid(message: str) -> RpcError:
    return RpcError(INVALID_PARAMS, f"Invalid params: {message}")

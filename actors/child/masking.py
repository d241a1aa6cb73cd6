"""What clients may see of an exception: its class, and its text only where that is harmless."""

from typing import TypedDict

HIDDEN = "An internal error occurred"
"""Shown in place of a text that may hold anything."""

MAX_CHARACTERS = 16_384
"""A longer text is cut: it is stored with the run and sent to every reader of it."""

_OPEN = (ValueError, KeyError, TypeError, AttributeError, RuntimeError, TimeoutError)
_OPEN_PACKAGES = frozenset({"langgraph", "pydantic", "pydantic_core"})


class Masked(TypedDict):
    """An error as clients see it."""

    error: str
    message: str


def masked(error: BaseException) -> Masked:
    """The error that ended a run. An exception group shows its first member."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return masked_alone(error)


def masked_alone(error: BaseException) -> Masked:
    """The error as it stands, a group as a group: what an error is inside another value."""
    return {"error": type(error).__name__, "message": _text(error) if _is_open(error) else HIDDEN}


def _is_open(error: BaseException) -> bool:
    """Whether the class is one whose text is written for the caller's eyes."""
    package = type(error).__module__.partition(".")[0]
    return isinstance(error, _OPEN) or package in _OPEN_PACKAGES


def _text(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  # a user's __str__ may do anything
        return HIDDEN
    if len(text) > MAX_CHARACTERS:
        text = f"{text[:MAX_CHARACTERS]}… ({len(text) - MAX_CHARACTERS} more characters)"
    return text.replace("\0", "\ufffd")

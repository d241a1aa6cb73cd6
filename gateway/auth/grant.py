"""What authorization handlers are asked about, and what of their changes reaches the request."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import structlog

from gateway.errors import ProjectFailed
from gateway.wire.body import Body, Query
from persistence.visibility import Filter

log = structlog.get_logger()

Value = dict[str, Any]

_TUPLES = frozenset({"namespace", "suffix"})
"""Shown as tuples, as ``langgraph_sdk.auth.types`` has them."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The right to do something.

    value: what was asked for, with the changes that the handler made.
    allowed: which rows it is for, by their metadata; None for all.
    """

    value: Value = field(default_factory=dict)
    allowed: Filter | None = None

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata that the handler leaves or adds, for the row that is written.

        Raises ProjectFailed for what is none: the handler is at fault.
        """
        metadata: dict[str, Any] = _checked("metadata", self.value.get("metadata") or {}, {})
        return metadata


def asked(arguments: Mapping[str, Any]) -> Value:
    """What a handler is shown of a request: ids of the path, fields of the query and the body.

    Objects are copies, so a change is seen. Pure.
    """
    value: Value = {}
    for name, argument in arguments.items():
        if isinstance(argument, Body | Query):
            for field_name in type(argument).model_fields:
                shown = argument.in_value.get(field_name, field_name)
                value[shown] = _shown(shown, getattr(argument, field_name))
        elif not isinstance(argument, list):
            value[name] = argument
    return value


def edited(arguments: dict[str, Any], value: Value) -> dict[str, Any]:
    """The arguments with the handler's changes in bodies and queries.

    Raises ProjectFailed for changes that do not fit: the handler is at fault.
    """
    return {
        name: _edited(argument, value) if isinstance(argument, Body | Query) else argument
        for name, argument in arguments.items()
    }


def _edited(model: Body | Query, value: Value) -> Body | Query:
    changes = {}
    for name in type(model).model_fields:
        shown, before = model.in_value.get(name, name), getattr(model, name)
        if shown in value and value[shown] != _shown(shown, before):
            changes[name] = _checked(shown, value[shown], before)
    return model.model_copy(update=changes) if changes else model


def _shown(name: str, content: Any) -> Any:
    if isinstance(content, dict):
        return dict(content)
    if isinstance(content, list):
        return tuple(content) if name in _TUPLES else list(content)
    return content


def _checked(name: str, content: Any, before: Any) -> Any:
    if isinstance(content, tuple):
        content = list(content)
    if isinstance(before, dict) and not isinstance(content, dict):
        log.error("an authorization handler wrote what does not fit", field=name)
        raise ProjectFailed(f"Auth handler wrote an invalid {name}.")
    try:
        orjson.dumps(content)
    except TypeError:
        log.exception("an authorization handler wrote what is no JSON", field=name)
        raise ProjectFailed(f"Auth handler wrote an invalid {name}.") from None
    return content

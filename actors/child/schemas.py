"""JSON schemas of a graph. A part that has none is null; it never costs the others theirs."""

import logging
import warnings
from collections.abc import Callable
from typing import Any

from langgraph.pregel import Pregel
from pydantic import BaseModel, Field, TypeAdapter, create_model

_log = logging.getLogger(__name__)

_LONGEST_REASON = 200

Compiled = Pregel[Any, Any, Any, Any]


def of(graph: Compiled) -> dict[str, Any]:
    """The five schemas of the wire: input, output, state, config and context."""
    context = _attempted(graph.get_context_jsonschema)
    return {
        "input_schema": _attempted(graph.get_input_jsonschema),
        "output_schema": _attempted(graph.get_output_jsonschema),
        "state_schema": _attempted(lambda: _state(graph)),
        "config_schema": context or {},
        "context_schema": context,
    }


def _attempted(make: Callable[[], dict[str, Any] | None]) -> dict[str, Any] | None:
    """The schema, or None when a user's type has none (``typing.TypedDict`` before Python 3.12)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # names that shadow pydantic's own, and the like
            return make()
    except Exception as error:  # noqa: BLE001  # pydantic raises what a user's type makes it raise
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        _log.info("a part of the graph has no schema: %s", reason[:_LONGEST_REASON])
        return None


def _state(graph: Compiled) -> dict[str, Any]:
    """What may be written to each key; one whose type has no schema takes anything."""
    fields: dict[str, Any] = {}
    for key in graph.stream_channels_list:
        channel = graph.channels[key]
        kind = getattr(channel, "UpdateType", Any)
        if _attempted(lambda kind=kind: TypeAdapter(kind).json_schema()) is None:  # type: ignore[misc]  # mypy infers no type for a defaulted lambda
            kind = Any
        # Pydantic takes no leading underscores; the alias is what the schema shows.
        name = key.lstrip("_") or f"key_{len(fields)}"
        title = name.replace("_", " ").title()
        fields[name] = (kind, Field(None, alias=key, title=title) if name != key else None)
    model: type[BaseModel] = create_model(graph.get_name("State"), **fields)
    return model.model_json_schema()

"""Assistants on the wire: what creates, changes and finds one, and how a row is shown."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID, uuid4

from pydantic import BeforeValidator, Field

from gateway.errors import BadRequest
from gateway.responses import Shown, selected
from gateway.wire.answers import document, moment
from gateway.wire.body import Body, Query
from gateway.wire.fields import Flag, GraphId, JsonObject, Limit, NotNull, Offset, Uuid, Whole
from gateway.wire.runs import RunConfig
from persistence.assistants import AssistantRow, SortBy

BOTH = (
    "Cannot specify both configurable and context. Prefer setting context alone. Context was "
    "introduced in LangGraph 0.6.0 and is meant to replace configurable."
)

_NO_CONTEXT = frozenset(
    {"checkpoint_id", "checkpoint_ns", "checkpoint_map", "thread_id", "run_id", "assistant_id"}
)
"""Keys of ``configurable`` that steer LangGraph, and mean nothing to a graph's context schema."""

AssistantKey = Literal[
    "assistant_id",
    "graph_id",
    "name",
    "description",
    "config",
    "context",
    "created_at",
    "updated_at",
    "metadata",
    "version",
]


class AssistantPatch(Body):
    """What changes an assistant: metadata is merged, the rest replaced."""

    graph_id: Annotated[GraphId | None, NotNull] = None
    config: Annotated[RunConfig | None, NotNull] = None
    context: Annotated[JsonObject | None, NotNull] = None
    metadata: JsonObject = {}
    name: Annotated[str | None, NotNull] = None
    description: Annotated[str | None, NotNull] = None


class AssistantCreate(AssistantPatch):
    """What creates an assistant."""

    graph_id: GraphId
    assistant_id: Annotated[Uuid, NotNull] = Field(default_factory=uuid4)
    if_exists: Literal["raise", "do_nothing"] = "raise"
    description: str | None = None


class AssistantCount(Body):
    """Which assistants to count."""

    metadata: JsonObject = {}
    graph_id: Annotated[GraphId | None, NotNull] = None
    name: Annotated[str | None, NotNull] = None


class AssistantSearch(AssistantCount):
    """Which assistants to find, and how to show them."""

    limit: Limit = 10
    offset: Offset = 0
    sort_by: Annotated[SortBy | None, NotNull] = None
    sort_order: Annotated[Literal["asc", "desc"] | None, NotNull] = None
    select: Annotated[list[AssistantKey] | None, NotNull] = None


class VersionSearch(Body):
    """Which versions of an assistant to list."""

    metadata: JsonObject = {}
    limit: Limit = 10
    offset: Offset = 0


class VersionChoice(Body):
    """Which version an assistant shall be."""

    version: Whole


def _depth(text: Any) -> Any:
    if not text:
        return False
    if text.isdecimal() and len(text) < 10 and int(text) >= 1:  # no graph is deeper
        return int(text)
    if text in ("true", "false"):
        return text == "true"
    raise ValueError("Invalid xray value")


class Drawing(Query):
    """How deep to draw into subgraphs."""

    xray: Annotated[bool | int, BeforeValidator(_depth)] = False


class Subgraphs(Query):
    """Whether to list the subgraphs of subgraphs too."""

    recurse: Flag = False


class Deletion(Query):
    """What to delete with the assistant."""

    delete_threads: Flag = False


def mirrored(
    config: dict[str, Any], context: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Config and context such that ``configurable`` and context say the same.

    Whichever the client gave is written to the other as well. Raises BadRequest for both.
    """
    configurable = config.get("configurable")
    if configurable and context:
        raise BadRequest(BOTH)
    if context:
        return {**config, "configurable": context}, context
    return config, {
        key: value
        for key, value in (configurable or {}).items()
        if key not in _NO_CONTEXT and not key.startswith("__")
    }


class AssistantVersion(Shown):
    """What an assistant was at a version."""

    assistant_id: UUID
    graph_id: GraphId
    config: dict[str, Any]
    context: dict[str, Any]
    metadata: dict[str, Any]
    name: str
    created_at: datetime
    version: int
    description: str | None


class Assistant(AssistantVersion):
    """A graph with a configuration and a name."""

    updated_at: datetime


SelectedAssistant = selected(Assistant)


class SubgraphSchemas(Shown):
    """JSON schemas of a graph inside another one; null for types that cannot be described."""

    input_schema: dict[str, Any] | None
    output_schema: dict[str, Any] | None
    state_schema: dict[str, Any] | None
    config_schema: dict[str, Any] | None
    context_schema: dict[str, Any] | None


class Schemas(SubgraphSchemas):
    """JSON schemas of a graph; null for types that cannot be described."""

    graph_id: GraphId


class Graph(Shown):
    """A graph's nodes and edges."""

    nodes: list[dict[str, Any]]
    edges: list[dict[str, Any]]


def show_assistant(row: AssistantRow) -> dict[str, Any]:
    """An assistant's row as the wire has it."""
    return {
        "assistant_id": row.assistant_id,
        "graph_id": row.graph_id,
        "config": document(row.config),
        "context": document(row.context),
        "metadata": document(row.metadata),
        "name": row.name,
        "created_at": moment(row.created_at),
        "updated_at": moment(row.updated_at),
        "version": row.version,
        "description": row.description,
    }


def show_version(row: AssistantRow) -> dict[str, Any]:
    """A version of an assistant as the wire has it."""
    shown = show_assistant(row)
    del shown["updated_at"]
    return shown

"""The store on the wire: what writes, names and finds items, and how one is shown.

A namespace is a list of labels; in a query it is one text, its labels joined by dots. It is parsed
here, so that every endpoint means the same by it.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from gateway.responses import Shown
from gateway.wire.answers import document, moment
from gateway.wire.body import Body, Query
from gateway.wire.fields import Flag, JsonObject, Key, Limit, NotNull, Offset
from persistence.store import Item

_LONGEST_TTL_MINUTES = 60 * 24 * 365 * 100.0
"""A century: Postgres' times end somewhere."""

_DEEPEST_FILTER = 64


def check_labels(labels: list[str]) -> list[str]:
    """The labels of a namespace. Raises ValueError for one that cannot be told from two."""
    for label in labels:
        if not label or "." in label:
            raise ValueError(
                f"Namespace label {label!r} must be a non-empty string without periods"
            )
    return labels


def _split(given: Any) -> Any:
    """A namespace in a query: of several the last one counts."""
    return given[-1].split(".") if isinstance(given, list) and given else given


def _shallow(wanted: dict[str, Any]) -> dict[str, Any]:
    """Comparing goes into the depth in the database, level by level."""
    level: list[Any] = [wanted]
    for _ in range(_DEEPEST_FILTER):
        level = [inner for test in level for inner in _inside(test)]
    if level:
        raise ValueError("nested too deeply")
    return wanted


def _inside(test: Any) -> list[Any]:
    return list(test.values()) if isinstance(test, dict) else test if isinstance(test, list) else []


def _empty_for_null(given: Any) -> Any:
    return [] if given is None else given


def _no_number(given: Any) -> Any:
    """To Python 0 is false; to JSON it is not."""
    if not isinstance(given, bool):
        raise ValueError("expected false, a list or null")
    return given


Labels = Annotated[list[Key], AfterValidator(check_labels)]
Dotted = Annotated[Labels, BeforeValidator(_split), WithJsonSchema({"type": "string"})]
Ttl = Annotated[float, Field(gt=0, le=_LONGEST_TTL_MINUTES)]
"""Minutes."""


class StorePut(Body):
    """An item to write. It is embedded as the project says, unless ``index`` says otherwise."""

    namespace: Labels
    key: Key
    value: JsonObject
    index: Annotated[Literal[False], BeforeValidator(_no_number)] | list[Key] | None = None
    """Paths of the texts to embed; false: nothing is."""
    ttl: Ttl | None = None
    """Minutes to live; null: for ever, left out: what the project says."""


class StoreGet(Query):
    """Which item to read."""

    namespace: Dotted
    key: str = ""
    refresh_ttl: Flag | None = None


class StoreDelete(Body):
    """Which item to remove."""

    namespace: Labels = []
    key: Key


class StoreSearch(Body):
    """Which items to find: in and below a namespace, by their fields, by what they mean."""

    in_value: ClassVar[Mapping[str, str]] = {"namespace_prefix": "namespace"}

    namespace_prefix: Annotated[
        Labels,
        BeforeValidator(_empty_for_null),
        WithJsonSchema({"type": ["array", "null"], "items": {"type": "string", "minLength": 1}}),
    ] = []
    filter: Annotated[JsonObject, AfterValidator(_shallow)] | None = None
    limit: Limit = 10
    offset: Offset = 0
    query: str | None = None
    refresh_ttl: bool | None = None


class StoreNamespaces(Body):
    """Which namespaces to list; ``*`` stands for any one label."""

    in_value: ClassVar[Mapping[str, str]] = {"prefix": "namespace"}

    prefix: Labels = []
    suffix: Labels = []
    max_depth: Annotated[Annotated[int, Field(ge=1, le=1000)] | None, NotNull] = None
    limit: Limit = 100
    offset: Offset = 0


class StoreItem(Shown):
    """An item of the store."""

    namespace: list[str]
    key: str
    value: dict[str, Any]
    created_at: datetime
    updated_at: datetime


class FoundItem(StoreItem):
    """An item that was searched for."""

    score: float | None
    """How near it is to the query; null when it is not embedded, or nothing was asked."""


class FoundItems(Shown):
    """What a search found."""

    items: list[FoundItem]


class Namespaces(Shown):
    """Namespaces, sorted."""

    namespaces: list[list[str]]


def show_item(item: Item) -> dict[str, Any]:
    """An item as the wire has it."""
    return {
        "namespace": item.namespace,
        "key": item.key,
        "value": document(item.value),
        "created_at": moment(item.created_at),
        "updated_at": moment(item.updated_at),
    }

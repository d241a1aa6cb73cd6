"""Field types that several requests share."""

from typing import Annotated, Any, TypeVar
from uuid import UUID

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

T = TypeVar("T")


class AsSent:
    """Marks a field that is checked against a model but kept as it was sent.

    So unknown keys stay, nothing is filled in, and nothing large or deep is copied.
    """

    def __init__(self, model: type[BaseModel]) -> None:
        self._model = model

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Pydantic's hook."""

        def check(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
            validate(value)
            return value

        return core_schema.no_info_wrap_validator_function(
            check, handler.generate_schema(self._model)
        )


_SPARE_LEVELS = 20
"""Stored objects come back inside other JSON; this many levels are kept free for it."""


def _storable(value: T) -> T:
    wrapped: Any = value
    for _ in range(_SPARE_LEVELS):
        wrapped = [wrapped]
    try:
        orjson.dumps(wrapped)
    except TypeError:
        raise ValueError("nested too deeply") from None
    return value


class _NotNull:
    """Refuses null, and says so in the JSON schema of a field whose default is None."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Pydantic's hook."""
        return core_schema.no_info_before_validator_function(_refuse_null, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Pydantic's hook."""
        described = handler(schema)
        options = [option for option in described.get("anyOf", ()) if option != {"type": "null"}]
        match options:
            case []:
                return described
            case [only]:
                return dict(only)
            case _:
                return {**described, "anyOf": options}


def _refuse_null(value: Any) -> Any:
    if value is None:
        raise ValueError("null is not allowed: leave the field out")
    return value


def _uuid(value: Any) -> UUID:
    if isinstance(value, UUID):
        return value
    try:
        return UUID(value)
    except (ValueError, TypeError, AttributeError):
        raise ValueError("must be a UUID") from None


def _without_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("must not contain NUL characters")
    return value


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _flag(value: Any) -> Any:
    return value.lower() in ("true", "1") if isinstance(value, str) else value


NotNull = _NotNull()
"""For a field that may be left out but, when present, must have a value."""

Storable = AfterValidator(_storable)
"""For JSON that will come back inside other JSON."""

JsonObject = Annotated[dict[str, Any], Storable]
"""An object that will be stored as it is."""

Key = Annotated[str, AfterValidator(_without_nul)]
"""A text that the database is asked for as it is: none of its texts can hold a NUL."""

Uuid = Annotated[UUID, BeforeValidator(_uuid)]
"""A UUID in any of its written forms."""

GraphId = Annotated[str, WithJsonSchema({"type": "string", "format": "graph-id"})]
"""The name of a graph; the OpenAPI document lists the names that there are."""

AssistantName = Annotated[
    str,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "format": "uuid"},
                {"type": "string", "format": "graph-id"},
            ]
        }
    ),
]
"""The id of an assistant, or the name of a graph for the assistant that it has from the start."""

Flag = Annotated[bool, BeforeValidator(_flag)]
"""A boolean in a query: ``true`` and ``1`` are true, everything else is false."""

Whole = Annotated[int, BeforeValidator(_whole)]
"""An integer as JSON has it: ``1.0`` is one too."""

Limit = Annotated[Whole, Field(ge=1, le=1000)]
"""How many rows a page may have."""

Offset = Annotated[Whole, Field(ge=0, le=2**63 - 1)]
"""How many rows to skip."""

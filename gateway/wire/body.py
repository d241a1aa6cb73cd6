"""How bodies and queries are read: the JSON first, then the model, each failure as one sentence."""

import types
import typing
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

import orjson
from aiohttp import web
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from gateway.errors import BadRequest, Unprocessable

T = TypeVar("T")
Q = TypeVar("Q", bound="Query")


class Body(BaseModel):
    """A request's body: types as JSON has them (no guessing), unknown fields ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    in_value: ClassVar[Mapping[str, str]] = {}
    """Fields that authorization handlers know by another name."""


class Query(BaseModel):
    """A request's query: text that is converted, unknown parameters ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    in_value: ClassVar[Mapping[str, str]] = {}
    """Parameters that authorization handlers know by another name."""


async def read_body(request: web.Request, adapter: TypeAdapter[T]) -> T:
    """The body as ``adapter``'s type, whatever content type it claims.

    Raises Unprocessable, and what ``whole_body`` does.
    """
    try:
        content = orjson.loads(await whole_body(request))
    except orjson.JSONDecodeError:
        raise Unprocessable("Invalid JSON in request body") from None
    return checked(content, adapter)


async def whole_body(request: web.Request) -> bytes:
    """The body as it was sent, uncompressed.

    Raises BadRequest for one that is cut off or not compressed as it claims, and aiohttp's refusal
    of one that is too large.
    """
    size, largest = request.content_length or 0, request.client_max_size
    if size > largest:  # told before it is sent
        raise web.HTTPRequestEntityTooLarge(largest, size)
    try:
        return await request.read()
    except web.RequestPayloadError as error:
        raise BadRequest(f"The request's body cannot be read: {error}") from None


def checked(content: Any, adapter: TypeAdapter[T]) -> T:
    """JSON values as ``adapter``'s type. Raises Unprocessable."""
    try:
        return adapter.validate_python(content)
    except ValidationError as error:
        raise Unprocessable(_sentence(error)) from None


def read_query(request: web.Request, model: type[Q]) -> Q:
    """The query as ``model``: lists collect repeated parameters, else the last one wins.

    NUL characters are dropped: no stored text can hold them. Raises Unprocessable.
    """
    values: dict[str, str | list[str]] = {}
    for name, field in model.model_fields.items():
        given = [value.replace("\0", "") for value in request.query.getall(name, ())]
        if given:
            values[name] = given if _is_list(field.annotation) else given[-1]
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise Unprocessable(_sentence(error)) from None


def _is_list(annotation: Any) -> bool:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return any(_is_list(option) for option in typing.get_args(annotation))
    return typing.get_origin(annotation) is list


def _sentence(error: ValidationError) -> str:
    return "; ".join(
        ".".join(str(part) for part in problem["loc"]) + ": " + _message(problem["msg"])
        if problem["loc"]
        else _message(problem["msg"])
        for problem in error.errors(include_url=False, include_context=False, include_input=False)
    )


def _message(text: str) -> str:
    return text.removeprefix("Value error, ")

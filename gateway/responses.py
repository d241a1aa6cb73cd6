"""What an endpoint may answer, as its decorator declares it: ``responses={200: Run, 404: "…"}``.

Each status has one of

    a type            JSON of that type
    a text            an error of that meaning, or no content for a status below 400
    a Response        anything else: other media types, headers

What every endpoint may answer (a form that is not understood, a database that is away) is added by
``gateway.openapi`` and not repeated here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model


class Shown(BaseModel):
    """A JSON object that is answered: describes it, does not make it (rows are shown faster)."""

    model_config = ConfigDict(extra="forbid")


class Problem(Shown):
    """Why something was not done, in one sentence for people."""

    detail: str


@dataclass(frozen=True, slots=True)
class Response:
    """One answer.

    content: the type of its JSON; None for another media type or none at all.
    headers: name → meaning; all are strings and always there, unless the name ends in ``?``.
    others: further media types that it may have, each with its type.
    """

    description: str
    content: Any = None
    media_type: str | None = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)


Responses = Mapping[int, Any]

PLACE = {"Content-Location": "path of the run"}
FOLLOWED = {**PLACE, "Location": "where to go on when the line breaks"}


def events(**headers: str) -> Response:
    """An event stream."""
    return Response("Server-sent events, until the end.", Any, "text/event-stream", headers)


def list_of(item: Any) -> Response:
    """A bare array."""
    return Response("A bare array.", list[item])


def page_of(item: Any) -> Response:
    """A page of a search."""
    return Response(
        "A page, as a bare array.",
        list[item],
        headers={
            "X-Pagination-Total": "the least that the total can be: what is known from this page",
            "X-Pagination-Next?": "the next page's offset, when there is one",
        },
    )


def selected(model: type[Shown], **more: Any) -> type[Shown]:
    """``model`` when ``select`` may leave out any of its keys; ``more``: keys that may be added."""
    fields = {name: field.annotation for name, field in model.model_fields.items()} | more
    optional: dict[str, Any] = {name: (kind, Field(None)) for name, kind in fields.items()}
    return create_model(
        f"Selected{model.__name__}", __base__=Shown, __doc__=model.__doc__, **optional
    )

"""The OpenAPI document, made from the endpoints: their signatures, docstrings and ``responses``.

Nothing is written twice: paths and ids come from the route, bodies and queries from their pydantic
models, and the names of the graphs from the project.
"""

import inspect
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from http import HTTPStatus
from typing import Any, Literal
from uuid import UUID

import orjson
from aiohttp import web
from pydantic import BaseModel, TypeAdapter

from gateway.http_options import HttpOptions
from gateway.responses import Problem, Response
from gateway.routing import PUBLIC, Endpoint, Routes

Schema = dict[str, Any]
Mode = Literal["validation", "serialization"]

_COMPONENT = "#/components/schemas/{model}"
_JSON = "application/json"

_OF_CALLERS = {
    401: "The caller is not known",
    403: "The caller may not do this",
    404: "Not there, or not the caller's to see",
}
_ALWAYS = {
    503: Response(
        "Something that is needed is away, or the project's own code failed: try again later",
        Problem,
        headers={"Retry-After": "seconds to wait"},
    )
}
_WITH_ARGUMENTS = {422: "Not of the form that is taken"}
_WITH_BODY = {400: "The body cannot be read", 413: "The body is too large"}


class Document:
    """What ``/openapi.json`` answers; made when it is first asked for."""

    def __init__(
        self,
        mounted: Iterable[Routes],
        graph_ids: Iterable[str],
        version: str,
        *,
        options: HttpOptions = HttpOptions(),  # noqa: B008  # frozen
        asks_callers: bool = False,
        security: Mapping[str, Any] | None = None,
    ) -> None:
        """security: what the project says of how callers are known; see ``_secure``."""
        self._endpoints = [
            endpoint
            for routes in mounted
            for endpoint in routes.endpoints
            if options.serves(endpoint.path)
        ]
        self._prefix = options.mount_prefix
        self._graph_ids = sorted(graph_ids)
        self._version = version
        self._asks_callers = asks_callers
        self._security = security or {}

    @cached_property
    def body(self) -> bytes:
        """The document as JSON."""
        document = describe(
            self._endpoints, self._graph_ids, self._version, asks_callers=self._asks_callers
        )
        _secure(document, self._security)
        if self._prefix:
            document["servers"] = [{"url": self._prefix}]
        return orjson.dumps(document)


DOCUMENT = web.AppKey("document", Document)


def describe(
    endpoints: Iterable[Endpoint],
    graph_ids: list[str],
    version: str,
    *,
    asks_callers: bool = False,
) -> Schema:
    """The OpenAPI 3.1 document of the endpoints.

    asks_callers: whether callers are authenticated, so that they may be refused.
    """
    components = _Components()
    paths: dict[str, Schema] = {}
    for endpoint in endpoints:
        path = paths.setdefault(endpoint.path, {})
        path[endpoint.method.lower()] = _operation(endpoint, components, asks_callers)
    document: Schema = {
        "openapi": "3.1.0",
        "info": {
            "title": "Callboard",
            "version": version,
            "description": "A self-hosted run server that speaks the LangGraph Platform's API.",
        },
        "paths": paths,
        "components": {"schemas": dict(sorted(components.schemas.items()))},
    }
    _finish(paths, graph_ids)
    _finish(document["components"], graph_ids)
    return document


def _secure(document: Schema, security: Mapping[str, Any]) -> None:
    """Adds ``auth.openapi`` of langgraph.json: schemes, what all need, and what single paths do."""
    if schemes := security.get("securitySchemes"):
        document["components"]["securitySchemes"] = schemes
    if needed := security.get("security"):
        document["security"] = needed
    for path, methods in (security.get("paths") or {}).items():
        for method, needed in methods.items():
            if operation := document["paths"].get(path, {}).get(method.lower()):
                operation["security"] = needed


class _Components:
    """The schemas of named models, each once."""

    def __init__(self) -> None:
        self.schemas: dict[str, Schema] = {}

    def schema(self, kind: Any, mode: Mode) -> Schema:
        """The schema of a type, with models by reference."""
        schema = TypeAdapter(kind).json_schema(ref_template=_COMPONENT, mode=mode)
        for name, definition in schema.pop("$defs", {}).items():
            self._add(name, definition)
        if isinstance(kind, type) and issubclass(kind, BaseModel) and "$ref" not in schema:
            self._add(kind.__name__, schema)
            return {"$ref": _COMPONENT.format(model=kind.__name__)}
        return schema

    def _add(self, name: str, schema: Schema) -> None:
        if self.schemas.setdefault(name, schema) != schema:
            raise ValueError(f"two models of the name {name}")


def _operation(endpoint: Endpoint, components: _Components, asks_callers: bool) -> Schema:
    file = endpoint.handler.__module__.rpartition(".")[2]
    words = re.findall(r"\w+", endpoint.path)
    summary, _, description = (inspect.getdoc(endpoint.handler) or "").partition("\n\n")
    operation: Schema = {
        "operationId": "_".join([endpoint.method.lower(), *words]),
        "tags": [file.replace("_", " ").capitalize()],
        "summary": " ".join(summary.split()),
        "parameters": [*_path(endpoint), *_query(endpoint, components)],
        "responses": _responses(endpoint, components, asks_callers),
    }
    if description:
        operation["description"] = description
    if endpoint.body_type is not None:
        schema = components.schema(endpoint.body_type, "validation")
        operation["requestBody"] = {"required": True, "content": {_JSON: {"schema": schema}}}
    return operation


def _path(endpoint: Endpoint) -> Iterable[Schema]:
    for name, kind in endpoint.ids.items():
        schema = {"type": "string", "format": "uuid"} if kind is UUID else {"type": "string"}
        yield {"name": name, "in": "path", "required": True, "schema": schema}


def _query(endpoint: Endpoint, components: _Components) -> Iterable[Schema]:
    if endpoint.query is None:
        return
    schema = endpoint.query.model_json_schema(ref_template=_COMPONENT)
    for name, parameter in schema.get("properties", {}).items():
        # A query has no null: what may be left out is not required.
        options = [option for option in parameter.get("anyOf", ()) if option != {"type": "null"}]
        yield {
            "name": name,
            "in": "query",
            "required": name in schema.get("required", ()),
            "schema": options[0] if len(options) == 1 else parameter,
        }


def _responses(endpoint: Endpoint, components: _Components, asks_callers: bool) -> Schema:
    declared: dict[int, Any] = {
        **(_OF_CALLERS if asks_callers and endpoint.on != PUBLIC else {}),
        **_ALWAYS,
        **(_WITH_ARGUMENTS if endpoint.ids or endpoint.body or endpoint.query else {}),
        **(_WITH_BODY if endpoint.body_type is not None else {}),
        **endpoint.responses,
    }
    return {
        str(status): _response(status, declared[status], components) for status in sorted(declared)
    }


def _response(status: int, declared: Any, components: _Components) -> Schema:
    match declared:
        case Response():
            response = declared
        case str() if status >= 400:
            response = Response(declared, Problem)
        case str():
            response = Response(declared, media_type=None)
        case _:
            response = Response(HTTPStatus(status).phrase, declared)
    described: Schema = {"description": response.description}
    if response.media_type is not None:
        contents = {response.media_type: response.content, **response.others}
        described["content"] = {
            media_type: {"schema": components.schema(content, "serialization")}
            for media_type, content in contents.items()
        }
    if response.headers:
        described["headers"] = dict(map(_header, response.headers.items()))
    return described


def _header(named: tuple[str, str]) -> tuple[str, Schema]:
    name, meaning = named
    return name.removesuffix("?"), {
        "description": meaning,
        "required": not name.endswith("?"),
        "schema": {"type": "string"},
    }


def _finish(schema: Any, graph_ids: list[str]) -> None:
    """Names the graphs, and takes out what pydantic adds and nobody needs, in place."""
    if isinstance(schema, list):
        for item in schema:
            _finish(item, graph_ids)
    if not isinstance(schema, dict):
        return
    if isinstance(schema.get("title"), str):
        del schema["title"]
    if schema.get("format") == "graph-id":
        del schema["format"]
        schema["enum"] = graph_ids
    if "default" in schema and schema["default"] is None:
        del schema["default"]
    for item in schema.values():
        _finish(item, graph_ids)

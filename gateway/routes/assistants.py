"""Assistants: create, find, read, change, delete, and what their graphs look like."""

from typing import Any
from uuid import UUID

import orjson
from aiohttp import web

from gateway import stopping
from gateway.errors import NotFound, Unprocessable
from gateway.inspection import ask
from gateway.responses import page_of
from gateway.routing import Call, Routes
from gateway.wire.answers import answer, no_content, page, relay, selected
from gateway.wire.assistants import (
    Assistant,
    AssistantCount,
    AssistantCreate,
    AssistantPatch,
    AssistantSearch,
    AssistantVersion,
    Deletion,
    Drawing,
    Graph,
    Schemas,
    SelectedAssistant,
    Subgraphs,
    SubgraphSchemas,
    VersionChoice,
    VersionSearch,
    mirrored,
    show_assistant,
    show_version,
)
from persistence import assistants
from persistence.assistants import AssistantRow
from persistence.errors import AssistantNotFound

routes = Routes()


@routes.post(
    "/assistants",
    on="assistants.create",
    responses={
        200: Assistant,
        400: "Both configurable and context",
        404: "No such graph",
        409: "The id is taken",
    },
)
async def create(call: Call, body: AssistantCreate) -> web.Response:
    """Creates an assistant."""
    _check_graph(call, body.graph_id)
    config, context = mirrored(body.config or {}, body.context or {})
    assistant = await assistants.create(
        call.context.database,
        body.assistant_id,
        body.graph_id,
        name=body.name or "Untitled",
        description=body.description,
        config=config,
        context=context,
        metadata=body.metadata,
        if_exists=body.if_exists,
        allowed=call.allowed,
    )
    return answer(show_assistant(assistant))


@routes.post(
    "/assistants/search",
    on="assistants.search",
    responses={200: page_of(SelectedAssistant), 404: "No such graph"},
)
async def search(call: Call, body: AssistantSearch) -> web.Response:
    """Finds assistants, by default the newest first."""
    _check_graph(call, body.graph_id)
    rows = await assistants.search(
        call.context.database,
        metadata=body.metadata,
        graph_id=body.graph_id,
        name=body.name,
        limit=body.limit + 1,
        offset=body.offset,
        sort_by=body.sort_by or "created_at",
        sort_order=(body.sort_order or "desc") if body.sort_by else "desc",
        allowed=call.allowed,
    )
    shown = [selected(show_assistant(row), body.select) for row in rows]
    return page(shown, body.limit, body.offset)


@routes.post(
    "/assistants/count", on="assistants.search", responses={200: int, 404: "No such graph"}
)
async def count(call: Call, body: AssistantCount) -> web.Response:
    """Counts assistants."""
    _check_graph(call, body.graph_id)
    return answer(
        await assistants.count(
            call.context.database,
            metadata=body.metadata,
            graph_id=body.graph_id,
            name=body.name,
            allowed=call.allowed,
        )
    )


@routes.get(
    "/assistants/{assistant_id}",
    on="assistants.read",
    responses={200: Assistant, 404: "No such assistant"},
)
async def get(call: Call, assistant_id: UUID) -> web.Response:
    """Shows an assistant."""
    return answer(show_assistant(await _get(call, assistant_id)))


@routes.patch(
    "/assistants/{assistant_id}",
    on="assistants.update",
    responses={
        200: Assistant,
        400: "Both configurable and context",
        404: "No such assistant or graph",
    },
)
async def patch(call: Call, assistant_id: UUID, body: AssistantPatch) -> web.Response:
    """Makes a new version of an assistant."""
    _check_graph(call, body.graph_id)
    config, context = body.config or None, body.context
    if context or (config or {}).get("configurable"):
        config, context = mirrored(config or {}, context or {})
    assistant = await assistants.patch(
        call.context.database,
        assistant_id,
        graph_id=body.graph_id,
        name=body.name,
        description=body.description,
        config=config,
        context=context,
        metadata=body.metadata,
        allowed=call.allowed,
    )
    return answer(show_assistant(assistant))


@routes.delete(
    "/assistants/{assistant_id}",
    on="assistants.delete",
    responses={204: "Deleted", 404: "No such assistant"},
)
async def delete(call: Call, assistant_id: UUID, query: Deletion) -> web.Response:
    """Deletes an assistant, and its threads when asked to."""
    threads = None
    if query.delete_threads:
        threads = await call.authorize("threads.delete", {"assistant_id": assistant_id})
    try:
        deleted = await assistants.delete(
            call.context.database,
            assistant_id,
            delete_threads=query.delete_threads,
            allowed=call.allowed,
            allowed_threads=threads.allowed if threads else None,
        )
    except AssistantNotFound:
        raise NotFound(f"Assistant with ID {assistant_id} not found") from None
    await stopping.tell_of_deleted(call.context, deleted)
    return no_content()


@routes.post(
    "/assistants/{assistant_id}/versions",
    on="assistants.read",
    responses={200: list[AssistantVersion], 404: "No such assistant"},
)
async def list_versions(call: Call, assistant_id: UUID, body: VersionSearch) -> web.Response:
    """Lists the versions of an assistant, newest first."""
    rows = await assistants.versions(
        call.context.database,
        assistant_id,
        metadata=body.metadata,
        limit=body.limit,
        offset=body.offset,
        allowed=call.allowed,
    )
    return answer([show_version(row) for row in rows])


@routes.post(
    "/assistants/{assistant_id}/latest",
    on="assistants.update",
    responses={200: Assistant, 404: "No such assistant or version"},
)
async def set_latest(call: Call, assistant_id: UUID, body: VersionChoice) -> web.Response:
    """Makes an assistant what it was at a version."""
    row = await assistants.set_version(
        call.context.database, assistant_id, body.version, allowed=call.allowed
    )
    return answer(show_assistant(row))


@routes.get(
    "/assistants/{assistant}/graph",
    on="assistants.read",
    responses={200: Graph, 404: "No such assistant, or its graph cannot be loaded"},
)
async def draw(call: Call, assistant: str, query: Drawing) -> web.Response:
    """Shows the nodes and edges of an assistant's graph; also takes the graph's name."""
    if assistant in call.context.graph_ids:
        row = await _get(call, assistants.system_id(assistant))
    else:
        try:
            row = await _get(call, UUID(assistant))
        except ValueError:
            raise Unprocessable("Invalid assistant ID: must be a UUID") from None
    return await _ask(call, "graph", row, {"xray": query.xray})


@routes.get(
    "/assistants/{assistant_id}/schemas",
    on="assistants.read",
    responses={200: Schemas, 404: "No such assistant, or its graph cannot be loaded"},
)
async def schemas(call: Call, assistant_id: UUID) -> web.Response:
    """Shows the JSON schemas of an assistant's graph."""
    return await _ask(call, "schemas", await _get(call, assistant_id), {})


@routes.get(
    "/assistants/{assistant_id}/subgraphs",
    on="assistants.read",
    responses={
        200: dict[str, SubgraphSchemas],
        404: "No such assistant, or its graph cannot be loaded",
    },
)
async def subgraphs(call: Call, assistant_id: UUID, query: Subgraphs) -> web.Response:
    """Shows the JSON schemas of the subgraphs of an assistant's graph."""
    args = {"namespace": None, "recurse": query.recurse}
    return await _ask(call, "subgraphs", await _get(call, assistant_id), args)


@routes.get(
    "/assistants/{assistant_id}/subgraphs/{namespace}",
    on="assistants.read",
    responses={
        200: dict[str, SubgraphSchemas],
        404: "No such assistant, or its graph cannot be loaded",
    },
)
async def subgraphs_below(
    call: Call, assistant_id: UUID, namespace: str, query: Subgraphs
) -> web.Response:
    """Shows the JSON schemas of one subgraph, and of those in it."""
    args = {"namespace": namespace, "recurse": query.recurse}
    return await _ask(call, "subgraphs", await _get(call, assistant_id), args)


async def _get(call: Call, assistant_id: UUID) -> AssistantRow:
    try:
        return await assistants.get(call.context.database, assistant_id, allowed=call.allowed)
    except AssistantNotFound:
        raise NotFound("Not Found") from None


async def _ask(call: Call, op: str, row: AssistantRow, args: dict[str, Any]) -> web.Response:
    """Asks the inspector about the graph; a factory builds it with the assistant's config."""
    status, body = await ask(
        call,
        op,
        {"graph_id": row.graph_id, "config": orjson.loads(row.config), **args},
    )
    return relay(body, status=status)


def _check_graph(call: Call, graph_id: str | None) -> None:
    if graph_id is not None and graph_id not in call.context.graph_ids:
        known = sorted(call.context.graph_ids)
        raise NotFound(f"Graph '{graph_id}' not found. Expected one of: {known}")

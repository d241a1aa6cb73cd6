"""The long-term store: items in namespaces, read and written by clients as by graphs.

What needs a vector (an item that is embedded, a question in words) is done by the inspector: the
model that makes it may be large, and is the user's code. All else is done here.
"""

from typing import Any

from aiohttp import web

from gateway.errors import BadRequest
from gateway.inspection import ask
from gateway.responses import Response, Shown
from gateway.routing import Call, Routes
from gateway.wire.answers import answer, no_content, relay
from gateway.wire.store import (
    FoundItems,
    Namespaces,
    StoreDelete,
    StoreGet,
    StoreItem,
    StoreNamespaces,
    StorePut,
    StoreSearch,
    check_labels,
    show_item,
)
from persistence import store

routes = Routes()

_DONE = 200


class NoKey(Shown):
    """Why an item cannot be read; ``error`` is what the reference calls it."""

    detail: str
    error: str


@routes.put(
    "/store/items",
    on="store.put",
    responses={204: "Written", 400: "Not a namespace that may be written"},
)
async def put(call: Call, body: StorePut) -> web.Response:
    """Writes an item, and has it embedded when the project configures an index."""
    namespace = _namespace(body.namespace)
    if not namespace:
        raise BadRequest("Namespace cannot be empty.")
    if namespace[0] == "langgraph":
        raise BadRequest(f'Root label for namespace cannot be "langgraph". Got: {namespace}')
    config = call.context.store
    ttl = body.ttl if "ttl" in body.model_fields_set else config.default_ttl_minutes
    has_index = config.vector_dims is not None
    if has_index and body.index is not False:
        args = {"namespace": namespace, "key": body.key, "value": body.value, "ttl": ttl}
        status, problem = await ask(call, "store_put", {**args, "index": body.index})
        return no_content() if status == _DONE else relay(problem, status=status)
    await store.put(
        call.context.database,
        namespace,
        body.key,
        body.value,
        ttl_minutes=ttl,
        has_index=has_index,
    )
    return no_content()


@routes.get(
    "/store/items",
    on="store.get",
    responses={200: StoreItem | None, 400: Response("No key is given", NoKey)},
)
async def get(call: Call, query: StoreGet) -> web.Response:
    """Shows an item; ``null`` when there is none."""
    if not query.key:
        return answer({"detail": "Key is required", "error": "Key is required"}, status=400)
    refresh = query.refresh_ttl
    item = await store.get(
        call.context.database,
        _namespace(query.namespace),
        query.key,
        refresh=call.context.store.refresh_on_read if refresh is None else refresh,
    )
    return answer(None if item is None else show_item(item))


@routes.delete("/store/items", on="store.delete", responses={204: "It is not there any more"})
async def delete(call: Call, body: StoreDelete) -> web.Response:
    """Removes an item, if it is there."""
    await store.delete(call.context.database, _namespace(body.namespace), body.key)
    return no_content()


@routes.post(
    "/store/items/search",
    on="store.search",
    responses={200: FoundItems, 400: "Not a filter"},
)
async def search(call: Call, body: StoreSearch) -> web.Response:
    """Finds items in and below a namespace, newest update first; with a query, nearest first."""
    wanted: dict[str, Any] = body.filter or {}
    if unknown := store.unsupported_operator(wanted):
        raise BadRequest(f"Unsupported operator: {unknown}")
    config = call.context.store
    refresh = config.refresh_on_read if body.refresh_ttl is None else body.refresh_ttl
    namespace = _namespace(body.namespace_prefix)
    if body.query and config.vector_dims is not None:
        args = {
            "namespace_prefix": namespace,
            "query": body.query,
            "filter": wanted,
            "limit": body.limit,
            "offset": body.offset,
            "refresh_ttl": refresh,
        }
        status, found = await ask(call, "store_search", args)
        return relay(found, status=status)
    items = await store.search(
        call.context.database,
        namespace,
        wanted=wanted,
        limit=body.limit,
        offset=body.offset,
        refresh=refresh,
    )
    return answer({"items": [{**show_item(item), "score": None} for item in items]})


@routes.post("/store/namespaces", on="store.list_namespaces", responses={200: Namespaces})
async def list_namespaces(call: Call, body: StoreNamespaces) -> web.Response:
    """Lists namespaces that begin and end as asked."""
    found = await store.namespaces(
        call.context.database,
        prefix=_namespace(body.prefix),
        suffix=_namespace(body.suffix),
        max_depth=body.max_depth,
        limit=body.limit,
        offset=body.offset,
    )
    return answer({"namespaces": found})


def _namespace(labels: list[str]) -> store.Namespace:
    """The namespace that is meant, also when an authorization handler wrote it: it may not know
    that a dot in a label (of a mail address, say) would name another one."""
    try:
        return tuple(check_labels(labels))
    except ValueError as error:
        raise BadRequest(str(error)) from None

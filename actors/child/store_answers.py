"""Operations on the store that the gateway hands over because something is embedded in them.

store_put     namespace, key, value, index?, ttl?
store_search  namespace_prefix, query, filter?, limit, offset, refresh_ttl?   → {items}
"""

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import psycopg
from langgraph.store.base import NOT_PROVIDED, BaseStore, SearchItem

from actors.child.protocol import PROJECT_FAILED
from actors.child.serialize import dumps
from actors.child.store_config import EmbeddingFailed

Args = Mapping[str, Any]


async def answer(op: str, args: Args, store: BaseStore) -> tuple[int, bytes]:
    """The answer as an HTTP status and a JSON body. op: one of ``OPERATIONS``."""
    try:
        return 200, dumps(await OPERATIONS[op](store, args))
    except EmbeddingFailed as error:
        return PROJECT_FAILED, dumps({"detail": str(error)})
    except (ValueError, psycopg.DataError) as error:
        return 400, dumps({"detail": str(error)})


async def _put(store: BaseStore, args: Args) -> None:
    await store.aput(
        tuple(args["namespace"]),
        args["key"],
        args["value"],
        args.get("index"),
        ttl=args.get("ttl", NOT_PROVIDED),
    )


async def _search(store: BaseStore, args: Args) -> dict[str, Any]:
    found = await store.asearch(
        tuple(args["namespace_prefix"]),
        query=args["query"],
        filter=args.get("filter"),
        limit=args["limit"],
        offset=args["offset"],
        refresh_ttl=args.get("refresh_ttl"),
    )
    return {"items": [_shown(item) for item in found]}


def _shown(item: SearchItem) -> dict[str, Any]:
    return {
        "namespace": item.namespace,
        "key": item.key,
        "value": item.value,
        "created_at": _moment(item.created_at),
        "updated_at": _moment(item.updated_at),
        "score": item.score,
    }


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds")


OPERATIONS: dict[str, Callable[[BaseStore, Args], Awaitable[Any]]] = {
    "store_put": _put,
    "store_search": _search,
}

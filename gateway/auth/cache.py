"""Callers who were known a moment ago need not be asked again: ``auth.cache`` of langgraph.json.

"cache": {"cache_keys": ["x-tenant"], "ttl_seconds": 60, "max_size": 1000}
"""

import time
from collections.abc import Callable, Mapping
from typing import Annotated

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from gateway.auth.user import User

Key = tuple[tuple[str, ...], ...]

_CREDENTIALS = ("authorization", "cookie", "x-api-key")
"""Part of every key: who names the same tenant is not yet the same caller."""

_BESIDE_HEADERS: Mapping[str, Callable[[web.Request], tuple[str, ...]]] = {
    "path": lambda request: (request.path,),
    "path_params": lambda request: (request.path,),
    "method": lambda request: (request.method,),
    "query_params": lambda request: (request.rel_url.raw_query_string,),
    **dict.fromkeys(
        ("request", "scope"),
        lambda request: (
            *(request.method, request.path, request.rel_url.raw_query_string),
            request.remote or "",
        ),
    ),
}
"""What a handler that takes this parameter may go by: a browser's WebSocket brings its token in the
query, and who may read may not delete."""


class CacheOptions(BaseModel):
    """By which headers callers are told apart, for how long they are known, and how many."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    cache_keys: list[str] = []
    ttl_seconds: Annotated[float, Field(gt=0)] = 60.0
    max_size: Annotated[int, Field(ge=1)] = 1000


class UserCache:
    """Who was authenticated, by the headers that say so. Refusals are not kept."""

    def __init__(self, options: CacheOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options, self._clock = options, clock
        self._names = sorted({*_CREDENTIALS, *(name.lower() for name in options.cache_keys)})
        self._users: dict[Key, tuple[float, User]] = {}
        """Each with the time at which it is forgotten, so the first is the oldest."""

    def key(self, request: web.Request, wanted: frozenset[str]) -> Key | None:
        """By what the caller is known again; None when nothing says who calls.

        wanted: the parameters that the handler takes. One that takes the body is always asked.
        """
        key = tuple(tuple(request.headers.getall(name, ())) for name in self._names)
        if "body" in wanted or not any(key):
            return None
        beside = sorted(wanted & _BESIDE_HEADERS.keys())
        return key + tuple(_BESIDE_HEADERS[name](request) for name in beside)

    def get(self, key: Key) -> User | None:
        """Whom this was a moment ago."""
        until, user = self._users.get(key, (0.0, None))
        return user if self._clock() < until else None

    def put(self, key: Key, user: User) -> None:
        """Keeps who it is, in the place of the oldest if there is no room."""
        self._users.pop(key, None)
        if len(self._users) >= self._options.max_size:
            del self._users[next(iter(self._users))]
        self._users[key] = (self._clock() + self._options.ttl_seconds, user)

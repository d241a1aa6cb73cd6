"""How this layer connects to Redis: the same promises for every client, blocking and asyncio.

Each command has an explicit time limit, so that a connection whose packets are dropped, or a server
that is frozen, is noticed; a connection that the server closed while it was idle is replaced once,
silently. RESP2 is set by us: a ``protocol=3`` in a user's URL would change the shape of answers.
"""

from typing import Any

import redis
import redis.asyncio
import redis.asyncio.connection
import redis.asyncio.retry
import redis.connection
from redis.backoff import NoBackoff
from redis.retry import Retry

_CONNECT_SECONDS = 2.0
_HEALTH_CHECK_SECONDS = 15
MAX_CONNECTIONS = 64
"""Of one client for the event loop, unless the URL says ``max_connections``: a pool never closes
what a burst has opened, so it must not open one for each request of it."""


def _options(from_url: dict[str, Any], timeout: float) -> dict[str, Any]:
    return {
        **from_url,
        "protocol": 2,
        "socket_timeout": timeout,
        "socket_connect_timeout": min(timeout, _CONNECT_SECONDS),
        "socket_keepalive": True,
        "health_check_interval": _HEALTH_CHECK_SECONDS,
        "decode_responses": False,
    }


def blocking_client(url: str, timeout: float) -> redis.Redis:
    """A client for threads. ``timeout``: seconds that a command, or a silence in it, may take."""
    options = _options(redis.connection.parse_url(url), timeout)  # type: ignore[no-untyped-call]  # redis-py
    if issubclass(
        options.get("connection_class", redis.Connection), redis.UnixDomainSocketConnection
    ):
        del options["socket_keepalive"], options["socket_connect_timeout"]
    options["retry"] = Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,))
    return redis.Redis.from_pool(redis.ConnectionPool(**options))


def client(url: str, timeout: float) -> redis.asyncio.Redis:
    """A client for the event loop.

    timeout: seconds that a command may take, and may wait for a connection before that.
    """
    options = _options({**redis.asyncio.connection.parse_url(url)}, timeout)
    unix = redis.asyncio.UnixDomainSocketConnection
    if issubclass(options.get("connection_class", redis.asyncio.Connection), unix):
        del options["socket_keepalive"]
    options["retry"] = redis.asyncio.retry.Retry(
        NoBackoff(), 1, supported_errors=(redis.ConnectionError,)
    )
    options = {"max_connections": MAX_CONNECTIONS} | options | {"timeout": timeout}
    return redis.asyncio.Redis.from_pool(redis.asyncio.BlockingConnectionPool(**options))

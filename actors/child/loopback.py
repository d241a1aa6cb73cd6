"""Clients without a URL, in graph code: they reach the server as whoever started the run.

``get_client()`` and ``get_sync_client()`` of the SDK are meant to find the server that they are
called in. A graph process is not that server, so both are made to speak HTTP to it, with the
credential of the run that the calling code belongs to; the gateway takes it for the run's caller.
Code of no run (at import, in a thread without the run's context) has none, and where callers are
asked who they are it is refused.

The SDK's own way is an ASGI application behind httpx, which holds an answer back until it is whole:
streams would arrive at their end.
"""

import asyncio
import functools
import importlib
import select
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from time import monotonic
from typing import Any, cast
from weakref import WeakKeyDictionary

import httpcore
import httpx
from langgraph_sdk import client as sdk
from langgraph_sdk._shared.types import TimeoutTypes
from langgraph_sdk._shared.utilities import NOT_PROVIDED, _get_headers

HEADER = "X-Callboard-Run"
"""Carries the credential. Present but empty: code of a graph process that belongs to no run."""

credential: ContextVar[str] = ContextVar("credential", default="")
"""What the code at this point shows: the credential of its run's present attempt."""

_TIMEOUT = httpx.Timeout(connect=5, read=300, write=300, pool=5)
"""As the SDK's clients have it."""
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20)
_RETRIES = 5
_LOOK_SECONDS = 0.1


def install(server_url: str) -> None:
    """Lets clients without a URL reach the server. Before user code is imported.

    server_url: the gateway's, with the path in front of its routes if there is one.
    """
    makers: dict[str, Callable[..., Any]] = {
        "get_client": _get_client(server_url, sdk.get_client),
        "get_sync_client": _get_sync_client(server_url, sdk.get_sync_client),
    }
    for module in ("langgraph_sdk", "langgraph_sdk.client", "langgraph.pregel.remote"):
        for name, maker in makers.items():
            setattr(importlib.import_module(module), name, maker)


def _get_client(
    server_url: str, original: Callable[..., sdk.LangGraphClient]
) -> Callable[..., sdk.LangGraphClient]:
    transport = _Identified(server_url)

    @functools.wraps(original)
    def get_client(
        *,
        url: str | None = None,
        api_key: str | None = NOT_PROVIDED,
        headers: Mapping[str, str] | None = None,
        timeout: TimeoutTypes | None = None,
    ) -> sdk.LangGraphClient:
        if url is not None:
            return original(url=url, api_key=api_key, headers=headers, timeout=timeout)
        client = httpx.AsyncClient(
            base_url=server_url,
            transport=transport,
            timeout=_timeout(timeout),
            headers=_get_headers(api_key, headers),
        )
        return sdk.LangGraphClient(client)

    return get_client


def _get_sync_client(
    server_url: str, original: Callable[..., sdk.SyncLangGraphClient]
) -> Callable[..., sdk.SyncLangGraphClient]:
    transport = _IdentifiedSync(server_url)

    @functools.wraps(original)
    def get_sync_client(
        *,
        url: str | None = None,
        api_key: str | None = NOT_PROVIDED,
        headers: Mapping[str, str] | None = None,
        timeout: TimeoutTypes | None = None,
    ) -> sdk.SyncLangGraphClient:
        if url is not None:
            return original(url=url, api_key=api_key, headers=headers, timeout=timeout)
        client = httpx.Client(
            base_url=server_url,
            transport=transport,
            timeout=_timeout(timeout),
            headers=_get_headers(api_key, headers),
        )
        return sdk.SyncLangGraphClient(client)

    return get_sync_client


def _timeout(given: TimeoutTypes | None) -> httpx.Timeout:
    # The SDK's type admits pairs, which httpx takes but does not declare.
    return _TIMEOUT if given is None else httpx.Timeout(cast("Any", given))


def _identify(request: httpx.Request, server: httpx.URL) -> None:
    """Adds the credential, for the server alone: a client can be sent elsewhere."""
    url = request.url
    if (url.scheme, url.host, url.port) == (server.scheme, server.host, server.port):
        request.headers[HEADER] = credential.get()


class _Identified(httpx.AsyncBaseTransport):
    """Connections of a process to its server, shared by all clients of a loop and never closed.

    Nodes rarely close the client that they get.
    """

    def __init__(self, server_url: str) -> None:
        self._server = httpx.URL(server_url)
        self._of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncHTTPTransport] = (
            WeakKeyDictionary()
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        _identify(request, self._server)
        loop = asyncio.get_running_loop()
        if (transport := self._of_loop.get(loop)) is None:
            transport = httpx.AsyncHTTPTransport(limits=_LIMITS, retries=_RETRIES)
            self._of_loop[loop] = transport
        return await transport.handle_async_request(request)


class _IdentifiedSync(httpx.BaseTransport):
    """The same for threads."""

    def __init__(self, server_url: str) -> None:
        self._server = httpx.URL(server_url)
        self._transport = httpx.HTTPTransport()
        # httpx has no parameter for this one.
        self._transport._pool = httpcore.ConnectionPool(
            max_connections=_LIMITS.max_connections,
            max_keepalive_connections=_LIMITS.max_keepalive_connections,
            keepalive_expiry=_LIMITS.keepalive_expiry,
            retries=_RETRIES,
            network_backend=_Backend(),
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        _identify(request, self._server)
        return self._transport.handle_request(request)


class _Backend(httpcore.NetworkBackend):
    """Connects to streams that can be stopped."""

    def __init__(self) -> None:
        self._backend = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        stream = self._backend.connect_tcp(host, port, timeout, local_address, socket_options)
        return _Stoppable(stream)

    def sleep(self, seconds: float) -> None:
        self._backend.sleep(seconds)


class _Stoppable(httpcore.NetworkStream):
    """A stream whose reader looks up from time to time.

    A run is stopped by an exception in its threads, which is only heard while they execute Python.
    """

    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        poll = select.poll()
        poll.register(self.get_extra_info("socket"), select.POLLIN)
        until = None if timeout is None else monotonic() + timeout
        while not poll.poll(_LOOK_SECONDS * 1000):
            if until is not None and monotonic() > until:
                raise httpcore.ReadTimeout("timed out")
        return self._stream.read(max_bytes, timeout)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, timeout)

    def close(self) -> None:
        self._stream.close()

    def start_tls(self, *arguments: Any, **options: Any) -> httpcore.NetworkStream:
        # What TLS has read already would not show on the socket.
        return self._stream.start_tls(*arguments, **options)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)

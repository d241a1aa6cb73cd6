"""The application: its parts, what surrounds every request, and its routes."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Protocol, runtime_checkable

import structlog
from aiohttp import web

from actors.dispatch import Dispatcher
from actors.events import EventReader
from actors.webhook_policy import WebhookPolicy
from gateway import logged_headers
from gateway.asgi import Asgi
from gateway.auth.access import Access
from gateway.context import CONTEXT, Context
from gateway.custom import CustomApp
from gateway.http_options import HttpOptions
from gateway.metrics import Metrics, RecentLoad
from gateway.middleware import Cors, answer_errors
from gateway.openapi import DOCUMENT, Document
from gateway.routes import (
    a2a,
    assistants,
    crons,
    docs,
    mcp,
    runs,
    state,
    stateless_runs,
    store,
    system,
    thread_streams,
    threads,
)
from gateway.routing import authenticate_lost
from gateway.settings import GatewaySettings
from persistence.assistants import ensure_system
from persistence.engine import Database
from persistence.errors import Unavailable
from persistence.store import StoreConfig
from persistence.ttl import Ttl

log = structlog.get_logger()

_START_SECONDS = 5.0
"""The first request waits so long for the assistants of the graphs, then comes without them."""
_PAUSE_SECONDS = 1.0

ROUTES = (
    system.routes,
    docs.routes,
    assistants.routes,
    threads.routes,
    state.routes,
    crons.routes,
    thread_streams.routes,
    runs.routes,
    stateless_runs.routes,
    store.routes,
    mcp.routes,
    a2a.routes,
)


@runtime_checkable
class Part(Protocol):
    """What is opened before the first request and closed after the last one."""

    async def open(self) -> None:
        """Makes ready; returns without waiting for other processes."""
        ...

    async def close(self) -> None:
        """Lets go of everything."""
        ...


def create_app(
    settings: GatewaySettings,
    *,
    database: Database,
    dispatcher: Dispatcher,
    events: EventReader,
    graph_ids: frozenset[str],
    version: str,
    descriptions: Mapping[str, str] | None = None,
    webhooks: WebhookPolicy = WebhookPolicy(),  # noqa: B008  # frozen
    thread_ttl: Ttl | None = None,
    store_config: StoreConfig = StoreConfig(),  # noqa: B008  # frozen
    access: Access | None = None,
    http: HttpOptions = HttpOptions(),  # noqa: B008  # frozen
    custom: Asgi | None = None,
) -> web.Application:
    """Composes the gateway. Opens and closes the parts that can be, with the application.

    descriptions: what the project says of some graphs, for their assistants.
    webhooks: which ones clients may name. thread_ttl: of threads for which clients name none.
    store_config: what the project says about its store. access: who may call and do what; None:
    everybody everything. http: what is served where. custom: the project's own ASGI application.
    """
    cors = Cors(settings.cors_allow_origins, http.cors)
    metrics, mounted, named = Metrics(), None, http.logging_headers
    if custom is not None:
        mounted = CustomApp(
            custom,
            http,
            max_body_bytes=settings.max_body_bytes,
            patience=settings.slow_client_timeout_seconds,
            shutdown_seconds=settings.gateway_shutdown_seconds,
        )
    app = web.Application(
        middlewares=[
            *([logged_headers.middleware(named)] if named.includes else []),
            metrics.count,
            cors.answer_preflights,
            *([answer_errors, mounted.middleware] if mounted else []),
            answer_errors,
            web.normalize_path_middleware(
                append_slash=False,
                remove_slash=True,
                merge_slashes=False,
                redirect_class=web.HTTPTemporaryRedirect,
            ),
            authenticate_lost,
        ],
        client_max_size=settings.max_body_bytes,
    )
    app[CONTEXT] = Context(
        settings,
        database,
        dispatcher,
        events,
        graph_ids,
        version,
        metrics,
        RecentLoad(database),
        webhooks=webhooks,
        thread_ttl=thread_ttl,
        store=store_config,
        descriptions=descriptions or {},
        access=access,
        http=http,
    )
    app.cleanup_ctx.append(_parts)
    app.on_shutdown.append(take_leave)
    if mounted:
        app.cleanup_ctx.append(mounted.lifespan)
        app.on_shutdown.append(mounted.on_shutdown)
    app.on_response_prepare.append(cors.on_response_prepare)
    app.on_response_prepare.append(_close_after)
    app[DOCUMENT] = Document(
        ROUTES,
        graph_ids,
        version,
        options=http,
        asks_callers=access is not None,
        security=access.openapi if access else None,
    )
    for routes in ROUTES:
        routes.mount(app, http)
    return app


async def _parts(app: web.Application) -> AsyncIterator[None]:
    context = app[CONTEXT]
    async with AsyncExitStack() as stack:
        for part in (context.database, context.dispatcher, context.events):
            if isinstance(part, Part):
                await part.open()
                stack.push_async_callback(part.close)
        if context.access is not None:
            stack.callback(context.access.close)
        assistants_exist = asyncio.create_task(_ensure_assistants(context))
        await asyncio.wait({assistants_exist}, timeout=_START_SECONDS)
        yield
        assistants_exist.cancel()
        await context.background.drain(context.settings.gateway_shutdown_seconds)


async def _ensure_assistants(context: Context) -> None:
    """Every graph has an assistant from the start; a database that is away is tried again."""
    while True:
        try:
            await ensure_system(context.database, context.graph_ids, context.descriptions)
            return context.started.set()
        except Unavailable:
            log.warning("the database is not available, trying again")
            await asyncio.sleep(_PAUSE_SECONDS)


async def take_leave(app: web.Application) -> None:
    """Ends what is open, and sends whoever still asks elsewhere after the answer."""
    app[CONTEXT].open_answers.stop()


async def _close_after(request: web.Request, response: web.StreamResponse) -> None:
    """Says so where the connection closes: as the gateway stops, or as a body cannot be read on.

    Whoever is not told would send the next request into a line that is gone. A WebSocket's own
    answer is about something else.
    """
    closes = request.app[CONTEXT].open_answers.stopping or request.content.exception() is not None
    if closes and not isinstance(response, web.WebSocketResponse):
        response.headers["Connection"] = "close"
        response.force_close()

"""The application: its parts, what surrounds every request, and its routes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Protocol, runtime_checkable

import structlog
from aiohttp import web

from actors.dispatch import Dispatcher
from actors.events import EventReader
from actors.webhook_policy import WebhookPolicy
from gateway.context import CONTEXT, Context
from gateway.middleware import Cors, answer_errors, answer_preflights
from gateway.openapi import DOCUMENT, Document
from gateway.routes import (
    assistants,
    crons,
    docs,
    runs,
    state,
    stateless_runs,
    store,
    system,
    thread_streams,
    threads,
)
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
    webhooks: WebhookPolicy = WebhookPolicy(),  # noqa: B008  # frozen
    thread_ttl: Ttl | None = None,
    store_config: StoreConfig = StoreConfig(),  # noqa: B008  # frozen
) -> web.Application:
    """Composes the gateway. Opens and closes the parts that can be, with the application.

    webhooks: which ones clients may name. thread_ttl: of threads for which clients name none.
    store_config: what the project says about its store.
    """
    app = web.Application(
        middlewares=[
            answer_preflights,
            answer_errors,
            web.normalize_path_middleware(
                append_slash=False,
                remove_slash=True,
                merge_slashes=False,
                redirect_class=web.HTTPTemporaryRedirect,
            ),
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
        webhooks=webhooks,
        thread_ttl=thread_ttl,
        store=store_config,
    )
    app.cleanup_ctx.append(_parts)
    app.on_shutdown.append(_end_open_responses)
    app.on_response_prepare.append(Cors(settings.cors_allow_origins).on_response_prepare)
    app[DOCUMENT] = Document(ROUTES, graph_ids, version)
    for routes in ROUTES:
        routes.mount(app)
    return app


async def _parts(app: web.Application) -> AsyncIterator[None]:
    context = app[CONTEXT]
    async with AsyncExitStack() as stack:
        for part in (context.database, context.dispatcher, context.events):
            if isinstance(part, Part):
                await part.open()
                stack.push_async_callback(part.close)
        assistants_exist = asyncio.create_task(_ensure_assistants(context))
        await asyncio.wait({assistants_exist}, timeout=_START_SECONDS)
        yield
        assistants_exist.cancel()
        await context.background.drain()


async def _ensure_assistants(context: Context) -> None:
    """Every graph has an assistant from the start; a database that is away is tried again."""
    while True:
        try:
            return await ensure_system(context.database, context.graph_ids)
        except Unavailable:
            log.warning("the database is not available, trying again")
            await asyncio.sleep(_PAUSE_SECONDS)


async def _end_open_responses(app: web.Application) -> None:
    for response in list(app[CONTEXT].open_responses):
        response.interrupt()

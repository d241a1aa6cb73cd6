"""Whether the gateway lives, whether work gets done, and what it is."""

import asyncio
from importlib import metadata
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from gateway.errors import TRY_AGAIN
from gateway.metrics import report
from gateway.responses import Response
from gateway.routing import PUBLIC, Call, Routes
from gateway.wire.answers import answer
from gateway.wire.body import Query
from persistence import runs
from persistence.errors import Unavailable

routes = Routes()


@routes.get("/", on=PUBLIC, responses={200: dict[str, Any]})
@routes.get("/ok", on=PUBLIC, responses={200: dict[str, Any]})
async def ok(call: Call) -> web.Response:
    """The gateway lives."""
    return answer({"ok": True, "services": {}})


@routes.get("/live", on=PUBLIC, responses={200: dict[str, Any]})
async def live(call: Call) -> web.Response:
    """The gateway lives; says nothing of the parts it depends on."""
    return answer({"ok": True})


@routes.get(
    "/ready",
    on=PUBLIC,
    responses={
        200: dict[str, Any],
        503: Response(
            "What is missing.", dict[str, Any], headers={"Retry-After": "seconds to wait"}
        ),
    },
)
async def ready(call: Call) -> web.Response:
    """Whether a run that is created now would be executed: 503 names what is missing."""
    (postgres, workers), redis = await asyncio.gather(_rows(call), call.context.dispatcher.ping())
    checks = {
        "postgres": postgres,
        "redis": "ok" if redis else "unavailable",
        "workers": workers,
    }
    is_ready = all(state == "ok" for state in checks.values())
    if is_ready:
        return answer({"ready": True, "checks": checks})
    return answer({"ready": False, "checks": checks}, status=503, headers=TRY_AGAIN)


async def _rows(call: Call) -> tuple[str, str]:
    """What Postgres says of itself, and of work that waits and nobody picks up."""
    try:
        waiting = await runs.waiting(call.context.database)
    except Unavailable:
        return "unavailable", "unknown"
    if not call.context.started.is_set():
        return "the graphs have no assistants yet", "unknown"
    threshold = call.context.settings.stuck_pending_threshold_seconds
    if (waiting.oldest_seconds or 0) > threshold:
        return "ok", f"a run waits for {waiting.oldest_seconds:.0f} s and nobody picks it up"
    if not waiting.instances:
        return "ok", "no worker is alive"
    if not waiting.slots:
        return "ok", "no graph process is ready; the log of the worker says why"
    return "ok", "ok"


@routes.get("/info", on=PUBLIC, responses={200: dict[str, Any]})
async def info(call: Call) -> web.Response:
    """Versions, and which features there are."""
    host: dict[str, Any] = dict.fromkeys(
        ("project_id", "host_revision_id", "revision_id", "tenant_id")
    )
    return answer(
        {
            "version": call.context.version,
            "langgraph_py_version": metadata.version("langgraph"),
            "flags": {
                "assistants": True,
                "crons": True,
                "langsmith": False,
                "langsmith_tracing_replicas": False,
                "langsmith_tracing_session_on_runs": False,
            },
            "host": {"kind": "self-hosted", **host},
        }
    )


class MetricsQuery(Query):
    """``json`` for JSON, anything else for Prometheus."""

    format: str = ""


@routes.get(
    "/metrics",
    on=PUBLIC,
    responses={
        200: Response(
            "The figures of all gateways that share the port.",
            str,
            "text/plain",
            others={"application/json": dict[str, Any]},
        )
    },
)
async def metrics(call: Call, query: MetricsQuery) -> web.Response:
    """Counts requests, and tells what waits and how many there are to do it."""
    counted, figures = call.context.metrics, await call.context.load.read()
    if query.format == "json":
        return answer(report(figures, counted.requests()))
    return web.Response(body=counted.text(figures), headers={"Content-Type": CONTENT_TYPE_LATEST})

"""What a gateway counts of its requests, and how the figures are told: names as the reference's.

Gateways that share a port share a folder of counters too (``PROMETHEUS_MULTIPROC_DIR``, a word of
prometheus-client's): whichever of them is asked tells the sum of all, those that have ended
included. Without the folder a gateway tells of itself, with the figures of its process.

Queue and workers are rows in Postgres, the same for every gateway; they are read every few seconds
at most, however often somebody asks.
"""

import asyncio
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    Metric,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from persistence.engine import Database
from persistence.errors import Unavailable
from persistence.load import Load, load

FOLDER = "PROMETHEUS_MULTIPROC_DIR"

_REQUESTS = "lg_api_http_requests"
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})
_OTHER = "other"
"""A path that is no route of ours, or a method that nobody knows: a client could invent many."""
LEFT = 499
"""Status of a request whose client left before its answer was complete."""
_KEPT_SECONDS = 5.0


class Metrics:
    """The counters of one gateway."""

    def __init__(self) -> None:
        own = CollectorRegistry()
        folder = os.environ.get(FOLDER)
        if folder:
            Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
            self._registry = CollectorRegistry()
            MultiProcessCollector(self._registry, folder)  # type: ignore[no-untyped-call]  # untyped there
        else:
            self._registry = own
            ProcessCollector(registry=own)
            PlatformCollector(registry=own)
            GCCollector(registry=own)
        self._requests = Counter(
            _REQUESTS, "Requests by route.", ["method", "path", "status"], registry=own
        )
        self._latency = Histogram(
            f"{_REQUESTS}_latency",
            "Seconds until the answer was complete; streams last as long as they are open.",
            ["method", "path"],
            buckets=_BUCKETS,
            registry=own,
        )

    @web.middleware
    async def count(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Counts the request, whatever becomes of it."""
        began, status = time.perf_counter(), 500
        try:
            response = await handler(request)
            status = response.status
            return response
        except web.HTTPException as answered:
            status = answered.status
            raise
        except asyncio.CancelledError:
            status = LEFT
            raise
        finally:
            method = request.method if request.method in _METHODS else _OTHER
            path = _route(request)
            self._requests.labels(method, path, str(status)).inc()
            self._latency.labels(method, path).observe(time.perf_counter() - began)

    def text(self, figures: Load | None) -> bytes:
        """Everything in Prometheus' text format. figures: None leaves queue and workers out."""
        return generate_latest(self._registry) + generate_latest(_registry(_families(figures)))

    def requests(self) -> list[dict[str, Any]]:
        """The counted requests, one entry for each combination of labels."""
        return [
            {**sample.labels, "status": int(sample.labels["status"]), "count": int(sample.value)}
            for metric in self._registry.collect()
            for sample in metric.samples
            if sample.name == f"{_REQUESTS}_total"
        ]


class RecentLoad:
    """The figures from Postgres, read again when they have become old."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = asyncio.Lock()
        self._until = 0.0
        self._load: Load | None = None

    async def read(self) -> Load | None:
        """The figures, a few seconds old at most; None when the database is away."""
        async with self._lock:
            if time.monotonic() >= self._until:
                try:
                    self._load = await load(self._database)
                except Unavailable:
                    self._load = None
                self._until = time.monotonic() + _KEPT_SECONDS
            return self._load


def report(figures: Load | None, requests: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures as JSON; null is what cannot be known without the database. Pure."""
    return {
        "queue": {
            "n_pending": figures and figures.pending,
            "n_running": figures and figures.running,
            "pending_runs_wait_time_max_secs": figures and figures.longest,
            "pending_runs_wait_time_med_secs": figures and figures.median,
            "pending_unblocked_runs_wait_time_max_secs": figures and figures.longest_unblocked,
        },
        "api": {"http_requests_total": requests},
        "workers": {
            "max": figures and figures.slots,
            "active": figures and figures.slots - figures.free,
            "available": figures and figures.free,
        },
    }


def _route(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return _OTHER if resource is None else resource.canonical


def _families(figures: Load | None) -> Iterator[Metric]:
    if figures is None:
        return
    for name, meaning, value in (
        ("workers_max", "Runs that the workers can execute at once.", figures.slots),
        ("workers_active", "Those under way.", figures.slots - figures.free),
        ("workers_available", "Those that could start now.", figures.free),
        ("num_pending_runs", "Runs that wait, also for their date.", figures.pending),
        ("num_running_runs", "Runs that are executed.", figures.running),
        ("pending_runs_wait_time_max", "Seconds that the longest waits.", figures.longest),
        ("pending_runs_wait_time_med", "Seconds that half of them wait.", figures.median),
        (
            "pending_unblocked_runs_wait_time_max",
            "Seconds that the longest waits of those that no run of their thread holds up.",
            figures.longest_unblocked,
        ),
    ):
        yield GaugeMetricFamily(f"lg_api_{name}", meaning, value)


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def _registry(families: Iterable[Metric]) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(_Families(families))
    return registry

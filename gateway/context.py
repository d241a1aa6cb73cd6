"""What every request handler is given, and how it is opened and closed."""

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import structlog
from aiohttp import web

from actors.dispatch import Dispatcher
from actors.events import EventReader
from actors.webhook_policy import WebhookPolicy
from gateway.auth.access import Access
from gateway.http_options import HttpOptions
from gateway.metrics import Metrics, RecentLoad
from gateway.settings import GatewaySettings
from persistence.engine import Database
from persistence.store import StoreConfig
from persistence.ttl import Ttl

log = structlog.get_logger()

T = TypeVar("T")

_LAST_SECONDS = 1.0


class Background:
    """Work that must be done whether or not the client that caused it is still there."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, object]) -> None:
        """Starts work that nobody waits for; its errors are logged."""
        _ = self.spawn(work)

    def spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Starts work to be awaited through ``asyncio.shield``: it outlives who waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def drain(self, seconds: float) -> None:
        """Returns when all the work is done; what is not after so many seconds is given up."""
        clock = asyncio.get_running_loop().time
        given_up_at = clock() + seconds
        while self._tasks and (left := given_up_at - clock()) > 0:
            await asyncio.wait(self._tasks, timeout=left)
        if self._tasks:
            log.warning("background work given up", tasks=len(self._tasks))
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=_LAST_SECONDS)

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.info("background work ended in an error", error=repr(task.exception()))


class Interruptible(Protocol):
    """An answer that stays open until it is complete, or told that the gateway stops."""

    def interrupt(self) -> None:
        """Ends it early; the client comes back to another gateway."""
        ...


class OpenAnswers:
    """Streams, waits and sockets under way, and whether there may be any."""

    def __init__(self) -> None:
        self._open: set[Interruptible] = set()
        self.stopping = False
        """The gateway stops: whoever asks now shall ask another one next."""

    def add(self, answer: Interruptible) -> None:
        """Notes one. One that comes after the stop ends as if it had been there before."""
        self._open.add(answer)
        if self.stopping:
            answer.interrupt()

    def discard(self, answer: Interruptible) -> None:
        """Forgets one that has ended."""
        self._open.discard(answer)

    def stop(self) -> None:
        """Ends all there are, and all that will come."""
        self.stopping = True
        for answer in list(self._open):
            answer.interrupt()


@dataclass(frozen=True, slots=True)
class Context:
    """The parts that handlers work with."""

    settings: GatewaySettings
    database: Database
    dispatcher: Dispatcher
    events: EventReader
    graph_ids: frozenset[str]
    version: str
    metrics: Metrics
    load: RecentLoad
    access: Access | None = None
    """Who may call and do what; None: everybody may do everything."""
    http: HttpOptions = field(default_factory=HttpOptions)
    webhooks: WebhookPolicy = field(default_factory=WebhookPolicy)
    thread_ttl: Ttl | None = None
    """Of threads whose client names none."""
    store: StoreConfig = field(default_factory=StoreConfig)
    descriptions: Mapping[str, str] = field(default_factory=dict)
    """Graph id → what the project says of it; not of every graph."""
    started: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when every graph has its assistant."""
    background: Background = field(default_factory=Background)
    open_answers: OpenAnswers = field(default_factory=OpenAnswers)


CONTEXT = web.AppKey("context", Context)

"""The start and the stop of an ASGI application."""

import asyncio
from typing import Any

import structlog

from gateway.asgi import Asgi, Message

log = structlog.get_logger()


class StartupFailed(Exception):
    """The application said that it cannot start; the text says why."""


class Lifespan:
    """An application's start and stop, and what it keeps between them for its requests."""

    def __init__(self, app: Asgi) -> None:
        self.state: dict[str, Any] = {}
        self._app = app
        self._to_app: asyncio.Queue[Message] = asyncio.Queue()
        self._started: asyncio.Future[str | None] | None = None
        self._stopped = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when the application is ready, or wants no lifespan. Raises when it refuses."""
        self._started = asyncio.get_running_loop().create_future()
        self._to_app.put_nowait({"type": "lifespan.startup"})
        self._task = asyncio.create_task(self._run())
        waiting: set[asyncio.Future[Any]] = {self._started, self._task}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if self._started.done():
            if (problem := self._started.result()) is not None:
                raise StartupFailed(problem)
        elif (error := self._task.exception()) is not None:
            # As other servers have it: whoever does not know lifespans fails on them.
            log.info("the project's application takes no lifespan", error=repr(error))

    async def stop(self) -> None:
        """Returns when the application has let go of everything."""
        if self._task is None:
            return
        if not self._task.done():
            self._to_app.put_nowait({"type": "lifespan.shutdown"})
            stopped = asyncio.create_task(self._stopped.wait())
            await asyncio.wait({stopped, self._task}, return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        scope = {
            "type": "lifespan",
            "asgi": {"version": "3.0", "spec_version": "2.0"},
            "state": self.state,
        }
        await self._app(scope, self._to_app.get, self._heard)

    async def _heard(self, message: Message) -> None:
        match message["type"]:
            case "lifespan.startup.complete" if self._started and not self._started.done():
                self._started.set_result(None)
            case "lifespan.startup.failed" if self._started and not self._started.done():
                self._started.set_result(message.get("message", "") or "no reason given")
            case "lifespan.shutdown.complete":
                self._stopped.set()
            case "lifespan.shutdown.failed":
                log.error("the project's application failed to stop", reason=message.get("message"))
                self._stopped.set()
            case _:
                pass

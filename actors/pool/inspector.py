"""The inspector: a graph process that executes no runs and answers questions about graphs."""

import asyncio
import itertools

import structlog

from actors.child.protocol import Frame
from actors.errors import GraphProcessFailed, InspectorUnavailable
from actors.pool.backoff import Backoff
from actors.pool.graph_process import GraphProcess
from actors.pool.launcher import Launcher

log = structlog.get_logger(__name__)

_START_SECONDS = 20.0
"""How long a question waits for an inspector that is being started."""
_STUCK_SECONDS = 30.0
"""An inspector whose loop is silent for longer is replaced: others wait behind it."""
_PING_SECONDS = 1.0
_DEATH_SECONDS = 2.0


class Inspector:
    """Keeps one inspector process alive and hands it questions, never behind runs."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._backoff = Backoff(0.2, 30.0)
        self._numbers = itertools.count(1)
        self._asks: dict[int, asyncio.Future[tuple[int, bytes]]] = {}
        self._process: asyncio.Future[GraphProcess] = asyncio.get_running_loop().create_future()

    async def ask(self, op: str, args: bytes) -> tuple[int, bytes]:
        """Returns an HTTP status and a JSON body. args: a JSON object.

        Raises InspectorUnavailable when there is no inspector or it dies over the question.
        """
        try:
            async with asyncio.timeout(_START_SECONDS):
                process = await asyncio.shield(self._process)
        except TimeoutError:
            raise InspectorUnavailable("the inspector is still starting") from None
        number = next(self._numbers)
        answer: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._asks[number] = answer
        try:
            process.send(Frame("inspect", {"id": number, "op": op}, args))
            return await answer
        finally:
            del self._asks[number]

    async def keep(self) -> None:
        """Starts the process, and whatever must replace it, until cancelled."""
        try:
            await self._keep()
        finally:
            self._fail("the inspector is stopping")

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._backoff.pause())
            try:
                process, _ = await self._launcher.start(self._hear, _ignore)
            except GraphProcessFailed as error:
                self._backoff.failed()
                log.error("inspector does not start", reason=str(error))
                continue
            try:
                await self._serve(process)
            finally:
                process.kill()
                await asyncio.wait({process.gone}, timeout=_DEATH_SECONDS)

    async def _serve(self, process: GraphProcess) -> None:
        """Returns when the process is dead and its questions are answered with that."""
        self._process.set_result(process)
        while not process.gone.done():
            process.ping()
            await asyncio.wait({process.gone}, timeout=_PING_SECONDS)
            if process.silent_seconds > _STUCK_SECONDS:
                log.error("inspector does not answer and is replaced", pid=process.pid)
                process.kill()
        self._process = asyncio.get_running_loop().create_future()
        log.error("inspector died", pid=process.pid, reason=process.exited)
        if process.age > 10:
            self._backoff.worked()
        else:
            self._backoff.failed()
        self._fail(process.exited)

    def _hear(self, process: GraphProcess, frame: Frame) -> None:
        answer = self._asks.get(frame.head.get("id", 0))
        if frame.kind == "answer" and answer is not None and not answer.done():
            answer.set_result((int(frame.head["status"]), frame.body))

    def _fail(self, reason: str) -> None:
        for answer in self._asks.values():
            if not answer.done():
                answer.set_exception(InspectorUnavailable(reason))


def _ignore(_process: GraphProcess) -> None:
    """The death of the inspector is awaited where it is served."""

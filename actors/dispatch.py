"""From rows to messages: the only sender, and the gateway's only door to the workers.

A message carries an id and nothing else; the row in Postgres is the truth. So a message may be lost
(workers poll) or arrive twice (the claim decides), and nothing here raises for a Redis that is
gone. Questions to the inspector are the exception: there is no row behind them, and who asks is
told ``InspectorUnavailable``.
"""

import asyncio
import time
from collections.abc import Callable
from importlib.resources import files
from typing import Any, Protocol, cast
from uuid import UUID, uuid4

import orjson
import structlog
from dramatiq.message import Message
from redis.exceptions import RedisError

from actors import redis_connections
from actors.child.event_names import END_MARK, WAKE_CHANNEL
from actors.child.protocol import NO_STATE as NO_STATE
from actors.child.protocol import PROJECT_FAILED as PROJECT_FAILED
from actors.errors import InspectorUnavailable as InspectorUnavailable
from actors.events import OVER
from actors.tasks import stop

log = structlog.get_logger(__name__)

NAMESPACE = "callboard"
"""Prefix of dramatiq's keys: queue ``runs`` is the list ``callboard:runs``."""
RUNS = "runs"
"""Queue and actor: execute the run whose id is the argument. The lane of background runs."""
AWAITED = "awaited"
"""The same for runs that a client waits for: the lane that goes first (``actors.lanes``)."""
INSPECT = "inspect"
"""Queue and actor: answer the question whose id is the argument, to the list that is the second."""
MAINTENANCE = "maintenance"
"""Queue and actor: one sweep of the reaper."""

CANCEL_CHANNEL = "callboard:cancel"
"""Published with a run's id when its row has a new wish to cancel; says only "look now"."""

REPLY_TTL_SECONDS = 60
_COMMAND_SECONDS = 1.5
_SEND_SECONDS = 2.0
_BLOCK_SECONDS = 5
_SILENT_SECONDS = 30.0
_HEARTBEAT_TIMEOUT_MS = 60_000
_DEAD_MESSAGE_TTL_MS = 7 * 86_400_000
_MAX_UNPACK = 1_000
_GONE = (RedisError, OSError, TimeoutError)


def ask_key(ask_id: str) -> str:
    """Key of a question to the inspector: JSON ``[op, arguments]``. Who deletes it may answer."""
    return f"callboard:ask:{ask_id}"


def reply_key(reply_id: str) -> str:
    """Key of the list on which a gateway waits for answers: ``ask id, status, body`` in one."""
    return f"callboard:reply:{reply_id}"


def pack_reply(ask_id: str, status: int, body: bytes) -> bytes:
    """One entry of a reply list."""
    return b"%s %03d %s" % (ask_id.encode(), status, body)


def unpack_reply(entry: bytes) -> tuple[str, int, bytes]:
    """The inverse of ``pack_reply``."""
    ask_id, status, body = entry.split(b" ", 2)
    return ask_id.decode(), int(status), body


class Dispatcher(Protocol):
    """How a process tells workers that there is something to do."""

    async def run(self, run_id: UUID | str, *, awaited: bool = False) -> None:
        """Says that a run may be claimable. Never raises when nobody hears it.

        awaited: whether a client waits for it. That is known when the run is created and not kept:
        whoever tells of it later tells of a run in the background.
        """
        ...

    async def cancel(self, run_id: UUID | str) -> None:
        """Says that a run's row has a wish to cancel. Never raises when nobody hears it."""
        ...

    async def over(self, *run_ids: UUID) -> None:
        """Says, to readers and those who wait, that runs ended or went which no worker will end.

        Never raises when nobody hears it: the rows tell too, seconds later.
        """
        ...

    async def inspect(self, op: str, args: dict[str, Any], timeout: float) -> tuple[int, bytes]:
        """Asks for what needs compiled graphs; returns an HTTP status and a JSON body.

        The status may be ``PROJECT_FAILED``. timeout: seconds until the caller gives up. Raises
        InspectorUnavailable.
        """
        ...

    async def ping(self) -> bool:
        """Whether messages can be sent now."""
        ...


class RedisDispatcher:
    """Sends without blocking the event loop, and gives up within two seconds.

    dramatiq's own script does the enqueueing, so its workers find what they expect.
    """

    def __init__(
        self,
        redis_url: str,
        reply_id: str | None = None,
        on_unsent: Callable[[], None] | None = None,
    ) -> None:
        """reply_id: unique per process; names the list on which answers arrive.

        on_unsent: called when a run's id could not be sent.
        """
        self._id = reply_id or str(uuid4())
        self._on_unsent = on_unsent
        self._redis = redis_connections.client(redis_url, _COMMAND_SECONDS)
        # Answers are awaited on a connection of their own, which may be silent for long.
        self._replies = redis_connections.client(redis_url, _BLOCK_SECONDS * 2.0)
        script = files("dramatiq.brokers").joinpath("redis", "dispatch.lua").read_bytes()
        self._script = self._redis.register_script(script)
        self._asks: dict[str, asyncio.Future[tuple[int, bytes]]] = {}
        self._listener: asyncio.Task[None] | None = None
        self._complained = -_SILENT_SECONDS

    async def open(self) -> None:
        """Nothing to wait for: connections are made when they are needed."""

    async def close(self) -> None:
        """Stops listening and closes the connections. Open questions end as unavailable."""
        await stop(self._listener)
        for answer in self._asks.values():
            if not answer.done():
                answer.set_exception(InspectorUnavailable("shutting down"))
        await self._redis.aclose()
        await self._replies.aclose()

    async def run(self, run_id: UUID | str, *, awaited: bool = False) -> None:
        """Enqueues the run's id. A Redis that is gone is logged: workers poll the rows."""
        lane = AWAITED if awaited else RUNS
        if not await self.send(lane, str(run_id)) and self._on_unsent is not None:
            self._on_unsent()

    async def maintain(self) -> bool:
        """Enqueues one sweep; False when it could not be sent."""
        return await self.send(MAINTENANCE)

    async def cancel(self, run_id: UUID | str) -> None:
        """Publishes the run's id. Workers see the wish in the row with their next heartbeat too."""
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                await self._redis.publish(CANCEL_CHANNEL, str(run_id))
        except _GONE as error:
            self._complain(error)

    async def over(self, *run_ids: UUID) -> None:
        """Publishes the ids. Readers look at the rows now and then too."""
        if not run_ids:
            return
        try:
            async with asyncio.timeout(_SEND_SECONDS), self._redis.pipeline(False) as pipeline:
                for run_id in run_ids:
                    _ = pipeline.publish(WAKE_CHANNEL, f"{run_id}{END_MARK}{OVER}")
                await pipeline.execute()
        except _GONE as error:
            self._complain(error)

    async def inspect(self, op: str, args: dict[str, Any], timeout: float) -> tuple[int, bytes]:
        """Asks an inspector; see ``Dispatcher.inspect``.

        The question lies under a key that lives as long as somebody waits. A worker answers only
        if it is the one to delete it: nothing is done twice, and nothing after the caller left.
        """
        ask_id = uuid4().hex
        answer: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._asks[ask_id] = answer
        self._listen()
        try:
            async with asyncio.timeout(timeout):
                question = orjson.dumps([op, args], option=orjson.OPT_NON_STR_KEYS)
                await self._redis.set(ask_key(ask_id), question, px=max(1, int(timeout * 1000)))
                await self._enqueue(INSPECT, ask_id, reply_key(self._id))
                status, body = await answer
        except _GONE as error:
            raise InspectorUnavailable("no answer from an inspector") from error
        finally:
            del self._asks[ask_id]
        if status == 503:
            raise InspectorUnavailable("the inspector is not available")
        return status, body

    async def ping(self) -> bool:
        """Whether Redis answers and takes writes."""
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                await self._redis.set("callboard:ping", b"", px=1000)
        except _GONE:
            return False
        return True

    async def backlog(self) -> int | None:
        """How many runs wait in both lanes; None when Redis does not answer."""
        try:
            async with asyncio.timeout(_SEND_SECONDS), self._redis.pipeline(False) as pipeline:
                for lane in (AWAITED, RUNS):
                    _ = pipeline.llen(f"{NAMESPACE}:{lane}")
                return sum(map(int, await pipeline.execute()))
        except _GONE:
            return None

    async def send(self, actor: str, *args: str) -> bool:
        """Enqueues one message on the queue of its actor; False when nobody can say it is there.

        After a time limit it may be there all the same: receivers take that.
        """
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                await self._enqueue(actor, *args)
        except _GONE as error:
            self._complain(error)
            return False
        return True

    async def _enqueue(self, actor: str, *args: str) -> None:
        message_id = str(uuid4())
        options = {"redis_message_id": message_id}
        message: Message[None] = Message(actor, actor, args, {}, options)
        await self._script(
            keys=[NAMESPACE],
            args=[
                "enqueue",
                int(time.time() * 1000),
                actor,
                self._id,
                _HEARTBEAT_TIMEOUT_MS,
                _DEAD_MESSAGE_TTL_MS,
                0,  # no queue maintenance: the maintenance actor asks for it
                _MAX_UNPACK,
                message_id,
                message.encode(),
            ],
        )

    def _listen(self) -> None:
        if self._listener is None or self._listener.done():
            self._listener = asyncio.create_task(self._receive(), name="replies")

    async def _receive(self) -> None:
        """Hands out answers while somebody waits for one."""
        key = reply_key(self._id)
        while self._asks:
            try:
                entry = await self._replies.blpop([key], timeout=_BLOCK_SECONDS)
            except _GONE as error:
                self._complain(error)
                await asyncio.sleep(0.2)
                continue
            if entry is None:
                continue
            ask_id, status, body = unpack_reply(cast(bytes, entry[1]))
            answer = self._asks.get(ask_id)
            if answer is not None and not answer.done():
                answer.set_result((status, body))
                await asyncio.sleep(0)

    def _complain(self, error: BaseException) -> None:
        """Says once in a while that Redis is gone: an outage is one fact, not one per message."""
        now = time.monotonic()
        if now - self._complained >= _SILENT_SECONDS:
            self._complained = now
            log.warning("redis does not answer", error=str(error) or type(error).__name__)

"""dramatiq's Redis broker, made to wake at once and to take only what can run now.

What differs from the broker as it comes, and why:

- An idle consumer sleeps in Redis, on ``BLMOVE q q LEFT LEFT``: a peek that keeps the order and
  takes nothing. A message is taken by dramatiq's own script only, so its bookkeeping stays valid.
  Polling found a message after 350 ms, this does after 2.
- A consumer takes one message at a time, and only for a free slot; what nobody here can run now
  stays in Redis for another worker. A freed slot wakes it through a ``threading.Event``.
- Queues can share slots: which of them may fill the next one, ``actors.lanes`` decides.
- A lost connection, also one that only went silent, is a pause here and not a restart of dramatiq's
  consumer thread; an acknowledgement that could not be sent is sent later.
- No delay queues (an outage strands what lies in them), no retries, no time limits: the rows in
  Postgres decide about all of that.
- Queue maintenance, which redelivers what a dead worker had taken, runs when ``maintain`` is called
  and not by lottery. It scans all keys of the logical database, and nothing depends on it.
"""

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import redis
import structlog
from dramatiq.broker import Consumer, MessageProxy
from dramatiq.brokers.redis import RedisBroker
from dramatiq.errors import ActorNotFound, DecodeError
from dramatiq.message import Message

from actors import redis_connections
from actors.dispatch import NAMESPACE
from actors.lanes import Lanes, Room, Unlimited

log = structlog.get_logger(__name__)

_BLOCK_SECONDS = 5
"""How long a consumer sleeps in Redis at most."""
_SILENCE_SECONDS = 8.0
"""A connection that is silent for longer, while asked something, is taken for dead."""
_HEARTBEAT_SECONDS = 10.0
"""Pause between signs of life to Redis; its own limit is 60 s."""
_PAUSE_MIN, _PAUSE_MAX = 0.1, 3.0

_LOST = (redis.ConnectionError, redis.TimeoutError, OSError)
_FAILED = (redis.RedisError, OSError)


class WakingBroker(RedisBroker):
    """The broker of one worker process. Make it after any fork: its id names what it has taken."""

    def __init__(self, redis_url: str) -> None:
        client = redis_connections.blocking_client(redis_url, _SILENCE_SECONDS)
        super().__init__(  # type: ignore[no-untyped-call]  # dramatiq's
            client=client, middleware=[], namespace=NAMESPACE
        )
        self._lanes: dict[str, Lanes] = {}
        self._consumers: list[WakingConsumer] = []
        self._beat_at = 0.0
        self._maintaining = 0
        self.draining = False

    def open_queues(self, *names: str, limit: int, room: Room | None = None) -> None:
        """Declares queues that share a limit and a room: lanes, of which the first goes first.

        limit: messages that may be in work here at once.
        """
        lanes = Lanes(names, limit, room or Unlimited())
        for name in names:
            self._lanes[name] = lanes
            self.declare_queue(name)

    def declare_queue(self, queue_name: str) -> None:
        """Declares a queue without a delay queue, which nothing here may use."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues.add(queue_name)
            self.emit_after("declare_queue", queue_name)

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> Consumer:
        """The consumer of a queue. dramatiq's prefetch is ignored: the limit and the room hold."""
        consumer = WakingConsumer(self, queue_name, self._lanes[queue_name])
        self._consumers.append(consumer)
        return consumer

    def wake(self) -> None:
        """Says that a slot has become free, or whose turn it is. May be called from any thread."""
        for consumer in self._consumers:
            consumer.wake()

    def drain(self) -> None:
        """Takes no message from now on; signs of life go on for those in work."""
        self.draining = True
        for lanes in self._lanes.values():
            lanes.close()
        self.wake()

    @property
    def quiet(self) -> bool:
        """Whether nothing is in work and every acknowledgement is sent. Stays so when draining."""
        return all(one.quiet for one in self._consumers)

    @property
    def connected(self) -> bool:
        """Whether the consumers can hear Redis: if not, somebody must poll."""
        return bool(self._consumers) and all(one.connected for one in self._consumers)

    def beat(self, queue_name: str) -> None:
        """Tells Redis that this worker lives, if it has not heard from it lately."""
        now = time.monotonic()
        if now - self._beat_at > _HEARTBEAT_SECONDS:
            self._beat_at = now
            self.do_fetch(queue_name, 0)

    def maintain(self) -> None:
        """Puts back what dead workers had taken. Raises redis' errors."""
        self._maintaining = 1
        try:
            for queue_name in self.queues:
                self.do_fetch(queue_name, 0)
        finally:
            self._maintaining = 0

    def _should_do_maintenance(self, command: str) -> int:
        return self._maintaining


class WakingConsumer(Consumer):
    """Takes the messages of one queue. ``__next__`` belongs to its thread, the rest to any."""

    def __init__(self, broker: WakingBroker, queue_name: str, lanes: Lanes) -> None:
        self._broker = broker
        self._queue = queue_name
        self._key = f"{broker.namespace}:{queue_name}"
        self._lanes = lanes
        self._woken = threading.Event()
        self._unsent: deque[Callable[[], Any]] = deque()
        self._known_empty = False
        self._failures = 0

    @property
    def connected(self) -> bool:
        """Whether the last command was answered."""
        return not self._failures

    @property
    def quiet(self) -> bool:
        """Whether nothing that was taken is unfinished or, of this queue, unacknowledged."""
        return self._lanes.quiet and not self._unsent

    def wake(self) -> None:
        """Ends a wait for room, or for this lane's turn."""
        self._woken.set()

    def __next__(self) -> MessageProxy | None:
        """One message, or None after a wait: dramatiq looks then whether it shall stop."""
        try:
            message = self._look()
        except _FAILED as error:
            self._lanes.leaves(self._queue)
            self._broker.wake()
            self._pause(error)
            return None
        if self._failures:
            log.info("redis is back", queue=self._queue)
            self._failures = 0
        return message

    def _look(self) -> MessageProxy | None:
        self._woken.clear()
        self._settle_unsent()
        self._broker.beat(self._queue)
        if self._known_empty and not self._broker.draining:
            # Awaited without a slot: a peek promises nothing.
            self._known_empty = self._peek() is None
            return None
        if not self._lanes.begin(self._queue):
            self._woken.wait(_BLOCK_SECONDS)
            return None
        message = None
        try:
            message = self._take()
        finally:
            if self._known_empty:
                self._lanes.leaves(self._queue)
            if message is None:
                self._lanes.missed()
            else:
                self._lanes.took(self._queue)
            self._broker.wake()  # it may be another lane's turn
        return message

    def _peek(self) -> Any:
        return self._broker.client.blmove(self._key, self._key, _BLOCK_SECONDS, "LEFT", "LEFT")

    def _take(self) -> MessageProxy | None:
        fetched = self._broker.do_fetch(self._queue, 1)
        self._known_empty = not fetched
        if not fetched or fetched[0] is None:  # an id whose message is gone, evicted or flushed
            return None
        try:
            message = Message.decode(fetched[0])
            self._broker.get_actor(message.actor_name)
        except (DecodeError, ActorNotFound) as error:
            log.error(
                "message makes no sense and is left aside", queue=self._queue, error=repr(error)
            )
            return None
        return MessageProxy(message)

    def ack(self, message: MessageProxy) -> None:
        """Says that the message is done with; later, if Redis is away."""
        self._done(message, self._broker.do_ack)

    def nack(self, message: MessageProxy) -> None:
        """Puts the message among the dead ones; later, if Redis is away."""
        self._done(message, self._broker.do_nack)

    def _done(self, message: MessageProxy, say: Callable[[str, str], Any]) -> None:
        message_id = message.options["redis_message_id"]
        self._unsent.append(lambda: say(self._queue, message_id))
        try:
            if self.connected:
                self._settle_unsent()
        except _LOST as error:
            log.warning("message cannot be acknowledged yet", error=str(error))
        finally:
            self._lanes.end()
            self._broker.wake()

    def _settle_unsent(self) -> None:
        while True:
            try:
                say = self._unsent.popleft()
            except IndexError:
                return
            try:
                say()
            except _LOST:
                self._unsent.appendleft(say)
                raise
            except redis.RedisError as error:  # no better next time, and the row is settled
                log.warning("redis refused an acknowledgement", error=str(error))

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Puts messages back that were taken and not begun."""
        ids = [message.options["redis_message_id"] for message in messages]
        try:
            if ids:
                self._broker.do_requeue(self._queue, *ids)
        except _FAILED as error:  # whoever polls finds the runs
            log.warning("messages cannot be put back", queue=self._queue, error=str(error))

    def _pause(self, error: BaseException) -> None:
        if not self._failures:
            log.warning("redis does not answer", queue=self._queue, error=str(error))
        self._failures += 1
        longest = min(_PAUSE_MAX, _PAUSE_MIN * 2.0 ** min(self._failures, 10))
        time.sleep(longest * random.uniform(0.5, 1))  # noqa: S311  # keeps workers out of step

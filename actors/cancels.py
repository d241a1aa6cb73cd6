"""Hears that a run's row has a new wish to cancel. The row is the truth, this makes it quick."""

import asyncio
import random
from uuid import UUID

import structlog
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from actors import redis_connections
from actors.dispatch import CANCEL_CHANNEL
from actors.lease import Leases

log = structlog.get_logger(__name__)

_QUIET_SECONDS = 2.5
"""A subscription that is quiet for so long is pinged; if the ping stays unanswered, it is dead."""
_PAUSE_MIN, _PAUSE_MAX = 0.1, 2.0


class CancelListener:
    """A subscription that is supervised: it is proved to be alive, and replaced when it is not."""

    def __init__(self, redis_url: str, leases: Leases) -> None:
        self._redis = redis_connections.client(redis_url, _QUIET_SECONDS)
        self._leases = leases

    async def run(self) -> None:
        """Listens until cancelled. While nothing can be heard, heartbeats look more often."""
        pause = _PAUSE_MIN
        try:
            while True:
                try:
                    await self._listen()
                except (RedisError, OSError) as error:
                    if not self._leases.deaf:
                        log.warning("cancel channel is lost", error=str(error))
                        pause = _PAUSE_MIN
                    self._leases.deaf = True
                    self._leases.look()
                await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311  # jitter
                pause = min(_PAUSE_MAX, pause * 2)
        finally:
            await self._redis.aclose()

    async def _listen(self) -> None:
        async with self._redis.pubsub() as subscription:
            await subscription.subscribe(CANCEL_CHANNEL)
            pinged = False
            while True:
                message = await subscription.get_message(timeout=_QUIET_SECONDS)
                if message is None:
                    if pinged:
                        raise RedisConnectionError("the subscription does not answer")
                    await subscription.ping()
                    pinged = True
                    continue
                pinged = False
                if message["type"] == "subscribe":
                    # What was published while nobody listened is in the rows.
                    self._leases.deaf = False
                    self._leases.look()
                elif message["type"] == "message":
                    self._heard(message["data"])

    def _heard(self, data: bytes) -> None:
        try:
            run_id = UUID(data.decode())
        except ValueError:
            log.warning("no run id on the cancel channel", data=repr(data[:60]))
            return
        if self._leases.holds(run_id):
            self._leases.look()

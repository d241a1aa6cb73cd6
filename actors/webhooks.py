"""Tells webhooks how runs ended. Any number of processes may: a delivery is taken by one of them.

At least once: a process that dies while sending leaves the delivery to be taken again. A receiver
that is away is tried again at growing distances, and one that says no is not.
"""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime

import aiohttp
import orjson
import structlog

from actors.tasks import stop
from actors.webhook_policy import PolicyResolver, WebhookPolicy, WebhookRefused, redacted
from persistence import webhooks
from persistence.engine import Database
from persistence.errors import Unavailable
from persistence.webhooks import Delivery

log = structlog.get_logger(__name__)

_LOOK_SECONDS = 1.0
_AT_ONCE = 20
_SEND_SECONDS = 20.0
_CONNECT_SECONDS = 5.0
_LEASE_SECONDS = _SEND_SECONDS * 2

RETRY_SECONDS = (2.0, 10.0, 60.0, 300.0, 1800.0)
"""Pauses between attempts; after the last one the delivery is given up."""

KEPT_SECONDS = 7 * 24 * 3600.0
"""How long a delivery that was given up can be looked at."""

_TRY_AGAIN = frozenset({408, 425, 429})
"""Refusals that mean "not now"; any other below 500 means "never"."""


class Undelivered(Exception):
    """The receiver did not take the delivery. ``again``: whether it may take it later."""

    def __init__(self, reason: str, *, again: bool) -> None:
        super().__init__(reason)
        self.again = again


class Webhooks:
    """Sends what is due until cancelled. Belongs to one event loop."""

    def __init__(self, db: Database, policy: WebhookPolicy) -> None:
        self._db = db
        self._policy = policy
        self._sending: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Looks for deliveries once a second and sends them beside each other."""
        async with _session(self._policy) as session:
            try:
                while True:
                    await self._look(session)
                    await asyncio.sleep(_LOOK_SECONDS)
            finally:
                await stop(*self._sending)

    async def _look(self, session: aiohttp.ClientSession) -> None:
        free = _AT_ONCE - len(self._sending)
        if not free:
            return
        try:
            taken = await webhooks.take(self._db, free, _LEASE_SECONDS)
        except Unavailable as error:
            log.warning("webhooks cannot be read", error=str(error))
            return
        for one in taken:
            task = asyncio.create_task(self._tell(session, one))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _tell(self, session: aiohttp.ClientSession, one: Delivery) -> None:
        to, run_id = redacted(one.url), str(one.run_id)
        try:
            try:
                await send(session, self._policy, one)
            except Undelivered as undelivered:
                again = again_in(one.attempts) if undelivered.again else None
                log.warning(
                    "webhook not told", run_id=run_id, to=to, error=str(undelivered), again_in=again
                )
                await webhooks.failed(self._db, one, str(undelivered), again)
            else:
                log.info("webhook told", run_id=run_id, to=to)
                await webhooks.done(self._db, one.run_id)
        except Unavailable as error:  # it will be taken again
            log.warning("webhook's row cannot be written", run_id=run_id, error=str(error))


def again_in(attempts: int) -> float | None:
    """Seconds until the next attempt after so many; None when there have been enough. Pure."""
    return RETRY_SECONDS[attempts - 1] if attempts <= len(RETRY_SECONDS) else None


async def send(session: aiohttp.ClientSession, policy: WebhookPolicy, one: Delivery) -> None:
    """Posts a delivery. Raises Undelivered, whose text names neither path nor query of the URL."""
    try:
        host = policy.refuse_url(one.url).hostname or ""
        _refuse_literal(policy, host)
        async with session.post(
            one.url, data=_body(one), headers=_headers(policy), allow_redirects=False
        ) as response:
            status = response.status
    except WebhookRefused as refused:
        raise Undelivered(str(refused), again=False) from None
    except (aiohttp.InvalidURL, ValueError) as error:
        raise Undelivered(type(error).__name__, again=False) from None
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise Undelivered(type(error).__name__, again=True) from None
    if not 200 <= status < 300:
        # A redirect may lead anywhere; who moves says so by another URL.
        raise Undelivered(f"status {status}", again=status >= 500 or status in _TRY_AGAIN)


def _refuse_literal(policy: WebhookPolicy, host: str) -> None:
    """An address in place of a name is not resolved, so the resolver would not see it."""
    try:
        policy.refuse_address(host)
    except ValueError:
        return


def _session(policy: WebhookPolicy) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(resolver=PolicyResolver(policy), use_dns_cache=False),
        timeout=aiohttp.ClientTimeout(total=_SEND_SECONDS, connect=_CONNECT_SECONDS),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,  # a proxy would connect where the policy forbids
    )


def _headers(policy: WebhookPolicy) -> Mapping[str, str]:
    return {"Content-Type": "application/json", **policy.headers}


def _body(one: Delivery) -> bytes:
    added: dict[str, object] = {"webhook_sent_at": datetime.now(UTC).isoformat()}
    if one.failure is not None:
        added["error"] = orjson.Fragment(one.failure)
    return one.body.rstrip()[:-1] + b"," + orjson.dumps(added)[1:]

"""Telling webhooks: what is sent, what is tried again, and what is never connected to."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from ipaddress import ip_network
from typing import Any
from uuid import uuid4

import orjson
import pytest
from aiohttp import web
from aiohttp.abc import ResolveResult
from structlog.testing import capture_logs

from actors import webhook_policy, webhooks
from actors.webhook_policy import PolicyResolver, WebhookPolicy, WebhookRefused, check
from actors.webhooks import Undelivered, Webhooks, again_in, send
from persistence import runs
from persistence.engine import Database
from persistence.lifecycle import FAIL
from persistence.runs import NewRun, Settlement
from persistence.settings import DatabaseSettings
from persistence.webhooks import Delivery

HERE = WebhookPolicy(allowed_networks=(ip_network("127.0.0.0/8"),), headers={"X-Token": "t"})
PUBLIC = WebhookPolicy()


class Receiver:
    """A server that notes what it is told and answers as it is bid."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[tuple[dict[str, str], Any]] = asyncio.Queue()
        self.statuses: list[int] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        await self.told.put((dict(request.headers), orjson.loads(await request.read())))
        status = self.statuses.pop(0) if self.statuses else 200
        return web.Response(status=status, headers={"Location": "/elsewhere"})


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    one, app = Receiver(), web.Application()
    app.router.add_post("/{path:.*}", one.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    one.url = f"http://127.0.0.1:{runner.addresses[0][1]}/CANARY?token=CANARY"
    yield one
    await runner.cleanup()


@pytest.fixture
async def db(database_url: str) -> AsyncIterator[Database]:
    async with Database(DatabaseSettings(url=database_url)) as database:
        yield database


def delivery(url: str, **given: Any) -> Delivery:
    return Delivery(**{"run_id": uuid4(), "url": url, "body": b'{"a": 1}', "failure": None} | given)  # type: ignore[arg-type]  # attempts below


async def ended_run(db: Database, url: str) -> None:
    new = NewRun(
        uuid4(), uuid4(), uuid4(), "g", b"{}", {}, {}, {}, {}, if_not_exists="create", webhook=url
    )
    await runs.create(db, new)
    await runs.claim(db, [new.run_id], "h/1/b", 30)
    error = {"error": "ValueError", "message": "x"}
    await runs.settle(db, [Settlement(new.run_id, 1, FAIL, error=error, values=b'{"v":1}')])


@pytest.fixture
async def sending(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[[WebhookPolicy], None]]:
    monkeypatch.setattr(webhooks, "_LOOK_SECONDS", 0.02)
    tasks: list[asyncio.Task[None]] = []

    def start(policy: WebhookPolicy) -> None:
        tasks.append(asyncio.create_task(Webhooks(db, policy).run()))

    yield start
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def rows_left(db: Database, until: Callable[[list[dict[str, Any]]], bool]) -> Any:
    async with asyncio.timeout(60):
        while not until(rows := await db.fetch_all("SELECT * FROM webhook_deliveries")):
            await asyncio.sleep(0.02)
    return rows


async def test_a_run_that_ended_is_told_once_with_all_that_belongs_to_it(
    db: Database, receiver: Receiver, sending: Callable[[WebhookPolicy], None]
) -> None:
    sending(HERE)
    sending(HERE)
    await ended_run(db, receiver.url)
    headers, body = await receiver.told.get()
    assert (headers["Content-Type"], headers["X-Token"]) == ("application/json", "t")
    assert body["error"] == {"error": "ValueError", "message": "x"}
    assert (body["status"], body["values"]) == ("error", {"v": 1})
    assert body["run_ended_at"] <= body["webhook_sent_at"]
    assert await rows_left(db, lambda rows: not rows) == []
    assert receiver.told.empty()


async def test_a_receiver_that_is_busy_is_told_again(
    db: Database,
    receiver: Receiver,
    sending: Callable[[WebhookPolicy], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(webhooks, "RETRY_SECONDS", (0.01,) * 5)
    receiver.statuses = [500, 429, 503]
    sending(HERE)
    await ended_run(db, receiver.url)
    bodies = [(await receiver.told.get())[1] for _ in range(4)]
    assert len({body["run_id"] for body in bodies}) == 1
    assert await rows_left(db, lambda rows: not rows) == []


async def test_a_receiver_that_says_no_is_not_asked_again(
    db: Database, receiver: Receiver, sending: Callable[[WebhookPolicy], None]
) -> None:
    receiver.statuses = [410]
    sending(HERE)
    await ended_run(db, receiver.url)
    [row] = await rows_left(db, lambda rows: any(row["error"] for row in rows))
    assert (row["due_at"], row["error"], row["attempts"]) == (None, "status 410", 1)


async def test_neither_logs_nor_rows_of_failures_tell_the_url(
    db: Database, receiver: Receiver, sending: Callable[[WebhookPolicy], None]
) -> None:
    receiver.statuses = [500]
    with capture_logs() as logs:
        sending(HERE)
        await ended_run(db, receiver.url)
        await ended_run(db, "http://127.0.0.1:1/CANARY")
        await ended_run(db, "http://127.0.0.1:99999/CANARY")
        rows = await rows_left(db, lambda rows: all(row["error"] for row in rows))
        assert len(rows) == 3
    assert "CANARY" not in str(logs)
    assert [log["to"] for log in logs if log["event"] == "webhook not told"] == [
        "http://127.0.0.1/…"
    ] * 3
    assert all("CANARY" not in row["error"] for row in rows)


def test_attempts_are_bounded() -> None:
    pauses = [again_in(n) for n in range(1, len(webhooks.RETRY_SECONDS) + 2)]
    assert pauses == [*webhooks.RETRY_SECONDS, None]


async def sent(policy: WebhookPolicy, url: str) -> Awaitable[None] | None:
    async with webhooks._session(policy) as session:
        await send(session, policy, delivery(url, attempts=1))
    return None


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed(receiver: Receiver, status: int) -> None:
    receiver.statuses = [status]
    with pytest.raises(Undelivered, match=f"status {status}") as caught:
        await sent(HERE, receiver.url)
    assert not caught.value.again
    assert receiver.told.qsize() == 1


async def test_a_forbidden_address_is_not_connected_to(receiver: Receiver) -> None:
    port = receiver.url.split(":")[2].split("/")[0]
    for host in ("127.0.0.1", "localhost", "2130706433", "[::ffff:127.0.0.1]", "0x7f.1"):
        with pytest.raises(Undelivered, match=r"Webhook host blocked|InvalidUrl") as caught:
            await sent(PUBLIC, f"http://{host}:{port}/")
        assert not caught.value.again
    assert receiver.told.empty()


async def test_a_name_that_has_moved_inside_since_it_was_checked_is_not_connected_to(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = receiver.url.split(":")[2].split("/")[0]
    answers = ["93.184.216.34", "127.0.0.1"]

    async def rebinding(
        self: Any, host: str, port: int = 0, family: Any = 0
    ) -> list[ResolveResult]:
        return [
            ResolveResult(hostname=host, host=answers.pop(0), port=port, family=2, proto=0, flags=0)
        ]

    monkeypatch.setattr("aiohttp.resolver.ThreadedResolver.resolve", rebinding)
    resolver = PolicyResolver(PUBLIC)
    assert (await resolver.resolve("rebind.example", 80))[0]["host"] == "93.184.216.34"
    with pytest.raises(Undelivered, match="loopback IP range"):
        await sent(PUBLIC, f"http://rebind.example:{port}/")
    assert receiver.told.empty()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("/hook", "Loopback webhooks"),
        ("hook", "Invalid webhook hostname ''"),
        ("http://", "Invalid webhook hostname ''"),
        ("http://[::1", "cannot be read"),
        ("http://host:port/", "cannot be read"),
        ("ftp://example.com/", "scheme 'ftp' not allowed"),
        ("http://example.com/\r\nX: y", "hostname"),
        ("https://example.com/" + "x" * 9000, "longer than"),
        ("http://localhost:9/", "Webhook host blocked: localhost address"),
        ("http://a.localhost./", "Webhook host blocked: localhost address"),
        ("http://127.0.0.1/", "Webhook host blocked: loopback IP range"),
        ("http://2130706433/", "Webhook host blocked: loopback IP range"),
        ("http://10.1.2.3/", "Webhook host blocked: blocked IP range"),
        ("http://192.168.0.1/", "Webhook host blocked: blocked IP range"),
        ("http://100.64.0.1/", "Webhook host blocked: blocked IP range"),
        ("http://169.254.169.254/latest", "Webhook host blocked: blocked IP range"),
        ("http://0.0.0.0/", "Webhook host blocked: blocked IP range"),
        ("http://224.0.0.1/", "Webhook host blocked: blocked IP range"),
        ("http://[::1]/", "Webhook host blocked: blocked IP range"),
        ("http://[fd00::1]/", "Webhook host blocked: blocked IP range"),
        ("http://[fe80::1]/", "Webhook host blocked: blocked IP range"),
        ("http://[::ffff:10.0.0.1]/", "Webhook host blocked: blocked IP range"),
        ("http://[64:ff9b::a00:1]/", "Webhook host blocked: blocked IP range"),
        ("http://[2002:7f00:1::]/", "Webhook host blocked: loopback IP range"),
        ("http://nosuch.invalid/", "DNS resolution failed"),
        ("http://" + "a" * 70 + ".example/", "DNS resolution failed"),
    ],
)
async def test_what_leads_inside_is_refused_when_the_run_is_created(url: str, reason: str) -> None:
    with pytest.raises(WebhookRefused) as caught:
        await check(PUBLIC, url)
    assert reason in str(caught.value)


async def test_what_is_public_or_allowed_is_not() -> None:
    await check(PUBLIC, "http://93.184.216.34/x?y=z")
    await check(PUBLIC, "https://user:secret@[2606:2800:220:1::]:8443/")
    await check(HERE, "http://127.0.0.1:9/")
    await check(HERE, "http://localhost:9/")
    inner = WebhookPolicy(allowed_networks=(ip_network("10.1.0.0/16"),))
    await check(inner, "http://10.1.9.9/")
    with pytest.raises(WebhookRefused):
        await check(inner, "http://10.2.0.1/")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://hooks.example.com/", "Webhook must use https"),
        ("https://example.com/", "not in the allowed list"),
        ("https://evilcorp.example/", "not in the allowed list"),
        ("https://corp.example/", "not in the allowed list"),
        ("https://hooks.example.com:8443/", "Webhook port 8443"),
    ],
)
def test_the_operator_can_demand_more(url: str, reason: str) -> None:
    policy = WebhookPolicy(
        require_https=True,
        allowed_domains=("hooks.example.com", "*.corp.example"),
        allowed_ports=frozenset({443}),
    )
    with pytest.raises(WebhookRefused, match=reason):
        policy.refuse_url(url)
    policy.refuse_url("https://HOOKS.example.com/x")
    policy.refuse_url("https://a.b.corp.example:443/x")


def test_of_a_url_only_the_host_may_be_logged() -> None:
    assert (
        webhook_policy.redacted("https://u:CANARY@h.example:1/CANARY?CANARY")
        == "https://h.example/…"
    )
    assert webhook_policy.redacted("http://[::1") == "…"

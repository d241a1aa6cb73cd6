"""Webhooks over HTTP: which ones are taken, and that the end of a run is written down for them."""

from ipaddress import ip_network

from actors.webhook_policy import WebhookPolicy
from gateway.http_options import HttpOptions
from persistence import webhooks
from tests.gateway.conftest import Client, House, Stage

PUBLIC = "https://93.184.216.34/x?y=z"
AGENT = {"assistant_id": "agent", "input": {}}


async def test_a_forbidden_webhook_creates_nothing(client: Client, stage: Stage) -> None:
    body = AGENT | {"webhook": "http://169.254.169.254/latest"}
    for path in ("/runs", "/runs/wait", "/runs/stream", "/runs/batch"):
        answer = await client.post(path, [AGENT, body] if path.endswith("batch") else body)
        assert answer.status == 422
        assert answer.json == {"detail": "Webhook host blocked: blocked IP range"}
    assert await stage.database.fetch_all("SELECT 1 FROM runs") == []


async def test_the_end_is_written_down_with_the_run(client: Client, stage: Stage) -> None:
    thread_id = await client.thread()
    run = await client.run(thread_id, webhook=PUBLIC, metadata={"a": 1})
    assert run["kwargs"]["webhook"] == PUBLIC
    await stage.perform(run["run_id"], values={"v": 1})
    [told] = await webhooks.take(stage.database, 10, 60)
    assert (str(told.run_id), told.url) == (run["run_id"], PUBLIC)


async def test_a_run_cancelled_while_pending_is_not_told(client: Client, stage: Stage) -> None:
    thread_id = await client.thread()
    run = await client.run(thread_id, webhook=PUBLIC)
    await client.ask("POST", f"/threads/{thread_id}/runs/{run['run_id']}/cancel")
    assert await webhooks.take(stage.database, 10, 60) == []


async def test_the_operators_policy_holds(house: House) -> None:
    client = await house.gateway(
        webhooks=WebhookPolicy(require_https=True, allowed_networks=(ip_network("10.0.0.0/8"),))
    )
    answer = await client.post("/runs", AGENT | {"webhook": "http://10.0.0.1/"})
    assert answer.json == {"detail": "Webhook must use https"}
    assert (await client.post("/runs", AGENT | {"webhook": "https://10.0.0.1/"})).status == 200


async def test_switched_off_webhooks_are_taken_and_not_told(house: House, stage: Stage) -> None:
    client = await house.gateway(http=HttpOptions(disable_webhooks=True))
    thread_id = await client.thread()
    run = await client.run(thread_id, webhook=PUBLIC)
    assert run["kwargs"]["webhook"] == PUBLIC
    await stage.perform(run["run_id"], values={"v": 1})
    assert await webhooks.take(stage.database, 10, 60) == []

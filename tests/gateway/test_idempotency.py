"""A client that got no answer asks again, with the same ``Idempotency-Key``."""

import asyncio
from typing import Any
from uuid import UUID

import pytest
from langgraph_sdk import Auth

from gateway.auth.access import Access
from persistence import runs, threads
from tests.gateway.conftest import Answer, Client, House, Stage

BODY = {"assistant_id": "agent", "input": {"a": 1}}


async def ask(client: Client, path: str, key: str, body: Any = BODY, **headers: str) -> Answer:
    return await client.post(path, body, Idempotency_Key=key, **headers)


async def count(stage: Stage) -> int:
    row = await stage.database.fetch_one("SELECT count(*) AS n FROM runs")
    assert row is not None
    return int(row["n"])


@pytest.mark.parametrize("stateless", [False, True])
async def test_who_asks_again_gets_the_run_there_is(
    house: House, client: Client, stage: Stage, stateless: bool
) -> None:
    path = "/runs" if stateless else f"/threads/{await client.thread()}/runs"
    another = await house.gateway()
    answers = await asyncio.gather(
        *(ask(one, path, "k") for one in (client, another) for _ in range(5))
    )
    assert {answer.status for answer in answers} == {200}
    [run_id] = {answer.json["run_id"] for answer in answers}
    assert await count(stage) == 1
    await stage.perform(run_id, values={"a": 2})
    assert (await ask(another, f"{path}/wait", "k")).json == {"a": 2}
    async with client.stream("POST", f"{path}/stream", BODY, Idempotency_Key="k") as stream:
        assert [frame.event for frame in await stream.rest()] == ["metadata"]
    assert (await ask(client, path, "l")).json["run_id"] != run_id
    assert (await client.post(path, BODY)).status == 200
    assert await count(stage) == 3


async def test_a_key_stands_for_one_request(client: Client, stage: Stage) -> None:
    thread_id, other = await client.thread(), await client.thread()
    path = f"/threads/{thread_id}/runs"
    assert (await ask(client, path, "k")).status == 200
    for asked in ((path, BODY | {"input": {}}), (f"/threads/{other}/runs", BODY), ("/runs", BODY)):
        refused = await ask(client, asked[0], "k", asked[1])
        assert (refused.status, "Idempotency-Key" in refused.json["detail"]) == (409, True)
    assert await count(stage) == 1
    for key in ("", "k" * 256):
        refused = await ask(client, path, key)
        assert (refused.status, "Idempotency-Key" in refused.json["detail"]) == (422, True)


async def test_what_was_refused_uses_up_no_key(client: Client) -> None:
    path = f"/threads/{await client.thread()}/runs"
    body = BODY | {"multitask_strategy": "reject"}
    blocking = await client.run(path.split("/")[2])
    assert (await ask(client, path, "k", body)).status == 409
    assert (await client.ask("DELETE", f"{path}/{blocking['run_id']}")).status == 204
    accepted = await ask(client, path, "k", body)
    assert accepted.status == 200
    # Busy with the run that was asked for, which is no reason to refuse it.
    assert (await ask(client, path, "k", body)).json["run_id"] == accepted.json["run_id"]


async def test_a_run_that_is_gone_is_not_executed_again(client: Client, stage: Stage) -> None:
    run = (await ask(client, "/runs", "k")).json
    await stage.perform(run["run_id"])
    await threads.delete(stage.database, UUID(run["thread_id"]))
    refused = await ask(client, "/runs", "k")
    assert (refused.status, "gone" in refused.json["detail"]) == (409, True)
    assert await count(stage) == 0
    assert await runs.forget_keys(stage.database) == 0
    assert await runs.forget_keys(stage.database, 0.0) == 1
    assert (await ask(client, "/runs", "k")).status == 200


async def test_keys_are_everybodys_own(house: House, stage: Stage) -> None:
    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str | None) -> str:
        return authorization or "nobody"

    client = await house.gateway(access=Access(auth))
    for who in ("ann", "ben", "ann"):
        assert (await ask(client, "/runs", "k", authorization=who)).status == 200
    assert await count(stage) == 2

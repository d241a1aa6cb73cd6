"""Crons over HTTP: what is taken, what is shown, and that what was taken fires."""

from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest

from actors import crons as firing
from actors.dispatch import RedisDispatcher
from persistence import assistants
from tests.gateway.conftest import Client, House, Stage

AGENT = str(assistants.system_id("agent"))
DAILY = {"schedule": "0 9 * * *", "assistant_id": "agent"}


async def make(client: Client, path: str = "/runs/crons", **body: Any) -> dict[str, Any]:
    answer = await client.post(path, DAILY | body)
    assert answer.status == 200, answer.body
    cron: dict[str, Any] = answer.json
    return cron


async def fire(stage: Stage, redis_url: str) -> None:
    """Makes every cron due, and lets a scheduler look."""
    await stage.database.execute("UPDATE crons SET next_run_date = clock_timestamp()")
    dispatcher = RedisDispatcher(redis_url)
    await dispatcher.open()
    try:
        await firing.fire_due(stage.database, dispatcher)
    finally:
        await dispatcher.close()


async def test_a_stateless_cron_has_no_thread_to_answer(client: Client) -> None:
    answer = await client.post("/runs/crons", DAILY | {"command": {"resume": "yes"}})
    assert answer.status == 400
    assert (await client.post("/runs/crons/count", {})).json == 0


async def test_a_stateless_cron_is_shown_with_everything(client: Client) -> None:
    sent = DAILY | {
        "timezone": "Europe/Berlin",
        "end_time": "2040-01-01T00:00:00",
        "metadata": {"a": 1},
        "input": {"z": 1, "a": 2},
        "stream_mode": "values",
        "config": {"tags": ["t"], "configurable": {"k": 1}},
        "beyond": 3,
    }
    answer = await client.post("/runs/crons", sent)
    cron = answer.json
    stamped = {"tags": ["t"], "configurable": {"k": 1, "cron_id": cron["cron_id"]}}
    date = datetime.fromisoformat(cron.pop("next_run_date"))
    assert (date.utcoffset().total_seconds(), date.microsecond) == (0, 0)  # type: ignore[union-attr]
    assert date.hour in (7, 8)
    assert cron.pop("created_at") == cron.pop("updated_at")
    assert cron == {
        "cron_id": cron["cron_id"],
        "assistant_id": AGENT,
        "thread_id": None,
        "user_id": "",
        "end_time": "2040-01-01T00:00:00",
        "schedule": "0 9 * * *",
        "timezone": "Europe/Berlin",
        "payload": sent | {"assistant_id": AGENT, "config": stamped},
        "metadata": {"a": 1},
        "on_run_completed": "delete",
        "enabled": True,
    }
    assert UUID(cron["cron_id"]).version == 7
    assert (await client.get(f"/runs/crons/{cron['cron_id']}")).json["cron_id"] == cron["cron_id"]


async def test_a_cron_of_a_thread_belongs_to_it(client: Client) -> None:
    thread_id = await client.thread()
    cron = await make(client, f"/threads/{thread_id}/runs/crons", on_run_completed="keep")
    assert (cron["thread_id"], cron["on_run_completed"]) == (thread_id, None)
    await client.ask("DELETE", f"/threads/{thread_id}")
    assert (await client.get(f"/runs/crons/{cron['cron_id']}")).status == 404


OPTIONAL: list[dict[str, Any]] = [
    {},
    {"input": None},
    {"input": [1]},
    {"command": {"goto": "n"}},
    {"config": {"recursion_limit": 3}},
    {"config": {"configurable": {"checkpoint_ns": ""}}},
    {"context": {"k": 1}},
    {"metadata": {"m": "\u0000"}},
    {"checkpoint": {}},
    {"checkpoint_id": str(uuid4())},
    {"stream_mode": []},
    {"stream_mode": ["updates", "custom"], "stream_subgraphs": True, "stream_resumable": True},
    {"interrupt_before": "*", "interrupt_after": ["n"]},
    {"multitask_strategy": "rollback", "if_not_exists": "create"},
    {"on_run_completed": "keep", "on_completion": "delete", "on_disconnect": "cancel"},
    {"after_seconds": 0.5},
    {"durability": "exit"},
    {"checkpoint_during": False},
    {"webhook": "https://93.184.216.34/x"},
    {"feedback_keys": ["f"]},
    {"enabled": True, "end_time": None},
]


@pytest.mark.parametrize("on_thread", [False, True])
async def test_every_cron_that_is_taken_fires(
    client: Client, stage: Stage, redis_url: str, on_thread: bool
) -> None:
    path = f"/threads/{await client.thread()}/runs/crons" if on_thread else "/runs/crons"
    wanted = {}
    for body in OPTIONAL:
        cron = await make(client, path, **body)
        wanted[cron["cron_id"]] = body
    await fire(stage, redis_url)
    rows = await stage.database.fetch_all("SELECT kwargs, thread_id, metadata FROM runs")
    fired = {row["kwargs"]["config"]["configurable"]["cron_id"] for row in rows}
    rolled_back = 1 if on_thread else 0  # the strategy of one ends those before it
    assert len(fired) == len(rows)
    if not rolled_back:
        assert fired == set(wanted)
    for row in rows:
        assert row["kwargs"]["context"]["cron_id"] in wanted


async def test_one_that_cannot_be_fired_holds_up_no_other(
    client: Client, stage: Stage, redis_url: str
) -> None:
    broken, good = await make(client), await make(client)
    await stage.database.execute(
        "UPDATE crons SET request = '{}' WHERE cron_id = %s", [broken["cron_id"]]
    )
    await fire(stage, redis_url)
    [row] = await stage.database.fetch_all("SELECT kwargs FROM runs")
    assert row["kwargs"]["config"]["configurable"]["cron_id"] == good["cron_id"]
    assert (await client.get(f"/runs/crons/{broken['cron_id']}")).json["next_run_date"] > (
        broken["created_at"]
    )


async def test_a_firing_makes_the_run_that_a_request_would(
    client: Client, stage: Stage, redis_url: str
) -> None:
    body = {
        "input": {"z": 1, "a": 2},
        "context": {"model": "m"},
        "metadata": {"a": 1},
        "stream_mode": "updates",
        "interrupt_before": ["n"],
        "durability": "sync",
    }
    cron = await make(client, on_run_completed="keep", **body)
    plain = (
        await client.post("/runs", {"assistant_id": "agent", "on_completion": "keep"} | body)
    ).json
    assert await stage.next_message() == plain["run_id"]
    await fire(stage, redis_url)
    [row] = await stage.database.fetch_all(
        "SELECT run_id, thread_id FROM runs WHERE run_id <> %s", [plain["run_id"]]
    )
    assert await stage.next_message() == str(row["run_id"])
    fired = (await client.get(f"/threads/{row['thread_id']}/runs/{row['run_id']}")).json
    for run in (plain, fired):
        for name in ("run_id", "thread_id", "created_at", "updated_at"):
            run.pop(name)
        for name in ("run_id", "thread_id", "langgraph_request_id", "__request_start_time_ms__"):
            run["kwargs"]["config"]["configurable"].pop(name)
    assert fired["kwargs"]["config"]["configurable"].pop("cron_id") == cron["cron_id"]
    assert fired["kwargs"]["context"].pop("cron_id") == cron["cron_id"]
    assert fired == plain


async def test_a_patch_merges_metadata_and_replaces_the_rest(
    client: Client, stage: Stage, redis_url: str
) -> None:
    cron = await make(
        client, metadata={"a": 1}, config={"tags": ["t"], "configurable": {"z": 1}}, input={"x": 1}
    )
    path = f"/runs/crons/{cron['cron_id']}"

    async def patch(**body: Any) -> dict[str, Any]:
        answer = await client.ask("PATCH", path, body)
        assert answer.status == 200, answer.body
        changed: dict[str, Any] = answer.json
        return changed

    changed = await patch(metadata={"b": 2})
    assert (changed["metadata"], changed["payload"]["metadata"]) == ({"a": 1, "b": 2}, {"b": 2})
    assert changed["updated_at"] > cron["updated_at"]
    stamp = {"cron_id": cron["cron_id"]}
    changed = await patch(config={"tags": ["q"]}, input={"y": 2}, beyond=1)
    assert changed["payload"]["config"] == {"tags": ["q"], "configurable": stamp}
    assert (changed["payload"]["input"], changed["payload"]["beyond"]) == ({"y": 2}, 1)
    changed = await patch(schedule="30 10 * * *", timezone="Asia/Tokyo", end_time="2040-01-01")
    assert changed["next_run_date"].endswith("T01:30:00+00:00")
    assert changed["payload"]["schedule"] == "30 10 * * *"
    changed = await patch(end_time=None, enabled=False, on_run_completed="keep")
    assert (changed["end_time"], changed["enabled"]) == (None, False)
    await fire(stage, redis_url)
    assert await stage.database.fetch_all("SELECT 1 FROM runs") == []
    await patch(enabled=True, context={"k": 1}, assistant_id=str(uuid4()))
    await fire(stage, redis_url)
    [row] = await stage.database.fetch_all("SELECT kwargs, metadata FROM runs")
    assert row["kwargs"]["input"] == {"y": 2}
    assert row["kwargs"]["temporary"] is False
    assert row["kwargs"]["context"] == {"k": 1} | stamp
    assert row["metadata"]["a"] == 1
    assert row["metadata"]["assistant_id"] == AGENT


REFUSED: list[tuple[int, dict[str, Any], str]] = [
    (422, {"schedule": None}, "schedule"),
    (422, {"schedule": "x"}, "Invalid cron schedule: 'x'"),
    (422, {"schedule": "0 0 31 2 *"}, "no date"),
    (422, {"timezone": "Mars/X"}, "Invalid timezone: 'Mars/X'"),
    (422, {"end_time": "blah"}, "Invalid end_time: 'blah'"),
    (422, {"enabled": 1}, "enabled"),
    (422, {"on_run_completed": "x"}, "on_run_completed"),
    (422, {"webhook": "/x"}, "Loopback webhooks"),
    (422, {"assistant_id": str(uuid4()), "webhook": "/x"}, "Loopback webhooks"),
    (422, {"webhook": ""}, "webhook"),
    (422, {"stream_mode": "bogus"}, "stream_mode"),
    (422, {"multitask_strategy": "x"}, "multitask_strategy"),
    (400, {"context": {"a": 1}, "config": {"configurable": {"b": 1}}}, "configurable and context"),
]


async def test_what_could_not_fire_is_refused_and_changes_nothing(client: Client) -> None:
    cron = await make(client)
    path = f"/runs/crons/{cron['cron_id']}"
    for status, body, reason in REFUSED:
        for answer in (
            await client.post("/runs/crons", DAILY | body),
            await client.ask("PATCH", path, body),
        ):
            assert (answer.status, reason in answer.json["detail"]) == (status, True), answer.body
    assert (await client.get(path)).json == cron
    assert (await client.post("/runs/crons/count")).json == 1


async def test_what_is_missing_is_said(client: Client) -> None:
    nothing = uuid4()
    for body in ({"assistant_id": "agent"}, {"schedule": "0 9 * * *"}):
        answer = await client.post("/runs/crons", body)
        assert (answer.status, "Field required" in answer.json["detail"]) == (422, True)
    for name in ("nope", str(nothing)):
        answer = await client.post("/runs/crons", DAILY | {"assistant_id": name})
        assert (answer.status, answer.json) == (404, {"detail": f"Assistant '{name}' not found"})
    assert (await client.post(f"/threads/{nothing}/runs/crons", DAILY)).status == 404
    assert (await client.post("/threads/nope/runs/crons", DAILY)).status == 422
    path = f"/runs/crons/{nothing}"
    assert (await client.get(path)).json == {"detail": "Not Found"}
    assert (await client.ask("DELETE", path)).json == {"detail": "Not Found"}
    missing = await client.ask("PATCH", path, {"enabled": True})
    assert missing.json == {"detail": f"Cron '{nothing}' not found"}
    assert (await client.get("/runs/crons/x")).json == {"detail": "Invalid cron ID: must be a UUID"}
    cron = await make(client)
    empty = await client.ask("PATCH", f"/runs/crons/{cron['cron_id']}", {})
    assert (empty.status, empty.json) == (400, {"detail": "Request body cannot be empty"})
    assert (await client.post("/runs/crons/count")).json == 1


async def test_what_is_nested_too_deeply_is_refused(client: Client) -> None:
    for levels in (260, 900):
        deep = b"[" * levels + b"]" * levels
        raw = orjson.dumps(DAILY)[:-1] + b',"beyond":' + deep + b"}"
        assert (await client.ask("POST", "/runs/crons", raw=raw)).status == 422
        raw = orjson.dumps(DAILY)[:-1] + b',"input":' + deep + b"}"
        assert (await client.ask("POST", "/runs/crons", raw=raw)).status == 422
    assert (await client.post("/runs/crons/count")).json == 0


async def test_search_filters_sorts_pages_and_selects(client: Client) -> None:
    thread_id = await client.thread()
    first = await make(client, metadata={"n": 1}, end_time="2041-01-01")
    second = await make(client, f"/threads/{thread_id}/runs/crons", enabled=False)
    third = await make(client, assistant_id="other", end_time="2040-01-01")

    async def found(**body: Any) -> list[str]:
        answer = await client.post("/runs/crons/search", body)
        assert answer.status == 200, answer.body
        return [cron["cron_id"] for cron in answer.json]

    ids = [first["cron_id"], second["cron_id"], third["cron_id"]]
    assert await found() == ids[::-1]
    assert await found(sort_order="asc") == ids[::-1]  # without sort_by it means nothing
    assert await found(sort_by="created_at", sort_order="asc") == ids
    assert await found(sort_by="end_time", sort_order="asc") == [ids[2], ids[0], ids[1]]
    assert await found(assistant_id=AGENT) == [ids[1], ids[0]]
    assert await found(thread_id=thread_id) == [ids[1]]
    assert await found(enabled=True) == [ids[2], ids[0]]
    assert await found(metadata={"n": 1}) == [ids[0]]
    page = await client.post("/runs/crons/search", {"limit": 2, "select": ["cron_id", "enabled"]})
    assert page.json[1] == {"cron_id": ids[1], "enabled": False}
    assert page.headers["X-Pagination-Total"] == "3"
    assert page.headers["X-Pagination-Next"] == "2"
    for body in ({"assistant_id": "agent"}, {"select": ["nope"]}, {"limit": 0}, {"enabled": None}):
        assert (await client.post("/runs/crons/search", body)).status == 422, body
    assert (await client.post("/runs/crons/count", {"thread_id": thread_id})).json == 1
    assert (await client.ask("DELETE", f"/runs/crons/{ids[0]}")).status == 204
    assert await found() == [ids[2], ids[1]]


async def test_the_sdk_speaks_to_crons(house: House) -> None:
    from langgraph_sdk import get_client

    client = await house.gateway()
    sdk = get_client(url=client.url)
    cron = await sdk.crons.create(
        "agent",
        schedule="*/5 * * * *",
        input={"a": 1},
        metadata={"m": 1},
        end_time=datetime(2040, 1, 1),  # noqa: DTZ001  # as users write it
        timezone="Europe/Berlin",
        multitask_strategy="enqueue",
    )
    cron_id = str(cron["cron_id"])  # type: ignore[call-overload]  # the SDK says Run and means Cron
    updated = await sdk.crons.update(cron_id, enabled=False, metadata={"n": 2})
    assert (updated["enabled"], updated["metadata"]) == (False, {"m": 1, "n": 2})
    [found] = await sdk.crons.search(enabled=False, select=["cron_id"])
    assert found == {"cron_id": cron_id}
    assert await sdk.crons.count(assistant_id=AGENT) == 1
    await sdk.crons.delete(cron_id)
    assert await sdk.crons.count() == 0
    await sdk.aclose()

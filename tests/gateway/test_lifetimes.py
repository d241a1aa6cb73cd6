"""Lifetimes of threads over HTTP, what their history takes, and how it is removed."""

from datetime import datetime
from typing import Any
from uuid import uuid4

from persistence.ttl import Ttl, TtlStrategy
from tests.gateway.conftest import Client, House, Stage

NOWHERE = str(uuid4())


async def lifetime(client: Client, thread_id: str) -> Any:
    return (await client.get(f"/threads/{thread_id}?include=ttl")).json["ttl"]


async def test_a_thread_is_given_a_lifetime(client: Client) -> None:
    thread = (await client.post("/threads", {"ttl": {"ttl": 30, "strategy": "keep_latest"}})).json
    assert "ttl" not in thread
    thread_id = thread["thread_id"]
    shown = await lifetime(client, thread_id)
    assert (shown["strategy"], shown["ttl_minutes"]) == ("keep_latest", 30)
    until = datetime.fromisoformat(shown["expires_at"])
    assert (until - datetime.fromisoformat(thread["updated_at"])).total_seconds() == 1800
    changed = await client.ask("PATCH", f"/threads/{thread_id}", {"ttl": {"ttl": 0.5}})
    assert changed.status == 200
    shown = await lifetime(client, thread_id)
    assert (shown["strategy"], shown["ttl_minutes"]) == ("delete", 0.5)
    assert await lifetime(client, await client.thread()) is None
    assert await lifetime(client, await client.thread(ttl={})) is None


async def test_what_is_no_lifetime_is_refused(client: Client) -> None:
    path = f"/threads/{await client.thread()}"
    for ttl in (5, None, "5", {"ttl": 0}, {"ttl": -1}, {"ttl": 1e300}, {"strategy": "x"}):
        assert (await client.post("/threads", {"ttl": ttl})).status == 422, ttl
        assert (await client.ask("PATCH", path, {"ttl": ttl})).status == 422, ttl


async def test_the_projects_lifetime_is_for_every_thread_that_is_made(house: House) -> None:
    client = await house.gateway(thread_ttl=Ttl(60, TtlStrategy.KEEP_LATEST))
    made = [
        await client.thread(),
        (await client.run(str(uuid4()), if_not_exists="create"))["thread_id"],
        (await client.run(str(uuid4()), if_not_exists="create", multitask_strategy="interrupt"))[
            "thread_id"
        ],
        (await client.post("/runs", {"assistant_id": "agent", "on_completion": "keep"})).json[
            "thread_id"
        ],
    ]
    for thread_id in made:
        assert (await lifetime(client, thread_id))["ttl_minutes"] == 60
    own = await lifetime(client, await client.thread(ttl={"ttl": 5}))
    assert (own["ttl_minutes"], own["strategy"]) == (5, "delete")
    temporary = (await client.post("/runs", {"assistant_id": "agent"})).json["thread_id"]
    assert await lifetime(client, temporary) is None


async def write_history(stage: Stage, thread_id: str, checkpoints: int) -> None:
    """What LangGraph would leave of so many steps."""
    for n in range(checkpoints):
        await stage.database.execute(
            """INSERT INTO checkpoints (thread_id, checkpoint_ns, checkpoint_id, checkpoint)
            VALUES (%s, '', %s, jsonb_build_object('channel_versions',
                jsonb_build_object('c', %s::text)))""",
            [thread_id, f"1f000000-0000-6000-8000-00000000000{n}", str(n)],
        )
        await stage.database.execute(
            """INSERT INTO checkpoint_blobs
            VALUES (%s, '', 'c', %s, 'msgpack', decode(repeat('00', 50), 'hex'))""",
            [thread_id, str(n)],
        )


async def test_what_a_history_takes_and_how_it_goes(client: Client, stage: Stage) -> None:
    thread_id, busy = await client.thread(), await client.thread()
    empty = {"count": 0, "bytes": 0}
    assert (await client.get(f"/threads/{thread_id}/storage")).json == {
        "thread_id": thread_id,
        "total_bytes": 0,
        "checkpoints": empty,
        "channel_values": empty | {"by_channel": {}},
        "pending_writes": empty,
    }
    for one in (thread_id, busy):
        await write_history(stage, one, 3)
    await client.run(busy)
    storage = (await client.get(f"/threads/{thread_id}/storage")).json
    assert storage["checkpoints"]["count"] == 3
    channel = storage["channel_values"]["by_channel"]["c"]
    assert channel["versions"] == 3
    assert channel["bytes"] == storage["channel_values"]["bytes"] >= 150
    assert storage["total_bytes"] == sum(
        storage[part]["bytes"] for part in ("checkpoints", "channel_values", "pending_writes")
    )
    pruned = await client.post(
        "/threads/prune",
        {"thread_ids": [thread_id, busy, NOWHERE], "strategy": "keep_latest"},
    )
    assert pruned.json == {"pruned_count": 1}
    storage = (await client.get(f"/threads/{thread_id}/storage")).json
    assert storage["checkpoints"]["count"] == 1
    assert storage["channel_values"]["by_channel"]["c"]["versions"] == 1
    assert (await client.get(f"/threads/{busy}/storage")).json["checkpoints"]["count"] == 3
    assert (await client.get(f"/threads/{NOWHERE}/storage")).status == 404
    for wrong in ({}, {"thread_ids": ["x"]}, {"thread_ids": [], "strategy": "x"}):
        assert (await client.post("/threads/prune", wrong)).status == 422


async def test_the_sdk_sets_a_lifetime(house: House) -> None:
    from langgraph_sdk import get_client

    client = await house.gateway()
    sdk = get_client(url=client.url)
    thread = await sdk.threads.create(ttl=30)
    await sdk.threads.update(thread["thread_id"], metadata={}, ttl=45)
    shown: Any = await sdk.threads.get(thread["thread_id"], include=["ttl"])
    assert shown["ttl"]["ttl_minutes"] == 45
    pruned: Any = await sdk.threads.prune([thread["thread_id"]])
    assert pruned["pruned_count"] == 1
    await sdk.aclose()

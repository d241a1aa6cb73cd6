"""Threads and their state over HTTP."""

import asyncio
import uuid

import pytest

from actors.dispatch import PROJECT_FAILED

NOWHERE = "00000000-0000-0000-0000-000000000000"
MISSING = {"detail": f"Thread with ID {NOWHERE} not found"}


async def test_a_new_thread(client) -> None:
    thread = (await client.post("/threads", {"metadata": {"a": 1}, "unknown": 1})).json
    assert uuid.UUID(thread["thread_id"]).version == 7
    assert list(thread) == [
        *("thread_id", "created_at", "updated_at", "state_updated_at"),
        *("metadata", "status", "config", "values"),
    ]
    assert thread["created_at"] == thread["updated_at"] == thread["state_updated_at"]
    assert (thread["status"], thread["metadata"], thread["values"]) == ("idle", {"a": 1}, None)
    assert (await client.get(f"/threads/{thread['thread_id']}")).json == thread


async def test_a_taken_id(client) -> None:
    thread_id = str(uuid.uuid4())
    first = (await client.post("/threads", {"thread_id": thread_id, "metadata": {"a": 1}})).json
    again = await client.post("/threads", {"thread_id": thread_id})
    assert (again.status, again.json) == (
        409,
        {"detail": f"Thread with ID {thread_id} already exists"},
    )
    same = await client.post("/threads", {"thread_id": thread_id, "if_exists": "do_nothing"})
    assert same.json == first


async def test_metadata_is_merged(client) -> None:
    thread_id = await client.thread(metadata={"a": 1, "b": {"c": 1}})
    path = f"/threads/{thread_id}"
    answer = await client.ask("PATCH", path, {"metadata": {"b": {"d": 2}, "e": None}})
    assert answer.json["metadata"] == {"a": 1, "b": {"d": 2}, "e": None}
    answer = await client.ask("PATCH", path, {"metadata": {}}, Prefer="return=minimal")
    assert (answer.status, answer.body) == (204, b"")
    missing = await client.ask("PATCH", f"/threads/{NOWHERE}", {})
    assert (missing.status, missing.json) == (404, {"detail": "Not Found"})


async def test_deletion_is_final_and_told_to_the_worker(client, stage) -> None:
    thread_id = await client.thread()
    run_id = (await client.run(thread_id))["run_id"]
    await stage.claim(run_id)
    async with stage.cancels() as heard:
        assert (await client.ask("DELETE", f"/threads/{thread_id}")).status == 204
        assert await heard() == run_id
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/state"), ("GET", "/history")):
        answer = await client.ask(method, f"/threads/{thread_id}{path}")
        assert answer.status == 404


async def test_search_pages_and_says_whether_more_follow(client) -> None:
    made = [await client.thread(metadata={"n": number}) for number in range(5)]
    first = await client.post("/threads/search", {"limit": 2})
    assert [thread["thread_id"] for thread in first.json] == [made[4], made[3]]
    assert first.headers["X-Pagination-Total"] == "3"
    assert first.headers["X-Pagination-Next"] == "2"
    last = await client.post("/threads/search", {"limit": 2, "offset": 4})
    assert [thread["thread_id"] for thread in last.json] == [made[0]]
    assert last.headers["X-Pagination-Total"] == "5"
    assert "X-Pagination-Next" not in last.headers
    found = await client.post("/threads/search", {"metadata": {"n": 3}, "select": ["thread_id"]})
    assert found.json == [{"thread_id": made[3]}]
    found = await client.post("/threads/search", {"sort_by": "created_at", "sort_order": "asc"})
    assert [thread["thread_id"] for thread in found.json] == made
    some = await client.post("/threads/search", {"ids": [*made[:3], NOWHERE], "limit": 2})
    assert [thread["thread_id"] for thread in some.json] == [made[2], made[1]]
    assert some.headers["X-Pagination-Total"] == "3"
    assert some.headers["X-Pagination-Next"] == "2"
    rest = await client.post("/threads/search", {"ids": made[:3], "limit": 2, "offset": 2})
    assert [thread["thread_id"] for thread in rest.json] == [made[0]]
    assert rest.headers["X-Pagination-Total"] == "3"
    assert "X-Pagination-Next" not in rest.headers
    both = await client.post("/threads/search", {"ids": made[:3], "metadata": {"n": 4}})
    assert (both.json, both.headers["X-Pagination-Total"]) == ([], "0")
    assert (await client.post("/threads/count", {"metadata": {"n": 3}})).json == 1
    assert (await client.post("/threads/count", {"status": "busy"})).json == 0
    assert (await client.post("/threads/count", {"ids": [*made[:2], NOWHERE]})).json == 2
    assert (await client.post("/threads/count", {"ids": []})).json == 5
    assert (await client.post("/threads/count", {"ids": ["x"]})).status == 422
    for wrong in ({"limit": 0}, {"limit": 1001}, {"offset": -1}, {"status": "x"}, {"ids": ["x"]}):
        assert (await client.post("/threads/search", wrong)).status == 422


async def test_a_thread_shows_state_and_interrupts_after_a_run(client, stage) -> None:
    thread_id = await client.thread()
    run_id = (await client.run(thread_id))["run_id"]
    await stage.claim(run_id)
    interrupts = b'{"task":[{"id":"i","value":"q"}]}'
    await stage.settle(run_id, values={"a": 1}, interrupts=interrupts, next_nodes=True)
    thread = (await client.get(f"/threads/{thread_id}")).json
    assert thread["status"] == "interrupted"
    assert thread["values"] == {"a": 1}
    assert thread["interrupts"] == {"task": [{"id": "i", "value": "q"}]}
    assert thread["error"] is None
    other = await client.thread()  # without values: it matches none
    found = await client.post("/threads/search", {"values": {"a": 1}})
    assert found.json == [thread]
    assert found.headers["X-Pagination-Total"] == "1"
    for values in ({"a": 2}, {"a": "1"}, {"b": None}, {"a": 1, "b": 2}, {"a": {}}):
        assert (await client.post("/threads/search", {"values": values})).json == [], values
    narrowed = {"values": {"a": 1}, "ids": [other], "status": "interrupted"}
    assert (await client.post("/threads/search", narrowed)).json == []
    narrowed |= {"ids": [other, thread_id], "extract": {"a": "values.a"}, "select": ["status"]}
    [shown] = (await client.post("/threads/search", narrowed)).json
    assert shown == {"status": "interrupted", "extracted": {"a": 1}}


async def test_search_extracts_single_values(client, stage) -> None:
    thread_id = await client.thread(metadata={"n": {"m": 1}})
    run_id = (await client.run(thread_id))["run_id"]
    await stage.perform(run_id, values={"items": [{"text": "a"}, {"text": "b"}]})
    paths = {
        "last": "values.items[-1].text",
        "deep": "metadata.n.m",
        "all": "values.items[*]",
        "none": "values.items[7].x",
    }
    body = {"select": ["thread_id"], "extract": paths}
    assert (await client.post("/threads/search", body)).json == [
        {
            "thread_id": thread_id,
            "extracted": {"last": "b", "deep": 1, "all": None, "none": None},
        }
    ]
    for wrong in ({"a": "status"}, {"a": "values..b"}, {"a": "values[x]"}, {"a": 1}):
        assert (await client.post("/threads/search", {"extract": wrong})).status == 422
    many = {str(number): "values" for number in range(11)}
    assert (await client.post("/threads/search", {"extract": many})).status == 422


async def test_supersteps_make_a_state(client, stage) -> None:
    steps = [{"updates": [{"values": {"a": 1}, "as_node": "n"}]}]
    body = {"metadata": {"graph_id": "agent"}, "supersteps": steps}
    answer = asyncio.create_task(client.post("/threads", body))
    op, args = await stage.inspect(200, {})
    assert (op, args["supersteps"]) == ("update_state", steps)
    await stage.inspect(200, {"values": {"a": 1}, "next": ["m"], "interrupts": {}})
    thread = (await answer).json
    assert (thread["values"], thread["status"]) == ({"a": 1}, "interrupted")


async def test_supersteps_that_cannot_be_taken(client, stage) -> None:
    steps = [{"updates": [{"values": {"a": 1}, "as_node": "n"}]}]
    answer = await client.post("/threads", {"supersteps": steps})
    assert answer.status == 201
    assert "was created, but there were problems updating the state" in answer.json["detail"]
    body = {"metadata": {"graph_id": "agent"}, "supersteps": steps}
    answer = asyncio.create_task(client.post("/threads", body))
    await stage.inspect(400, {"detail": "Node n does not exist"})
    assert ((await answer).status, (await answer).json) == (
        400,
        {"detail": "Node n does not exist"},
    )
    assert len((await client.post("/threads/search", {})).json) == 1  # that of the 201
    failed = asyncio.create_task(client.post("/threads", body))
    await stage.inspect(PROJECT_FAILED, {"detail": "Graph 'agent' failed"})
    assert (await failed).status == 201
    assert (await failed).json["detail"].endswith("updating the state: Graph 'agent' failed")
    for wrong in ([{}], [{"updates": [{"values": {}}]}], "x", None):
        assert (await client.post("/threads", {"supersteps": wrong})).status == 422


async def test_copies(client) -> None:
    thread_id = await client.thread(metadata={"a": 1})
    answer = await client.ask("POST", f"/threads/{thread_id}/copy")
    assert answer.status == 200
    assert answer.json["thread_id"] != thread_id
    assert answer.json["metadata"] == {"a": 1}
    missing = await client.ask("POST", f"/threads/{NOWHERE}/copy")
    assert (missing.status, missing.json) == (409, {"detail": "Conflict"})


async def test_prune(client) -> None:
    thread_id = await client.thread()
    answer = await client.post("/threads/prune", {"thread_ids": [thread_id, NOWHERE]})
    assert answer.json == {"pruned_count": 1}
    assert (await client.get(f"/threads/{thread_id}")).status == 404


async def test_the_state_of_a_thread_that_never_ran(client) -> None:
    thread_id = await client.thread()
    empty = {
        "values": {},
        "next": [],
        "tasks": [],
        "interrupts": [],
        **dict.fromkeys(
            ("metadata", "created_at", "checkpoint", "parent_checkpoint"),
        ),
        "checkpoint_id": None,
        "parent_checkpoint_id": None,
    }
    assert (await client.get(f"/threads/{thread_id}/state")).json == empty
    assert (await client.get(f"/threads/{thread_id}/history")).json == []
    assert (await client.post(f"/threads/{thread_id}/history", {})).json == []
    refused = await client.post(f"/threads/{thread_id}/state", {"values": {}})
    assert refused.status == 400
    assert refused.json["detail"].startswith(f"Thread '{thread_id}' has no assigned graph ID.")


@pytest.mark.parametrize(
    ("method", "path", "body", "op", "asked"),
    [
        ("GET", "state", None, "state", {"checkpoint": {}, "subgraphs": False}),
        ("GET", "state?subgraphs=true", None, "state", {"checkpoint": {}, "subgraphs": True}),
        ("GET", "state/c1", None, "state", {"checkpoint": {"checkpoint_id": "c1"}}),
        (
            "POST",
            "state/checkpoint",
            {"checkpoint": {"checkpoint_id": "c1", "checkpoint_ns": "a:1"}, "subgraphs": True},
            "state",
            {"checkpoint": {"checkpoint_id": "c1", "checkpoint_ns": "a:1"}, "subgraphs": True},
        ),
        ("GET", "history", None, "history", {"limit": 1, "before": None}),
        ("GET", "history?limit=7&before=c1", None, "history", {"limit": 7, "before": "c1"}),
        ("POST", "history", {}, "history", {"limit": 1, "before": None, "metadata": {}}),
        ("POST", "history", {"before": "c1", "limit": 9}, "history", {"limit": 9, "before": "c1"}),
        ("POST", "history", {"before": {"checkpoint_id": "c1"}}, "history", {"before": "c1"}),
        (
            "POST",
            "history",
            {"before": {"configurable": {"checkpoint_id": "c1"}}, "metadata": {"source": "x"}},
            "history",
            {"before": "c1", "metadata": {"source": "x"}},
        ),
    ],
)
async def test_the_inspector_is_asked(client, stage, method, path, body, op, asked) -> None:
    thread_id = await client.thread(metadata={"graph_id": "agent"})
    answer = asyncio.create_task(client.ask(method, f"/threads/{thread_id}/{path}", body))
    got_op, args = await stage.inspect(200, [{"any": "thing"}])
    assert got_op == op
    assert args | asked == args
    assert (args["thread_id"], args["graph_id"]) == (thread_id, "agent")
    assert (await answer).json == [{"any": "thing"}]


async def test_a_state_update_whose_checkpoint_is_null_is_of_the_latest(client, stage) -> None:
    thread_id = await client.thread(metadata={"graph_id": "agent"})
    body = {"values": {"a": 1}, "checkpoint_id": None}
    answer = asyncio.create_task(client.post(f"/threads/{thread_id}/state", body))
    op, args = await stage.inspect(422, {"detail": "enough seen"})
    assert (op, args["checkpoint"]) == ("update_state", {})
    assert (await answer).status == 422


async def test_a_state_update_shows_on_the_thread(client, stage) -> None:
    thread_id = await client.thread(metadata={"graph_id": "agent"})
    path = f"/threads/{thread_id}/state"
    body = {"values": {"a": 1}, "as_node": "n", "checkpoint_id": "c1"}
    answer = asyncio.create_task(client.post(path, body))
    op, args = await stage.inspect(200, {"checkpoint_id": "c2"})
    assert op == "update_state"
    assert (args["values"], args["as_node"]) == ({"a": 1}, "n")
    assert args["checkpoint"] == {"checkpoint_id": "c1"}
    op, _ = await stage.inspect(200, {"values": {"a": 1}, "next": ["m"], "interrupts": {}})
    assert op == "values"
    assert (await answer).json == {"checkpoint_id": "c2"}
    op, _ = await stage.inspect(200, {"values": {"a": 1}})  # for followers of the thread
    assert op == "state"
    thread = (await client.get(f"/threads/{thread_id}")).json
    assert (thread["status"], thread["values"]) == ("interrupted", {"a": 1})


async def test_a_state_that_nobody_can_read_is_updated_all_the_same(client, stage) -> None:
    thread_id = await client.thread(metadata={"graph_id": "agent"})
    answer = asyncio.create_task(client.post(f"/threads/{thread_id}/state", {"values": {"a": 1}}))
    await stage.inspect(200, {"checkpoint_id": "c2"})
    await stage.inspect(PROJECT_FAILED, {"detail": "Graph 'agent' failed"})
    assert ((await answer).status, (await answer).json) == (200, {"checkpoint_id": "c2"})


async def test_the_inspectors_refusals_are_relayed(client, stage) -> None:
    thread_id = await client.thread(metadata={"graph_id": "agent"})
    body = {"values": {}, "as_node": "x"}
    answer = asyncio.create_task(client.post(f"/threads/{thread_id}/state", body))
    await stage.inspect(400, {"detail": "Node x does not exist"})
    assert (await answer).status == 400
    assert (await answer).json == {"detail": "Node x does not exist"}


async def test_state_updates_are_refused_while_a_run_is_in_flight(client) -> None:
    thread_id = await client.thread()
    await client.run(thread_id)
    answer = await client.post(f"/threads/{thread_id}/state", {"values": {}})
    assert answer.status == 409
    assert isinstance(answer.json["detail"], str)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "state", {"values": "x"}),
        ("POST", "state", {"as_node": None}),
        ("POST", "state/checkpoint", {}),
        ("POST", "history", {"limit": 0}),
        ("POST", "history", {"before": 7}),
        ("POST", "state/checkpoint", {"checkpoint": {"checkpoint_id": "\0"}}),
        ("POST", "state", {"checkpoint": {"checkpoint_ns": "\0"}}),
        ("GET", "history?limit=x", None),
        ("GET", "history?limit=1001", None),
    ],
)
async def test_state_requests_of_the_wrong_form(client, method, path, body) -> None:
    thread_id = await client.thread(metadata={"graph_id": "agent"})
    assert (await client.ask(method, f"/threads/{thread_id}/{path}", body)).status == 422


async def test_without_a_worker_state_is_a_503(house) -> None:
    client = await house.gateway(inspect_timeout_seconds=0.2)
    thread_id = await client.thread(metadata={"graph_id": "agent"})
    answer = await client.get(f"/threads/{thread_id}/state")
    assert answer.status == 503
    assert "Retry-After" in answer.headers


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", ""), ("DELETE", ""), ("GET", "/state"), ("GET", "/history"), ("GET", "/runs")],
)
async def test_a_thread_that_is_not_there(client, method, path) -> None:
    answer = await client.ask(method, f"/threads/{NOWHERE}{path}")
    assert (answer.status, answer.json) == (404, MISSING)


async def test_an_empty_select_selects_everything(client) -> None:
    thread = (await client.post("/threads", {"metadata": {"a": 1}})).json
    [found] = (await client.post("/threads/search", {"select": [], "limit": 1.0})).json
    assert found == thread

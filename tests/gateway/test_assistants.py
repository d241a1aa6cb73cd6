"""Assistants over HTTP."""

import asyncio
import uuid

import pytest

NOWHERE = "00000000-0000-0000-0000-000000000000"
AGENT = "fe096781-5601-53d2-b2f6-0d3403f7e9ca"


async def test_every_graph_has_an_assistant_from_the_start(client) -> None:
    found = (await client.post("/assistants/search", {"metadata": {"created_by": "system"}})).json
    assert {assistant["graph_id"] for assistant in found} == {"agent", "other"}
    agent = (await client.get(f"/assistants/{AGENT}")).json
    assert list(agent) == [
        *("assistant_id", "graph_id", "config", "context", "metadata", "name"),
        *("created_at", "updated_at", "version", "description"),
    ]
    assert (agent["name"], agent["version"], agent["description"]) == ("agent", 1, None)


async def test_creation_and_its_defaults(client) -> None:
    made = (await client.post("/assistants", {"graph_id": "agent"})).json
    assert uuid.UUID(made["assistant_id"]).version == 4
    assert (made["name"], made["config"], made["context"]) == ("Untitled", {}, {})
    nameless = (await client.post("/assistants", {"graph_id": "agent", "name": ""})).json
    assert nameless["name"] == "Untitled"
    taken = {"graph_id": "agent", "assistant_id": made["assistant_id"], "name": "x"}
    again = await client.post("/assistants", taken)
    assert again.status == 409
    assert again.json["detail"] == f"Assistant {made['assistant_id']} already exists"
    same = await client.post("/assistants", {**taken, "if_exists": "do_nothing"})
    assert same.json == made


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"graph_id": "nope"}, 404),
        ({"graph_id": "agent", "config": None}, 422),
        ({"graph_id": "agent", "context": {"a": 1}, "config": {"configurable": {"b": 1}}}, 400),
        ({"graph_id": "agent", "assistant_id": "x"}, 422),
    ],
)
async def test_what_is_refused(client, body, status) -> None:
    answer = await client.post("/assistants", body)
    assert answer.status == status
    assert isinstance(answer.json["detail"], str)


async def test_context_and_configurable_mirror_each_other(client) -> None:
    body = {"graph_id": "agent", "context": {"a": 1}, "config": {"tags": ["t"]}}
    made = (await client.post("/assistants", body)).json
    assert made["config"] == {"tags": ["t"], "configurable": {"a": 1}}
    path = f"/assistants/{made['assistant_id']}"
    patched = (await client.ask("PATCH", path, {"config": {"configurable": {"b": 2}}})).json
    assert (patched["config"], patched["context"]) == ({"configurable": {"b": 2}}, {"b": 2})
    patched = (await client.ask("PATCH", path, {"config": {"tags": ["n"]}})).json
    assert (patched["config"], patched["context"]) == ({"tags": ["n"]}, {"b": 2})


async def test_every_patch_is_a_version_that_can_be_had_back(client) -> None:
    made = (await client.post("/assistants", {"graph_id": "agent", "metadata": {"a": 1}})).json
    path = f"/assistants/{made['assistant_id']}"
    second = (await client.ask("PATCH", path, {"name": "two", "metadata": {"b": 2}})).json
    assert (second["version"], second["metadata"]) == (2, {"a": 1, "b": 2})
    listed = (await client.post(f"{path}/versions", {})).json
    assert [version["version"] for version in listed] == [2, 1]
    assert "updated_at" not in listed[0]
    back = (await client.post(f"{path}/latest", {"version": 1.0})).json
    assert (back["version"], back["name"]) == (1, "Untitled")
    assert (await client.ask("PATCH", path, {})).json["version"] == 3
    missing = await client.post(f"{path}/latest", {"version": 9})
    assert missing.status == 404
    assert missing.json["detail"] == (f"Version 9 not found for assistant {made['assistant_id']}")
    assert (await client.ask("PATCH", path, {"description": None})).status == 422


async def test_search_and_count(client) -> None:
    for number in range(3):
        await client.post("/assistants", {"graph_id": "other", "name": f"Name {number}"})
    found = await client.post("/assistants/search", {"graph_id": "other", "limit": 3})
    assert [item["name"] for item in found.json] == ["Name 2", "Name 1", "Name 0"]
    assert found.headers["X-Pagination-Next"] == "3"
    body = {"name": "nAmE", "sort_by": "name", "sort_order": "asc", "select": ["name"]}
    found = await client.post("/assistants/search", body)
    assert found.json == [{"name": f"Name {number}"} for number in range(3)]
    assert (await client.post("/assistants/count", {"graph_id": "other"})).json == 4
    assert (await client.post("/assistants/search", {"graph_id": "nope"})).status == 404
    assert (await client.post("/assistants/search", {"select": ["nope"]})).status == 422


async def test_deletion(client) -> None:
    made = (await client.post("/assistants", {"graph_id": "agent"})).json
    thread_id = await client.thread()
    await client.run(thread_id, assistant_id=made["assistant_id"])
    path = f"/assistants/{made['assistant_id']}"
    assert (await client.ask("DELETE", f"{path}?delete_threads=true")).status == 204
    assert (await client.get(f"/threads/{thread_id}")).status == 404
    assert (await client.get(path)).json == {"detail": "Not Found"}
    again = await client.ask("DELETE", path)
    assert again.json == {"detail": f"Assistant with ID {made['assistant_id']} not found"}
    assert (await client.ask("PATCH", path, {})).json == {
        "detail": f"Assistant {made['assistant_id']} not found"
    }


@pytest.mark.parametrize(
    ("path", "op", "asked"),
    [
        (f"{AGENT}/graph", "graph", {"xray": False}),
        ("agent/graph?xray=true", "graph", {"xray": True}),
        ("agent/graph?xray=2", "graph", {"xray": 2}),
        (f"{AGENT}/schemas", "schemas", {}),
        (f"{AGENT}/subgraphs?recurse=true", "subgraphs", {"namespace": None, "recurse": True}),
        (f"{AGENT}/subgraphs/child", "subgraphs", {"namespace": "child", "recurse": False}),
    ],
)
async def test_the_inspector_is_asked_about_the_graph(client, stage, path, op, asked) -> None:
    answer = asyncio.create_task(client.get(f"/assistants/{path}"))
    got_op, args = await stage.inspect(200, {"any": "thing"})
    assert (got_op, args) == (op, {"graph_id": "agent", "config": {}, **asked})
    assert (await answer).json == {"any": "thing"}


@pytest.mark.parametrize("xray", ["0", "-1", "x", "1.5", "TRUE"])
async def test_a_bad_depth(client, xray) -> None:
    answer = await client.get(f"/assistants/agent/graph?xray={xray}")
    assert answer.status == 422
    assert "Invalid xray value" in answer.json["detail"]


async def test_unknown_assistants_have_no_graph(client) -> None:
    assert (await client.get("/assistants/nope/graph")).status == 422
    assert (await client.get(f"/assistants/{NOWHERE}/schemas")).status == 404


async def test_an_empty_config_changes_nothing_and_an_empty_context_does(client) -> None:
    made = (await client.post("/assistants", {"graph_id": "agent", "config": {"tags": ["a"]}})).json
    path = f"/assistants/{made['assistant_id']}"
    await client.ask("PATCH", path, {"context": {"user": "u"}})
    assert (await client.ask("PATCH", path, {"config": {}})).json["context"] == {"user": "u"}
    assert (await client.ask("PATCH", path, {"context": {}})).json["context"] == {}


async def test_names_are_sorted_in_any_case(client) -> None:
    for name in ("beta", "Alpha", "Gamma"):
        await client.post("/assistants", {"graph_id": "agent", "name": name, "metadata": {"s": 1}})
    search = {"metadata": {"s": 1}, "sort_by": "name", "sort_order": "asc"}
    found = (await client.post("/assistants/search", search)).json
    assert [assistant["name"] for assistant in found] == ["Alpha", "beta", "Gamma"]

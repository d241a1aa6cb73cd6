"""MCP over plain HTTP: the envelope, assistants as tools, and calls as runs."""

import asyncio
from typing import Any

import orjson
import pytest
from langgraph_sdk import Auth

from actors.dispatch import AWAITED, PROJECT_FAILED
from gateway.auth.access import Access
from gateway.http_options import HttpOptions
from gateway.mcp import call_result
from persistence.lifecycle import FAIL
from tests.gateway.conftest import Answer, Client, House, Stage

MESSAGES = {
    "type": "array",
    "title": "Messages",
    "items": {"oneOf": [{"$ref": "#/$defs/AIMessage"}, {"$ref": "#/$defs/HumanMessage"}]},
}
SCHEMA = {
    "type": "object",
    "title": "Input",
    "properties": {"messages": MESSAGES, "place": {"$ref": "#/$defs/Place"}},
    "required": ["messages"],
    "$defs": {
        "AIMessage": {"type": "object"},
        "HumanMessage": {"type": "object"},
        "Place": {"type": "object", "properties": {"point": {"$ref": "#/$defs/Point"}}},
        "Point": {"type": "object"},
    },
}


async def rpc(client: Client, method: str, params: Any = None, **rest: Any) -> Answer:
    body = {"jsonrpc": "2.0", "id": 0, "method": method, **rest}
    if params is not None:
        body["params"] = params
    return await client.post("/mcp", body)


async def listed(client: Client, stage: Stage, *schemas: Any, cursor: Any = None) -> dict[str, Any]:
    """The answer to tools/list; the inspector is asked for so many schemas."""
    params = {} if cursor is None else {"cursor": cursor}
    asking = asyncio.create_task(rpc(client, "tools/list", params))
    for schema in schemas:
        status = 200 if schema else 404
        await stage.inspect(status, {"input_schema": schema} if schema else {"detail": "broken"})
    answer = (await asking).json
    assert answer["id"] == 0
    result: dict[str, Any] = answer["result"]
    return result


async def test_what_the_project_says_of_a_graph_is_said_of_its_tool_and_agent(
    house: House, stage: Stage
) -> None:
    client = await house.gateway(descriptions={"agent": "Answers questions"})
    tools = (await listed(client, stage, SCHEMA, SCHEMA))["tools"]
    described = {tool["name"]: tool["description"] for tool in tools}
    assert described == {
        "agent": "Answers questions",
        "other": "Tool based on the other assistant",
    }
    [agent] = (await client.post("/assistants/search", {"graph_id": "agent"})).json
    assert agent["description"] == "Answers questions"
    card = (await client.get(f"/a2a/{agent['assistant_id']}")).json
    assert card["description"] == card["skills"][0]["description"] == "Answers questions"


@pytest.mark.parametrize(
    ("asked", "told"),
    [("2025-03-26", "2025-03-26"), ("2025-11-25", "2025-11-25"), ("1999-01-01", "2025-11-25")],
)
async def test_the_version_is_taken_as_asked(client: Client, asked: str, told: str) -> None:
    answer = await rpc(client, "initialize", {"protocolVersion": asked, "capabilities": {}})
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    assert answer.json == {
        "jsonrpc": "2.0",
        "id": 0,
        "result": {
            "protocolVersion": told,
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": {"name": "Callboard", "version": "0"},
        },
    }


async def test_the_envelope(client: Client) -> None:
    assert (await rpc(client, "ping")).json == {"jsonrpc": "2.0", "id": 0, "result": {}}
    unknown = (await rpc(client, "server/discover")).json
    assert (unknown["id"], unknown["error"]["code"]) == (0, -32601)
    for taken in (
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 1, "result": {}},
        {"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "no"}},
    ):
        answer = await client.post("/mcp", taken)
        assert (answer.status, answer.body) == (202, b"")
    for raw in (b"{", b"", b"[]", b"{}", b'{"jsonrpc": "1.0", "id": 1, "method": "ping"}'):
        answer = await client.ask("POST", "/mcp", raw=raw)
        assert answer.status == 400
        assert isinstance(answer.json["error"], str)


async def test_methods_of_http(client: Client) -> None:
    assert (await client.get("/mcp")).status == 405
    assert (await client.ask("DELETE", "/mcp")).status == 404
    assert (await client.post("/mcp/")).status == 307


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        ("application/json", 200),
        ("text/event-stream;q=0.5", 200),
        ("application/json, text/event-stream", 200),
        ("*/*", 200),
        ("text/html", 400),
    ],
)
async def test_json_must_be_welcome(client: Client, accept: str, status: int) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    answer = await client.ask("POST", "/mcp", body, Accept=accept)
    assert answer.status == status
    if status == 400:
        assert isinstance(answer.json["error"], str)


async def test_assistants_are_tools(client: Client, stage: Stage) -> None:
    body = {"graph_id": "agent", "name": "Héllo wörld", "description": "Greets"}
    await client.post("/assistants", body)
    tools = (await listed(client, stage, SCHEMA, SCHEMA))["tools"]
    assert sorted(tool["name"] for tool in tools) == ["H_llo_w_rld", "agent", "other"]
    [named] = [tool for tool in tools if tool["title"] == "Héllo wörld"]
    assert named["description"] == "Greets"
    [plain] = [tool for tool in tools if tool["name"] == "agent"]
    assert plain["description"] == "Tool based on the agent assistant"
    assert plain["inputSchema"] == {
        "type": "object",
        "title": "Input",
        "properties": {
            "messages": {
                "type": "string",
                "title": "Messages",
                "description": "A message from the user",
            },
            "place": {"$ref": "#/$defs/Place"},
        },
        "required": ["messages"],
        "$defs": {name: SCHEMA["$defs"][name] for name in ("Place", "Point")},  # type: ignore[index]
    }


async def test_what_cannot_take_arguments_is_no_tool(client: Client, stage: Stage) -> None:
    assert (await listed(client, stage, None, {"type": "integer"})) == {"tools": []}
    asking = asyncio.create_task(rpc(client, "tools/list"))
    await stage.inspect(PROJECT_FAILED, {"detail": "its factory raised"})
    await stage.inspect(200, {"input_schema": SCHEMA})
    assert len((await asking).json["result"]["tools"]) == 1


async def test_tools_come_in_pages_and_no_name_twice(client: Client, stage: Stage) -> None:
    names = [f"helper {number}" for number in range(97)] + ["twin", "twin"]
    for name in names:
        await client.post("/assistants", {"graph_id": "agent", "name": name})
    first = await listed(client, stage, SCHEMA, SCHEMA)  # 99 of them, and one of the graphs'
    assert first["nextCursor"] == "100"
    found = [tool["name"] for tool in first["tools"]]
    assert len(found) == len(set(found)) == 99
    rest = await listed(client, stage, SCHEMA, cursor=first["nextCursor"])
    assert "nextCursor" not in rest
    assert len({*found, *(tool["name"] for tool in rest["tools"])}) == 100
    assert len((await listed(client, stage, SCHEMA, cursor=100))["tools"]) == 1
    answer = await rpc(client, "tools/list", {"cursor": "x"})
    assert answer.json["error"]["code"] == -32602


async def test_a_call_is_a_run(client: Client, stage: Stage) -> None:
    made = await client.post("/assistants", {"graph_id": "agent", "name": "My tool"})
    params = {"name": "My_tool", "arguments": {"messages": "hi"}, "context": {"model": "m"}}
    calling = asyncio.create_task(rpc(client, "tools/call", params))
    run_id = await stage.next_message()
    assert stage.lane == AWAITED
    claimed = await stage.claim(run_id)
    assert str(claimed.assistant_id) == made.json["assistant_id"]
    assert claimed.temporary
    kwargs = orjson.loads(claimed.kwargs)
    assert (kwargs["input"], kwargs["context"]) == ({"messages": "hi"}, {"model": "m"})
    output = orjson.dumps({"messages": ["hi", "hello"]})
    await stage.settle(run_id, values={"messages": ["hi", "hello"]}, output=output)
    answer = await calling
    assert answer.status == 200
    assert answer.json["result"] == {
        "content": [{"type": "text", "text": '{"messages":["hi","hello"]}'}],
        "isError": False,
    }


async def test_a_failure_says_why(client: Client, stage: Stage) -> None:
    calling = asyncio.create_task(rpc(client, "tools/call", {"name": "agent"}))
    run_id = await stage.next_message()
    await stage.fail(run_id, {"error": "ValueError", "message": "no such place"}, FAIL)
    assert (await calling).json["result"] == {
        "content": [{"type": "text", "text": "ValueError: no such place"}],
        "isError": True,
    }


def test_outputs_that_only_look_like_failures() -> None:
    assert not call_result(b'{"text":"{\\"__error__\\""}')["isError"]


@pytest.mark.parametrize(
    "params",
    [
        {"name": "nobody"},
        {"name": 7},
        {},
        {"name": "agent", "arguments": []},
        {"name": "agent", "context": "x"},
    ],
)
async def test_calls_that_make_no_sense(client: Client, params: Any) -> None:
    answer = await rpc(client, "tools/call", params)
    assert (answer.status, answer.json["error"]["code"]) == (200, -32602)


async def test_callers_are_asked_and_see_their_own(house: House, stage: Stage) -> None:
    auth = Auth()

    @auth.authenticate
    async def who(authorization: str | None) -> str:
        if not authorization:
            raise Auth.exceptions.HTTPException(401, "who are you?")
        return authorization

    @auth.on.assistants
    async def own(ctx: Any, value: Any) -> Any:
        value.setdefault("metadata", {})["owner"] = ctx.user.identity
        return {"owner": ctx.user.identity}

    @auth.on.threads.create_run
    async def run(ctx: Any, value: Any) -> Any:
        assert value["kwargs"]["input"] != {"secret": True}, "not that one"
        return {}

    client = await house.gateway(access=Access(auth))
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    assert (await client.post("/mcp", ping)).status == 401
    await client.post("/assistants", {"graph_id": "agent", "name": "mine"}, Authorization="ann")
    for caller, names in (("ann", ["mine"]), ("bob", [])):
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        asking = asyncio.create_task(client.post("/mcp", body, Authorization=caller))
        if names:
            _, asked = await stage.inspect(200, {"input_schema": SCHEMA})
            assert asked["config"]["configurable"]["langgraph_auth_user_id"] == "ann"
        tools = (await asking).json["result"]["tools"]
        assert [tool["name"] for tool in tools] == names
    params: dict[str, Any] = {"name": "mine", "arguments": {"secret": True}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    assert (await client.post("/mcp", body, Authorization="ann")).status == 403
    assert (await client.post("/mcp", body, Authorization="bob")).json["error"]["code"] == -32602


async def test_it_can_be_switched_off(house: House) -> None:
    client = await house.gateway(http=HttpOptions(disable_mcp=True))
    assert (await rpc(client, "ping")).status == 404

"""A2A over plain HTTP: cards, messages as runs, tasks, and streams, in both of its forms."""

import asyncio
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import orjson
import pytest
from langgraph_sdk import Auth

from actors.dispatch import AWAITED, CANCEL_CHANNEL, RUNS
from gateway.a2a import Ended, Speech, State, task_of
from gateway.a2a_incoming import incoming
from gateway.auth.access import Access
from gateway.http_options import HttpOptions
from gateway.jsonrpc import RpcError
from persistence.lifecycle import FAIL, INTERRUPT, RunStatus
from tests.gateway.conftest import Client, House, Stage

CHATTY = {"input_schema": {"type": "object", "properties": {"messages": {"type": "array"}}}}


async def agent_id(client: Client) -> str:
    [row] = (await client.post("/assistants/search", {"graph_id": "agent"})).json
    return str(row["assistant_id"])


async def rpc(client: Client, method: str, params: Any, **headers: str) -> Any:
    body = {"jsonrpc": "2.0", "id": 0, "method": method, "params": params}
    answer = await client.post(f"/a2a/{await agent_id(client)}", body, **headers)
    assert answer.status == 200, answer.body
    assert answer.json["id"] == 0
    return answer.json.get("result", answer.json.get("error"))


def said(*parts: dict[str, Any], **rest: Any) -> dict[str, Any]:
    return {"message": {"messageId": "m1", "role": "ROLE_USER", "parts": list(parts), **rest}}


HELLO = said({"text": "hello"})


async def begun(client: Client, stage: Stage, method: str, params: Any) -> tuple[Any, Any]:
    """The request under way, and its run, which is claimed."""
    sending = asyncio.create_task(rpc(client, method, params))
    await stage.inspect(200, CHATTY)
    return sending, await stage.claim(await stage.next_message())


def messages(*contents: str) -> dict[str, Any]:
    kinds = ("human", "ai")
    return {
        "messages": [
            {"type": kinds[place % 2], "content": content, "id": str(place)}
            for place, content in enumerate(contents)
        ]
    }


async def test_cards_are_found_where_clients_look(client: Client) -> None:
    known = await agent_id(client)
    found = (await client.get(f"/.well-known/agent-card.json?assistant_id={known}")).json
    for path in ("", "/.well-known/agent-card.json", "/.well-known/agent.json"):
        assert (await client.get(f"/a2a/{known}{path}")).json == found
    url = f"{client.url}/a2a/{known}"
    assert (found["url"], found["preferredTransport"]) == (url, "JSONRPC")
    assert found["supportedInterfaces"] == [
        {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
        {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "0.3"},
    ]
    assert found["capabilities"]["streaming"] is True
    assert found["name"] == "agent"
    assert (await client.get("/.well-known/agent-card.json")).status == 400
    assert (await client.get(f"/a2a/{uuid4()}")).status == 404
    secure = await client.get(f"/a2a/{known}", X_Forwarded_Proto="https")
    assert secure.json["url"].startswith("https://")


async def test_a_message_becomes_a_run_and_its_task(client: Client, stage: Stage) -> None:
    sending, claimed = await begun(client, stage, "SendMessage", HELLO)
    kwargs = orjson.loads(claimed.kwargs)
    assert kwargs["input"] == {"messages": [{"role": "user", "content": "hello", "id": "m1"}]}
    output = messages("hello", "hi there")
    await stage.settle(str(claimed.run_id), values=output, output=orjson.dumps(output))
    task = (await sending)["task"]
    named = {"taskId": f"{claimed.thread_id}:{claimed.run_id}", "contextId": str(claimed.thread_id)}
    assert (task["id"], task["contextId"]) == (named["taskId"], named["contextId"])
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert task["status"]["timestamp"].endswith("Z")
    assert task["history"] == [
        {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "hello"}], **named}
    ]
    [artifact] = task["artifacts"]
    assert (artifact["name"], artifact["parts"]) == ("Assistant Response", [{"text": "hi there"}])
    got = await rpc(client, "GetTask", {"id": task["id"], "historyLength": 0})
    assert got == {**task, "history": [], "status": got["status"]}
    old = await rpc(client, "tasks/get", {"id": task["id"]})
    assert (old["kind"], old["status"]["state"]) == ("task", "completed")
    assert old["artifacts"][0]["parts"] == [{"kind": "text", "text": "hi there"}]
    assert old["history"][0]["role"] == "user"


async def test_a_context_is_gone_on_with(client: Client, stage: Stage) -> None:
    sending, first = await begun(client, stage, "message/send", HELLO)
    await stage.settle(str(first.run_id), values={}, output=b"{}")
    task = await sending
    assert task["kind"] == "task"
    assert task["artifacts"][0]["parts"] == [{"kind": "data", "data": {}}]
    again = said({"kind": "text", "text": "more"}, contextId=task["contextId"])
    sending, second = await begun(client, stage, "message/send", again)
    assert second.thread_id == first.thread_id
    why = {"error": "ValueError", "message": "no"}
    await stage.settle(str(second.run_id), FAIL, error=why)
    failed = (await sending)["status"]
    assert failed["state"] == "failed"
    assert failed["message"]["parts"] == [{"kind": "text", "text": "ValueError: no"}]
    listed = await rpc(client, "ListTasks", {"contextId": task["contextId"]})
    states = [one["status"]["state"] for one in listed["tasks"]]
    assert states == ["TASK_STATE_FAILED", "TASK_STATE_COMPLETED"]
    assert (listed["pageSize"], listed["totalSize"], listed["nextPageToken"]) == (50, 2, "")
    page = {"contextId": task["contextId"], "pageSize": 1, "includeArtifacts": True}
    listed = await rpc(client, "ListTasks", page)
    assert listed["nextPageToken"] == "1"
    listed = await rpc(client, "ListTasks", {**page, "pageToken": "1"})
    assert listed["tasks"][0]["artifacts"]
    only = {"contextId": task["contextId"], "status": "TASK_STATE_FAILED"}
    assert len((await rpc(client, "ListTasks", only))["tasks"]) == 1


async def test_a_question_is_answered_by_a_message_on_its_task(
    client: Client, stage: Stage
) -> None:
    sending, first = await begun(client, stage, "SendMessage", HELLO)
    asked = [{"id": "i1", "value": "really?"}]
    await stage.settle(
        str(first.run_id),
        values={},
        output=orjson.dumps({"__interrupt__": asked}),
        interrupts=orjson.dumps({"t": asked}),
        next_nodes=True,
    )
    task = (await sending)["task"]
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    assert task["status"]["message"]["parts"] == [{"text": "really?"}]
    reply = said({"data": True}, taskId=task["id"])
    sending = asyncio.create_task(rpc(client, "SendMessage", reply))
    second = await stage.claim(await stage.next_message())
    assert stage.lane == AWAITED
    assert second.thread_id == first.thread_id
    assert orjson.loads(second.kwargs)["command"] == {"resume": True}
    await stage.settle(str(second.run_id), values={}, output=orjson.dumps(messages("a", "done")))
    assert (await sending)["task"]["artifacts"][0]["parts"] == [{"text": "done"}]
    for late in (reply, said({"text": "x"}, taskId=f"{first.thread_id}:{second.run_id}")):
        assert (await rpc(client, "SendMessage", late))["code"] == -32004


async def test_streams_tell_what_is_said_so_far(client: Client, stage: Stage) -> None:
    for method, is_legacy in (("SendStreamingMessage", False), ("message/stream", True)):
        path = f"/a2a/{await agent_id(client)}"
        body = {"jsonrpc": "2.0", "id": "a", "method": method, "params": HELLO}
        asking = asyncio.create_task(stage.inspect(200, CHATTY))
        async with client.stream("POST", path, body, Accept="text/event-stream") as stream:
            await asking
            assert stream.response.content_type == "text/event-stream"
            first = await stream.frame()
            run_id = await stage.next_message()
            assert stage.lane == AWAITED
            await stage.claim(run_id)
            updates = []
            for piece in ("Hel", "lo"):
                chunk = {"type": "AIMessageChunk", "id": "c1", "content": piece}
                await stage.emit(run_id, "messages", [chunk, {}])
                updates.append(await stream.frame())
            whole = {"type": "ai", "id": "c1", "content": "Hello"}
            await stage.emit(run_id, "messages", [whole, {}])
            output = messages("hello", "Hello")
            await stage.settle(run_id, values=output, output=orjson.dumps(output))
            ends = await stream.rest()
        assert first is not None
        assert first.event == "message"
        task = first.data["result"] if is_legacy else first.data["result"]["task"]
        assert first.data["id"] == "a"
        assert task["status"]["state"].lower().endswith("submitted")
        results = [frame.data["result"] for frame in (*updates, *ends) if frame]
        if is_legacy:
            assert [one["kind"] for one in results] == [
                *["status-update"] * 2,
                "artifact-update",
                "status-update",
            ]
            assert [one.get("final") for one in results] == [False, False, None, True]
            said_so_far = results[:2]
            artifact, end = results[2], results[3]
            assert end["status"]["state"] == "completed"
        else:
            assert [list(one) for one in results] == [
                *[["statusUpdate"]] * 2,
                ["artifactUpdate"],
                ["statusUpdate"],
            ]
            said_so_far = [one["statusUpdate"] for one in results[:2]]
            artifact, end = results[2]["artifactUpdate"], results[3]["statusUpdate"]
            assert end["status"]["state"] == "TASK_STATE_COMPLETED"
        texts = [one["status"]["message"]["parts"][0]["text"] for one in said_so_far]
        assert texts == ["Hel", "Hello"]
        assert artifact["artifact"]["parts"][0]["text"] == "Hello"
        assert {artifact["taskId"], end["taskId"]} == {task["id"]}


async def test_a_task_is_followed_again_and_canceled(client: Client, stage: Stage) -> None:
    now = {**HELLO, "configuration": {"returnImmediately": True}}
    sending = asyncio.create_task(rpc(client, "SendMessage", now))
    await stage.inspect(200, CHATTY)
    task = (await sending)["task"]
    assert task["status"]["state"] == "TASK_STATE_SUBMITTED"
    run_id = await stage.next_message()
    assert stage.lane == RUNS  # the client does not wait for it
    await stage.claim(run_id)
    named = {"id": task["id"]}
    assert (await rpc(client, "GetTask", named))["status"]["state"] == "TASK_STATE_WORKING"
    path = f"/a2a/{await agent_id(client)}"
    body = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": named}
    async with client.stream("POST", path, body) as stream, stage.heard(CANCEL_CHANNEL) as heard:
        assert (await stream.frame()) is not None
        canceling = asyncio.create_task(rpc(client, "CancelTask", named))
        assert run_id in await heard()
        await stage.settle(run_id, INTERRUPT)
        assert (await canceling)["status"]["state"] == "TASK_STATE_CANCELED"
        [end] = await stream.rest()
    assert end.data["result"]["statusUpdate"]["status"]["state"] == "TASK_STATE_CANCELED"
    assert (await rpc(client, "tasks/cancel", named))["code"] == -32002
    assert (await rpc(client, "tasks/resubscribe", named))["code"] == -32004


async def test_data_is_the_input(client: Client, stage: Stage) -> None:
    parts = ({"data": {"a": 1, "b": 1}}, {"kind": "data", "data": {"b": 2}})
    sending = asyncio.create_task(rpc(client, "SendMessage", said(*parts)))
    claimed = await stage.claim(await stage.next_message())
    assert orjson.loads(claimed.kwargs)["input"] == {"a": 1, "b": 2}
    await stage.settle(str(claimed.run_id), values={}, output=b'{"c": 3}')
    assert (await sending)["task"]["artifacts"][0]["parts"] == [{"data": {"c": 3}}]


async def test_a_graph_without_messages_takes_no_text(client: Client, stage: Stage) -> None:
    sending = asyncio.create_task(rpc(client, "SendMessage", HELLO))
    await stage.inspect(200, {"input_schema": {"type": "object", "properties": {"n": {}}}})
    assert (await sending)["code"] == -32602


def test_files_are_blocks_for_the_model() -> None:
    picture = {"raw": "aGk=", "mediaType": "image/png", "filename": "a.png"}
    paper = {"kind": "file", "file": {"uri": "http://x/y.pdf", "mimeType": "application/pdf"}}
    message = incoming(said({"text": "look"}, picture, paper))
    assert message.content == [
        {"type": "text", "text": "look"},
        {
            "type": "image",
            "base64": "aGk=",
            "mime_type": "image/png",
            "extras": {"filename": "a.png"},
        },
        {"type": "file", "url": "http://x/y.pdf", "mime_type": "application/pdf"},
    ]


@pytest.mark.parametrize(
    ("status", "state"),
    [
        (RunStatus.RUNNING, State.WORKING),
        (RunStatus.SUCCESS, State.COMPLETED),
        (RunStatus.INTERRUPTED, State.CANCELED),
        (RunStatus.TIMEOUT, State.FAILED),
    ],
)
def test_states_of_runs_are_states_of_tasks(status: RunStatus, state: State) -> None:
    ended = Ended(status, b"{}", None)
    task = task_of(uuid4(), uuid4(), datetime.now(UTC), b'{"input": null}', ended, begun=True)
    assert task.state is state


def test_a_new_message_of_the_model_starts_anew() -> None:
    speech = Speech()
    for message_id, content in (("1", "a"), ("1", "b"), ("2", [{"type": "text", "text": "c"}])):
        chunk = {"type": "AIMessageChunk", "id": message_id, "content": content}
        assert speech.hear(orjson.dumps([chunk, {}]))
    assert (speech.message_id, speech.text) == ("2", "c")
    assert not speech.hear(orjson.dumps([{"type": "tool", "content": "x"}, {}]))


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"message": {"parts": [{"text": "x"}]}},
        said(),
        said({"odd": 1}),
        said({"data": 1}),
        said({"file": {}}),
        said({"text": "x"}, contextId="nope"),
        said({"text": "x"}, contextId=str(uuid4()), taskId=f"{uuid4()}:{uuid4()}"),
    ],
)
def test_messages_that_make_no_sense(params: Any) -> None:
    with pytest.raises(RpcError) as refused:
        incoming(params)
    assert refused.value.code == -32602


async def test_errors_are_inside(client: Client) -> None:
    path = f"/a2a/{await agent_id(client)}"
    for raw, code in ((b"{", -32700), (b"[]", -32600), (b'{"jsonrpc":"2.0","method":"x"}', -32600)):
        answer = await client.ask("POST", path, raw=raw)
        assert (answer.status, answer.json["error"]["code"]) == (200, code)
    assert (await rpc(client, "tasks/nope", {}))["code"] == -32601
    for gone in ("nope", f"{uuid4()}:{uuid4()}", None):
        assert (await rpc(client, "GetTask", {"id": gone}))["code"] == -32001
    assert (await rpc(client, "ListTasks", {}))["code"] == -32602
    body = {"jsonrpc": "2.0", "id": 5, "method": "SendMessage", "params": HELLO}
    for unknown in (str(uuid4()), "nobody"):
        answer = await client.post(f"/a2a/{unknown}", body)
        assert (answer.status, answer.json["error"]["code"]) == (200, -32602)
        assert answer.json["id"] == 5
    body["method"] = "SendStreamingMessage"
    assert (await client.post(path, body, Accept="application/json")).status == 400
    shown = await rpc(client, "GetExtendedAgentCard", {})
    assert shown["name"] == "agent"


async def test_tasks_of_others_are_not_there(house: House, stage: Stage) -> None:
    auth = Auth()

    @auth.authenticate
    async def who(authorization: str | None) -> str:
        if not authorization:
            raise Auth.exceptions.HTTPException(401, "who are you?")
        return authorization

    @auth.on.threads
    async def own(ctx: Any, value: Any) -> Any:
        value.setdefault("metadata", {})["owner"] = ctx.user.identity
        return {"owner": ctx.user.identity}

    client = await house.gateway(access=Access(auth))
    [row] = (await client.post("/assistants/search", {"graph_id": "agent"}, Authorization="a")).json
    path = f"/a2a/{row['assistant_id']}"

    async def ask(method: str, params: Any, caller: str) -> Any:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return (await client.post(path, body, Authorization=caller)).json

    assert (await client.post(path, {})).status == 401
    params = {**said({"data": {}}), "configuration": {"returnImmediately": True}}
    task = (await ask("SendMessage", params, "ann"))["result"]["task"]
    for method in ("GetTask", "CancelTask", "SubscribeToTask"):
        assert (await ask(method, {"id": task["id"]}, "bob"))["error"]["code"] == -32001
    context = {"contextId": task["contextId"]}
    assert (await ask("ListTasks", context, "bob"))["result"]["tasks"] == []
    assert len((await ask("ListTasks", context, "ann"))["result"]["tasks"]) == 1
    params = said({"data": {}}, **context)
    assert (await ask("SendMessage", params, "bob"))["error"]["code"] == -32602


async def test_it_can_be_switched_off(house: House) -> None:
    client = await house.gateway(http=HttpOptions(disable_a2a=True))
    known = await agent_id(client)
    assert (await client.post(f"/a2a/{known}", {})).status == 404
    assert (await client.get(f"/.well-known/agent-card.json?assistant_id={known}")).status == 404

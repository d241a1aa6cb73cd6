"""Whatever a state holds is JSON to clients, the same wherever they read it."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

from tests.contract.conftest import Callboard

pytestmark = pytest.mark.topology

MESSAGE = {"additional_kwargs": {}, "response_metadata": {}, "name": None, "id": None}

KINDS: dict[str, Any] = {
    "human": {**MESSAGE, "type": "human", "content": "hi", "id": "1", "name": "ann"},
    "ai": {
        **MESSAGE,
        "type": "ai",
        "content": "",
        "id": "2",
        "tool_calls": [{"name": "add", "args": {"a": 1}, "id": "c", "type": "tool_call"}],
        "invalid_tool_calls": [],
        "usage_metadata": {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
    },
    "blocks": {
        **MESSAGE,
        "type": "human",
        "content": [{"type": "text", "text": "a"}, {"type": "image", "url": "u"}],
    },
    "system": {**MESSAGE, "type": "system", "content": "be brief"},
    "tool": {
        **MESSAGE,
        "type": "tool",
        "content": "3",
        "tool_call_id": "c",
        "artifact": {"left": 1, "right": [2]},
        "status": "success",
    },
    "function": {**MESSAGE, "type": "function", "content": "f", "name": "f"},
    "chat": {**MESSAGE, "type": "chat", "content": "c", "role": "critic"},
    "remove": {**MESSAGE, "type": "remove", "content": "", "id": "9"},
    "ai_chunk": {
        **MESSAGE,
        "type": "AIMessageChunk",
        "content": "part",
        "id": "3",
        "tool_calls": [],
        "invalid_tool_calls": [],
        "tool_call_chunks": [],
        "usage_metadata": None,
        "chunk_position": None,
    },
    "human_chunk": {**MESSAGE, "type": "HumanMessageChunk", "content": "part"},
    "document": {"id": None, "metadata": {"page": 1}, "page_content": "text", "type": "Document"},
    "model": {"at": "2026-01-02T03:04:05.000600+00:00", "price": 1.5},
    "dataclass": {"left": 1, "right": {"left": "a", "right": None}},
    "named": {"x": 1, "y": 2},
    "enum": "red",
    "decimal": 12345678901234567890.5,
    "datetime": "2026-01-02T03:04:05.000600+00:00",
    "date": "2026-01-02",
    "time": "01:02:03",
    "timedelta": 60.0,
    "set": ["one"],
    "frozenset": ["one"],
    "tuple": [1, "a"],
    "deque": [1, 2],
    "bytes": "AP8=",
    "array": [[0, 1, 2], [3, 4, 5]],
    "strided": [0, 2, 4],
    "words": ["a", "b"],
    "objects": [{"a": 1}, None],
    "np_int": 5,
    "np_float": 0.5,
    "np_bool": True,
    "nan": None,
    "infinity": None,
    "nans": {"list": [None, 1.0], "np": [None, 2.0]},
    "huge": 2.0**70,
    "huges": [2.0**70, -(2.0**70)],
    "uuid": "00000000-0000-0000-0000-000000000005",
    "path": "/a/b",
    "address": "::1",
    "pattern": "a+",
    "keys": {"1": "int", "null": "none", "2026-01-02T03:04:05.000600+00:00": "time"},
    "nul": "a\ufffdb",
    "nuls": {"k\ufffd": ["a\ufffd", "\\u0000"]},
    "surrogate": "a\ufffd",
    "emoji": "😀",
    "empty": {"none": None, "text": "", "list": [], "dict": {}},
}
"""As in ``kinds.py``; floats where JSON's numbers are read as such."""

REFUSED = {"deep": "Recursion limit reached"}
"""What no checkpoint can hold: the run says so, and nothing else suffers."""


@pytest.fixture
async def client(store_callboard: Callboard) -> AsyncIterator[LangGraphClient]:
    async with get_client(url=store_callboard.url) as client:
        yield client


def cleaned(value: Any) -> Any:
    """A NUL is legal JSON, and stays where the value does not come out of a jsonb column."""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    if isinstance(value, list):
        return [cleaned(item) for item in value]
    if isinstance(value, dict):
        return {cleaned(key): cleaned(item) for key, item in value.items()}
    return value


def of_kinds(values: Any) -> Any:
    return {name: value for name, value in cleaned(values).items() if name in KINDS}


def as_written(value: Any) -> Any:
    """The kinds in what a task wrote: an interrupt's value, a result."""
    # Where LangGraph stores it by itself, a surrogate is "?".
    return {**of_kinds(value), "surrogate": KINDS["surrogate"]}


async def test_every_kind_of_value_everywhere(client: LangGraphClient) -> None:
    thread_id = (await client.threads.create())["thread_id"]
    parts = [
        part
        async for part in client.runs.stream(
            thread_id,
            "kinds",
            input={"names": list(KINDS), "ask": True},
            stream_mode=["values", "updates", "custom", "debug", "tasks", "checkpoints"],
        )
    ]
    assert not [part.data for part in parts if part.event == "error"]
    seen = {part.event: part.data for part in parts}
    [update] = [part.data["make"] for part in parts if "make" in (part.data or {})]
    assert of_kinds(next(part.data for part in parts if part.event == "custom")) == KINDS
    assert of_kinds(update) == KINDS
    values = next(part.data for part in parts if part.event == "values" and "human" in part.data)
    assert of_kinds(values) == KINDS
    assert of_kinds(seen["checkpoints"]["values"]) == KINDS

    state = await client.threads.get_state(thread_id)
    assert of_kinds(state["values"]) == KINDS
    assert as_written(state["interrupts"][0]["value"]) == KINDS
    history = await client.threads.get_history(thread_id)
    assert of_kinds(history[0]["values"]) == KINDS
    thread = await client.threads.get(thread_id)
    assert of_kinds(thread["values"]) == KINDS
    [[question]] = thread["interrupts"].values()
    assert question["value"].keys() == KINDS.keys()
    [found] = await client.threads.search(values={"np_int": 5, "enum": "red"})
    assert of_kinds(found["values"]) == KINDS

    end = await client.runs.wait(thread_id, "kinds", command={"resume": 1})
    assert of_kinds(end) == KINDS


async def test_every_kind_of_value_by_every_way_back(client: LangGraphClient) -> None:
    """Read after the run, by those who were not there: the same as whoever listened was told."""
    thread_id = (await client.threads.create())["thread_id"]
    given = {"names": list(KINDS), "ask": True, "keep": True}
    run = await client.runs.create(
        thread_id,
        "kinds",
        input=given,
        stream_mode=["values", "updates", "custom", "tasks", "checkpoints", "debug"],
        stream_resumable=True,
    )
    joined: Any = await client.runs.join(thread_id, run["run_id"])
    assert of_kinds(joined) == KINDS
    [asked] = joined["__interrupt__"]
    assert as_written(asked["value"]) == KINDS

    stream = client.runs.join_stream(thread_id, run["run_id"], last_event_id="-1")
    parts: Any = [part async for part in stream]
    told = {
        "custom": [part.data for part in parts if part.event == "custom"],
        "updates": [part.data["make"] for part in parts if "make" in (part.data or {})],
        "values": [p.data for p in parts if p.event == "values" and "human" in p.data],
        "results": [
            part.data["result"]
            for part in parts
            if part.event == "tasks" and part.data["name"] == "make" and "result" in part.data
        ],
        "debug": [
            part.data["payload"]["values"]
            for part in parts
            if part.event == "debug" and "human" in part.data["payload"].get("values", {})
        ],
    }
    for name, found in told.items():
        assert found, name
        assert [of_kinds(one) for one in found] == [KINDS] * len(found), name
    [[question], *_] = [
        part.data["__interrupt__"] for part in parts if "__interrupt__" in (part.data or {})
    ]
    assert as_written(question["value"]) == KINDS

    history: Any = await client.threads.get_history(thread_id)
    at = await client.threads.get_state(thread_id, checkpoint=history[0]["checkpoint"])
    assert of_kinds(at["values"]) == KINDS
    [result] = [
        task["result"] for state in history for task in state["tasks"] if task["name"] == "make"
    ]
    assert as_written(result) == KINDS
    copied: Any = await client.threads.copy(thread_id)
    assert of_kinds((await client.threads.get(copied["thread_id"]))["values"]) == KINDS
    paths = {name: f"values.{name}" for name in ("model", "decimal", "nans", "bytes", "ai")}
    [found_thread] = await client.threads.search(ids=[thread_id], extract=paths)
    assert found_thread["extracted"] == {name: KINDS[name] for name in paths}

    found_items = await client.store.search_items(["kinds"], limit=1000)
    items = {item["key"]: cleaned(item["value"]["value"]) for item in found_items["items"]}
    assert items == KINDS
    item = await client.store.get_item(["kinds"], "human")
    assert item["value"] == {"value": KINDS["human"]}


async def test_what_no_checkpoint_can_hold_is_the_runs_own_failure(client: LangGraphClient) -> None:
    for name, reason in REFUSED.items():
        thread_id = (await client.threads.create())["thread_id"]
        with pytest.raises(Exception, match=reason):
            await client.runs.wait(thread_id, "kinds", input={"names": [name]})
        [run] = await client.runs.list(thread_id)
        assert run["status"] == "error"
        assert (await client.threads.get(thread_id))["status"] == "error"
        assert (await client.threads.get_state(thread_id))["next"] == ["make"]
        again = await client.runs.wait(thread_id, "kinds", input={"names": ["emoji"]})
        assert again["emoji"] == "😀"


ODD: dict[bytes, set[int]] = {
    b"1" + b"0" * 40: {200, 204},
    b"18446744073709551616": {200, 204},
    b'"a\\u0000b"': {200, 204},
    b'"\\ud800"': {422},
    b"NaN": {422},
    b"1e400": {422},
    b"1" * 5000: {422},
    b"[" * 200 + b"]" * 200: {200, 204},
    b"[" * 300 + b"]" * 300: {422},
    b"[" * 5000 + b"]" * 5000: {422},
}
"""JSON and what becomes of it: taken (rounded, cleaned), or refused."""


async def test_odd_values_in_requests(client: LangGraphClient) -> None:
    http = client.http.client
    thread_id = (await client.threads.create(graph_id="store"))["thread_id"]
    before = await client.threads.get(thread_id)
    run, state = b'{"assistant_id":"store","input":{},', b'"as_node":"in_a_thread"}'
    requests: list[tuple[str, str, bytes, bytes]] = [
        ("POST", "/threads", b'{"metadata":{"k":', b"}}"),
        ("PATCH", f"/threads/{thread_id}", b'{"metadata":{"k":', b"}}"),
        ("POST", "/threads/search", b'{"metadata":{"k":', b"}}"),
        ("POST", f"/threads/{thread_id}/state", b'{"values":{"threaded":', b"}," + state),
        ("POST", f"/threads/{thread_id}/runs/wait", run + b'"metadata":{"k":', b"}}"),
        (
            "POST",
            "/runs/wait",
            b'{"assistant_id":"store","input":{"query":"x","put":{"k":{"v":',
            b"}}}}",
        ),
        ("POST", "/runs/wait", run + b'"context":{"k":', b"}}"),
        ("POST", "/runs/wait", run + b'"config":{"configurable":{"k":', b"}}}"),
        ("PUT", "/store/items", b'{"namespace":["odd"],"key":"k","value":{"text":', b"}}"),
        ("POST", "/assistants", b'{"graph_id":"store","metadata":{"k":', b"}}"),
    ]
    for odd, expected in ODD.items():
        for method, path, head, tail in requests:
            answer = await http.request(method, path, content=head + odd + tail)
            where = (method, path, head, odd[:30], answer.text[:200])
            assert answer.status_code in expected, where
            assert "__error__" not in answer.text, where
            if answer.status_code == 422:
                assert isinstance(answer.json()["detail"], str), where
        if expected == {422}:
            after = await client.threads.get(thread_id)
            assert after["metadata"] == before["metadata"]
        before = await client.threads.get(thread_id)

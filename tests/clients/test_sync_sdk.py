"""The official client without asyncio: the same server, another half of the SDK."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from langgraph_sdk import get_sync_client
from langgraph_sdk.client import SyncLangGraphClient
from langgraph_sdk.errors import ConflictError, NotFoundError, UnprocessableEntityError

from tests.contract.conftest import Callboard

pytestmark = pytest.mark.topology

HELLO: Any = {"messages": "hello"}
ASK: Any = {"messages": "ask"}
WAIT: Any = {"messages": "wait"}


@pytest.fixture
def sdk(callboard: Callboard) -> Iterator[SyncLangGraphClient]:
    with get_sync_client(url=callboard.url) as client:
        yield client


@pytest.fixture
def thread_id(sdk: SyncLangGraphClient) -> str:
    return str(sdk.threads.create()["thread_id"])


def last(values: Any) -> str:
    return str(values["messages"][-1]["content"])


def test_assistants(sdk: SyncLangGraphClient) -> None:
    made = sdk.assistants.create("chat", name="mine", metadata={"mark": str(uuid4())})
    assert sdk.assistants.update(made["assistant_id"], name="yours")["version"] == 2
    assert [one["version"] for one in sdk.assistants.get_versions(made["assistant_id"])] == [2, 1]
    assert sdk.assistants.set_latest(made["assistant_id"], 1)["name"] == "mine"
    assert sdk.assistants.count(metadata=made["metadata"]) == 1
    assert sdk.assistants.get_graph(made["assistant_id"], xray=True)["nodes"]
    assert sdk.assistants.get_schemas(made["assistant_id"])["input_schema"]
    assert sdk.assistants.get_subgraphs(made["assistant_id"]).keys() == {"speak"}
    sdk.assistants.delete(made["assistant_id"])
    with pytest.raises(NotFoundError):
        sdk.assistants.get(made["assistant_id"])


def test_threads(sdk: SyncLangGraphClient) -> None:
    mark = {"mark": str(uuid4())}
    thread_id = sdk.threads.create(metadata=mark, graph_id="chat")["thread_id"]
    sdk.threads.update(thread_id, metadata={"more": 1})
    (found,) = sdk.threads.search(metadata=mark, select=["thread_id", "metadata"])
    assert found["metadata"] == {**mark, "more": 1, "graph_id": "chat"}
    assert sdk.threads.count(metadata=mark) == 1
    sdk.runs.wait(thread_id, "chat", input=HELLO)
    sdk.threads.update_state(thread_id, {"answer": "x"}, as_node="ask")
    assert sdk.threads.get_state(thread_id)["next"] == ["speak"]
    assert len(sdk.threads.get_history(thread_id)) == 5
    copied: Any = sdk.threads.copy(thread_id)
    assert sdk.threads.get_state(copied["thread_id"])["values"]["answer"] == "x"
    sdk.threads.delete(thread_id)
    with pytest.raises(NotFoundError):
        sdk.threads.get(thread_id)


def test_a_stream(sdk: SyncLangGraphClient, thread_id: str) -> None:
    created: list[Any] = []
    parts = list(
        sdk.runs.stream(
            thread_id,
            "chat",
            input=HELLO,
            stream_mode=["values", "updates", "messages-tuple", "custom"],
            stream_subgraphs=True,
            on_run_created=created.append,
        )
    )
    assert parts[0].event == "metadata"
    assert created[0]["run_id"] == parts[0].data["run_id"]
    assert [part.data for part in parts if part.event == "custom"] == [{"heard": "hello"}]
    chunks = [part.data[0] for part in parts if part.event.startswith("messages")]
    assert "".join(chunk["content"] for chunk in chunks) == "You said: hello"
    assert last([part.data for part in parts if part.event == "values"][-1]) == "You said: hello"


def test_joins(sdk: SyncLangGraphClient, thread_id: str) -> None:
    run = sdk.runs.create(
        thread_id, "chat", input=HELLO, stream_mode=["updates", "custom"], stream_resumable=True
    )
    assert last(sdk.runs.join(thread_id, run["run_id"])) == "You said: hello"
    parts = list(sdk.runs.join_stream(thread_id, run["run_id"], last_event_id="-1"))
    assert [part.event for part in parts] == ["metadata", "custom", "updates", "updates"]
    rest = list(sdk.runs.join_stream(thread_id, run["run_id"], last_event_id=parts[1].id))
    assert rest == parts[2:]


def test_a_cancel(sdk: SyncLangGraphClient, thread_id: str) -> None:
    stream = sdk.runs.stream(thread_id, "chat", input=WAIT, stream_mode="custom")
    run_id = next(stream).data["run_id"]
    next(stream)
    with pytest.raises(ConflictError):
        sdk.runs.create(thread_id, "chat", input=HELLO, multitask_strategy="reject")
    sdk.runs.cancel(thread_id, run_id, wait=True)
    list(stream)
    assert sdk.runs.get(thread_id, run_id)["status"] == "interrupted"
    assert [run["run_id"] for run in sdk.runs.list(thread_id)] == [run_id]
    sdk.runs.delete(thread_id, run_id)
    assert sdk.runs.list(thread_id) == []


def test_a_question_and_its_answer(sdk: SyncLangGraphClient, thread_id: str) -> None:
    values: Any = sdk.runs.wait(thread_id, "chat", input=ASK)
    assert values["__interrupt__"][0]["value"] == {"question": "ask"}
    assert sdk.threads.get(thread_id)["status"] == "interrupted"
    assert last(sdk.runs.wait(thread_id, "chat", command={"resume": "yes"})) == "You said: yes"
    with pytest.raises(Exception, match="told to"):
        sdk.runs.wait(thread_id, "chat", input={"messages": "fail"})


def test_a_batch(sdk: SyncLangGraphClient) -> None:
    payload: Any = {"assistant_id": "chat", "input": HELLO}
    assert len(sdk.runs.create_batch([payload, payload])) == 2


def test_crons(sdk: SyncLangGraphClient, thread_id: str) -> None:
    cron = sdk.crons.create_for_thread(thread_id, "chat", schedule="0 0 1 1 *", input=HELLO)
    (found,) = sdk.crons.search(thread_id=thread_id)
    assert found["cron_id"] == cron["cron_id"]
    with pytest.raises(UnprocessableEntityError):
        sdk.crons.create("chat", schedule="never")
    sdk.crons.delete(found["cron_id"])
    assert sdk.crons.search(thread_id=thread_id) == []


def test_the_store(sdk: SyncLangGraphClient) -> None:
    namespace = ["sync", str(uuid4())]
    sdk.store.put_item(namespace, "a", {"n": 1})
    assert sdk.store.get_item(namespace, "a")["value"] == {"n": 1}
    assert [item["key"] for item in sdk.store.search_items(namespace)["items"]] == ["a"]
    assert sdk.store.list_namespaces(prefix=namespace)["namespaces"] == [namespace]
    sdk.store.delete_item(namespace, "a")
    assert sdk.store.search_items(namespace)["items"] == []


def test_the_thread_protocol(sdk: SyncLangGraphClient) -> None:
    with sdk.threads.stream(assistant_id="chat") as thread:
        thread.run.start(input=HELLO)
        (speech,) = thread.subgraphs
        assert speech.graph_name == "speak"
        (message,) = speech.messages
        words = list(message.text)
        assert "".join(words) == "You said: hello"
        assert len(words) > 2, "word by word"
        assert thread.output["messages"][-1]["content"][0]["text"] == "You said: hello"

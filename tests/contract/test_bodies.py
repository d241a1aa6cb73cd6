"""Large bodies are taken whole, and broken ones are refused in the reference's shape."""

import json
from typing import Any, Protocol

import pytest
import requests

pytestmark = pytest.mark.topology

BROKEN = {
    "nothing": b"",
    "not JSON": b"{x",
    "two values": b"{}{}",
    "NaN": b'{"metadata": {"a": NaN}}',
    "not UTF-8": b'{"metadata": {"a": "\xff"}}',
    "a lone surrogate": b'{"metadata": {"a": "\\ud800"}}',
    "a raw NUL": b'{"metadata": {"a": "\0"}}',
    "an integer of 5,000 digits": b'{"metadata": {"a": ' + b"9" * 5000 + b"}}",
    "100,000 levels": b'{"metadata": {"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
    "240 levels": b'{"metadata": {"a": ' + b"[" * 240 + b"]" * 240 + b"}}",
    "a list": b"[]",
    "metadata of the wrong type": b'{"metadata": "x"}',
}


class Served(Protocol):
    url: str


def test_20_megabytes_of_messages(callboard: Served) -> None:
    messages = [
        {"role": "user", "content": "x" * 200_000, "id": f"message-{n}"} for n in range(100)
    ]
    thread = requests.post(f"{callboard.url}/threads", json={}, timeout=60).json()
    path = f"{callboard.url}/threads/{thread['thread_id']}"
    body = {"assistant_id": "chat", "input": {"messages": messages}}
    answer = requests.post(f"{path}/runs/wait", json=body, timeout=100)
    assert answer.status_code == 200
    values = answer.json()
    assert [message["content"] for message in values["messages"][:100]] == ["x" * 200_000] * 100
    assert len(values["messages"]) > 100
    assert requests.get(f"{path}/state", timeout=60).json()["values"] == values


@pytest.mark.parametrize("body", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("path", ["/threads", "/assistants", "/threads/{thread}/runs"])
def test_broken_bodies_change_nothing(callboard: Served, path: str, body: bytes) -> None:
    thread = requests.post(f"{callboard.url}/threads", json={}, timeout=60).json()["thread_id"]

    def everything() -> list[Any]:
        return [
            requests.post(f"{callboard.url}/threads/count", json={}, timeout=60).json(),
            requests.post(f"{callboard.url}/assistants/count", json={}, timeout=60).json(),
            requests.get(f"{callboard.url}/threads/{thread}/runs", timeout=60).json(),
        ]

    before = everything()
    answer = requests.post(callboard.url + path.format(thread=thread), data=body, timeout=60)
    assert answer.status_code == 422
    assert isinstance(json.loads(answer.content)["detail"], str)
    assert everything() == before

"""Large bodies are taken whole."""

from typing import Protocol

import pytest
import requests

pytestmark = pytest.mark.topology


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

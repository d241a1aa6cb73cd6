"""What a person is told to try first fits the graph."""

import json
import shlex
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from langchain_core.messages import AnyMessage
from langgraph.graph import MessagesState, StateGraph
from pydantic import BaseModel
from typing_extensions import TypedDict

from callboard import trial


class _Nothing(TypedDict, total=False):
    seen: list[str]


class _Form(BaseModel):
    topic: str
    count: int
    ratio: float | None
    more: str = "as it is"


class _Talk(BaseModel):
    messages: list[AnyMessage]
    inner: _Form


def _schema(state: type) -> dict:
    graph = StateGraph(state)
    graph.add_node("node", lambda _: {})
    graph.set_entry_point("node")
    return graph.compile().get_input_jsonschema()


def test_a_graph_that_talks_is_greeted() -> None:
    assert trial.example(_schema(MessagesState)) == {"messages": "Hello"}


def test_what_is_required_is_there_and_nothing_else() -> None:
    assert trial.example(_schema(_Nothing)) == {}
    assert trial.example(_schema(_Form)) == {"topic": "Hello", "count": 1, "ratio": None}
    assert trial.example(_schema(_Talk)) == {"messages": "Hello", "inner": {}}
    assert trial.example({}) == {}


def test_references_are_followed() -> None:
    form = {"properties": {"a": {"$ref": "#/$defs/A"}}, "required": ["a"]}
    schema = {"$ref": "#/$defs/F", "$defs": {"F": form, "A": {"type": "string"}}}
    assert trial.example(schema) == {"a": "Hello"}


def test_the_line_is_for_a_shell() -> None:
    *start, body = shlex.split(trial.command("http://h:1", "it's", _schema(MessagesState)))
    assert start == ["curl", "-s", "http://h:1/runs/wait", "-d"]
    assert json.loads(body) == {"assistant_id": "it's", "input": {"messages": "Hello"}}


def test_a_server_may_not_say() -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        assert trial.input_schema(f"http://127.0.0.1:{unheard.getsockname()[1]}", "agent") is None


class _Refusing(BaseHTTPRequestHandler):
    """Answers with one status, whatever is asked."""

    status = 0

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # the test's output is not for it
        pass


@pytest.mark.parametrize(
    ("status", "said"), [(401, {}), (403, {}), (404, {}), (500, None), (503, None)]
)
def test_who_is_refused_asks_no_more(status: int, said: object) -> None:
    handler = type("Handler", (_Refusing,), {"status": status})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        answering = threading.Thread(target=server.handle_request)
        answering.start()
        assert trial.input_schema(f"http://127.0.0.1:{server.server_port}", "agent") == said
        answering.join()

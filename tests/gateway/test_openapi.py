"""The OpenAPI document covers every route, and the page that shows it needs nothing else."""

import re
from typing import Any

import orjson
import pytest

from gateway.app import ROUTES
from gateway.http_options import HttpOptions
from gateway.openapi import Document, describe
from gateway.routing import PUBLIC, Endpoint

ENDPOINTS = [endpoint for routes in ROUTES for endpoint in routes.endpoints]


@pytest.mark.parametrize(
    "endpoint", ENDPOINTS, ids=lambda endpoint: f"{endpoint.method} {endpoint.path}"
)
def test_every_route_says_what_it_is_and_answers(endpoint: Endpoint) -> None:
    assert endpoint.handler.__doc__
    assert endpoint.responses, "responses= is missing"
    is_refused = endpoint.method == "DELETE" and endpoint.path == "/mcp"  # there are no sessions
    assert is_refused or any(status < 400 for status in endpoint.responses)


async def test_the_document_lists_the_graphs(client) -> None:
    document = (await client.get("/openapi.json")).json
    assert document["openapi"] == "3.1.0"
    assert document["components"]["schemas"]["AssistantCreate"]["properties"]["graph_id"] == {
        "type": "string",
        "enum": ["agent", "other"],
    }
    names = document["components"]["schemas"]["RunCreate"]["properties"]["assistant_id"]["anyOf"]
    assert {"type": "string", "enum": ["agent", "other"]} in names


def test_the_document_holds_together() -> None:
    document = describe(ENDPOINTS, ["agent"], "0")
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    assert len(operations) == len(ENDPOINTS)
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    text = orjson.dumps(document).decode()
    for name in re.findall(r'"#/components/schemas/([^"]+)"', text):
        assert name in document["components"]["schemas"], name
    assert "graph-id" not in text


def test_only_where_callers_are_asked_may_they_be_refused() -> None:
    for asks_callers in (False, True):
        document = describe(ENDPOINTS, ["agent"], "0", asks_callers=asks_callers)
        for endpoint in ENDPOINTS:
            responses: Any = document["paths"][endpoint.path][endpoint.method.lower()]["responses"]
            assert ("401" in responses) == (asks_callers and endpoint.on != PUBLIC)


async def test_the_page_loads_nothing_from_elsewhere(client) -> None:
    answer = await client.get("/docs")
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    page = answer.body.decode()
    assert 'fetch("openapi.json")' in page
    assert not re.findall(r"(?:src|href)=.(?:https?:)?//|@import|https?://", page)


async def test_longer_query_strings_and_headers_than_usual_are_read(client) -> None:
    many = "&".join("select=run_id" for _ in range(2000))
    thread = (await client.post("/threads", {})).json["thread_id"]
    answer = await client.ask("GET", f"/threads/{thread}/runs?{many}", Authorization="x" * 30_000)
    assert answer.status == 200


@pytest.mark.parametrize(
    ("encoding", "body", "status"),
    [("gzip", b"{}", 400), ("identity", b"{}", 200)],
)
async def test_bodies_that_are_not_compressed_as_they_claim(
    client, encoding: str, body: bytes, status: int
) -> None:
    answer = await client.ask("POST", "/threads", raw=body, Content_Encoding=encoding)
    assert answer.status == status
    assert answer.json.get("detail") or answer.json["thread_id"]


def test_the_document_tells_what_is_served_and_where() -> None:
    options = HttpOptions(disable_store=True, mount_prefix="/api")
    document = orjson.loads(Document(ROUTES, ["agent"], "0", options=options).body)
    assert document["servers"] == [{"url": "/api"}]
    assert not [path for path in document["paths"] if path.startswith("/store")]
    assert "/threads" in document["paths"]


def test_bodies_that_handlers_read_by_themselves_are_described_too() -> None:
    document = describe(ENDPOINTS, ["agent"], "0")
    for path, model, required in (
        ("/threads/{thread_id}/commands", "ThreadCommand", ["id", "method"]),
        ("/threads/{thread_id}/stream/events", "EventSubscription", ["channels"]),
    ):
        operation = document["paths"][path]["post"]
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        assert schema == {"$ref": f"#/components/schemas/{model}"}
        assert document["components"]["schemas"][model]["required"] == required
        assert "413" in operation["responses"]

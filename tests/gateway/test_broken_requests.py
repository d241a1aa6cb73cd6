"""Broken requests to every route there is: refused in the reference's shape, and nothing changes.

What is sent is made from the OpenAPI document: no route and no field can be forgotten. It is
sent to a plain gateway, and to one that reads requests in more places: with authentication, and
with a project's own middleware around.
"""

import asyncio
import gzip
import itertools
import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import jsonschema_rs
import psycopg
import pytest
import pytest_asyncio
from psycopg.rows import tuple_row
from yarl import URL

from gateway.app import ROUTES
from gateway.auth.access import Access
from gateway.http_options import HttpOptions
from gateway.openapi import describe
from tests.gateway.conftest import GRAPHS, Client, House
from tests.graphs.whole.security import auth
from tests.graphs.whole.webapp import app

pytestmark = pytest.mark.asyncio(loop_scope="module")

ENDPOINTS = [endpoint for routes in ROUTES for endpoint in routes.endpoints]
OWN_REFUSALS = {e.path for e in ENDPOINTS if e.body is None and e.body_type is not None}
DOCUMENT = describe(ENDPOINTS, sorted(GRAPHS), "0", asks_callers=True)
SHARE = int(os.environ.get("BROKEN_SHARE", "17"))
"""Of so many requests that are alike one is sent, another one to each route; 1: all of them."""
UNKNOWN = "00000000-0000-4000-8000-000000000000"
ANN = {"Authorization": "Bearer token-ann"}

WRONG: list[Any] = [
    *(None, True, 0, -1, 1.5, 2**63, 10**40),
    *("", "x", "a\0b", UNKNOWN),
    *([], [None], [{}], {}, {"a": 1}, {"a\0": "\0"}),
]
"""Values; those that a field's schema forbids must be refused."""

NO_JSON = {
    "nothing": b"",
    "half an object": b"{x",
    "two values": b"{}{}",
    "NaN": b'{"metadata": NaN}',
    "Infinity": b'{"metadata": -Infinity}',
    "a number beyond all floats": b'{"metadata": 1e400}',
    "not UTF-8": b'{"metadata": "\xff"}',
    "UTF-16": '{"metadata": "x"}'.encode("utf-16"),
    "a lone surrogate": b'{"metadata": "\\ud800"}',
    "a key that is a lone surrogate": b'{"\\udfff": 1}',
    "a raw NUL": b'{"metadata": "\0"}',
    "an integer of 5,000 digits": b'{"metadata": ' + b"9" * 5000 + b"}",
    "5,000 levels": b'{"metadata": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "100,000 levels of objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
}

ODD = {
    "NaN": b"NaN",
    "a lone surrogate": b'"\\ud800"',
    "an integer of 5,000 digits": b"1" * 5000,
    "5,000 levels": b"[" * 5000 + b"]" * 5000,
    "300 levels": b"[" * 300 + b"]" * 300,
    "300 levels of objects": b'{"a":' * 300 + b"1" + b"}" * 300,
    "NUL": b'"\\u0000"',
    "NUL in keys and values": b'{"a\\u0000": ["\\u0000"], "\\u0000": null}',
    "an integer beyond 64 bits": b"18446744073709551616",
    "an integer beyond all floats": b"1" + b"0" * 400,
}
"""Values as they are written, for fields that take anything: stored or refused, nothing else."""

SEGMENTS = {
    "NUL": "%00",
    "NUL within": "a%00b",
    "not UTF-8": "%FF%FE",
    "half an escape": "%2",
    "no escape": "%zz",
    "a surrogate": "%ED%A0%80",
    "a slash": "a%2Fb",
    "a way up": "..%2F..%2Fetc",
    "a huge number": "9" * 400,
    "a long text": "a" * 4000,
    "a text": "nope",
    "unknown": UNKNOWN,
    "UUID with a line break": f"{UNKNOWN}%0A",
    "emoji": "%F0%9F%98%80",
    "a full-width digit": "%EF%BC%91",
}
"""For places in a path and values in a query, as they are sent."""


NO_NUMBERS = ("", "-1", "1.5", "1e3", "0x1", "NaN", "Infinity", "9" * 20)


@dataclass(frozen=True)
class Operation:
    """One of the document's operations."""

    method: str
    path: str
    described: Any

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def answers_refusals(self) -> bool:
        """Whether its protocol has refusals of its own, which may come with 200."""
        return self.path in OWN_REFUSALS

    @property
    def body(self) -> Any:
        """The schema of the body with all that it refers to; None when there is no body."""
        if "requestBody" not in self.described:
            return None
        [content] = self.described["requestBody"]["content"].values()
        return {**content["schema"], "components": DOCUMENT["components"]}

    def parameters(self, place: str) -> dict[str, Any]:
        """Schemas of its parameters that are in the path, or in the query."""
        return {
            parameter["name"]: parameter["schema"]
            for parameter in self.described["parameters"]
            if parameter["in"] == place
        }


OPERATIONS = [
    Operation(method.upper(), path, described)
    for path, methods in DOCUMENT["paths"].items()
    for method, described in methods.items()
]
WITH_BODY = [operation for operation in OPERATIONS if operation.body]


def resolved(schema: Any) -> Any:
    while "$ref" in schema:
        schema = DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def example(schema: Any, name: str = "") -> Any:
    """A value of the schema, with nothing that may be left out."""
    known = {"assistant_id": "agent", "schedule": "0 0 1 1 *", "channels": ["values"]}
    if name in known:
        return known[name]
    match resolved(schema):
        case {"const": value} | {"enum": [value, *_]}:
            return value
        case {"anyOf": [first, *_]}:
            return example(first)
        case {"type": "object", "properties": fields, **rest}:
            return {name: example(fields[name], name) for name in rest.get("required", ())}
        case {"type": "object"}:
            return {}
        case {"type": "array", "items": item}:
            return [example(item)]
        case {"type": "string", "format": "uuid"}:
            return UNKNOWN
        case {"type": "string"}:
            return "x"
        case {"type": "integer" | "number"}:
            return 1
        case _:
            return None


def fields(operation: Operation) -> dict[str, Any]:
    """Schemas of the body's fields; of a list, those of its items."""
    schema = resolved(operation.body)
    if schema.get("type") == "array":
        schema = resolved(schema["items"])
    found: dict[str, Any] = schema.get("properties", {})
    return found


def with_field(body: Any, name: str, value: Any) -> Any:
    """The body with a field; of a list, its first item."""
    return [{**body[0], name: value}] if isinstance(body, list) else {**body, name: value}


def without_field(body: Any, name: str) -> Any:
    """The body without a field."""
    rest = dict(body[0] if isinstance(body, list) else body)
    rest.pop(name, None)
    return [rest] if isinstance(body, list) else rest


@dataclass
class Place:
    """A gateway with something in it that broken requests could spoil."""

    client: Client
    rows: psycopg.AsyncConnection[Any]
    ids: dict[str, str]
    headers: dict[str, str]
    tables: str = ""

    async def fill(self) -> None:
        """Makes one of everything. A run stays pending: there is no worker here."""
        names = await self.rows.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
            " AND table_type = 'BASE TABLE' ORDER BY 1"
        )
        self.tables = " UNION ALL ".join(
            f"SELECT '{name}', count(*), md5(string_agg(row::text, '' ORDER BY row::text))"
            f' FROM "{name}" AS row'
            for (name,) in await names.fetchall()
        )

        async def make(path: str, key: str, **body: Any) -> str:
            answer = await self.client.post(path, body, **self.headers)
            assert answer.status == 200, answer.body
            return str(answer.json[key])

        assistant = await make("/assistants", "assistant_id", graph_id="agent", metadata={"a": 1})
        thread = await make("/threads", "thread_id", metadata={"graph_id": "agent"})
        runs = f"/threads/{thread}/runs"
        self.ids = {
            "assistant_id": assistant,
            "assistant": assistant,
            "thread_id": thread,
            "run_id": await make(runs, "run_id", assistant_id="agent", input={"a": 1}),
            "cron_id": await make(
                f"{runs}/crons", "cron_id", assistant_id="agent", schedule="0 0 1 1 *"
            ),
        }
        item = {"namespace": ["a"], "key": "k", "value": {"a": 1}}
        assert (await self.client.ask("PUT", "/store/items", item, **self.headers)).status == 204

    async def content(self) -> Any:
        """What all tables hold, by name."""
        return await (await self.rows.execute(self.tables)).fetchall()

    def path(self, operation: Operation, **segments: str) -> str:
        return operation.path.format_map(
            {"checkpoint_id": "x", "namespace": "x", "file": "x"} | self.ids | segments
        )

    async def ask(self, operation: Operation, request: "Request") -> tuple[int, Any, bytes]:
        """Status, headers and body of the answer; the body of a success is left where it is."""
        async with self.client.session.request(
            operation.method,
            URL(self.client.url + request.path, encoded=True),
            data=request.body,
            headers={**self.headers, **request.headers},
            allow_redirects=False,
        ) as answer:
            is_json = answer.headers.get("Content-Type", "").startswith("application/json")
            is_read = answer.status >= 400 or (operation.answers_refusals and is_json)
            return answer.status, answer.headers, await answer.read() if is_read else b""

    async def say(self, operation: Operation, rest: bytes, *, leaves: bool = False) -> bytes:
        """What comes back until the line is closed, for what follows the first headers."""
        url = urlsplit(self.client.url)
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        head = f"{operation.method} {url.path}{self.path(operation)} HTTP/1.1\r\nHost: x\r\n"
        writer.write(f"{head}Authorization: {ANN['Authorization']}\r\n".encode() + rest)
        if leaves:
            writer.write_eof()
        try:
            return await reader.read()
        finally:
            writer.close()
            await writer.wait_closed()


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=["plain", "whole"])
async def place(
    request: pytest.FixtureRequest, module_database_url: str, module_redis_url: str
) -> AsyncIterator[Place]:
    async with AsyncExitStack() as stack:
        house = House(module_database_url, module_redis_url, stack)
        whole = {
            "access": Access(auth),
            "custom": app,
            "http": HttpOptions(mount_prefix="/api"),
        }
        client = await house.gateway(
            inspect_timeout_seconds=0.02, **(whole if request.param == "whole" else {})
        )
        if request.param == "whole":
            client.url += "/api"
        rows = await stack.enter_async_context(
            await psycopg.AsyncConnection.connect(
                module_database_url, autocommit=True, row_factory=tuple_row
            )
        )
        place = Place(client, rows, {}, ANN)
        await place.fill()
        yield place


def fault(operation: Operation, status: int, headers: Any, body: bytes) -> str | None:
    """What is wrong with an answer; None for a good one."""
    if status == 503 and b"No worker can answer" in body:
        return None
    if str(status) not in operation.described["responses"]:
        return f"undeclared {status}: {body[:200]!r}"
    if status >= 500:
        return f"{status}: {body[:200]!r}"
    if status < 400:
        return None
    if not headers["Content-Type"].startswith("application/json"):
        return f"{status} as {headers['Content-Type']}: {body[:200]!r}"
    refused = json.loads(body)
    # MCP and A2A say "error", commands of the thread protocol "message" beside their "error".
    texts = [refused.get(name) for name in ("detail", "message", "error")]
    return None if any(isinstance(text, str) for text in texts) else f"{status}: {refused}"


@dataclass(frozen=True)
class Request:
    """One to send. is_wrong: it has to be refused."""

    what: str
    path: str
    body: bytes | None
    is_wrong: bool
    headers: Mapping[str, str] = field(default_factory=dict)


def without_json(place: Place, operation: Operation) -> Iterator[Request]:
    """What is no JSON, or not compressed as it claims."""
    if not operation.body:
        return
    path, whole = place.path(operation), json.dumps(example(operation.body)).encode()
    for what, raw in NO_JSON.items():
        yield Request(what, path, raw, True)
    yield Request("no gzip", path, whole, True, {"Content-Encoding": "gzip"})
    half = gzip.compress(whole)[: len(whole) // 2]
    yield Request("half a gzip", path, half, True, {"Content-Encoding": "gzip"})


def of_the_wrong_type(place: Place, operation: Operation) -> Iterator[Request]:
    """What the schema forbids: as the body, in each field, and a field that is left out."""
    if not operation.body:
        return
    path, base = place.path(operation), example(operation.body)
    schema = jsonschema_rs.validator_for(operation.body, validate_formats=True)
    assert schema.is_valid(base)
    bodies = {f"{value!r}": value for value in WRONG}
    for name in fields(operation):
        bodies |= {f"{name}: {value!r}": with_field(base, name, value) for value in WRONG}
        bodies[f"without {name}"] = without_field(base, name)
    for what, body in bodies.items():
        if not schema.is_valid(body):
            yield Request(what, path, json.dumps(body).encode(), True)


def with_odd_values(place: Place, operation: Operation) -> Iterator[Request]:
    """Odd JSON in each field, as it is and within an object."""
    for name in fields(operation) if operation.body else ():
        body = json.dumps(with_field(example(operation.body), name, "ODD")).encode()
        for kind in (b"%b", b'{"k":%b}', b"[%b]"):
            for what, raw in ODD.items():
                odd = body.replace(b'"ODD"', kind % raw)
                yield Request(f"{name}: {kind!r} of {what}", place.path(operation), odd, False)


def with_odd_places(place: Place, operation: Operation) -> Iterator[Request]:
    """Odd texts in each part of the path and of the query; numbers that are none."""
    body = json.dumps(example(operation.body)).encode() if operation.body else None
    for what, segment in SEGMENTS.items():
        for name in operation.parameters("path"):
            yield Request(f"{name}: {what}", place.path(operation, **{name: segment}), body, False)
    for name, schema in operation.parameters("query").items():
        is_number = schema.get("type") in ("integer", "number")
        for what, text in {**SEGMENTS, **{number: number for number in NO_NUMBERS}}.items():
            path = f"{place.path(operation)}?{name}={text}"
            yield Request(f"?{name}: {what}", path, body, is_number and text not in ("", "-1"))


KINDS = {
    kind.__name__: kind
    for kind in (without_json, of_the_wrong_type, with_odd_values, with_odd_places)
}


@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
async def test_broken_requests(place: Place, operation: Operation, kind: str) -> None:
    faults = []
    requests = KINDS[kind](place, operation)
    for request in itertools.islice(requests, OPERATIONS.index(operation) % SHARE, None, SHARE):
        before = await place.content()
        status, headers, body = await place.ask(operation, request)
        is_refused = status >= 400 or b'"error"' in body
        found = fault(operation, status, headers, body)
        if request.is_wrong and not is_refused:
            found = f"taken with {status}"
        elif is_refused and await place.content() != before:
            found = f"refused with {status}, and has changed something"
        if found is not None:
            faults.append(f"{request.what}: {found}")
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("operation", WITH_BODY, ids=str)
async def test_what_is_no_http(
    place: Place, operation: Operation, caplog: pytest.LogCaptureFixture
) -> None:
    """Refused in the same shape, saying that the line closes, and no error of the server's.

    A line that ends within a body is not answered at all.
    """
    before = await place.content()
    body = json.dumps(example(operation.body)).encode()
    length = b"Content-Length: %d\r\n" % len(body)
    refused = {
        "no length": b"Content-Length: x\r\n\r\n" + body,
        "a negative length": b"Content-Length: -1\r\n\r\n" + body,
        "two lengths": b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n" + body,
        "no size of a chunk": b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + body,
        "no gzip": length + b"Content-Encoding: gzip\r\n\r\n" + body,
        "no brotli": length + b"Content-Encoding: br\r\n\r\n" + body,
        "no zstd": length + b"Content-Encoding: zstd\r\n\r\n" + body,
        "no deflate": b"Content-Length: 2\r\nContent-Encoding: deflate\r\n\r\n{}",
        "no header": b"what is this\r\n\r\n",
    }
    for what, rest in refused.items():
        answer = await place.say(operation, rest)
        head, _, told = answer.partition(b"\r\n\r\n")
        assert b" 400 " in head.splitlines()[0], (what, answer)
        assert b"application/json" in head, (what, answer)
        assert head.startswith(b"HTTP/1.0") or b"Connection: close" in head, (what, answer)
        assert isinstance(json.loads(told)["detail"], str), (what, answer)
    cut = (
        b"Content-Length: 100000\r\n\r\n" + body,
        b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(body), body),
    )
    for rest in cut:
        assert await place.say(operation, rest, leaves=True) == b""
    assert await place.content() == before
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []

"""The project's own ASGI application beside our routes: any application, written by hand."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from langgraph_sdk import Auth

from gateway.asgi_lifespan import StartupFailed
from gateway.auth.access import Access
from gateway.http_options import HttpOptions
from tests.gateway.conftest import Client, House


@dataclass
class App:
    """An application whose routes are functions, and that notes what happens to it."""

    routes: dict[str, Callable[..., Any]] = field(default_factory=dict)
    life: list[str] = field(default_factory=list)
    scopes: list[Any] = field(default_factory=list)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return await self.live(scope, receive, send)
        self.scopes.append(scope)
        await self.routes[scope["path"]](scope, receive, send)

    async def live(self, scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "lifespan.startup"
        scope["state"]["started"] = True
        self.life.append("started")
        await send({"type": "lifespan.startup.complete"})
        assert (await receive())["type"] == "lifespan.shutdown"
        self.life.append("stopped")
        await send({"type": "lifespan.shutdown.complete"})


def start(status: int = 200, *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def part(body: bytes, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def read(receive: Any) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message["body"]
        more = message["more_body"]
    return body


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await send(start(200, (b"content-type", b"text/plain")))
    await send(part(b"hello"))


async def test_it_lives_as_long_as_the_gateway(house: House) -> None:
    app = App({"/hello": hello})
    client, stop = await house.stoppable(custom=app)
    assert (await client.get("/hello?a=1")).body == b"hello"
    [scope] = app.scopes
    assert scope["state"] == {"started": True}
    assert (scope["path"], scope["query_string"], scope["method"]) == ("/hello", b"a=1", "GET")
    assert (scope["asgi"]["version"], scope["http_version"]) == ("3.0", "1.1")
    assert scope["client"][0] == "127.0.0.1"
    assert app.life == ["started"]
    await stop()
    assert app.life == ["started", "stopped"]


async def test_it_need_not_know_lifespans(house: House) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await hello(scope, receive, send)

    client = await house.gateway(custom=app)
    assert (await client.get("/anything")).body == b"hello"


async def test_one_that_cannot_start_keeps_the_gateway_from_starting(house: House) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no licence"})

    with pytest.raises(StartupFailed, match="no licence"):
        await house.gateway(custom=app)


async def test_ours_come_first_and_it_gets_the_rest(house: House) -> None:
    app = App({"/info": hello, "/threads": hello, "/mine": hello})
    client = await house.gateway(custom=app)
    assert "version" in (await client.get("/info")).json
    assert "thread_id" in (await client.post("/threads")).json
    # A method that no route of ours has.
    assert (await client.ask("PUT", "/threads")).body == b"hello"
    assert (await client.get("/mine")).body == b"hello"


async def test_cookies_and_statuses_arrive_as_they_were_sent(house: House) -> None:
    async def two_cookies(scope: Any, receive: Any, send: Any) -> None:
        await send(start(201, (b"Set-Cookie", b"a=1"), (b"set-cookie", b"b=2")))
        await send(part(b""))

    async def nothing(scope: Any, receive: Any, send: Any) -> None:
        await send(start(204))
        await send(part(b""))

    client = await house.gateway(custom=App({"/cookies": two_cookies, "/nothing": nothing}))
    answer = await client.get("/cookies")
    assert (answer.status, answer.headers.getall("Set-Cookie")) == (201, ["a=1", "b=2"])
    answer = await client.get("/nothing")
    assert (answer.status, answer.body) == (204, b"")
    assert "Content-Type" not in answer.headers or answer.headers["Content-Type"]


async def test_head_has_no_body(house: House) -> None:
    async def sized(scope: Any, receive: Any, send: Any) -> None:
        await send(start(200, (b"content-length", b"5")))
        await send(part(b"hello"))

    client = await house.gateway(custom=App({"/sized": sized}))
    answer = await client.ask("HEAD", "/sized")
    assert (answer.status, answer.body, answer.headers["Content-Length"]) == (200, b"", "5")
    assert (await client.get("/sized")).body == b"hello"  # the connection is in order


async def test_bodies_arrive_whole_and_have_a_bound(house: House) -> None:
    seen = []

    async def echo(scope: Any, receive: Any, send: Any) -> None:
        body = await read(receive)
        seen.append(len(body))
        await send(start())
        await send(part(body))

    client = await house.gateway(custom=App({"/echo": echo}), max_body_bytes=300_000)
    large = bytes(range(256)) * 1000
    assert (await client.ask("POST", "/echo", raw=large)).body == large
    answer = await client.ask("POST", "/echo", raw=large * 2)
    assert (answer.status, answer.json) == (413, {"detail": "Request Entity Too Large"})

    async def chunks() -> Any:
        for _ in range(8):
            yield large[:50_000]

    async with client.session.post(client.url + "/echo", data=chunks()) as response:
        assert response.status == 413
    assert seen == [len(large)]


async def test_parts_arrive_when_they_are_sent(house: House) -> None:
    go_on = asyncio.Event()

    async def slowly(scope: Any, receive: Any, send: Any) -> None:
        await send(start(200, (b"content-type", b"text/event-stream")))
        await send(part(b"one", more=True))
        await go_on.wait()
        await send(part(b"two", more=True))
        await send(part(b""))

    client = await house.gateway(custom=App({"/slowly": slowly}))
    async with client.session.get(client.url + "/slowly") as response:
        assert await response.content.readexactly(3) == b"one"
        assert (await client.get("/ok")).status == 200
        go_on.set()
        assert await response.content.read() == b"two"


@pytest.mark.parametrize("waits_for", ["receive", "send"])
async def test_it_learns_that_its_client_has_left(house: House, waits_for: str) -> None:
    left: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def forever(scope: Any, receive: Any, send: Any) -> None:
        await read(receive)
        await send(start())
        await send(part(b"x", more=True))
        try:
            if waits_for == "receive":
                left.set_result((await receive())["type"])
                return
            while True:
                await send(part(b"x" * 1000, more=True))
                await asyncio.sleep(0)
        except OSError as error:
            left.set_result(error)

    client = await house.gateway(custom=App({"/forever": forever}))
    async with client.session.get(client.url + "/forever") as response:
        await response.content.readexactly(1)
        response.close()
    result = await asyncio.wait_for(left, 60)
    assert result == "http.disconnect" if waits_for == "receive" else isinstance(result, OSError)


async def test_what_it_does_after_its_answer_is_done(house: House) -> None:
    may, done = asyncio.Event(), asyncio.Event()

    async def later(scope: Any, receive: Any, send: Any) -> None:
        await hello(scope, receive, send)
        assert (await receive())["type"] in ("http.request", "http.disconnect")
        await may.wait()
        done.set()

    client = await house.gateway(custom=App({"/later": later}))
    async with client.session.get(client.url + "/later") as response:
        await response.content.readexactly(5)
        response.close()
    may.set()
    await asyncio.wait_for(done.wait(), 60)


async def test_its_failures_are_its_own(house: House) -> None:
    async def fails(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("secret")

    async def fails_late(scope: Any, receive: Any, send: Any) -> None:
        await send(start())
        await send(part(b"x", more=True))
        raise RuntimeError("secret")

    async def says_nothing(scope: Any, receive: Any, send: Any) -> None:
        """Forgets to answer."""

    routes = {"/fails": fails, "/late": fails_late, "/nothing": says_nothing}
    client = await house.gateway(custom=App(routes))
    for path in ("/fails", "/nothing"):
        answer = await client.get(path)
        assert (answer.status, answer.json) == (500, {"detail": "Internal Server Error"})
    with pytest.raises(aiohttp.ClientPayloadError):
        await client.get("/late")
    assert (await client.get("/ok")).status == 200


async def test_an_open_stream_ends_with_the_gateway(house: House) -> None:
    ended = []

    async def forever(scope: Any, receive: Any, send: Any) -> None:
        await read(receive)
        await send(start())
        await send(part(b"x", more=True))
        ended.append((await receive())["type"])

    app = App({"/forever": forever})
    client, stop = await house.stoppable(custom=app)
    async with client.session.get(client.url + "/forever") as response:
        await response.content.readexactly(1)
        await stop()
        with pytest.raises(aiohttp.ClientError):  # cut, as our own streams are
            await response.read()
    assert ended == ["http.disconnect"]
    assert app.life == ["started", "stopped"]


# --- WebSockets ---------------------------------------------------------------------------------


async def talk(scope: Any, receive: Any, send: Any) -> None:
    """Sends back what comes, until it is told ``bye``."""
    assert (await receive())["type"] == "websocket.connect"
    chosen = (scope["subprotocols"] or [None])[-1]
    headers = [(b"x-mine", b"1")]
    await send({"type": "websocket.accept", "subprotocol": chosen, "headers": headers})
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            scope["seen"] = (message["code"], message["reason"])
            return
        if message.get("text") == "bye":
            await send({"type": "websocket.close", "code": 4001, "reason": "bye"})
            return
        await send({**message, "type": "websocket.send"})


async def test_it_talks_over_a_websocket(house: House) -> None:
    client = await house.gateway(custom=App({"/talk": talk}))
    url = client.url + "/talk"
    async with client.session.ws_connect(url, protocols=("a", "b")) as socket:
        assert socket.protocol == "b"
        await socket.send_str("hé")
        assert await socket.receive_str() == "hé"
        await socket.send_bytes(b"\0\xff")
        assert await socket.receive_bytes() == b"\0\xff"
        await socket.send_str("bye")
        message = await socket.receive()
        assert (message.type, message.data, message.extra) == (aiohttp.WSMsgType.CLOSE, 4001, "bye")


async def test_it_learns_how_a_websocket_was_closed(house: House) -> None:
    app = App({"/talk": talk})
    client = await house.gateway(custom=app)
    async with client.session.ws_connect(client.url + "/talk") as socket:
        await socket.send_str("x")
        await socket.receive_str()
        await socket.close(code=4002, message=b"enough")
    async with asyncio.timeout(60):
        while "seen" not in app.scopes[0]:
            await asyncio.sleep(0)
    assert app.scopes[0]["seen"] == (4002, "enough")


async def test_it_refuses_a_websocket(house: House) -> None:
    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.close", "code": 1008})

    async def refuse_with(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        assert "websocket.http.response" in scope["extensions"]
        await send({**start(418), "type": "websocket.http.response.start"})
        await send({**part(b"tea"), "type": "websocket.http.response.body"})

    client = await house.gateway(custom=App({"/no": refuse, "/tea": refuse_with}))
    for path, status in (("/no", 403), ("/tea", 418)):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await client.session.ws_connect(client.url + path)
        assert refused.value.status == status


async def test_a_websocket_ends_with_the_gateway(house: House) -> None:
    client, stop = await house.stoppable(custom=App({"/talk": talk}))
    async with client.session.ws_connect(client.url + "/talk") as socket:
        stopping = asyncio.create_task(stop())
        message = await socket.receive()
        assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1012)
        await stopping


# --- options ------------------------------------------------------------------------------------


def bearer() -> Auth:
    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str | None) -> str:
        if not authorization:
            raise Auth.exceptions.HTTPException
        return authorization

    return auth


@pytest.mark.parametrize("guarded", [False, True])
async def test_callers_of_its_routes_are_asked_when_the_project_says_so(
    house: House, guarded: bool
) -> None:
    app = App({"/hello": hello, "/talk": talk})
    http = HttpOptions(enable_custom_route_auth=guarded)
    client = await house.gateway(custom=app, http=http, access=Access(bearer()))
    answer = await client.get("/hello")
    assert answer.status == (401 if guarded else 200)
    assert (await client.get("/hello", Authorization="ann")).status == 200
    if guarded:
        assert [scope["user"].identity for scope in app.scopes] == ["ann"]
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await client.session.ws_connect(client.url + "/talk")
    assert (await client.post("/threads")).status == 401


async def test_everything_lies_below_the_prefix(house: House) -> None:
    app = App({"/api/hello": hello})
    client = await house.gateway(custom=app, http=HttpOptions(mount_prefix="/api"))
    thread = await client.post("/api/threads")
    assert thread.status == 200
    path = f"/threads/{thread.json['thread_id']}"
    run = await client.post(f"/api{path}/runs", {"assistant_id": "agent"})
    # Clients put their base URL before it.
    assert run.headers["Content-Location"].startswith(f"{path}/runs/")
    async with client.stream("GET", f"/api{path}/stream?stream_mode=lifecycle") as stream:
        assert stream.response.headers["Location"] == f"{path}/stream?stream_mode=lifecycle"
    assert (await client.get(path)).status == 404
    assert (await client.get("/info")).status == 404
    assert (await client.get("/api/info")).status == 200
    for health in ("/ok", "/api/ok", "/live", "/api"):
        assert (await client.get(health)).status == 200, health
    assert (await client.get("/api/hello")).body == b"hello"
    assert app.scopes[0]["root_path"] == "/api"
    assert (await client.get("/apix")).status == 404


@pytest.mark.parametrize(
    ("switch", "gone", "there"),
    [
        ("disable_assistants", ["/assistants/search"], ["/threads/search"]),
        ("disable_threads", ["/threads/search", "/threads/{id}/runs"], ["/runs"]),
        (
            "disable_runs",
            ["/runs", "/threads/{id}/runs", "/runs/crons", "/threads/{id}/commands"],
            ["/threads/search"],
        ),
        ("disable_store", ["/store/namespaces"], ["/threads/search"]),
    ],
)
async def test_what_is_switched_off_is_not_there(
    house: House, switch: str, gone: list[str], there: list[str]
) -> None:
    client = await house.gateway(http=HttpOptions(**{switch: True}))
    for path in gone:
        path = path.replace("{id}", "00000000-0000-0000-0000-000000000001")
        answer = await client.post(path, {"assistant_id": "agent"})
        assert (answer.status, answer.json) == (404, {"detail": "Not Found"}), path
    for path in there:
        assert (await client.post(path, {"assistant_id": "agent"})).status == 200, path


async def test_without_meta_the_server_says_nothing_of_itself(house: House) -> None:
    client = await house.gateway(http=HttpOptions(disable_meta=True))
    for path in ("/info", "/docs", "/openapi.json", "/metrics", "/metrics?format=json"):
        answer = await client.get(path)
        assert (answer.status, answer.json) == (404, {"detail": "Not Found"}), path
    assert (await client.get("/ok")).json["ok"] is True


async def test_what_is_below_a_prefix_can_be_switched_off_as_well(house: House) -> None:
    """Also what stays at the root for whoever looks after the server."""
    client = await house.gateway(http=HttpOptions(disable_meta=True, mount_prefix="/api"))
    for path in ("/metrics", "/api/metrics", "/api/info"):
        assert (await client.get(path)).status == 404, path
    for path in ("/ok", "/api/ok", "/live"):
        assert (await client.get(path)).status == 200, path


async def test_switching_the_interface_off_takes_nothing_else_away(house: House) -> None:
    """There is none, with the switch or without it."""
    plain, without = await house.gateway(), await house.gateway(http=HttpOptions(disable_ui=True))
    for path in ("/ui", "/ui/agent"):
        for client in (plain, without):
            assert (await client.get(path)).status == 404, path
    documents = [(await client.get("/openapi.json")).json for client in (plain, without)]
    assert documents[0] == documents[1]


async def preflight(client: Client, origin: str, **headers: str) -> Any:
    return await client.ask(
        "OPTIONS",
        "/threads",
        Origin=origin,
        Access_Control_Request_Method="POST",
        Access_Control_Request_Headers="x-new",
        **headers,
    )


async def test_cors_options_add_to_what_clients_need(house: House) -> None:
    http = HttpOptions.model_validate(
        {
            "cors": {
                "allow_origins": ["https://a.example"],
                "allow_origin_regex": r"https://.*\.b\.example",
                "allow_methods": ["GET", "POST"],
                "allow_headers": ["X-Mine"],
                "expose_headers": ["x-other"],
                "allow_credentials": True,
                "max_age": 5,
            }
        }
    )
    client = await house.gateway(http=http)
    for origin in ("https://a.example", "https://x.b.example"):
        for answer in (
            await client.post("/threads", Origin=origin),
            await client.get("/nothing", Origin=origin),
            await preflight(client, origin),
        ):
            assert answer.headers["Access-Control-Allow-Origin"] == origin
            assert answer.headers["Access-Control-Allow-Credentials"] == "true"
            assert answer.headers.getall("Vary") == ["Origin"]
            exposed = answer.headers["Access-Control-Expose-Headers"].split(", ")
            assert {"content-location", "location", "x-pagination-next", "x-other"} <= {*exposed}
    assert answer.headers["Access-Control-Allow-Methods"] == "GET, POST"
    allowed = answer.headers["Access-Control-Allow-Headers"].split(", ")
    assert {"x-mine", "content-type", "authorization", "last-event-id"} <= {*allowed}
    assert "x-new" not in allowed
    assert answer.headers["Access-Control-Max-Age"] == "5"
    for origin in ("https://evil.example", "https://a.example.evil", "https://b.example"):
        for answer in (await client.get("/ok", Origin=origin), await preflight(client, origin)):
            assert "Access-Control-Allow-Origin" not in answer.headers


async def test_partial_cors_options_leave_the_rest_as_it_is(house: House) -> None:
    http = HttpOptions.model_validate({"cors": {"expose_headers": ["x-mine"]}})
    client = await house.gateway(http=http)
    answer = await client.get("/ok", Origin="https://any.example")
    assert answer.headers["Access-Control-Allow-Origin"] == "*"
    assert "content-location" in answer.headers["Access-Control-Expose-Headers"]
    assert (await preflight(client, "https://any.example")).headers[
        "Access-Control-Allow-Headers"
    ] == "x-new"


async def test_runs_are_told_of_the_headers_that_the_project_names(house: House) -> None:
    http = HttpOptions.model_validate(
        {"configurable_headers": {"includes": ["x-tenant-*", "X-User"], "excludes": ["*token*"]}}
    )
    client = await house.gateway(http=http)
    thread_id = await client.thread()
    answer = await client.post(
        f"/threads/{thread_id}/runs",
        {"assistant_id": "agent", "config": {"configurable": {"x-user": "forged", "k": 1}}},
        X_Tenant_Id="t",
        X_Tenant_Token="secret",
        X_User="ann",
        X_Other="o",
    )
    configurable = answer.json["kwargs"]["config"]["configurable"]
    assert {name: configurable.get(name) for name in ("x-tenant-id", "x-user", "k")} == {
        "x-tenant-id": "t",
        "x-user": "ann",
        "k": 1,
    }
    assert not {"x-tenant-token", "x-other", "user-agent"} & configurable.keys()

"""The project's own application when it is Starlette's: its routes and middleware around ours."""

import asyncio
from typing import Any

import aiohttp
import pytest
from langgraph_sdk import Auth
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.websockets import WebSocket

from gateway.auth.access import Access
from gateway.http_options import HttpOptions
from tests.gateway.conftest import House, Stage
from tests.gateway.test_custom_routes import bearer


class Mark:
    """Plain middleware: a header on every answer, and on every request."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def marked(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-mark", b"1")]
            await send(message)

        if scope["type"] == "http":
            scope["headers"] = [*scope["headers"], (b"x-stamp", b"stamped")]
        await self.app(scope, receive, marked)


class Based(BaseHTTPMiddleware):
    """Starlette's own kind, which runs what it wraps in a task of its own."""

    async def dispatch(self, request: Request, call_next: Any) -> Any:
        response = await call_next(request)
        response.headers["x-based"] = "1"
        return response


async def hello(request: Request) -> JSONResponse:
    user = request.scope.get("user")
    return JSONResponse({"hello": user.identity if user else None, "state": request.state.name})


async def thread(request: Request) -> PlainTextResponse:
    return PlainTextResponse("put " + request.path_params["thread_id"])


async def stream(request: Request) -> StreamingResponse:
    async def parts() -> Any:
        yield "one"
        yield "two"

    return StreamingResponse(parts())


async def talk(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text(await socket.receive_text())
    await socket.close(4001)


def app(*middleware: Any, routes: Any = ()) -> Starlette:
    import contextlib

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> Any:
        yield {"name": "kept"}

    return Starlette(
        routes=[
            Route("/hello", hello),
            Route("/info", hello),
            Route("/stream", stream),
            Route("/threads/{thread_id}", thread, methods=["PUT"]),
            WebSocketRoute("/talk", talk),
            *routes,
        ],
        middleware=[Middleware(kind) for kind in middleware],
        lifespan=lifespan,
    )


@pytest.mark.parametrize("middleware", [[], [Mark], [Based], [Mark, Based]])
async def test_its_routes_and_ours_live_side_by_side(
    house: House, stage: Stage, middleware: Any
) -> None:
    client = await house.gateway(custom=app(*middleware))
    assert (await client.get("/hello")).json == {"hello": None, "state": "kept"}
    assert (await client.get("/info")).json["state"] == "kept"  # its own, not ours
    thread_id = await client.thread(metadata={"a": 1})
    assert (await client.ask("PUT", f"/threads/{thread_id}")).body == b"put " + thread_id.encode()
    assert (await client.get(f"/threads/{thread_id}")).json["metadata"] == {"a": 1}
    assert (await client.get("/stream")).body == b"onetwo"
    answer = await client.get("/nothing")
    assert (answer.status, answer.json) == (404, {"detail": "Not Found"})
    answer = await client.ask("DELETE", "/hello")
    assert answer.status == 405
    assert (await client.ask("PUT", "/threads")).json == {"detail": "Method Not Allowed"}
    assert (await client.ask("POST", "/threads/", {})).status == 307
    assert (await client.ask("POST", "/threads", raw=b"{")).status == 422
    assert (await client.ask("HEAD", "/ok")).status == 200
    large = "x" * 300_000
    assert (await client.post("/threads", {"metadata": {"l": large}})).json["metadata"][
        "l"
    ] == large
    async with client.session.ws_connect(client.url + "/talk") as socket:
        await socket.send_str("hi")
        assert await socket.receive_str() == "hi"
        assert (await socket.receive()).data == 4001


@pytest.mark.parametrize("middleware", [[Mark], [Based], [Mark, Based]])
async def test_its_middleware_stands_around_our_streams(
    house: House, stage: Stage, middleware: Any
) -> None:
    client = await house.gateway(custom=app(*middleware))
    thread_id = await client.thread()
    body = {"assistant_id": "agent", "input": {}}
    async with client.stream("POST", f"/threads/{thread_id}/runs/stream", body) as events:
        headers = events.response.headers
        assert ("x-mark" in headers, "x-based" in headers) == (
            Mark in middleware,
            Based in middleware,
        )
        assert headers.getall("Vary") == ["Origin"]
        run_id = headers["Content-Location"].rpartition("/")[2]
        await stage.claim(run_id)
        await stage.emit(run_id, "values", {"n": 1})
        frame = await events.frame()
        assert frame is not None
        assert (frame.event, frame.data) == ("values", {"n": 1})
        await stage.settle(run_id)
        assert await events.rest() == []
    waiting = asyncio.create_task(client.post(f"/threads/{thread_id}/runs/wait", body))
    await stage.next_message()
    await stage.perform(await stage.next_message(), values={"x": 1})
    assert (await waiting).json == {"x": 1}


@pytest.mark.parametrize("middleware", [[Mark], [Mark, Based]])
async def test_leaving_is_seen_through_its_middleware(
    house: House, stage: Stage, middleware: Any
) -> None:
    client = await house.gateway(custom=app(*middleware))
    thread_id = await client.thread()
    body = {"assistant_id": "agent", "on_disconnect": "cancel"}
    async with (
        stage.cancels() as heard,
        client.stream("POST", f"/threads/{thread_id}/runs/stream", body) as events,
    ):
        run_id = events.response.headers["Content-Location"].rpartition("/")[2]
        await stage.claim(run_id)
        events.response.close()
        assert await heard() == run_id


@pytest.mark.parametrize("middleware", [[Mark], [Mark, Based]])
async def test_a_gateway_that_stops_stops_no_runs(
    house: House, stage: Stage, middleware: Any
) -> None:
    client, stop = await house.stoppable(custom=app(*middleware))
    thread_id = await client.thread()
    body = {"assistant_id": "agent", "on_disconnect": "cancel"}
    async with client.stream("POST", f"/threads/{thread_id}/runs/stream", body) as events:
        run_id = events.response.headers["Content-Location"].rpartition("/")[2]
        claimed = await stage.claim(run_id)
        stopping = asyncio.create_task(stop())
        # Cut, as without middleware: a client that believed in an end would not come back.
        with pytest.raises(aiohttp.ClientError):
            await events.rest()
        await stopping
    rows = await stage.database.fetch_all("SELECT cancel_action FROM runs")
    assert [row["cancel_action"] for row in rows] == [None], claimed


async def test_a_mount_at_the_root_gets_what_is_left(house: House) -> None:
    async def pages(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("page")(scope, receive, send)

    client = await house.gateway(custom=app(routes=[Mount("/", app=pages)]))
    assert "thread_id" in (await client.post("/threads")).json
    assert (await client.get("/index.html")).body == b"page"


async def test_its_middleware_may_change_the_request(house: House) -> None:
    http = HttpOptions.model_validate({"configurable_headers": {"includes": ["x-stamp"]}})
    client = await house.gateway(custom=app(Mark), http=http)
    run = (await client.post("/runs", {"assistant_id": "agent"})).json
    assert run["kwargs"]["config"]["configurable"]["x-stamp"] == "stamped"


@pytest.mark.parametrize("order", ["auth_first", "middleware_first", None])
@pytest.mark.parametrize("guarded", [True, False])
async def test_authentication_comes_before_or_after_its_middleware(
    house: House, order: Any, guarded: bool
) -> None:
    http = HttpOptions(middleware_order=order, enable_custom_route_auth=guarded)
    client = await house.gateway(custom=app(Mark), http=http, access=Access(bearer()))
    refused = await client.post("/threads")
    assert (refused.status, refused.json) == (401, {"detail": "Unauthorized"})
    assert ("x-mark" in refused.headers) == (order != "auth_first")
    assert (await client.post("/threads", Authorization="ann")).status == 200
    answer = await client.get("/hello")
    assert answer.status == (401 if guarded else 200)
    named = (await client.get("/hello", Authorization="ann")).json["hello"]
    assert named == ("ann" if guarded else None)
    for path in ("/ok", "/docs"):
        assert (await client.get(path)).status == 200


async def test_authentication_that_fails_there_is_not_their_fault(house: House) -> None:
    auth = Auth()

    @auth.authenticate
    async def authenticate() -> str:
        raise ConnectionError("secret")

    http = HttpOptions(middleware_order="middleware_first", enable_custom_route_auth=True)
    client = await house.gateway(custom=app(Mark), http=http, access=Access(auth))
    for path in ("/hello", "/threads/search"):
        answer = await client.ask("GET" if path == "/hello" else "POST", path)
        assert answer.status == 503, path
        assert answer.json == {"detail": "The project's authentication failed"}
        assert "Retry-After" in answer.headers


async def test_handlers_get_starlettes_request(house: House) -> None:
    auth, seen = Auth(), []

    @auth.authenticate
    async def authenticate(request: Request) -> str:
        seen.append((type(request), await request.json(), request.url.path))
        return request.headers["authorization"]

    client = await house.gateway(custom=app(Mark), access=Access(auth))
    answer = await client.post("/threads", {"metadata": {"a": 1}}, Authorization="ann")
    assert answer.json["metadata"] == {"a": 1}
    assert seen == [(Request, {"metadata": {"a": 1}}, "/threads")]


async def test_the_prefix_is_its_root(house: House) -> None:
    client = await house.gateway(custom=app(Mark), http=HttpOptions(mount_prefix="/api"))
    assert (await client.get("/api/hello")).json["state"] == "kept"
    assert (await client.post("/api/threads")).headers["x-mark"] == "1"
    assert (await client.get("/hello")).status == 404
    assert "x-mark" not in (await client.get("/ok")).headers


async def test_fastapi_is_starlette_too(house: House) -> None:
    import fastapi

    own = fastapi.FastAPI()

    @own.get("/sum/{a}")
    def add(a: int, b: int = 1) -> dict[str, int]:
        return {"sum": a + b}

    own.add_middleware(Based)
    client = await house.gateway(custom=own)
    assert (await client.get("/sum/2?b=3")).json == {"sum": 5}
    assert (await client.get("/sum/x")).status == 422
    answer = await client.post("/threads")
    assert (answer.status, answer.headers["x-based"]) == (200, "1")

"""Who calls: the forms that authentication handlers may have, and what becomes of their answers."""

import asyncio
import dataclasses
import threading
from typing import Any

import orjson
import pytest
from langgraph_sdk import Auth

from gateway.auth.access import Access, InvalidAuth, studio_from_anywhere, studio_from_here
from gateway.auth.cache import CacheOptions, UserCache
from gateway.auth.user import User
from tests.gateway.conftest import Client, House, Stage

NOWHERE = "00000000-0000-0000-0000-000000000001"


def access(handler: Any, **rest: Any) -> Access:
    auth = Auth()
    auth.authenticate(handler)
    return Access(auth, **rest)


async def who(house: House, handler: Any, **rest: Any) -> tuple[Client, list[Any]]:
    """A gateway with this handler, and the users that authorization sees."""
    auth, seen = Auth(), []
    auth.authenticate(handler)

    @auth.on
    async def see(ctx: Any, value: Any) -> None:
        seen.append(ctx)

    return await house.gateway(access=Access(auth, **rest)), seen


async def test_every_parameter_is_given(house: House) -> None:
    given: dict[str, Any] = {}

    async def authenticate(
        request, scope, body, path, method, headers, authorization, path_params, query_params
    ):  # type: ignore[no-untyped-def]  # as users write them
        given.update(locals())
        given["read"] = await request.body()
        return "ann"

    client, _ = await who(house, authenticate)
    path = f"/threads/{NOWHERE}/history"
    answer = await client.post(
        f"{path}?a=1&a=2", {"limit": 3}, Authorization="Bearer x", X_Mine="é"
    )
    assert answer.status == 404, answer.body
    assert (given["path"], given["method"]) == (path, "POST")
    assert given["authorization"] == "Bearer x"
    assert given["body"] == {"limit": 3}
    assert given["read"] == b'{"limit":3}'
    assert given["path_params"] == {"thread_id": NOWHERE}
    assert given["query_params"]["a"] == "2"
    assert str(given["query_params"]) == "a=1&a=2"
    assert given["headers"][b"authorization"] == b"Bearer x"
    assert given["headers"].get("Authorization") == "Bearer x"
    assert given["headers"].get("nothing", 1) == 1
    assert "authorization" in given["headers"]
    assert given["request"].headers["authorization"] == "Bearer x"
    assert given["scope"]["type"] == "http"
    assert (b"authorization", b"Bearer x") in given["scope"]["headers"]


@dataclasses.dataclass
class Person:
    identity: str
    permissions: list[str]
    team: str = "red"


@pytest.mark.parametrize(
    ("answered", "permissions", "extra"),
    [
        ("ann", [], {}),
        ({"identity": "ann", "permissions": ["a"], "team": "red"}, ["a"], {"team": "red"}),
        (Person("ann", ["a"]), ["a"], {"team": "red"}),
    ],
)
async def test_a_user_is_a_text_a_dict_or_an_object(
    house: House, answered: Any, permissions: list[str], extra: dict[str, Any]
) -> None:
    async def authenticate() -> Any:
        return answered

    client, seen = await who(house, authenticate)
    assert (await client.post("/threads")).status == 200
    [ctx] = seen
    assert (ctx.resource, ctx.action) == ("threads", "create")
    assert ctx.user.identity == ctx.user["identity"] == "ann"
    assert ctx.user.display_name == "ann"
    assert ctx.user.is_authenticated is True
    assert list(ctx.permissions) == list(ctx.user.permissions) == permissions
    for name, value in extra.items():
        assert getattr(ctx.user, name) == ctx.user[name] == value
        assert name in ctx.user
    assert "nothing" not in ctx.user


class Teapot(Exception):  # as web frameworks have them
    status_code = 418
    detail = "tea"
    headers = {"X-Tea": "green"}


@pytest.mark.parametrize(
    ("raised", "status", "detail"),
    [
        (Auth.exceptions.HTTPException(401, "who?", {"WWW-Authenticate": "B"}), 401, "who?"),
        (Auth.exceptions.HTTPException(status_code=403), 403, "Forbidden"),
        (Teapot(), 418, "tea"),
        (ValueError("odd token"), 400, "odd token"),
        (AssertionError("not you"), 403, "not you"),
        (RuntimeError("secret"), 503, "The project's authentication failed"),
    ],
)
async def test_what_the_handler_raises_is_the_answer(
    house: House, raised: Exception, status: int, detail: str
) -> None:
    async def authenticate() -> Any:
        raise raised

    client, _ = await who(house, authenticate)
    # Also before the body is read: nobody learns from its mistakes what there is.
    for answer in (await client.post("/threads"), await client.ask("POST", "/threads", raw=b"{")):
        assert answer.status == status
        assert answer.json == {"detail": detail}
        assert b"secret" not in answer.body
        assert ("Retry-After" in answer.headers) == (status == 503)
    for name, value in (getattr(raised, "headers", None) or {}).items():
        assert answer.headers[name] == value


@pytest.mark.parametrize(
    "answered", [None, 5, {}, {"identity": None}, "", {"identity": "a", "permissions": "b"}]
)
async def test_nobody_is_let_in_by_accident(house: House, answered: Any) -> None:
    async def authenticate() -> Any:
        return answered

    client, _ = await who(house, authenticate)
    assert (await client.post("/threads")).status == 503


async def test_who_was_known_a_moment_ago_is_not_asked_for_again(house: House) -> None:
    asked: list[str | None] = []

    async def authenticate(authorization: str | None, path: str) -> str:
        asked.append(authorization)
        if authorization == "Bearer nobody":
            raise Auth.exceptions.HTTPException(401, "who?")
        return authorization or "anonymous"

    cache = CacheOptions(cache_keys=["X-Tenant"])
    client, seen = await who(house, authenticate, cache=cache)
    ann, bob = {"Authorization": "Bearer ann"}, {"Authorization": "Bearer bob"}
    for headers in (ann, bob, ann, bob, {**ann, "X-Tenant": "1"}, {**ann, "x-tenant": "1"}):
        assert (await client.post("/threads/search", {}, **headers)).status == 200
    assert asked == ["Bearer ann", "Bearer bob", "Bearer ann"]
    assert [ctx.user.identity[-3:] for ctx in seen] == ["ann", "bob", "ann", "bob", "ann", "ann"]
    asked.clear()
    # The tenant alone says nothing of a credential that was asked for with it.
    for headers in ({"X-Tenant": "1"}, {"Authorization": "Bearer nobody", "X-Tenant": "1"}):
        await client.post("/threads/search", {}, **headers)
    assert asked == [None, "Bearer nobody"]
    asked.clear()
    for headers in ({}, {}, {"Authorization": "Bearer nobody"}, {"Authorization": "Bearer nobody"}):
        await client.post("/threads/search", {}, **headers)
    assert asked == [None, None, "Bearer nobody", "Bearer nobody"]


async def test_a_known_caller_is_known_only_by_all_that_the_handler_takes(house: House) -> None:
    """A browser's token is in the query; and who may search may not therefore delete."""
    cache = CacheOptions(cache_keys=["X-Tenant"])

    async def by_query(query_params: Any) -> str:
        return query_params["token"]

    client, seen = await who(house, by_query, cache=cache)
    for token in ("ann", "bob"):
        await client.post(f"/threads/search?token={token}", {}, **{"X-Tenant": "1"})
    assert [ctx.user.identity for ctx in seen] == ["ann", "bob"]

    async def by_method(method: str) -> str:
        return method

    async def by_path(path: str) -> str:
        return path

    async def by_request(request: Any) -> str:
        return f"{request.method} {request.scope['path']}"

    async def by_body(body: Any) -> str:
        return str(body)

    for handler in (by_method, by_path, by_request, by_body):
        client, seen = await who(house, handler, cache=cache)
        await client.post("/threads/search", {}, **{"X-Tenant": "1"})
        await client.post("/threads/count", {"metadata": {}}, **{"X-Tenant": "1"})
        await client.get(f"/threads/{NOWHERE}", **{"X-Tenant": "1"})
        wanted = 2 if handler is by_method else 3
        assert len({ctx.user.identity for ctx in seen}) == wanted, handler.__name__


def test_nobody_is_known_for_ever_and_only_so_many_are() -> None:
    now = 0.0
    cache = UserCache(CacheOptions(ttl_seconds=10, max_size=2), lambda: now)
    keys = [(("a",),), (("b",),), (("c",),)]
    ann, bob, eve = users = [User(name) for name in ("ann", "bob", "eve")]
    cache.put(keys[0], ann)
    now = 5.0
    cache.put(keys[1], bob)
    assert [cache.get(key) for key in keys] == [ann, bob, None]
    now = 10.0
    assert [cache.get(key) for key in keys] == [None, bob, None]
    cache.put(keys[0], ann)  # known anew, and so no more the oldest
    cache.put(keys[2], eve)
    assert [cache.get(key) for key in keys] == [ann, None, eve]
    now = 20.0
    assert [cache.get(key) for key, _ in zip(keys, users, strict=True)] == [None] * 3


async def test_a_plain_function_holds_nobody_up(house: House) -> None:
    entered, leave = threading.Event(), threading.Event()

    def authenticate(authorization: str) -> str:
        entered.set()
        assert leave.wait(30)
        return authorization

    client, seen = await who(house, authenticate)
    waiting = asyncio.create_task(client.post("/threads", Authorization="ann"))
    assert await asyncio.to_thread(entered.wait, 30)
    assert (await client.get("/ok")).status == 200
    leave.set()
    assert (await waiting).status == 200
    assert seen[0].user.identity == "ann"


async def test_what_is_public_asks_nobody(house: House) -> None:
    async def authenticate() -> Any:
        raise Auth.exceptions.HTTPException

    client, _ = await who(house, authenticate)
    for path in ("/", "/ok", "/live", "/ready", "/info", "/docs", "/openapi.json"):
        assert (await client.get(path)).status in (200, 503), path
    assert (await client.get("/threads/x")).status == 401


async def test_what_there_is_not_is_told_only_to_who_is_known(house: House) -> None:
    async def authenticate(authorization: str | None) -> Any:
        if authorization is None:
            raise Auth.exceptions.HTTPException
        return {"identity": "ann"}

    client, _ = await who(house, authenticate)
    for method, path, status in (("GET", "/assistants", 405), ("GET", "/nothing", 404)):
        assert (await client.ask(method, path)).status == 401
        assert (await client.ask(method, path, authorization="x")).status == status


@pytest.mark.parametrize(
    ("policy", "headers", "status"),
    [
        (None, {}, 401),
        (studio_from_here, {}, 200),
        (studio_from_here, {"X_Forwarded_For": "10.1.1.1"}, 401),
        (studio_from_anywhere, {"X_Forwarded_For": "10.1.1.1"}, 200),
    ],
)
async def test_studio_is_let_in_when_it_may_be(
    house: House, policy: Any, headers: dict[str, str], status: int
) -> None:
    async def authenticate() -> Any:
        raise Auth.exceptions.HTTPException

    client, seen = await who(house, authenticate, studio=policy)
    answer = await client.post("/threads", X_Auth_Scheme="langsmith", **headers)
    assert answer.status == status
    assert (await client.post("/threads", **headers)).status == 401
    if status == 200:
        assert isinstance(seen[0].user, Auth.types.StudioUser)
        assert seen[0].user.identity == "langgraph-studio-user"


def test_an_auth_object_that_would_let_nobody_in_is_refused() -> None:
    with pytest.raises(InvalidAuth, match=r"no @auth\.authenticate"):
        Access(Auth())
    with pytest.raises(InvalidAuth, match="got str"):
        Access("auth")  # type: ignore[arg-type]  # what a wrong path leads to

    async def authenticate(token: str) -> str:
        return token

    with pytest.raises(InvalidAuth, match="wants 'token'"):
        access(authenticate)


async def test_the_document_says_how_callers_are_known(house: House) -> None:
    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str) -> str:
        return authorization

    security = {
        "securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "Authorization"}},
        "security": [{"key": []}],
        "paths": {"/threads": {"POST": []}, "/nothing": {"GET": []}},
    }
    client = await house.gateway(access=Access(auth, openapi=security))
    document = (await client.get("/openapi.json")).json
    assert document["components"]["securitySchemes"] == security["securitySchemes"]
    assert document["security"] == [{"key": []}]
    assert document["paths"]["/threads"]["post"]["security"] == []
    assert {"401", "403"} <= document["paths"]["/threads"]["post"]["responses"].keys()
    assert "401" not in document["paths"]["/ok"]["get"]["responses"]


async def test_graphs_are_told_of_the_user_and_others_not_of_secrets(
    house: House, stage: Stage
) -> None:
    async def authenticate() -> Any:
        return {"identity": "ann", "permissions": ["p"], "team": "red", "session": object()}

    client, _ = await who(house, authenticate)
    thread_id = await client.thread()
    forged = {"configurable": {"langgraph_auth_user": {"identity": "eve"}, "user_id": "eve"}}
    run = await client.run(thread_id, config=forged)
    configurable = run["kwargs"]["config"]["configurable"]
    assert configurable["langgraph_auth_user"] == {
        "identity": "ann",
        "is_authenticated": True,
        "display_name": "ann",
        "permissions": ["p"],
    }
    assert configurable["langgraph_auth_user_id"] == configurable["user_id"] == "ann"
    assert configurable["langgraph_auth_permissions"] == ["p"]
    for answer in (
        await client.get(f"/threads/{thread_id}/runs"),
        await client.get(f"/threads/{thread_id}/runs/{run['run_id']}"),
        await client.get(f"/threads/{thread_id}"),
    ):
        assert b"red" not in answer.body
    claimed = await stage.claim(run["run_id"])
    told = orjson.loads(claimed.kwargs)["config"]["configurable"]["langgraph_auth_user"]
    assert told["team"] == "red"
    assert "session" not in told

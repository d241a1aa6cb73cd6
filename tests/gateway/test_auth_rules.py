"""What callers may do: which handler is asked, what it may change, and what its filter hides."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from langgraph_sdk import Auth

from gateway.app import ROUTES
from gateway.auth.access import Access
from gateway.routing import PUBLIC, Routes
from tests.gateway.conftest import Client, House, Stage

MINE = {"Authorization": "ann"}
OTHERS = {"Authorization": "bob"}
ID = "00000000-0000-0000-0000-000000000001"


def with_names() -> Auth:
    """Everybody is who they say."""
    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str | None) -> str:
        if not authorization:
            raise Auth.exceptions.HTTPException
        return authorization

    return auth


@pytest.fixture
async def owned(house: House) -> Client:
    """A gateway on which everything is its maker's."""
    auth = with_names()

    @auth.on
    async def own(ctx: Auth.types.AuthContext, value: Any) -> Any:
        owner = {"owner": ctx.user.identity}
        if ctx.action in ("create", "create_run", "update"):
            value.setdefault("metadata", {}).update(owner)
        return owner

    @auth.on.store
    async def scope(ctx: Auth.types.AuthContext, value: Any) -> None:
        value["namespace"] = (ctx.user.identity, *(value["namespace"] or ()))

    return await house.gateway(access=Access(auth))


# --- every route --------------------------------------------------------------------------------


def endpoints() -> list[Any]:
    return [endpoint for routes in ROUTES for endpoint in routes.endpoints]


def test_every_route_says_what_it_is() -> None:
    assert {e.path for e in endpoints() if e.on == PUBLIC} <= {
        *("/", "/ok", "/live", "/ready", "/info", "/docs", "/openapi.json", "/metrics"),
    } | {e.path for e in endpoints() if e.path.startswith(("/docs/", "/.well-known/"))}


def test_an_action_that_nobody_knows_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="no action"):
        Routes().get("/x", on="threads.peek")
    with pytest.raises(TypeError, match="'on'"):
        Routes().get("/x")  # type: ignore[call-arg]  # what must not be left out


BODIES: dict[str, Any] = {
    "/assistants": {"graph_id": "agent"},
    "/assistants/{assistant_id}/latest": {"version": 1},
    "/threads/prune": {"thread_ids": [ID]},
    "/threads/{thread_id}/state/checkpoint": {"checkpoint": {"checkpoint_id": ID}},
    "/runs/batch": [{"assistant_id": "agent"}],
    "/runs/cancel": {"status": "all"},
    "/store/items": {"namespace": ["a"], "key": "k", "value": {}},
    "/store/items?": "?namespace=a&key=k",
    "/threads/{thread_id}/commands": {"id": 1, "method": "run.start", "params": {}},
    "/threads/{thread_id}/stream/events": {"channels": ["values"]},
}


async def test_every_route_asks_and_a_no_is_a_no(house: House) -> None:
    auth, asked = with_names(), []

    @auth.on
    async def refuse(ctx: Auth.types.AuthContext, value: Any) -> bool:
        asked.append(f"{ctx.resource}.{ctx.action}")
        return False

    client = await house.gateway(access=Access(auth))
    for endpoint in endpoints():
        if endpoint.on == PUBLIC:
            continue
        path = endpoint.path
        for name in endpoint.ids:
            path = path.replace(f"{{{name}}}", ID)
        body = BODIES.get(endpoint.path)
        if body is None and endpoint.body is not None:
            body = {"assistant_id": ID, "schedule": "* * * * *"}
        if endpoint.method == "GET":
            body, path = None, path + BODIES.get(endpoint.path + "?", "")
        asked.clear()
        answer = await client.ask(endpoint.method, path, body, **MINE)
        assert (answer.status, answer.json) == (403, {"detail": "Forbidden"}), (
            endpoint.method,
            path,
            answer,
        )
        assert asked == [endpoint.on], path
        assert (await client.ask(endpoint.method, path, body)).status == 401, path


# --- which handler ------------------------------------------------------------------------------


async def test_the_most_specific_handler_is_asked_alone(house: House) -> None:
    auth, asked = with_names(), []

    def noting(name: str) -> Any:
        async def note(ctx: Any, value: Any) -> None:
            asked.append(name)

        return note

    auth.on(noting("all"))
    auth.on(actions="search")(noting("every search"))
    auth.on.threads(noting("threads"))
    auth.on.threads.create(noting("threads.create"))
    auth.on(resources=["assistants", "crons"], actions=["read", "delete"])(noting("two of two"))
    auth.on.threads(actions=["update", "create_run"])(noting("two of threads"))
    client = await house.gateway(access=Access(auth))

    async def handler_of(method: str, path: str, body: Any = None) -> list[str]:
        asked.clear()
        await client.ask(method, path, body, **MINE)
        return list(asked)

    assert await handler_of("POST", "/threads", {}) == ["threads.create"]
    assert await handler_of("GET", f"/threads/{ID}") == ["threads"]
    assert await handler_of("POST", "/threads/search", {}) == ["threads"]
    assert await handler_of("PATCH", f"/threads/{ID}", {}) == ["two of threads"]
    assert await handler_of("POST", "/assistants/search", {}) == ["every search"]
    assert await handler_of("GET", f"/assistants/{ID}") == ["two of two"]
    assert await handler_of("POST", "/assistants", {"graph_id": "agent"}) == ["all"]
    run = {"assistant_id": "agent"}
    assert await handler_of("POST", f"/threads/{ID}/runs", run) == ["two of threads"]


@pytest.mark.parametrize(
    ("answered", "status", "detail"),
    [
        (None, 200, None),
        (True, 200, None),
        ({}, 200, None),
        (False, 403, "Forbidden"),
        (AssertionError("no"), 403, "no"),
        (Auth.exceptions.HTTPException(402, "pay"), 402, "pay"),
        (RuntimeError("secret"), 503, "The project's authorization failed"),
        (5, 503, "Auth handler returned invalid result"),
        ("yes", 503, "Auth handler returned invalid result"),
        ({"a": {"$ne": 1}}, 503, "Auth handler returned invalid filter"),
    ],
)
async def test_what_a_handler_answers_is_what_happens(
    house: House, answered: Any, status: int, detail: str | None
) -> None:
    auth = with_names()

    @auth.on.threads.create
    async def decide(ctx: Any, value: Any) -> Any:
        if isinstance(answered, Exception):
            raise answered
        return answered

    client = await house.gateway(access=Access(auth))
    answer = await client.post("/threads", **MINE)
    assert answer.status == status
    assert detail is None or detail in answer.json["detail"]
    assert b"secret" not in answer.body
    assert (await client.post("/threads/count", **MINE)).json == int(status == 200)


async def test_a_handler_sees_what_is_asked_for(house: House) -> None:
    auth, seen = with_names(), {}

    @auth.on
    async def look(ctx: Auth.types.AuthContext, value: Any) -> None:
        seen[f"{ctx.resource}.{ctx.action}"] = value

    client = await house.gateway(access=Access(auth))
    thread_id = (await client.post("/threads", {"metadata": {"a": 1}}, **MINE)).json["thread_id"]
    created = seen["threads.create"]
    assert (str(created["thread_id"]), created["metadata"]) == (thread_id, {"a": 1})
    assert created["if_exists"] == "raise"
    await client.post("/threads/search", {"metadata": {"b": 2}, "limit": 7}, **MINE)
    assert seen["threads.search"]["metadata"] == {"b": 2}
    assert seen["threads.search"]["limit"] == 7
    body = {"assistant_id": "agent", "input": {"x": 1}, "metadata": {"m": 1}}
    run = (await client.post(f"/threads/{thread_id}/runs", body, **MINE)).json
    value = seen["threads.create_run"]
    for name in ("run_id", "thread_id", "assistant_id"):
        assert str(value[name]) == run[name]
    assert value["metadata"] == {"m": 1}
    assert value["multitask_strategy"] == "enqueue"
    assert value["kwargs"]["input"] == {"x": 1}
    assert value["kwargs"]["config"]["configurable"]["langgraph_auth_user_id"] == "ann"
    await client.ask("GET", f"/threads/{thread_id}/runs/{run['run_id']}", **MINE)
    assert {str(seen["threads.read"][name]) for name in ("thread_id", "run_id")} == {
        thread_id,
        run["run_id"],
    }
    query = f"/threads/{thread_id}/runs/{run['run_id']}/cancel?action=rollback"
    await client.ask("POST", query, **MINE)
    assert seen["threads.update"]["action"] == "rollback"


async def test_a_handler_changes_the_request(house: House) -> None:
    auth = with_names()

    @auth.on
    async def change(ctx: Auth.types.AuthContext, value: Any) -> None:
        if ctx.action in ("create", "update", "create_run"):
            value["metadata"] = {**value["metadata"], "owner": ctx.user.identity}
        if ctx.action == "search":
            value["metadata"]["owner"] = ctx.user.identity
        if ctx.action == "create_run":
            value["kwargs"]["config"]["configurable"]["tier"] = "gold"
            value["kwargs"]["config"]["configurable"]["langgraph_auth_user_id"] = "eve"

    client = await house.gateway(access=Access(auth))
    thread = (await client.post("/threads", {"metadata": {"a": 1}}, **MINE)).json
    assert thread["metadata"] == {"a": 1, "owner": "ann"}
    await client.ask("PATCH", f"/threads/{thread['thread_id']}", {"metadata": {"b": 2}}, **OTHERS)
    found = (await client.post("/threads/search", **OTHERS)).json
    assert [one["metadata"] for one in found] == [{"a": 1, "b": 2, "owner": "bob"}]
    assert (await client.post("/threads/search", **MINE)).json == []
    made = (await client.post("/assistants", {"graph_id": "agent"}, **MINE)).json
    assert made["metadata"] == {"owner": "ann"}
    body = {"assistant_id": "agent", "config": {"configurable": {"k": 1}}}
    run = (await client.post(f"/threads/{thread['thread_id']}/runs", body, **MINE)).json
    configurable = run["kwargs"]["config"]["configurable"]
    assert run["metadata"]["owner"] == "ann"
    assert (configurable["k"], configurable["tier"]) == (1, "gold")
    assert configurable["langgraph_auth_user_id"] == "ann"


@pytest.mark.parametrize("written", [5, ["a"], {"a": object()}])
async def test_a_change_that_does_not_fit_is_the_handlers_fault(house: House, written: Any) -> None:
    auth = with_names()

    @auth.on
    async def spoil(ctx: Any, value: Any) -> None:
        value["metadata"] = written

    client = await house.gateway(access=Access(auth))
    for path, body in (
        ("/threads", {}),
        ("/runs", {"assistant_id": "agent"}),
        ("/runs/crons", {"assistant_id": "agent", "schedule": "@daily"}),
    ):
        answer = await client.post(path, body, **MINE)
        assert answer.status == 503, path
        assert answer.json == {"detail": "Auth handler wrote an invalid metadata."}


# --- what a filter hides ------------------------------------------------------------------------


@pytest.fixture
async def house_of_ann(owned: Client, stage: Stage) -> dict[str, str]:
    """Things of Ann's: a thread with a finished and a waiting run, an assistant, a cron."""
    assistant = (await owned.post("/assistants", {"graph_id": "agent"}, **MINE)).json
    thread = (await owned.post("/threads", **MINE)).json
    path = f"/threads/{thread['thread_id']}/runs"
    done = (await owned.post(path, {"assistant_id": "agent"}, **MINE)).json
    await stage.perform(done["run_id"], values={"secret": 1})
    waiting = (await owned.post(path, {"assistant_id": "agent"}, **MINE)).json
    cron = await owned.post(
        f"{path}/crons", {"assistant_id": "agent", "schedule": "@yearly"}, **MINE
    )
    assert cron.status == 200, cron.body
    return {
        "assistant": assistant["assistant_id"],
        "thread": thread["thread_id"],
        "done": done["run_id"],
        "waiting": waiting["run_id"],
        "cron": cron.json["cron_id"],
    }


async def test_a_cron_on_a_thread_is_hidden_with_the_thread(house: House) -> None:
    """Also where nobody says anything of crons."""
    auth = with_names()

    @auth.on.threads
    async def own(ctx: Any, value: Any) -> dict[str, str]:
        value.setdefault("metadata", {})["owner"] = ctx.user.identity
        return {"owner": ctx.user.identity}

    client = await house.gateway(access=Access(auth))
    thread = (await client.post("/threads", {}, **MINE)).json
    made = await client.post(
        f"/threads/{thread['thread_id']}/runs/crons",
        {"assistant_id": "agent", "schedule": "@yearly"},
        **MINE,
    )
    path = f"/runs/crons/{made.json['cron_id']}"
    for method, body in (("GET", None), ("PATCH", {"enabled": False}), ("DELETE", None)):
        assert (await client.ask(method, path, body, **OTHERS)).status == 404, method
    for method, body in (("GET", None), ("PATCH", {"enabled": False}), ("DELETE", None)):
        assert (await client.ask(method, path, body, **MINE)).status in (200, 204), method


HIDDEN: list[tuple[str, str, Any, int]] = [
    ("GET", "/assistants/{assistant}", None, 404),
    ("PATCH", "/assistants/{assistant}", {"name": "mine"}, 404),
    ("DELETE", "/assistants/{assistant}?delete_threads=true", None, 404),
    ("POST", "/assistants/{assistant}/versions", {}, 404),
    ("POST", "/assistants/{assistant}/latest", {"version": 1}, 404),
    ("GET", "/assistants/{assistant}/graph", None, 404),
    ("GET", "/assistants/{assistant}/schemas", None, 404),
    ("GET", "/assistants/{assistant}/subgraphs", None, 404),
    ("GET", "/assistants/{assistant}/subgraphs/x", None, 404),
    ("POST", "/assistants", {"graph_id": "agent", "assistant_id": "{assistant}"}, 409),
    (
        "POST",
        "/assistants",
        {"graph_id": "agent", "assistant_id": "{assistant}", "if_exists": "do_nothing"},
        409,
    ),
    ("GET", "/threads/{thread}", None, 404),
    ("GET", "/threads/{thread}/storage", None, 404),
    ("PATCH", "/threads/{thread}", {"metadata": {"owner": "bob"}}, 404),
    ("DELETE", "/threads/{thread}", None, 404),
    ("POST", "/threads/{thread}/copy", None, 409),
    ("POST", "/threads", {"thread_id": "{thread}"}, 409),
    ("POST", "/threads", {"thread_id": "{thread}", "if_exists": "do_nothing"}, 409),
    ("GET", "/threads/{thread}/state", None, 404),
    ("GET", "/threads/{thread}/state/" + ID, None, 404),
    ("POST", "/threads/{thread}/state/checkpoint", {"checkpoint": {}}, 404),
    ("POST", "/threads/{thread}/state", {"values": {"x": 1}}, 404),
    ("GET", "/threads/{thread}/history", None, 404),
    ("POST", "/threads/{thread}/history", {}, 404),
    ("GET", "/threads/{thread}/stream", None, 404),
    ("GET", "/threads/{thread}/runs", None, 404),
    ("GET", "/threads/{thread}/runs/{done}", None, 404),
    ("GET", "/threads/{thread}/runs/{done}/join", None, 404),
    ("GET", "/threads/{thread}/runs/{done}/stream", None, 404),
    ("GET", "/runs/{done}/join", None, 404),
    ("GET", "/runs/{done}/stream", None, 404),
    ("POST", "/threads/{thread}/runs/{waiting}/cancel", None, 404),
    ("POST", "/threads/{thread}/runs/{waiting}/cancel?action=rollback&wait=1", None, 404),
    ("POST", "/runs/cancel", {"thread_id": "{thread}", "run_ids": ["{waiting}"]}, 404),
    ("POST", "/runs/cancel", {"status": "all"}, 404),
    ("DELETE", "/threads/{thread}/runs/{done}", None, 404),
    ("DELETE", "/threads/{thread}/runs/{waiting}", None, 404),
    *(
        (
            "POST",
            f"/threads/{{thread}}/runs{way}",
            {"assistant_id": "agent", "if_not_exists": made, "multitask_strategy": strategy},
            404,
        )
        for way in ("", "/wait", "/stream")
        for made in ("create", "reject")
        for strategy in ("enqueue", "interrupt", "rollback", "reject")
    ),
    ("POST", "/runs", {"assistant_id": "{assistant}"}, 404),
    ("POST", "/runs/batch", [{"assistant_id": "{assistant}"}], 404),
    ("POST", "/threads/{thread}/runs/crons", {"assistant_id": "agent", "schedule": "@daily"}, 404),
    ("POST", "/runs/crons", {"assistant_id": "{assistant}", "schedule": "@daily"}, 404),
    ("GET", "/runs/crons/{cron}", None, 404),
    ("PATCH", "/runs/crons/{cron}", {"enabled": False}, 404),
    ("DELETE", "/runs/crons/{cron}", None, 404),
]


def filled(template: Any, ids: dict[str, str]) -> Any:
    """The template with its ids, wherever they stand."""
    if isinstance(template, str):
        return template.format(**ids) if "{" in template else template
    if isinstance(template, dict):
        return {key: filled(value, ids) for key, value in template.items()}
    return [filled(value, ids) for value in template] if isinstance(template, list) else template


async def everything(client: Client, ids: dict[str, str]) -> list[Any]:
    """All that Ann sees of her things."""
    paths = ("/assistants/{assistant}", "/threads/{thread}", "/threads/{thread}/runs")
    read = [await client.get(filled(path, ids), **MINE) for path in (*paths, "/runs/crons/{cron}")]
    assert all(answer.status == 200 for answer in read)
    return [answer.json for answer in read]


async def test_what_is_anothers_is_not_there(owned: Client, house_of_ann: dict[str, str]) -> None:
    before = await everything(owned, house_of_ann)
    for method, path, body, status in HIDDEN:
        path, body = filled(path, house_of_ann), filled(body, house_of_ann)
        answer = await owned.ask(method, path, body, **OTHERS)
        assert answer.status == status, (method, path, body, answer)
        assert b"secret" not in answer.body
        assert "ann" not in answer.json["detail"]
    for kind in ("assistants", "threads", "runs/crons"):
        assert (await owned.post(f"/{kind}/search", **OTHERS)).json == [], kind
        assert (await owned.post(f"/{kind}/count", **OTHERS)).json == 0, kind
        assert (await owned.post(f"/{kind}/count", **MINE)).json == 1, kind
    by_id = {"ids": [house_of_ann["thread"]], "metadata": {"owner": "ann"}}
    assert (await owned.post("/threads/search", by_id, **OTHERS)).json == []
    pruned = await owned.post("/threads/prune", {"thread_ids": [house_of_ann["thread"]]}, **OTHERS)
    assert pruned.status in (200, 404)
    assert await everything(owned, house_of_ann) == before


async def test_what_is_ones_own_works(owned: Client, house_of_ann: dict[str, str]) -> None:
    for path in ("/threads/{thread}/runs/{done}/join", "/runs/{done}/join"):
        assert (await owned.get(filled(path, house_of_ann), **MINE)).json == {"secret": 1}
    copy = await owned.ask("POST", filled("/threads/{thread}/copy", house_of_ann), **MINE)
    assert copy.json["metadata"]["owner"] == "ann"
    cancel = filled("/threads/{thread}/runs/{waiting}/cancel", house_of_ann)
    assert (await owned.ask("POST", cancel, **MINE)).status == 202
    pruned = await owned.post("/threads/prune", {"thread_ids": [house_of_ann["thread"]]}, **MINE)
    assert pruned.json == {"pruned_count": 1}


@pytest.mark.parametrize("strategy", ["enqueue", "interrupt", "rollback", "reject"])
async def test_a_thread_that_a_run_makes_is_the_callers(owned: Client, strategy: str) -> None:
    thread_id = str(uuid4())
    body = {
        "assistant_id": "agent",
        "if_not_exists": "create",
        "multitask_strategy": strategy,
        "config": {"metadata": {"owner": "eve"}},
    }
    run = await owned.post(f"/threads/{thread_id}/runs", body, **MINE)
    assert run.status == 200, run.body
    thread = (await owned.get(f"/threads/{thread_id}", **MINE)).json
    assert thread["metadata"]["owner"] == "ann"
    assert (await owned.get(f"/threads/{thread_id}", **OTHERS)).status == 404


async def test_a_stateless_run_is_the_callers(owned: Client, stage: Stage) -> None:
    waiting = asyncio.create_task(owned.post("/runs/wait", {"assistant_id": "agent"}, **MINE))
    run_id = await stage.next_message()
    assert (await owned.get(f"/runs/{run_id}/join", **OTHERS)).status == 404
    await stage.perform(run_id, values={"x": 1})
    assert (await waiting).json == {"x": 1}


async def test_graphs_are_everybodys_by_name_and_assistants_their_makers(owned: Client) -> None:
    own = (await owned.post("/assistants", {"graph_id": "agent"}, **OTHERS)).json["assistant_id"]
    for name in ("agent", own):
        assert (await owned.post("/runs", {"assistant_id": name}, **OTHERS)).status == 200
    assert (await owned.post("/runs", {"assistant_id": own}, **MINE)).status == 404
    assert (await owned.get("/assistants/agent/graph", **MINE)).status == 404


async def test_a_thread_shared_by_a_filter_is_read_but_not_changed(house: House) -> None:
    auth = with_names()

    @auth.on.threads
    async def members(ctx: Auth.types.AuthContext, value: Any) -> Any:
        return {"members": {"$contains": ctx.user.identity}}

    @auth.on.threads.create
    async def anybody(ctx: Auth.types.AuthContext, value: Any) -> None:
        value["metadata"]["owner"] = ctx.user.identity

    @auth.on.threads.delete
    async def owner(ctx: Auth.types.AuthContext, value: Any) -> Any:
        return {"$or": [{"owner": ctx.user.identity}, {"nobody": True}]}

    client = await house.gateway(access=Access(auth))
    body = {"metadata": {"members": ["ann", "bob"]}}
    thread_id = (await client.post("/threads", body, **MINE)).json["thread_id"]
    for someone, read, deleted in (("eve", 404, 404), ("bob", 200, 404), ("ann", 200, 204)):
        headers = {"Authorization": someone}
        assert (await client.get(f"/threads/{thread_id}", **headers)).status == read
        answer = await client.ask("DELETE", f"/threads/{thread_id}", **headers)
        assert answer.status == deleted


async def test_each_has_a_store_of_their_own(owned: Client) -> None:
    item = {"namespace": ["notes"], "key": "k", "value": {"by": "ann"}}
    assert (await owned.ask("PUT", "/store/items", item, **MINE)).status == 204
    path = "/store/items?namespace=notes&key=k"
    assert (await owned.get(path, **MINE)).json["value"] == {"by": "ann"}
    assert (await owned.get(path, **OTHERS)).json is None
    assert (await owned.get("/store/items?namespace=ann.notes&key=k", **OTHERS)).json is None
    for prefix in ([], ["notes"], ["ann"], ["ann", "notes"]):
        found = await owned.post("/store/items/search", {"namespace_prefix": prefix}, **OTHERS)
        assert found.json == {"items": []}
    assert (await owned.post("/store/namespaces", **OTHERS)).json == {"namespaces": []}
    assert (await owned.post("/store/namespaces", **MINE)).json == {
        "namespaces": [["ann", "notes"]]
    }
    gone = {"namespace": ["notes"], "key": "k"}
    assert (await owned.ask("DELETE", "/store/items", gone, **OTHERS)).status == 204
    assert (await owned.get(path, **MINE)).json["value"] == {"by": "ann"}


async def test_a_cron_stays_its_makers(owned: Client, house_of_ann: dict[str, str]) -> None:
    path = filled("/runs/crons/{cron}", house_of_ann)
    assert (await owned.get(path, **MINE)).json["user_id"] == "ann"
    changed = await owned.ask("PATCH", path, {"metadata": {"a": 1}}, **MINE)
    assert changed.json["metadata"] == {"a": 1, "owner": "ann"}

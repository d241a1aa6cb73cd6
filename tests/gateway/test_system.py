"""Health, CORS, errors: what every answer has in common."""

import pytest

pytestmark = pytest.mark.asyncio


async def test_the_gateway_says_that_it_lives(client) -> None:
    for path in ("/ok", "/"):
        answer = await client.get(path)
        assert (answer.status, answer.json) == (200, {"ok": True, "services": {}})
        assert (await client.ask("HEAD", path)).status == 200
    assert (await client.get("/live")).json == {"ok": True}


async def test_info_names_versions_and_flags(client) -> None:
    info = (await client.get("/info")).json
    assert info["version"] == "0"
    assert info["host"]["kind"] == "self-hosted"
    served = {name for name, is_served in info["flags"].items() if is_served}
    assert served == {"assistants", "crons"}


async def test_ready_names_the_missing_worker(client) -> None:
    answer = await client.get("/ready")
    assert answer.status == 503
    assert answer.json["checks"] == {
        "postgres": "ok",
        "redis": "ok",
        "workers": "no worker is alive",
    }


async def test_ready_is_green_with_a_worker_and_red_when_it_picks_nothing_up(house, stage) -> None:
    from persistence import runs

    client = await house.gateway(stuck_pending_threshold_seconds=0.05)
    await runs.heartbeat(stage.database, "host/1/boot", 0, 0, [], 30)
    answer = await client.get("/ready")
    assert answer.status == 503
    assert answer.json["checks"]["workers"].startswith("no graph process is ready")
    await runs.heartbeat(stage.database, "host/1/boot", 1, 1, [], 30)
    assert (await client.get("/ready")).status == 200
    await client.run(await client.thread())
    for _ in range(100):
        answer = await client.get("/ready")
        if answer.status == 503:
            break
    assert answer.status == 503
    assert "nobody picks it up" in answer.json["checks"]["workers"]


async def test_unknown_paths_and_methods_are_json(client) -> None:
    answer = await client.get("/nope")
    assert (answer.status, answer.json) == (404, {"detail": "Not Found"})
    answer = await client.ask("DELETE", "/threads")
    assert (answer.status, answer.json) == (405, {"detail": "Method Not Allowed"})
    assert answer.headers["Allow"] == "POST"


async def test_a_trailing_slash_is_redirected_with_its_method(client) -> None:
    answer = await client.post("/threads/", {})
    assert (answer.status, answer.headers["Location"]) == (307, "/threads")


async def test_preflights_allow_what_is_asked(client) -> None:
    answer = await client.ask(
        "OPTIONS",
        "/threads/x/runs/stream",
        Origin="http://page",
        Access_Control_Request_Method="POST",
        Access_Control_Request_Headers="x-api-key, last-event-id",
        Access_Control_Request_Private_Network="true",
    )
    assert answer.status == 200
    assert answer.headers["Access-Control-Allow-Origin"] == "*"
    assert "PATCH" in answer.headers["Access-Control-Allow-Methods"]
    assert answer.headers["Access-Control-Allow-Headers"] == "x-api-key, last-event-id"
    assert answer.headers["Access-Control-Allow-Private-Network"] == "true"
    assert answer.headers["Access-Control-Max-Age"] == "600"


@pytest.mark.parametrize("path", ["/ok", "/nope", "/threads/x"])
async def test_pages_may_read_answers_and_errors(client, path) -> None:
    answer = await client.get(path, Origin="http://page")
    assert answer.headers["Access-Control-Allow-Origin"] == "*"
    exposed = answer.headers["Access-Control-Expose-Headers"]
    for name in ("content-location", "location", "x-pagination-total", "x-pagination-next"):
        assert name in exposed
    assert answer.headers["Vary"] == "Origin"


async def test_only_allowed_origins_may_read(house) -> None:
    client = await house.gateway(cors_allow_origins="http://a,http://b")
    answer = await client.get("/ok", Origin="http://b")
    assert answer.headers["Access-Control-Allow-Origin"] == "http://b"
    assert "Access-Control-Allow-Origin" not in (await client.get("/ok", Origin="http://c")).headers


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"NaN",
        b'{"metadata": {"a": NaN}}',
        b'{"metadata": {"a": "\\ud800"}}',
        b'{"metadata": {"a": 1e999}}',
        b'{"metadata": "\xff"}',
        b'{"metadata":' + b"[" * 5000 + b"]" * 5000 + b"}",
    ],
)
async def test_what_is_no_json_is_422(client, raw) -> None:
    answer = await client.ask("POST", "/threads", raw=raw)
    assert (answer.status, answer.json) == (422, {"detail": "Invalid JSON in request body"})


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"metadata": None}, "metadata"),
        ({"metadata": []}, "metadata"),
        ({"thread_id": "nope"}, "thread_id"),
        ({"thread_id": None}, "thread_id"),
        ({"thread_id": 7}, "thread_id"),
        ({"if_exists": "bogus"}, "if_exists"),
        ({"ttl": 1}, "ttl"),
        ({"supersteps": {}}, "supersteps"),
    ],
)
async def test_what_has_the_wrong_form_is_422_and_named(client, body, named) -> None:
    answer = await client.post("/threads", body)
    assert answer.status == 422
    assert isinstance(answer.json["detail"], str)
    assert named in answer.json["detail"]


async def test_what_is_nested_too_deeply_to_come_back_is_422(client) -> None:
    deep = b"[" * 300 + b"]" * 300
    answer = await client.ask("POST", "/threads", raw=b'{"metadata": {"a": ' + deep + b"}}")
    assert (answer.status, answer.json) == (422, {"detail": "metadata: nested too deeply"})
    run = b'{"assistant_id": "agent", "input": ' + deep + b"}"
    answer = await client.ask("POST", "/runs", raw=run)
    assert answer.status == 422


async def test_a_body_is_json_whatever_it_says_it_is(client) -> None:
    for kind in ("text/plain", "application/octet-stream"):
        answer = await client.ask("POST", "/threads", raw=b"{}", Content_Type=kind)
        assert answer.status == 200


async def test_a_body_that_is_too_long_is_413(house) -> None:
    client = await house.gateway(max_body_bytes=2000)
    answer = await client.post("/threads", {"metadata": {"a": "x" * 3000}})
    assert answer.status == 413
    assert isinstance(answer.json["detail"], str)


async def test_ids_are_checked_before_they_are_looked_up(client) -> None:
    for method, path, what in (
        ("GET", "/threads/nope", "thread"),
        ("DELETE", "/threads/nope", "thread"),
        ("GET", "/assistants/agent", "assistant"),
        ("GET", f"/threads/{'0' * 8}-0000-0000-0000-{'0' * 12}/runs/nope", "run"),
    ):
        answer = await client.ask(method, path)
        assert answer.status == 422
        assert answer.json == {"detail": f"Invalid {what} ID: must be a UUID"}


async def test_without_a_database_answers_are_503_and_say_when_to_come_back(house) -> None:
    house.database_url = house.database_url.replace("/test_", "/gone_")
    client = await house.gateway()
    answer = await client.post("/threads", {})
    assert answer.status == 503
    assert int(answer.headers["Retry-After"]) >= 1
    assert (await client.get("/ok")).status == 200
    ready = await client.get("/ready")
    assert (ready.status, ready.json["checks"]["postgres"]) == (503, "unavailable")
    assert int(ready.headers["Retry-After"]) >= 1

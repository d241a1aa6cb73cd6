"""Runs over HTTP: what a request becomes, and what is answered when it ends."""

import asyncio
import uuid
from uuid import UUID

import orjson
import pytest

from actors.child.event_names import END_MARK, WAKE_CHANNEL
from actors.events import OVER
from persistence import runs
from persistence.lifecycle import FAIL, INTERRUPT, TIME_OUT, CancelAction
from tests.gateway.conftest import OWNER
from tests.persistence.sample import refuse

NOWHERE = "00000000-0000-0000-0000-000000000000"
AGENT = "fe096781-5601-53d2-b2f6-0d3403f7e9ca"


async def test_a_run_is_created_pending_and_sent_to_the_workers(client, stage) -> None:
    thread_id = await client.thread()
    answer = await client.post(
        f"/threads/{thread_id}/runs",
        {"assistant_id": "agent", "input": {"b": 1, "a": 2}, "metadata": {"m": 1}},
    )
    run = answer.json
    assert answer.headers["Content-Location"] == f"/threads/{thread_id}/runs/{run['run_id']}"
    assert list(run) == [
        *("run_id", "thread_id", "assistant_id", "metadata", "status", "kwargs"),
        *("multitask_strategy", "created_at", "updated_at", "langsmith_session_name"),
    ]
    assert (run["status"], run["multitask_strategy"]) == ("pending", "enqueue")
    assert run["metadata"] == {
        "created_by": "system",
        "graph_id": "agent",
        "assistant_id": AGENT,
        "m": 1,
    }
    assert list(run["kwargs"]["input"]) == ["b", "a"]
    assert run["created_at"].endswith("+00:00")
    assert await stage.next_message() == run["run_id"]
    thread = (await client.get(f"/threads/{thread_id}")).json
    assert thread["status"] == "busy"
    assert thread["metadata"] == {"graph_id": "agent", "assistant_id": AGENT}


async def test_the_graph_is_told_who_it_is(client) -> None:
    thread_id = await client.thread()
    run = await client.run(thread_id, config={"configurable": {"mine": 1}, "tags": ["t"]})
    config = run["kwargs"]["config"]
    stamps = dict(config["configurable"])
    assert uuid.UUID(stamps.pop("langgraph_request_id"))
    assert stamps.pop("__request_start_time_ms__") > 0
    assert stamps == {
        "mine": 1,
        "run_id": run["run_id"],
        "thread_id": thread_id,
        "graph_id": "agent",
        "assistant_id": AGENT,
        "user_id": "",
        "langgraph_auth_user": None,
        "langgraph_auth_user_id": "",
        "langgraph_auth_permissions": [],
        "__after_seconds__": 0,
    }
    assert config["tags"] == ["t"]
    assert config["metadata"] == run["metadata"]


async def test_no_run_says_that_it_is_another(client) -> None:
    thread_id = await client.thread()
    said = {"assistant_id": "a", "run_id": "r", "thread_id": "t"}
    plain = await client.run(thread_id, metadata={"m": 1})
    run = await client.run(thread_id, metadata={"m": 1, **said}, config={"metadata": said})
    for one in (run, run["kwargs"]["config"]):
        assert one["metadata"] == plain["metadata"]
    thread = (await client.get(f"/threads/{thread_id}")).json
    assert thread["metadata"]["assistant_id"] == run["assistant_id"]


async def test_defaults_are_the_protocols(client) -> None:
    kwargs = (await client.run(await client.thread()))["kwargs"]
    del kwargs["config"]
    assert kwargs == {
        "input": {},
        "command": None,
        "context": {},
        "stream_mode": ["values"],
        "interrupt_before": None,
        "interrupt_after": None,
        "webhook": None,
        "feedback_keys": None,
        "temporary": False,
        "subgraphs": False,
        "resumable": False,
        "checkpoint_during": True,
        "durability": "async",
    }


async def test_every_field_reaches_the_worker(client) -> None:
    checkpoint = {"checkpoint_id": str(uuid.uuid1()), "checkpoint_ns": "a:1", "thread_id": "x"}
    run = await client.run(
        await client.thread(),
        command={"resume": None, "goto": [{"node": "n", "input": 1}], "update": None},
        config={"recursion_limit": 5, "run_name": "named", "metadata": {"c": 1}},
        checkpoint=checkpoint,
        stream_mode="updates",
        stream_subgraphs=True,
        stream_resumable=True,
        interrupt_before="*",
        interrupt_after=["n"],
        durability="exit",
        feedback_keys=["k"],
        unknown=1,
    )
    kwargs = run["kwargs"]
    assert kwargs["command"] == {"goto": [{"node": "n", "input": 1}], "update": None}
    assert kwargs["config"]["recursion_limit"] == 5
    assert kwargs["config"]["run_name"] == "named"
    assert run["metadata"]["c"] == 1
    configurable = kwargs["config"]["configurable"]
    assert configurable["checkpoint_id"] == checkpoint["checkpoint_id"]
    assert configurable["checkpoint_ns"] == "a:1"
    assert configurable["thread_id"] == run["thread_id"]
    assert kwargs["stream_mode"] == ["updates"]
    assert (kwargs["subgraphs"], kwargs["resumable"]) == (True, True)
    assert (kwargs["interrupt_before"], kwargs["interrupt_after"]) == ("*", ["n"])
    assert (kwargs["durability"], kwargs["feedback_keys"]) == ("exit", ["k"])


async def test_some_nulls_and_fractions_say_nothing(client) -> None:
    fields = {"config": {"metadata": None, "recursion_limit": 5.0}, "checkpoint_id": None}
    run = await client.run(await client.thread(), metadata={"m": 1}, **fields)
    config = run["kwargs"]["config"]
    assert (config["recursion_limit"], config["metadata"]["m"]) == (5, 1)
    assert "checkpoint_id" not in config["configurable"]


async def test_checkpoint_during_is_the_old_word_for_durability(client) -> None:
    thread_id = await client.thread()
    old = (await client.run(thread_id, checkpoint_during=False))["kwargs"]
    assert (old["durability"], old["checkpoint_during"]) == ("exit", False)
    both = (await client.run(thread_id, checkpoint_during=False, durability="sync"))["kwargs"]
    assert both["durability"] == "sync"


async def test_the_assistants_config_lies_under_the_runs(client) -> None:
    body = {
        "graph_id": "agent",
        "context": {"a": 1, "b": {"c": 1}},
        "config": {"tags": ["t"], "recursion_limit": 7},
        "metadata": {"am": 1},
    }
    assistant = (await client.post("/assistants", body)).json
    thread_id = await client.thread()

    async def merged(**fields):
        run = await client.run(thread_id, assistant_id=assistant["assistant_id"], **fields)
        config = run["kwargs"]["config"]
        known = {key: config["configurable"].get(key) for key in ("a", "b", "z")}
        return config, known, run["kwargs"]["context"], run["metadata"]

    config, known, context, metadata = await merged()
    assert (config["tags"], config["recursion_limit"], metadata["am"]) == (["t"], 7, 1)
    assert known == {"a": 1, "b": {"c": 1}, "z": None}
    assert context == {"a": 1, "b": {"c": 1}}
    for fields in (
        {"context": {"z": 1, "b": {"d": 2}}},
        {"config": {"tags": ["u"], "configurable": {"z": 1, "b": {"d": 2}}}},
    ):
        config, known, context, _ = await merged(**fields)
        assert known == context == {"a": 1, "b": {"d": 2}, "z": 1}
    assert config["tags"] == ["u"]


@pytest.mark.parametrize(
    ("fields", "status", "detail"),
    [
        ({"assistant_id": "nope"}, 422, "Invalid assistant: 'nope'. Must be either:"),
        ({"assistant_id": NOWHERE}, 404, "Thread or assistant not found."),
        ({"assistant_id": None}, 422, "assistant_id"),
        ({"config": None}, 422, "config"),
        ({"config": {"recursion_limit": "5"}}, 422, "recursion_limit"),
        ({"config": {"tags": "x"}}, 422, "tags"),
        ({"context": {"a": 1}, "config": {"configurable": {"b": 1}}}, 400, "Cannot specify both"),
        ({"stream_mode": ["values", "lifecycle"]}, 422, "stream_mode"),
        ({"interrupt_before": "node"}, 422, "interrupt_before"),
        ({"interrupt_after": None}, 422, "interrupt_after"),
        ({"multitask_strategy": "wait"}, 422, "multitask_strategy"),
        ({"checkpoint": {"checkpoint_ns": None}}, 422, "checkpoint_ns"),
        ({"checkpoint_id": "x"}, 422, "checkpoint_id: must be a UUID"),
        ({"command": {"resume": 1, "bogus": 1}}, 422, "bogus"),
        ({"after_seconds": "1"}, 422, "after_seconds"),
        ({"after_seconds": 1e30}, 422, "after_seconds"),
        ({"durability": "never"}, 422, "durability"),
        ({"webhook": "/x"}, 422, "Loopback webhooks"),
        ({"webhook": "http://127.0.0.1/x"}, 422, "Webhook host blocked: loopback IP range"),
        ({"stream_resumable": "yes"}, 422, "stream_resumable"),
        ({"input": 10**400}, 422, "Invalid JSON"),
    ],
)
async def test_what_is_refused_creates_nothing(client, fields, status, detail) -> None:
    thread_id = await client.thread()
    body = {"assistant_id": "agent", "input": {}, **fields}
    raw = repr(body).replace("'", '"').replace("None", "null").encode()
    answer = await client.ask("POST", f"/threads/{thread_id}/runs", raw=raw)
    assert answer.status == status, answer.body
    assert detail in answer.json["detail"]
    assert (await client.get(f"/threads/{thread_id}/runs")).json == []
    assert (await client.get(f"/threads/{thread_id}")).json["status"] == "idle"


async def test_odd_text_is_cleaned_or_refused_but_never_a_500(client) -> None:
    thread_id = await client.thread(metadata={"a\0b": "c\0d"})
    await client.run(thread_id, input={"x": "a\0b"}, metadata={"k\0": "\0"}, config={"t\0": 1})
    for path in (f"/threads/{thread_id}/runs?status=%00", f"/threads/{thread_id}/runs"):
        assert (await client.get(path)).status == 200
    for path in ("/threads/search", "/threads/count"):
        assert (await client.post(path, {"metadata": {"a\0": "\0"}})).status == 200
    assert (await client.get(f"/threads/{thread_id}/state/%00")).status == 404
    name = {"graph_id": "agent", "name": "a\0b", "description": "\0"}
    assert (await client.post("/assistants", name)).status == 200
    assert (await client.post("/assistants/search", {"name": "\0"})).status == 200
    assert (await client.post("/assistants/search", {"offset": 10**18})).status == 200


async def test_a_thread_that_is_not_there(client) -> None:
    body = {"assistant_id": "agent"}
    for kind in ("", "/stream", "/wait"):
        answer = await client.post(f"/threads/{NOWHERE}/runs{kind}", body)
        assert (answer.status, answer.json["detail"]) == (404, "Thread or assistant not found.")
    answer = await client.post(f"/threads/{NOWHERE}/runs", {**body, "if_not_exists": "create"})
    assert answer.status == 200
    assert (await client.get(f"/threads/{NOWHERE}")).json["status"] == "busy"


async def test_reject_is_a_409_and_interrupt_stops_the_other(client, stage) -> None:
    thread_id = await client.thread()
    first = await client.run(thread_id)
    body = {"assistant_id": "agent", "multitask_strategy": "reject"}
    for kind in ("", "/stream", "/wait"):
        answer = await client.post(f"/threads/{thread_id}/runs{kind}", body)
        assert answer.status == 409
        assert answer.json["detail"].startswith("Thread is already running a task.")
    await stage.claim(first["run_id"])
    async with stage.cancels() as heard:
        await client.run(thread_id, multitask_strategy="interrupt")
        assert await heard() == first["run_id"]


async def test_a_delayed_run_is_not_sent_before_its_time(client, stage) -> None:
    delayed = await client.run(await client.thread(), after_seconds=1000)
    prompt = await client.run(await client.thread())
    assert await stage.next_message() == prompt["run_id"]
    assert delayed["created_at"] > delayed["updated_at"]


async def test_lists_are_newest_first_and_filtered(client, stage) -> None:
    thread_id = await client.thread()
    made = [(await client.run(thread_id))["run_id"] for _ in range(3)]
    path = f"/threads/{thread_id}/runs"
    assert [run["run_id"] for run in (await client.get(path)).json] == made[::-1]
    page = (await client.get(f"{path}?limit=1&offset=1&select=run_id&select=status")).json
    assert page == [{"run_id": made[1], "status": "pending"}]
    assert (await client.get(f"{path}?status=running")).json == []
    assert (await client.get(f"{path}?limit=x")).status == 422
    assert (await client.get(f"{path}?select=bogus")).status == 422
    assert (await client.get(f"/threads/{NOWHERE}/runs")).status == 404


async def test_reading_a_run(client) -> None:
    thread_id = await client.thread()
    run = await client.run(thread_id)
    assert (await client.get(f"/threads/{thread_id}/runs/{run['run_id']}")).json == run
    missing = await client.get(f"/threads/{thread_id}/runs/{NOWHERE}")
    assert (missing.status, missing.json) == (404, {"detail": "Not Found"})
    missing = await client.get(f"/threads/{NOWHERE}/runs/{run['run_id']}")
    assert (missing.status, missing.json) == (
        404,
        {"detail": f"Thread with ID {NOWHERE} not found"},
    )


async def test_wait_answers_with_headers_at_once_and_the_output_in_the_end(client, stage) -> None:
    thread_id = await client.thread()
    url = f"{client.url}/threads/{thread_id}/runs/wait"
    body = orjson.dumps({"assistant_id": "agent", "input": {}})
    async with client.session.post(url, data=body) as response:
        run_id = await stage.next_message()
        path = f"/threads/{thread_id}/runs/{run_id}"
        assert response.headers["Location"] == f"{path}/join"
        assert response.headers["Content-Location"] == path
        assert response.content_type == "application/json"
        assert await response.content.readexactly(1) == b"\n"
        await stage.perform(run_id, values={"a": 1})
        assert orjson.loads(await response.read()) == {"a": 1}


@pytest.mark.parametrize("move", [FAIL, TIME_OUT])
async def test_a_failed_run_says_so_to_who_waits_and_who_joins(client, stage, move) -> None:
    thread_id = await client.thread()
    waiting = asyncio.create_task(
        client.post(f"/threads/{thread_id}/runs/wait", {"assistant_id": "agent"})
    )
    run_id = await stage.next_message()
    error = {"error": "ValueError", "message": "boom"}
    await stage.fail(run_id, error, move)
    assert (await waiting).json == {"__error__": error}
    # Another run of the thread that ends well does not change what became of this one.
    other = await client.run(thread_id)
    await stage.perform(other["run_id"], values={"a": 1})
    joined = await client.get(f"/threads/{thread_id}/runs/{run_id}/join")
    assert joined.json == {"__error__": error}
    joined = await client.get(f"/runs/{other['run_id']}/join")
    assert joined.json == {"a": 1}


async def test_joining_what_is_not_there_is_a_404(client) -> None:
    thread_id = await client.thread()
    for path in (
        f"/threads/{thread_id}/runs/{NOWHERE}/join",
        f"/threads/{thread_id}/runs/{NOWHERE}/stream",
        f"/runs/{NOWHERE}/join",
        f"/runs/{NOWHERE}/stream",
    ):
        answer = await client.get(path)
        assert (answer.status, answer.json) == (404, {"detail": "Run not found"})


async def test_cancel_of_a_running_run(client, stage) -> None:
    thread_id = await client.thread()
    run_id = (await client.run(thread_id))["run_id"]
    await stage.claim(run_id)
    path = f"/threads/{thread_id}/runs/{run_id}"
    async with stage.cancels() as heard:
        answer = await client.ask("POST", f"{path}/cancel")
        assert (answer.status, answer.body) == (202, b"")
        assert await heard() == run_id
    waiting = asyncio.create_task(client.ask("POST", f"{path}/cancel?wait=1"))
    joining = asyncio.create_task(client.get(f"{path}/join"))
    done, _ = await asyncio.wait({waiting}, timeout=0.3)
    assert not done, "answered before the run has stopped"
    await stage.settle(run_id, INTERRUPT, {"so": "far"}, action=CancelAction.INTERRUPT)
    answer = await waiting
    assert (answer.status, answer.json) == (200, {})
    assert answer.headers["Location"] == f"{path}/join"
    assert (await joining).json == {"so": "far"}
    assert (await client.get(path)).json["status"] == "interrupted"
    again = await client.ask("POST", f"{path}/cancel?wait=1")
    assert again.status == 404
    assert again.json["detail"].startswith("No matching runs to cancel.")


@pytest.mark.parametrize("action", ["interrupt", "rollback", "bogus"])
async def test_cancel_of_a_pending_run(client, action) -> None:
    thread_id = await client.thread()
    run_id = (await client.run(thread_id))["run_id"]
    path = f"/threads/{thread_id}/runs/{run_id}"
    waiting = asyncio.create_task(client.get(f"{path}/join"))
    answer = await client.ask("POST", f"{path}/cancel?wait=true&action={action}")
    assert (answer.status, answer.json) == (200, {})
    assert (await waiting).json in ({}, {"detail": "Run not found"})
    assert (await client.get(path)).status == (404 if action == "rollback" else 200)
    assert (await client.get(f"/threads/{thread_id}")).json["status"] == "idle"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/threads/{thread}/runs/{run}/cancel", None),
        ("POST", "/threads/{thread}/runs/{run}/cancel?action=rollback", None),
        ("POST", "/runs/cancel", {"status": "pending"}),
        ("POST", "/threads/{thread}/runs", {"multitask_strategy": "interrupt"}),
        ("POST", "/threads/{thread}/runs", {"multitask_strategy": "rollback"}),
        ("DELETE", "/threads/{thread}/runs/{run}", None),
        ("DELETE", "/threads/{thread}", None),
        ("POST", "/threads/prune", {"strategy": "delete", "thread_ids": ["{thread}"]}),
    ],
)
async def test_whoever_ends_a_pending_run_tells_readers(client, stage, method, path, body) -> None:
    thread_id = await client.thread()
    run_id = (await client.run(thread_id))["run_id"]
    if path.endswith("/runs"):
        body = {"assistant_id": "agent", **body}
    elif body and "thread_ids" in body:
        body = {**body, "thread_ids": [thread_id]}
    async with stage.heard(WAKE_CHANNEL) as heard:
        answer = await client.ask(method, path.format(thread=thread_id, run=run_id), body)
        assert answer.status in {200, 202, 204}, answer.body
        assert await heard() == f"{run_id}{END_MARK}{OVER}"


async def test_deleting_a_thread_tells_readers_of_what_runs_on_it(client, stage) -> None:
    thread_id = await client.thread()
    run_id = (await client.run(thread_id))["run_id"]
    await stage.claim(run_id)
    waiting = asyncio.create_task(client.get(f"/threads/{thread_id}/runs/{run_id}/join"))
    async with stage.heard(WAKE_CHANNEL) as heard:
        assert (await client.ask("DELETE", f"/threads/{thread_id}")).status == 204
        while await heard() != f"{run_id}{END_MARK}{OVER}":
            pass  # the start of the run may be told late
    assert (await waiting).status in {200, 404}


async def test_cancel_of_a_run_that_was_handed_back(client, stage) -> None:
    """It has begun, so its thread is left in the middle; here is no worker to say where."""
    thread_id = await client.thread()
    run_id = (await client.run(thread_id))["run_id"]
    await stage.claim(run_id)
    await runs.hand_back(stage.database, OWNER, [(UUID(run_id), 1)])
    answer = await client.ask("POST", f"/threads/{thread_id}/runs/{run_id}/cancel?wait=1")
    assert (answer.status, answer.json) == (200, {})
    thread = (await client.get(f"/threads/{thread_id}")).json
    assert (thread["status"], thread["error"]["error"]) == ("interrupted", "UserInterrupt")


async def test_cancel_of_a_pending_run_lets_the_next_one_start(client, stage) -> None:
    thread_id = await client.thread()
    first, second = [(await client.run(thread_id))["run_id"] for _ in range(2)]
    assert {await stage.next_message(), await stage.next_message()} == {first, second}
    await client.ask("POST", f"/threads/{thread_id}/runs/{first}/cancel")
    assert await stage.next_message() == second


async def test_cancel_of_an_unknown_run(client) -> None:
    thread_id = await client.thread()
    answer = await client.ask("POST", f"/threads/{thread_id}/runs/{NOWHERE}/cancel")
    assert (answer.status, answer.json) == (404, {"detail": "No runs found to cancel."})


async def test_cancel_of_many(client, stage) -> None:
    thread_id = await client.thread()
    first, second = [(await client.run(thread_id))["run_id"] for _ in range(2)]
    other = await client.run(await client.thread())
    await stage.claim(first)
    some = {"thread_id": thread_id, "run_ids": [first, second, NOWHERE]}
    async with stage.cancels() as heard:
        assert (await client.post("/runs/cancel", some)).status == 204
        assert await heard() == first
    listed = (await client.get(f"/threads/{thread_id}/runs?select=status")).json
    assert listed == [{"status": "interrupted"}, {"status": "running"}]
    assert (await client.post("/runs/cancel", {"status": "pending"})).status == 204
    path = f"/threads/{other['thread_id']}/runs/{other['run_id']}"
    assert (await client.get(path)).json["status"] == "interrupted"
    assert (await client.post("/runs/cancel", {"status": "pending"})).status == 404
    for wrong in ({}, {"status": "all", **some}, {"thread_id": thread_id}, {"status": "x"}):
        assert (await client.post("/runs/cancel", wrong)).status == 422


async def test_delete_of_a_run(client, stage) -> None:
    thread_id = await client.thread()
    run_id = (await client.run(thread_id))["run_id"]
    await stage.perform(run_id, values={})
    path = f"/threads/{thread_id}/runs/{run_id}"
    assert (await client.ask("DELETE", path)).status == 204
    missing = await client.ask("DELETE", path)
    assert (missing.status, missing.json) == (404, {"detail": "Run not found"})
    running = (await client.run(thread_id))["run_id"]
    await stage.claim(running)
    async with stage.cancels() as heard:
        assert (await client.ask("DELETE", f"/threads/{thread_id}/runs/{running}")).status == 204
        assert await heard() == running


async def test_stateless_runs_have_a_thread_that_goes_with_them(client, stage) -> None:
    answer = await client.post("/runs", {"assistant_id": "agent"})
    run = answer.json
    assert answer.headers["Content-Location"] == f"/runs/{run['run_id']}"
    assert run["kwargs"]["temporary"] is True
    assert (await client.post("/threads/search", {})).json == []
    kept = await client.post("/runs", {"assistant_id": "agent", "on_completion": "keep"})
    assert kept.json["kwargs"]["temporary"] is False
    [thread] = (await client.post("/threads/search", {})).json
    assert thread["thread_id"] == kept.json["thread_id"]


@pytest.mark.parametrize("path", ["/runs", "/runs/wait", "/runs/stream", "/runs/batch"])
@pytest.mark.parametrize("resume", ["yes", None])
async def test_a_stateless_run_has_no_thread_to_answer(client, path, resume) -> None:
    body = {"assistant_id": "agent", "command": {"resume": resume}, "on_completion": "keep"}
    other = {"assistant_id": "agent", "on_completion": "keep"}
    answer = await client.post(path, [other, body] if path == "/runs/batch" else body)
    assert answer.status == 400
    assert (await client.post("/threads/count", {})).json == 0


@pytest.mark.parametrize("resume", ["yes", None])
async def test_one_of_two_answers_is_heard(client, stage, resume) -> None:
    thread_id = await client.thread()
    run_id = (await client.run(thread_id))["run_id"]
    await stage.claim(run_id)
    asked = b'{"t": [{"id": "%s", "value": "?"}]}' % (b"a" * 32)
    await stage.settle(run_id, values={}, interrupts=asked, next_nodes=True)
    path, body = f"/threads/{thread_id}/runs", {"assistant_id": "agent"}
    first = await client.post(path, {**body, "command": {"resume": resume}})
    assert first.json["kwargs"]["command"] == {"resume": resume}
    for late in ("yes", None):
        assert (await client.post(path, {**body, "command": {"resume": late}})).status == 409
    beside = {"resume": None, "update": {"a": 1}}
    assert (await client.post(path, {**body, "command": beside})).status == 200


async def test_stateless_wait(client, stage) -> None:
    waiting = asyncio.create_task(client.post("/runs/wait", {"assistant_id": "agent"}))
    run_id = await stage.next_message()
    await stage.perform(run_id, values={"a": 1})
    answer = await waiting
    assert answer.json == {"a": 1}
    assert answer.headers["Location"].endswith(f"/runs/{run_id}/join")
    assert answer.headers["Content-Location"].endswith(f"/runs/{run_id}")


async def test_a_batch_is_checked_as_a_whole(client) -> None:
    good = {"assistant_id": "agent", "on_completion": "keep"}
    assert (await client.post("/runs/batch", [good, {"assistant_id": "nope"}])).status == 422
    assert (await client.ask("POST", "/runs/batch", [])).status == 422
    assert (await client.post("/threads/search", {})).json == []
    answer = await client.post("/runs/batch", [good, good])
    assert [run["status"] for run in answer.json] == ["pending", "pending"]


async def test_a_batch_is_accepted_as_a_whole(client, stage) -> None:
    good = {"assistant_id": "agent", "on_completion": "keep", "multitask_strategy": "reject"}
    lost = {"assistant_id": "agent", "metadata": {"lost": True}}
    await refuse(stage.database, "INSERT ON runs", "NEW.metadata ? 'lost'")
    answer = await client.post("/runs/batch", [good, lost, good])
    assert answer.status == 503
    for table in ("runs", "threads"):
        assert await stage.database.fetch_all(f"SELECT 1 FROM {table}") == []
    answer = await client.post("/runs/batch", [good, {"assistant_id": "agent"}, good])
    made = [run["run_id"] for run in answer.json]
    # Nobody was told of what came to nothing.
    assert [await stage.next_message() for _ in made] == made


async def test_many_waits_hold_no_database_connection(house, stage) -> None:
    client = await house.gateway()
    run_ids = []
    async with asyncio.TaskGroup() as group:
        waits = [
            group.create_task(client.post("/runs/wait", {"assistant_id": "agent"}))
            for _ in range(40)
        ]
        for _ in waits:
            run_ids.append(await stage.next_message())
        for _ in range(20):
            assert (await client.post("/threads/count", {})).status == 200
        for run_id in run_ids:
            await stage.perform(run_id, values={"a": 1})
    assert all(wait.result().json == {"a": 1} for wait in waits)


async def test_creation_goes_on_when_the_client_leaves(house, stage) -> None:
    client = await house.gateway()
    thread_id = await client.thread()
    for _ in range(10):
        request = asyncio.create_task(
            client.post(f"/threads/{thread_id}/runs", {"assistant_id": "agent"})
        )
        await asyncio.sleep(0.002)
        request.cancel()
        await asyncio.wait([request])
    # What was created was sent.
    rows = await runs.list_for_thread(stage.database, uuid.UUID(thread_id), limit=100)
    sent = {await stage.next_message() for _ in rows}
    assert sent == {str(row.run_id) for row in rows}

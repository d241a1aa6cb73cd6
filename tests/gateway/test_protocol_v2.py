"""The thread protocol: how stored events are told, and the stream of events over SSE."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from actors.child.event_names import END_EVENT, events_key
from actors.events import GAP_EVENT, Event
from gateway.protocol import (
    EPOCH_MS,
    ProtocolEvent,
    RunTranslation,
    milliseconds_of,
    seq_at,
    seq_of,
    tree,
)
from gateway.subscription import subscription, unknown_channels
from persistence import runs
from persistence.lifecycle import FAIL, INTERRUPT, SUCCEED, RunStatus
from persistence.thread_runs import StartedRun
from tests.gateway.conftest import Client, Frame, House, Stage, Stream

ALL = [
    "values",
    "updates",
    "messages",
    "tools",
    "custom",
    "lifecycle",
    "input",
    "tasks",
    "checkpoints",
]
RUN = uuid.UUID("01a23000-0000-7000-8000-000000000001")
QUESTION = {"id": "a" * 32, "value": {"q": 1}, "response_schema": None}


# How stored events are told: pure


def told(*stored: tuple[str, Any]) -> list[ProtocolEvent]:
    translation = RunTranslation(RUN, "agent")
    return [
        event
        for number, (name, data) in enumerate(stored)
        for event in translation.translate(
            Event(f"{EPOCH_MS + 1}-{number}", name, orjson.dumps(data), 1)
        )
    ]


def brief(events: list[ProtocolEvent]) -> list[tuple[str, Any]]:
    return [(event.method, orjson.loads(event.data)) for event in events]


def lifecycle(event: str, **more: str) -> tuple[str, Any]:
    return ("lifecycle", {"event": event, "graph_name": "agent", **more})


METADATA = ("metadata", {"run_id": str(RUN), "attempt": 1})
SUCCESS = (END_EVENT, {"status": "success"})


def test_a_run_begins_and_ends_once() -> None:
    second = ("metadata", {"run_id": str(RUN), "attempt": 2})
    events = told(METADATA, ("values", {"x": 1}), second, ("values", {"x": 1}), SUCCESS)
    assert brief(events) == [
        lifecycle("running"),
        ("values", {"x": 1}),
        ("values", {"x": 1}),
        lifecycle("completed"),
    ]
    assert [event.event_id for event in events] == [
        f"synth:{RUN}:lc||running",
        f"{EPOCH_MS + 1}-1",
        f"{EPOCH_MS + 1}-3",
        f"synth:{RUN}:lc||completed",
    ]


@pytest.mark.parametrize("status", ["error", "timeout"])
def test_a_failure_says_why(status: str) -> None:
    error = ("error", {"error": "ValueError", "message": "broken"})
    events = told(METADATA, error, (END_EVENT, {"status": status}))
    assert brief(events)[-1] == lifecycle("failed", error="broken")


@pytest.mark.parametrize("status", ["interrupted", "rolled back"])
def test_a_stop_is_an_interruption(status: str) -> None:
    assert brief(told(METADATA, (END_EVENT, {"status": status})))[-1] == lifecycle("interrupted")


def test_questions_come_at_the_end_once_each_from_where_they_were_asked() -> None:
    other = {**QUESTION, "id": "b" * 32, "value": 2}
    events = told(
        METADATA,
        ("updates|sub:1", {"__interrupt__": [QUESTION]}),
        ("values|sub:1", {"x": 1, "__interrupt__": [QUESTION]}),
        ("updates", {"__interrupt__": [QUESTION, other]}),
        ("values", {"x": 1, "__interrupt__": [QUESTION, other]}),
        SUCCESS,
    )
    assert brief(events) == [
        lifecycle("running"),
        ("values", {"x": 1}),
        ("values", {"x": 1}),
        ("input.requested", {"interrupt_id": "a" * 32, "payload": {"q": 1}, "value": {"q": 1}}),
        ("input.requested", {"interrupt_id": "b" * 32, "payload": 2, "value": 2}),
        lifecycle("interrupted"),
    ]
    assert [event.namespace for event in events[1:5]] == [("sub:1",), (), ("sub:1",), ()]
    assert [event.seq for event in events] == sorted({event.seq for event in events})


def test_a_value_that_only_looks_like_a_question_stays() -> None:
    data = {"text": '"__interrupt__"'}
    assert brief(told(("values", data), ("values", ["__interrupt__"])))[-2:] == [
        ("values", data),
        ("values", ["__interrupt__"]),
    ]


def test_what_the_protocol_has_no_word_for_is_left_out() -> None:
    checkpoint = {
        "config": {"configurable": {"checkpoint_id": "c2"}},
        "parent_config": {"configurable": {"checkpoint_id": "c1"}},
        "values": {"large": 1},
        "metadata": {"step": 3, "source": "loop"},
    }
    events = told(
        ("messages", [{"type": "AIMessageChunk"}, {}]),
        ("messages|sub:1", {"event": "message-start", "role": "ai", "id": "m"}),
        ("messages/partial", [{}]),
        ("events", {}),
        ("debug", {}),
        ("checkpoints", checkpoint),
        ("checkpoints", {"id": "c3", "step": 4, "source": "loop"}),
        (GAP_EVENT, {"missed": 3}),
    )
    assert brief(events) == [
        ("messages", {"event": "message-start", "role": "ai", "id": "m"}),
        ("checkpoints", {"id": "c2", "parent_id": "c1", "step": 3, "source": "loop"}),
        ("checkpoints", {"id": "c3", "step": 4, "source": "loop"}),
        ("gap", {"missed": 3}),
    ]


def test_a_run_whose_events_are_gone_is_told_by_its_row() -> None:
    began, ended = datetime(2026, 1, 1, 12, tzinfo=UTC), datetime(2026, 1, 1, 13, tzinfo=UTC)
    run = StartedRun(RUN, RUN, "agent", RunStatus.SUCCESS, True, None, began, ended, 9999.0)
    questions = {"task": [{"id": "a" * 32, "value": 7}]}
    events = list(RunTranslation(RUN, "agent").expired(run, questions))
    assert [event.method for event in events] == [
        *("gap", "lifecycle", "input.requested", "lifecycle"),
    ]
    assert orjson.loads(events[-1].data)["event"] == "interrupted"
    assert milliseconds_of(events[0].seq) == began.timestamp() * 1000
    assert milliseconds_of(events[-1].seq) == ended.timestamp() * 1000
    assert events == list(RunTranslation(RUN, "agent").expired(run, questions)), "the same always"


def test_sequence_numbers_rise_with_the_events_and_fit_javascript() -> None:
    ids = [f"{EPOCH_MS}-0", f"{EPOCH_MS}-1", f"{EPOCH_MS}-1000", f"{EPOCH_MS + 1}-0"]
    assert [seq_of(one) for one in ids] == sorted({seq_of(one) for one in ids})
    assert seq_at(int(datetime(2059, 1, 1, tzinfo=UTC).timestamp() * 1000), 9999) < 2**53


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({"channels": ["values"]}, ["values", "values sub:1", "values sub:1 deep:2"]),
        ({"channels": ["values"], "namespaces": [[]], "depth": 0}, ["values"]),
        ({"channels": ["values"], "namespaces": [[]], "depth": 1}, ["values", "values sub:1"]),
        (
            {"channels": ["values"], "namespaces": [["sub"]]},
            ["values sub:1", "values sub:1 deep:2"],
        ),
        ({"channels": ["values"], "namespaces": [["sub:1"]], "depth": 0}, ["values sub:1"]),
        ({"channels": ["values"], "namespaces": [["sub:9"], ["su"]]}, []),
        ({"channels": ["values"], "depth": 0}, ["values", "values sub:1", "values sub:1 deep:2"]),
        ({"channels": ["custom"]}, ["custom", "custom"]),
        ({"channels": ["custom:named"]}, ["custom"]),
        ({"channels": ["input"]}, ["input.requested"]),
        ({"channels": ["values"], "since": seq_of(f"{EPOCH_MS + 1}-1")}, ["values sub:1 deep:2"]),
        (
            {"channels": ["values"], "since": None, "namespaces": None, "depth": None},
            ["values", "values sub:1", "values sub:1 deep:2"],
        ),
    ],
)
def test_who_hears_what(asked: dict[str, Any], wanted: list[str]) -> None:
    events = told(
        ("values", {}),
        ("values|sub:1", {}),
        ("values|sub:1|deep:2", {}),
        ("custom", {"name": "named"}),
        ("custom", "plain"),
        ("updates", {"__interrupt__": [QUESTION]}),
        SUCCESS,
    )
    heard = [
        " ".join([event.method, *event.namespace])
        for event in events
        if subscription(asked).wants(event)
    ]
    assert heard == wanted


def test_channels() -> None:
    assert unknown_channels([*ALL, "custom:x"]) == []
    assert unknown_channels(["debug", "custom:", 1, "input.requested"]) == [
        *("debug", "custom:", "1", "input.requested"),
    ]


def test_the_tree_of_agents() -> None:
    events = told(
        METADATA,
        ("lifecycle|sub:1", {"event": "started", "graph_name": "sub"}),
        ("lifecycle|sub:1|deep:2", {"event": "started", "graph_name": "deep"}),
        ("lifecycle|sub:1|deep:2", {"event": "completed", "graph_name": "deep"}),
    )
    assert orjson.loads(orjson.dumps(tree(events))) == {
        "namespace": [],
        "status": "running",
        "graph_name": "agent",
        "children": [
            {
                "namespace": ["sub:1"],
                "status": "started",
                "graph_name": "sub",
                "children": [
                    {
                        "namespace": ["sub:1", "deep:2"],
                        "status": "completed",
                        "graph_name": "deep",
                    }
                ],
            }
        ],
    }
    assert tree([]) is None


# The stream


@asynccontextmanager
async def subscribed(
    client: Client, thread_id: str, channels: list[str] = ALL, **asked: Any
) -> AsyncIterator[Stream]:
    path, body = f"/threads/{thread_id}/stream/events", {"channels": channels, **asked}
    async with client.stream("POST", path, body) as stream:
        assert stream.response.status == 200, await stream.response.read()
        yield stream


async def until(stream: Stream, *ends: str) -> list[Frame]:
    """The frames up to a root lifecycle event of one of these names."""
    frames: list[Frame] = []
    async with asyncio.timeout(60):
        while True:
            frame = await stream.frame()
            assert frame is not None, "it ended"
            frames.append(frame)
            params = frame.data["params"]
            is_root = frame.event == "lifecycle" and not params["namespace"]
            if is_root and params["data"]["event"] in ends:
                return frames


def methods(frames: list[Frame]) -> list[str]:
    return [
        f"lifecycle {frame.data['params']['data']['event']}"
        if frame.event == "lifecycle"
        else str(frame.event)
        for frame in frames
    ]


async def test_a_subscription_before_the_thread_exists_hears_its_runs(
    client: Client, stage: Stage
) -> None:
    thread = str(uuid.uuid4())
    async with subscribed(client, thread) as stream:
        await client.post("/threads", {"thread_id": thread})
        first, second = await client.run(thread), await client.run(thread)
        await stage.perform(first["run_id"], ("values", {"x": 1}), ("custom|sub:1", {"y": 1}))
        frames = await until(stream, "completed")
        assert methods(frames) == ["lifecycle running", "values", "custom", "lifecycle completed"]
        assert [frame.data["seq"] for frame in frames] == [int(frame.id or 0) for frame in frames]
        envelope = frames[2].data
        assert envelope == {
            "type": "event",
            "event_id": envelope["event_id"],
            "seq": envelope["seq"],
            "method": "custom",
            "params": {
                "namespace": ["sub:1"],
                "timestamp": int(envelope["event_id"].partition("-")[0]),
                "data": {"y": 1},
            },
        }
        await stage.fail(second["run_id"], {"error": "ValueError", "message": "broken"})
        frames += await until(stream, "failed")
        assert frames[-1].data["params"]["data"]["error"] == "broken"
        numbers = [frame.data["seq"] for frame in frames]
        assert numbers == sorted(set(numbers))
        assert (await stream.any_frame()).comment == "heartbeat"  # type: ignore[union-attr]


async def test_every_connection_at_every_gateway_reads_the_same(house: House, stage: Stage) -> None:
    here, there = await house.gateway(), await house.gateway()
    thread = await here.thread()
    first, second, third = [await here.run(thread) for _ in range(3)]
    async with subscribed(here, thread) as live:
        await stage.perform(first["run_id"], ("values", {"x": 1}))
        await stage.perform(second["run_id"], ("values", {"__interrupt__": [QUESTION]}))
        await stage.claim(third["run_id"])
        await stage.emit(third["run_id"], "values", {"x": 3})
        await stage.settle(third["run_id"], INTERRUPT)
        frames = await until(live, "completed")
        frames += await until(live, "interrupted")
        frames += await until(live, "interrupted")
    async with subscribed(there, thread) as replay:
        again = await until(replay, "completed")
        again += await until(replay, "interrupted")
        again += await until(replay, "interrupted")
    assert [frame.data for frame in again] == [frame.data for frame in frames]
    middle = frames[4].data["seq"]
    async with subscribed(there, thread, since=middle) as rest:
        after = await until(rest, "interrupted")
        assert [frame.data for frame in after] == [frame.data for frame in frames[5:][: len(after)]]
    # A filter changes who hears an event, not its number.
    async with subscribed(there, thread, ["values"], namespaces=[[]], depth=0) as narrow:
        async with asyncio.timeout(60):
            heard = [await narrow.frame() for _ in range(2)]
        assert [frame and frame.data for frame in heard] == [
            frame.data for frame in frames if frame.event == "values"
        ]


async def test_numbers_outlive_a_run_that_was_deleted(client: Client, stage: Stage) -> None:
    thread = await client.thread()
    first, second = await client.run(thread), await client.run(thread)
    await stage.perform(first["run_id"], ("values", {"x": 1}))
    await stage.perform(second["run_id"], ("values", {"x": 2}))
    async with subscribed(client, thread) as stream:
        await until(stream, "completed")
        before = await until(stream, "completed")
    assert (await client.ask("DELETE", f"/threads/{thread}/runs/{first['run_id']}")).status == 204
    async with subscribed(client, thread) as stream:
        assert [f.data for f in await until(stream, "completed")] == [f.data for f in before]


async def test_expired_events_are_said_to_be_gone(client: Client, stage: Stage) -> None:
    """Instead of silence: what the rows still know, so that clients stop waiting."""
    thread = await client.thread()
    runs_of = [await client.run(thread) for _ in range(2)]
    for run in runs_of:
        await stage.perform(run["run_id"], ("values", {"x": 1}))
    interrupts = orjson.dumps({"task": [{"id": "a" * 32, "value": {"q": 1}}]})
    last = await client.run(thread)
    await stage.claim(last["run_id"])
    await stage.settle(last["run_id"], SUCCEED, {"x": 1}, interrupts=interrupts, next_nodes=True)
    async with subscribed(client, thread) as stream:
        seen = (await until(stream, "running"))[-1].data["seq"]
    for run in [*runs_of, last]:
        await stage.redis.delete(events_key(run["run_id"]))
    await stage.database.execute("UPDATE runs SET finished_at = finished_at - interval '10 s'", {})
    async with subscribed(client, thread, since=seen) as stream:
        frames = await until(stream, "interrupted")
        assert methods(frames) == [
            *("gap", "lifecycle running", "input.requested", "lifecycle interrupted"),
        ]
        assert frames[0].data["params"]["data"] == {
            "run_id": last["run_id"],
            "missed": None,
            "reason": "expired",
        }
        assert frames[2].data["params"]["data"]["value"] == {"q": 1}
        # And it goes on with what comes.
        run = await client.run(thread)
        await stage.perform(run["run_id"], ("values", {"x": 5}))
        assert methods(await until(stream, "completed"))[-2:] == ["values", "lifecycle completed"]


async def test_the_end_is_told_though_it_was_never_written(client: Client, stage: Stage) -> None:
    thread = await client.thread()
    run = await client.run(thread)
    async with subscribed(client, thread) as stream:
        await stage.claim(run["run_id"])
        await stage.emit(run["run_id"], "metadata", {"run_id": run["run_id"], "attempt": 1})
        await until(stream, "running")
        error = {"error": "ValueError", "message": "broken"}
        settlement = runs.Settlement(uuid.UUID(run["run_id"]), 1, FAIL, error=error)
        [settled] = await runs.settle(stage.database, [settlement])
        assert settled.ok
        [frame] = await until(stream, "failed")
        assert frame.data["params"]["data"]["error"] == "broken"


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"nope", "Invalid JSON body"),
        (b"", "Invalid JSON body"),
        (b"[]", "channels is required and must be a non-empty array"),
        (b'{"channels": []}', "channels is required and must be a non-empty array"),
        (b'{"channels": "values"}', "channels is required and must be a non-empty array"),
        (b'{"channels": ["debug", "custom:"]}', "unsupported entries: debug, custom:. Allowed:"),
    ],
)
async def test_what_is_no_subscription(client: Client, body: bytes, detail: str) -> None:
    answer = await client.ask("POST", f"/threads/{uuid.uuid4()}/stream/events", raw=body)
    assert answer.status == 400
    assert detail in answer.json["detail"]


@pytest.mark.parametrize(
    "part", [{"namespaces": 3}, {"namespaces": [[1]]}, {"depth": "y"}, {"since": True}]
)
async def test_a_part_of_the_wrong_type_is_refused_on_both_ways(client: Client, part: Any) -> None:
    path, asked = f"/threads/{uuid.uuid4()}/stream/events", {"channels": ["values"], **part}
    answer = await client.post(path, asked)
    assert answer.status == 422
    assert answer.json["detail"].startswith(next(iter(part)))
    async with client.session.ws_connect(client.url + path) as socket:
        await socket.send_json({"id": 1, "method": "subscription.subscribe", "params": asked})
        refused = await socket.receive_json()
    assert (refused["id"], refused["error"]) == (1, "invalid_argument")
    assert refused["message"] == answer.json["detail"]


async def test_a_get_without_an_upgrade_is_not_allowed(client: Client) -> None:
    answer = await client.get(f"/threads/{uuid.uuid4()}/stream/events")
    assert (answer.status, answer.headers["Allow"]) == (405, "POST")

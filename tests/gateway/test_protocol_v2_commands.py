"""The thread protocol's commands, over plain requests and over a WebSocket."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson
import pytest

from actors.dispatch import AWAITED
from persistence.lifecycle import SUCCEED
from tests.gateway.conftest import Client, House, Stage

QUESTION, OTHER = "a" * 32, "b" * 32
ASKED = orjson.dumps({"t1": [{"id": QUESTION, "value": 1}], "t2": [{"id": OTHER, "value": 2}]})


async def command(client: Client, thread_id: str, method: str, **params: Any) -> Any:
    body = {"id": 7, "method": method, "params": params}
    answer = await client.post(f"/threads/{thread_id}/commands", body)
    assert answer.status == 200, answer.body
    assert answer.json["id"] == 7
    return answer.json


def error(answer: Any) -> tuple[str, str]:
    assert answer["type"] == "error"
    return answer["error"], answer["message"]


async def interrupted(client: Client, stage: Stage, interrupts: bytes = ASKED) -> str:
    """A thread whose run has stopped to ask."""
    thread = str(uuid.uuid4())
    started = await command(client, thread, "run.start", assistant_id="agent", input={"x": 1})
    await stage.claim(started["result"]["run_id"])
    await stage.settle(
        started["result"]["run_id"], SUCCEED, {"x": 1}, interrupts=interrupts, next_nodes=True
    )
    return thread


async def runs_of(client: Client, thread_id: str) -> list[Any]:
    runs: list[Any] = (await client.get(f"/threads/{thread_id}/runs")).json
    return runs


async def test_run_start_makes_the_thread_and_a_run_that_streams_everything(
    client: Client, stage: Stage
) -> None:
    thread = str(uuid.uuid4())
    answer = await command(
        client,
        thread,
        "run.start",
        assistant_id="agent",
        input={"x": 1},
        config={"tags": ["t"], "configurable": {"mine": 1}},
        metadata={"m": 1},
    )
    run_id = answer["result"]["run_id"]
    assert answer == {
        "type": "success",
        "id": 7,
        "result": {"run_id": run_id},
        "meta": {"applied_through_seq": 0},
    }
    assert await stage.next_message() == run_id
    assert stage.lane == AWAITED
    [run] = await runs_of(client, thread)
    kwargs = run["kwargs"]
    assert kwargs["input"] == {"x": 1}
    assert kwargs["config"]["tags"] == ["t"]
    assert kwargs["config"]["configurable"]["mine"] == 1
    assert kwargs["config"]["configurable"]["__event_streaming_v2"] is True
    assert {"values", "updates", "messages", "tools", "custom", "tasks", "checkpoints"} <= set(
        kwargs["stream_mode"]
    )
    assert kwargs["subgraphs"] is True
    assert kwargs["resumable"] is True
    assert run["multitask_strategy"] == "enqueue"
    assert run["metadata"]["m"] == 1


async def test_run_start_on_a_busy_thread_is_answered_at_once_and_waits(client: Client) -> None:
    thread = str(uuid.uuid4())
    for _ in range(2):
        started = await command(client, thread, "run.start", assistant_id="agent", input={})
        assert started["type"] == "success"
    assert [run["status"] for run in await runs_of(client, thread)] == ["pending", "pending"]
    for name in ("multitask_strategy", "multitaskStrategy"):
        refused = await command(
            client, thread, "run.start", assistant_id="agent", input={}, **{name: "reject"}
        )
        assert error(refused)[1].startswith("409: Thread is already running")


async def test_run_start_on_a_thread_that_asks_is_the_answer(client: Client, stage: Stage) -> None:
    one = orjson.dumps({"t1": [{"id": QUESTION, "value": 1}]})
    thread = await interrupted(client, stage, one)
    fork = {"configurable": {"checkpoint_id": str(uuid.uuid4())}}
    forked = await command(
        client, thread, "run.start", assistant_id="agent", input={"y": 1}, config=fork
    )
    await stage.perform(forked["result"]["run_id"])
    thread = await interrupted(client, stage, one)
    await command(client, thread, "run.start", assistant_id="agent", input={"y": 1})
    newest = (await runs_of(client, thread))[0]["kwargs"]
    assert (newest["input"], newest["command"]) == (None, {"resume": {"y": 1}})


@pytest.mark.parametrize(
    ("params", "code", "message"),
    [
        ({}, "invalid_argument", "run.start requires an assistant_id."),
        ({"assistant_id": 3}, "invalid_argument", "run.start requires an assistant_id."),
        ({"assistant_id": "nope"}, "unknown_error", "422: Invalid assistant: 'nope'."),
        (
            {"assistant_id": str(uuid.uuid4())},
            "unknown_error",
            "404: Thread or assistant not found.",
        ),
        ({"assistant_id": "agent", "config": {"tags": 1}}, "unknown_error", "422: config.tags"),
    ],
)
async def test_runs_that_cannot_be_started(
    client: Client, params: dict[str, Any], code: str, message: str
) -> None:
    thread = str(uuid.uuid4())
    answer = await command(client, thread, "run.start", **params)
    assert error(answer)[0] == code
    assert error(answer)[1].startswith(message)
    assert (await client.get(f"/threads/{thread}")).status == 404, "nothing was made"


async def test_answering_one_question_and_several(client: Client, stage: Stage) -> None:
    thread = await interrupted(client, stage)
    answer = await command(
        client,
        thread,
        "input.respond",
        interrupt_id=QUESTION,
        namespace=[],
        response="yes",
        update={"x": 2},
        goto="node",
        metadata={"by": "me"},
    )
    assert (answer["type"], answer["result"]) == ("success", {})
    newest = (await runs_of(client, thread))[0]
    assert newest["kwargs"]["command"] == {
        "resume": {QUESTION: "yes"},
        "update": {"x": 2},
        "goto": "node",
    }
    assert newest["metadata"]["by"] == "me"
    assert newest["kwargs"]["config"]["configurable"]["__event_streaming_v2"] is True

    thread = await interrupted(client, stage)
    both = [{"interrupt_id": QUESTION, "response": 1}, {"interrupt_id": OTHER, "namespace": []}]
    assert (await command(client, thread, "input.respond", responses=both))["type"] == "success"
    newest = (await runs_of(client, thread))[0]
    assert newest["kwargs"]["command"] == {"resume": {QUESTION: 1, OTHER: None}}


async def test_of_many_who_answer_a_question_exactly_one_is_heard(
    house: House, stage: Stage
) -> None:
    gateways = [await house.gateway() for _ in range(2)]
    thread = await interrupted(gateways[0], stage)
    answers = await asyncio.gather(
        *(
            command(gateways[n % 2], thread, "input.respond", interrupt_id=QUESTION, response=n)
            for n in range(6)
        )
    )
    assert sorted(answer["type"] for answer in answers) == ["error"] * 5 + ["success"]
    lost = {error(answer) for answer in answers if answer["type"] == "error"}
    assert lost == {
        ("no_such_interrupt", f"Unknown or already-consumed interrupt: {QUESTION}"),
    }
    assert len(await runs_of(gateways[0], thread)) == 2


async def test_an_answer_may_be_quicker_than_the_run_that_asked(
    client: Client, stage: Stage
) -> None:
    thread = str(uuid.uuid4())
    started = await command(client, thread, "run.start", assistant_id="agent", input={})
    run_id = started["result"]["run_id"]
    await stage.claim(run_id)
    answering = asyncio.create_task(
        command(client, thread, "input.respond", interrupt_id=QUESTION, response=1)
    )
    assert not (await asyncio.wait({answering}, timeout=0.3))[0], "the run may be about to ask"
    await stage.settle(run_id, SUCCEED, {}, interrupts=ASKED, next_nodes=True)
    assert (await answering)["type"] == "success"


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "input.respond requires an interrupt_id."),
        ({"interrupt_id": 5}, "input.respond requires an interrupt_id."),
        ({"responses": 3}, "input.respond requires an interrupt_id."),
        ({"responses": []}, "input.respond requires at least one response."),
        ({"responses": [3]}, "input.respond responses entries must be objects."),
        ({"responses": [{}]}, "input.respond requires an interrupt_id."),
    ],
)
async def test_what_is_no_answer(client: Client, params: dict[str, Any], message: str) -> None:
    answer = await command(client, str(uuid.uuid4()), "input.respond", **params)
    assert error(answer) == ("invalid_argument", message)


async def test_questions_that_nobody_asked(client: Client, stage: Stage) -> None:
    unknown = ("no_such_interrupt", f"Unknown or already-consumed interrupt: {'c' * 32}")
    for thread in ("nope", str(uuid.uuid4()), await interrupted(client, stage)):
        answer = await command(client, thread, "input.respond", interrupt_id="c" * 32, response=1)
        assert error(answer) == unknown


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"[]", None),
        (b'"text"', None),
        (b'{"method": "run.start"}', None),
        (b'{"id": 1}', 1),
        (b'{"id": "a", "method": "run.start"}', "a"),
        (b'{"id": 1.5, "method": "run.start"}', 1.5),
        (b'{"id": 1, "method": 3}', 1),
    ],
)
async def test_what_is_no_command(client: Client, raw: bytes, told: Any) -> None:
    answer = await client.ask("POST", f"/threads/{uuid.uuid4()}/commands", raw=raw)
    assert answer.status == 400
    assert answer.json == {
        "type": "error",
        "id": told,
        "error": "invalid_argument",
        "message": "Protocol commands must include an integer id and string method.",
    }
    broken = await client.ask("POST", f"/threads/{uuid.uuid4()}/commands", raw=b"nope")
    assert (broken.status, broken.json) == (400, {"detail": "Invalid JSON body"})


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("nope", {}, "unknown_command"),
        ("state.get", {}, "unknown_command"),
        ("agent.getTree", {}, "no_such_run"),
        ("subscription.reconnect", {}, "no_such_run"),
        ("subscription.subscribe", {}, "invalid_argument"),
        ("subscription.subscribe", {"channels": ["bogus"]}, "invalid_argument"),
        ("subscription.unsubscribe", {}, "invalid_argument"),
        ("subscription.unsubscribe", {"subscription_id": "x"}, "no_such_subscription"),
    ],
)
async def test_what_a_plain_request_cannot_have(
    client: Client, method: str, params: dict[str, Any], code: str
) -> None:
    assert error(await command(client, str(uuid.uuid4()), method, **params))[0] == code
    accepted = await command(client, "x", "subscription.subscribe", channels=["values"])
    assert accepted["result"]["replayed_events"] == 0


# Over a WebSocket


@dataclass
class Socket:
    """Speaks the protocol over a WebSocket."""

    socket: aiohttp.ClientWebSocketResponse
    events: list[Any] = field(default_factory=list)

    async def ask(self, method: str, **params: Any) -> Any:
        """The answer to a command; events that come before it are kept."""
        await self.socket.send_json({"id": 3, "method": method, "params": params})
        return await self.answer()

    async def answer(self) -> Any:
        async with asyncio.timeout(60):
            while True:
                message = await self.socket.receive_json()
                if message["type"] != "event":
                    return message
                self.events.append(message)

    async def event(self) -> Any:
        async with asyncio.timeout(60):
            message = await self.socket.receive_json()
        assert message["type"] == "event", message
        self.events.append(message)
        return message


@asynccontextmanager
async def connected(client: Client, thread_id: str) -> AsyncIterator[Socket]:
    url = f"{client.url}/threads/{thread_id}/stream/events"
    async with client.session.ws_connect(url) as socket:
        yield Socket(socket)


_CALM = {"stream_heartbeat_seconds": 15}
"""Client and gateway share a loop here: a pong must not be late because the loop was held up."""


@pytest.fixture
async def calm(house: House) -> Client:
    return await house.gateway(**_CALM)


async def test_commands_and_events_on_one_connection(calm: Client, stage: Stage) -> None:
    thread = str(uuid.uuid4())
    async with connected(calm, thread) as socket:
        subscribed = await socket.ask("subscription.subscribe", channels=["lifecycle", "values"])
        assert subscribed["result"]["replayed_events"] == 0
        assert (await socket.ask("agent.getTree"))["error"] == "no_such_run"
        started = await socket.ask("run.start", assistant_id="agent", input={})
        run_id = started["result"]["run_id"]
        await stage.perform(run_id, ("values", {"x": 1}), ("custom", 1))
        told = [(await socket.event())["method"] for _ in range(3)]
        assert told == ["lifecycle", "values", "lifecycle"]
        tree = await socket.ask("agent.getTree")
        assert tree["result"]["tree"] == {
            "namespace": [],
            "status": "completed",
            "graph_name": "agent",
        }
        assert tree["meta"]["applied_through_seq"] == socket.events[-1]["seq"]


async def test_a_subscription_replays_and_then_says_how_much(calm: Client, stage: Stage) -> None:
    thread = await calm.thread()
    ended, running = await calm.run(thread), await calm.run(thread)
    await stage.perform(ended["run_id"], ("values", {"x": 1}))
    await stage.claim(running["run_id"])
    await stage.emit(running["run_id"], "values", {"x": 2})
    async with connected(calm, thread) as socket:
        answer = await socket.ask("subscription.subscribe", channels=["values"])
        assert [event["params"]["data"] for event in socket.events] == [{"x": 1}, {"x": 2}]
        assert answer["result"]["replayed_events"] == 2
        assert answer["meta"]["applied_through_seq"] == socket.events[-1]["seq"]
        first = socket.events[0]["seq"]
        again = await socket.ask("subscription.reconnect", channels=["values"], since=first)
        assert again["result"]["replayed_events"] == 1
        await stage.emit(running["run_id"], "values", {"x": 3})
        twice = [await socket.event(), await socket.event()]
        assert twice[0] == twice[1], "to each subscription, with one id"
        gone = again["result"]["subscription_id"]
        assert (await socket.ask("subscription.unsubscribe", subscription_id=gone))["result"] == {}
        unknown = await socket.ask("subscription.unsubscribe", subscription_id=gone)
        assert unknown["error"] == "no_such_subscription"
        await stage.emit(running["run_id"], "values", {"x": 4})
        assert (await socket.event())["params"]["data"] == {"x": 4}
        # A mark that has been answered in between: nothing came for the other subscription.
        assert (await socket.ask("nope"))["error"] == "unknown_command"
        assert [event["params"]["data"]["x"] for event in socket.events] == [1, 2, 2, 3, 3, 4]


async def test_what_is_no_command_on_a_connection(calm: Client) -> None:
    async with connected(calm, str(uuid.uuid4())) as socket:
        await socket.socket.send_str("nope")
        broken = await socket.answer()
        assert (broken["id"], broken["message"]) == (None, "Protocol commands must be valid JSON.")
        await socket.socket.send_bytes(b"[]")
        assert (await socket.answer())["error"] == "invalid_argument"
        refused = await socket.ask("subscription.subscribe", channels=[])
        assert refused["error"] == "invalid_argument"
        assert refused["meta"] == {"applied_through_seq": 0}


async def test_a_connection_for_no_thread_is_closed_for_good(calm: Client) -> None:
    async with connected(calm, "nope") as socket:
        assert (await socket.socket.receive()).type is aiohttp.WSMsgType.CLOSE
        assert socket.socket.close_code == 4422


async def test_a_gateway_that_stops_sends_its_clients_to_another(house: House) -> None:
    client, stop = await house.stoppable(**_CALM)
    async with connected(client, str(uuid.uuid4())) as socket:
        await socket.ask("subscription.subscribe", channels=["values"])
        stopping = asyncio.create_task(stop())
        assert (await socket.socket.receive()).type is aiohttp.WSMsgType.CLOSE
        assert socket.socket.close_code == aiohttp.WSCloseCode.SERVICE_RESTART
    await stopping

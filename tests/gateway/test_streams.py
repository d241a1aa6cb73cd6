"""Event streams: what goes over the line, from where, and what happens when the line ends."""

import asyncio
import socket
from urllib.parse import urlsplit

import aiohttp
import orjson
import pytest
from structlog.testing import capture_logs

from persistence import runs
from persistence.lifecycle import FAIL, INTERRUPT, CancelAction

ERROR = {"error": "ValueError", "message": "boom"}


def body(**fields):
    return {"assistant_id": "agent", "input": {}, **fields}


async def names(stream) -> list[str]:
    return [frame.event for frame in await stream.rest()]


async def test_a_stream_has_the_references_headers_and_frames(client, stage) -> None:
    thread_id = await client.thread()
    path = f"/threads/{thread_id}/runs/stream"
    async with client.session.post(client.url + path, data=orjson.dumps(body())) as response:
        run_id = await stage.next_message()
        run = f"/threads/{thread_id}/runs/{run_id}"
        headers = response.headers
        assert headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Accel-Buffering"] == "no"
        assert headers["Connection"] == "keep-alive"
        assert (headers["Location"], headers["Content-Location"]) == (f"{run}/stream", run)
        assert await response.content.readexactly(15) == b": heartbeat\r\n\r\n"
        await stage.perform(run_id, ("values", {"a": "ü"}), values={})
        rest = (await response.read()).replace(b": heartbeat\r\n\r\n", b"")
    assert rest == (
        b'event: metadata\r\ndata: {"run_id":"%s","attempt":1}\r\n\r\n'
        b'event: values\r\ndata: {"a":"\xc3\xbc"}\r\n\r\n' % run_id.encode()
    )


async def test_the_row_is_settled_before_the_stream_closes(client, stage) -> None:
    thread_id = await client.thread()
    async with client.stream("POST", f"/threads/{thread_id}/runs/stream", body()) as stream:
        run_id = await stage.next_message()
        await stage.perform(run_id, values={})
        await stream.rest()
        run = (await client.get(f"/threads/{thread_id}/runs/{run_id}")).json
        assert run["status"] == "success"


async def test_a_failure_is_one_error_frame_and_the_last(client, stage) -> None:
    thread_id = await client.thread()
    async with client.stream("POST", f"/threads/{thread_id}/runs/stream", body()) as stream:
        run_id = await stage.next_message()
        await stage.claim(run_id)
        await stage.emit(run_id, "metadata", {})
        await stage.settle(run_id, FAIL, error=ERROR)
        frames = await stream.rest()
    assert [(frame.event, frame.data) for frame in frames[1:]] == [("error", ERROR)]


async def test_a_cancelled_run_just_closes(client, stage) -> None:
    thread_id = await client.thread()
    async with client.stream("POST", f"/threads/{thread_id}/runs/stream", body()) as stream:
        run_id = await stage.next_message()
        await stage.claim(run_id)
        await stage.emit(run_id, "metadata", {})
        assert (await stream.frame()).event == "metadata"
        await stage.settle(run_id, INTERRUPT, {}, action=CancelAction.INTERRUPT)
        assert await stream.rest() == []


async def test_only_resumable_runs_have_event_ids(client, stage) -> None:
    for resumable in (True, False):
        thread_id = await client.thread()
        start = body(stream_resumable=resumable)
        async with client.stream("POST", f"/threads/{thread_id}/runs/stream", start) as stream:
            run_id = await stage.next_message()
            await stage.perform(run_id, ("values", 1), ("values", 2), values={})
            frames = await stream.rest()
        assert all((frame.id is not None) is resumable for frame in frames)
        assert len({frame.id for frame in frames}) == (3 if resumable else 1)


async def test_heartbeats_come_steadily_also_between_events(client, stage) -> None:
    async with client.stream("POST", "/runs/stream", body()) as stream:
        run_id = await stage.next_message()
        await stage.claim(run_id)
        for number in range(5):
            await stage.emit(run_id, "values", number)
            beat = await stream.any_frame()
            while beat.comment is None:
                beat = await stream.any_frame()
            assert beat.comment == "heartbeat"


@pytest.mark.parametrize("resumable", [True, False])
async def test_joining_a_run_that_goes_on(client, stage, resumable) -> None:
    thread_id = await client.thread()
    run_id = (await client.run(thread_id, stream_resumable=resumable))["run_id"]
    await stage.claim(run_id)
    first = await stage.emit(run_id, "values", 1)
    await stage.emit(run_id, "values", 2)
    path = f"/threads/{thread_id}/runs/{run_id}/stream"

    seen: dict[str, list] = {}

    async def read(name: str, **headers) -> None:
        async with client.stream("GET", path, **headers) as stream:
            seen[name] = []
            while (frame := await stream.frame()) is not None:
                seen[name].append(frame.data)

    readers = [
        asyncio.create_task(read("none")),
        asyncio.create_task(read("-1", Last_Event_ID="-1")),
        asyncio.create_task(read("0", Last_Event_ID="0")),
        asyncio.create_task(read("first", Last_Event_ID=first)),
        asyncio.create_task(read("garbage", Last_Event_ID="garbage")),
    ]
    last = 2
    # A live reader begins when Redis was asked where the stream ends, of which there is no sign.
    while len(seen) < len(readers) or not all(seen.values()):
        last += 1
        await stage.emit(run_id, "values", last)
    await stage.settle(run_id, values={})
    await asyncio.gather(*readers)
    everything = list(range(1, last + 1))
    assert (seen["-1"], seen["0"], seen["first"]) == (everything, everything, everything[1:])
    for live in (seen["none"], seen["garbage"]):
        assert live[0] >= 3
        assert live == everything[-len(live) :]


async def test_joining_a_pending_run_misses_nothing(client, stage) -> None:
    thread_id = await client.thread()
    run_id = (await client.run(thread_id))["run_id"]
    async with client.stream("GET", f"/runs/{run_id}/stream") as stream:
        await stage.perform(run_id, ("values", 1), values={})
        assert await names(stream) == ["metadata", "values"]


async def test_joining_a_run_that_is_over(client, stage) -> None:
    for resumable, expected in ((True, [1, 2]), (False, [])):
        thread_id = await client.thread()
        run_id = (await client.run(thread_id, stream_resumable=resumable))["run_id"]
        await stage.claim(run_id)
        first = await stage.emit(run_id, "metadata", {})
        await stage.emit(run_id, "values", 1)
        await stage.emit(run_id, "values", 2)
        await stage.settle(run_id, values={})
        path = f"/threads/{thread_id}/runs/{run_id}/stream"
        for headers, wanted in (
            ({}, []),
            ({"Last_Event_ID": "garbage"}, []),
            ({"Last_Event_ID": first}, expected),
            ({"Last_Event_ID": "-1"}, [{}, *expected] if resumable else []),
        ):
            async with client.stream("GET", path, **headers) as stream:
                assert [frame.data for frame in await stream.rest()] == wanted


async def test_rejoining_after_the_log_is_lost_ends_with_the_true_status(client, stage) -> None:
    thread_id = await client.thread()
    run_id = (await client.run(thread_id, stream_resumable=True))["run_id"]
    await stage.claim(run_id)
    await stage.emit(run_id, "values", {})
    await stage.settle(run_id, values={}, events=1)
    await stage.redis.flushdb()
    path = f"/threads/{thread_id}/runs/{run_id}"
    async with client.stream("GET", f"{path}/stream", Last_Event_ID="-1") as stream:
        (gap,) = await stream.rest()
        assert (gap.event, gap.data) == ("callboard/gap", {"missed": 1})
    async with client.stream("GET", f"{path}/stream") as stream:  # what comes from now on
        assert await stream.rest() == []
    assert (await client.get(path)).json["status"] == "success"


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("", ["metadata", "values", "updates|a:1", "messages", "messages/partial", "error"]),
        ("?stream_mode=values", ["values", "error"]),
        ("?stream_mode=values&stream_mode=updates", ["values", "updates|a:1", "error"]),
        ("?stream_mode=values,updates", ["values", "updates|a:1", "error"]),
        ("?stream_mode=[%22values%22,%22updates%22]", ["values", "updates|a:1", "error"]),
        ("?stream_mode=messages-tuple", ["messages", "messages/partial", "error"]),
        ("?stream_mode=messages", ["messages", "messages/partial", "error"]),
        ("?stream_mode=custom", ["error"]),
    ],
)
async def test_stream_mode_filters_events(client, stage, query, wanted) -> None:
    thread_id = await client.thread()
    run_id = (await client.run(thread_id))["run_id"]
    path = f"/threads/{thread_id}/runs/{run_id}/stream{query}"
    async with client.stream("GET", path) as stream:
        await stage.claim(run_id)
        for name in ("metadata", "values", "updates|a:1", "messages", "messages/partial"):
            await stage.emit(run_id, name, {})
        await stage.settle(run_id, FAIL, error=ERROR)
        assert await names(stream) == wanted


async def test_a_bad_stream_mode_list_is_422(client) -> None:
    run = await client.run(await client.thread())
    assert (await client.get(f"/runs/{run['run_id']}/stream?stream_mode=[x")).status == 422


@pytest.mark.parametrize(
    ("method", "kind", "how", "stops"),
    [
        ("POST", "stream", {"on_disconnect": "cancel"}, True),
        ("POST", "wait", {"on_disconnect": "cancel"}, True),
        ("POST", "stream", {}, False),
        ("POST", "wait", {"on_disconnect": "continue"}, False),
        ("GET", "stream", "?cancel_on_disconnect=true", True),
        ("GET", "join", "?cancel_on_disconnect=1", True),
        ("GET", "stream", "", False),
        ("GET", "join", "?cancel_on_disconnect=0", False),
    ],
)
async def test_leaving_stops_a_run_only_if_so_asked(
    client, stage, method, kind, how, stops
) -> None:
    thread_id = await client.thread()
    if method == "POST":
        path, content = f"/threads/{thread_id}/runs/{kind}", orjson.dumps(body(**how))
    else:
        run = await client.run(thread_id)
        path, content = f"/threads/{thread_id}/runs/{run['run_id']}/{kind}{how}", None
    async with client.session.request(method, client.url + path, data=content) as response:
        run_id = await stage.next_message()
        await stage.claim(run_id)
        await response.content.readexactly(1)
        response.close()
    async with stage.cancels() as heard:
        # The wish is in the row; telling the worker may have come before we listened.
        async with asyncio.timeout(60):
            while stops and not await _stop_wished(stage, run_id):
                await asyncio.sleep(0.01)
        if not stops:
            # Something that is told to workers after the disconnect was seen.
            other = await client.run(await client.thread())
            await stage.claim(other["run_id"])
            await client.ask("POST", f"/threads/{other['thread_id']}/runs/{other['run_id']}/cancel")
            assert await heard() == other["run_id"]
            assert not await _stop_wished(stage, run_id)


async def _stop_wished(stage, run_id) -> bool:
    row = await stage.database.fetch_one(
        "SELECT cancel_action FROM runs WHERE run_id = %s", [run_id]
    )
    return row["cancel_action"] == "interrupt"


@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_who_does_not_read_is_dropped_and_comes_back_without_loss(
    house, stage, version: str
) -> None:
    client = await house.gateway(slow_client_timeout_seconds=0.3)
    thread_id = await client.thread()
    run_id = (await client.run(thread_id, stream_resumable=True))["run_id"]
    await stage.claim(run_id)
    parts = urlsplit(client.url)
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.connect((parts.hostname, parts.port))
    path = f"/threads/{thread_id}/runs/{run_id}/stream"
    big = "x" * 500_000
    with capture_logs() as logs:  # not reading
        request = f"GET {path} HTTP/{version}\r\nHost: x\r\nLast-Event-ID: -1\r\n\r\n"
        reader.sendall(request.encode())
        for _ in range(20):
            await stage.emit(run_id, "values", big)
        await stage.settle(run_id, values={})
        async with asyncio.timeout(60):
            while "client does not read: line cut" not in {line["event"] for line in logs}:
                await asyncio.sleep(0.01)
    reader.setblocking(False)
    received, loop = bytearray(), asyncio.get_running_loop()

    async def read_on() -> None:
        while data := await loop.sock_recv(reader, 65536):
            received.extend(data)

    with pytest.raises(ConnectionResetError), reader:  # an end would look whole in HTTP/1.0
        await read_on()
    assert len(received) < 2_000_000, "the kernel held more for one client than it should"
    assert not received.endswith(b"0\r\n\r\n"), "cut, but marked as complete"
    async with client.stream("GET", path, Last_Event_ID="-1") as stream:
        assert len(await stream.rest()) == 20


async def test_a_sign_of_life_tears_no_event_apart(house, stage) -> None:
    """A client that stops in the middle of a great event, for many heartbeats, reads it whole."""
    client = await house.gateway(stream_heartbeat_seconds=0.05)
    thread_id = await client.thread()
    run_id = (await client.run(thread_id, stream_resumable=True))["run_id"]
    await stage.perform(run_id, ("values", "x" * 8_000_000), values={})
    path = f"/threads/{thread_id}/runs/{run_id}/stream"
    async with client.stream("GET", path, Last_Event_ID="-1") as stream:
        assert (await stream.frame()).event == "metadata"
        await asyncio.sleep(0.5)  # not reading
        text = await stream.response.content.read()
    torn = b": heartbeat\r\n\r\n"
    event = text.replace(torn, b"") if text.startswith(torn) else text
    assert b"x" * 8_000_000 in event


async def test_stopping_cuts_streams_and_waits_but_not_runs(house, stage) -> None:
    client, stop = await house.stoppable(gateway_shutdown_seconds=30)
    thread_id = await client.thread()
    run_id = (await client.run(thread_id, stream_resumable=True))["run_id"]
    await stage.claim(run_id)
    first = await stage.emit(run_id, "values", 1)
    path = f"/threads/{thread_id}/runs/{run_id}"
    options = "?cancel_on_disconnect=true"
    async with client.stream("GET", f"{path}/stream{options}", Last_Event_ID="-1") as stream:
        assert (await stream.frame()).data == 1
        async with client.session.get(f"{client.url}{path}/join{options}") as waiting:
            await waiting.content.readexactly(1)
            stopping = asyncio.create_task(stop())
            # Cut, not ended: a client that believed in an end might miss the rest of the run.
            with pytest.raises(aiohttp.ClientError):
                await stream.rest()
            with pytest.raises(aiohttp.ClientError):
                await waiting.read()
            async with asyncio.timeout(20):
                await stopping
    assert not await _stop_wished(stage, run_id)
    other = await house.gateway()
    async with other.stream("GET", f"{path}/stream", Last_Event_ID=first) as stream:
        await stage.emit(run_id, "values", 2)
        await stage.settle(run_id, values={})
        assert [frame.data for frame in await stream.rest()] == [2]


@pytest.mark.parametrize("what", ["stream", "join"])
async def test_a_cut_is_seen_in_answers_of_http_1_0_too(house, stage, what: str) -> None:
    """There the end of the line is the end of an answer; so do proxies ask that know no better."""
    client, stop = await house.stoppable(gateway_shutdown_seconds=30)
    thread_id = await client.thread()
    run_id = (await client.run(thread_id, stream_resumable=True))["run_id"]
    await stage.claim(run_id)
    parts = urlsplit(client.url)
    request = f"GET /threads/{thread_id}/runs/{run_id}/{what} HTTP/1.0\r\nHost: x\r\n\r\n".encode()
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(request)
    await reader.readuntil(b"\r\n\r\n")
    stopping = asyncio.create_task(stop())
    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()
    await stopping
    await stage.settle(run_id, values={"a": 1})
    parts = urlsplit((await house.gateway()).url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(request)
    assert b" 200 OK" in await reader.read()  # to its end
    writer.close()


async def test_a_stale_attempt_is_not_seen(client, stage) -> None:
    thread_id = await client.thread()
    run_id = (await client.run(thread_id))["run_id"]
    async with client.stream("GET", f"/runs/{run_id}/stream") as stream:
        await stage.claim(run_id)
        await stage.emit(run_id, "metadata", {"attempt": 1})
        assert (await stream.frame()).data == {"attempt": 1}
        await runs.crash(stage.database, (await _row(stage, run_id)), 1, "killed", 3)
        await stage.claim(run_id)
        stage.seq[run_id] = 0
        await stage.emit(run_id, "metadata", {"attempt": 2}, attempt=2)
        stage.seq[run_id] = 1
        await stage.emit(run_id, "values", "late", attempt=1)
        await stage.settle(run_id, values={}, attempt=2)
        assert [frame.data for frame in await stream.rest()] == [{"attempt": 2}]


async def _row(stage, run_id):
    row = await stage.database.fetch_one("SELECT run_id FROM runs WHERE run_id = %s", [run_id])
    return row["run_id"]

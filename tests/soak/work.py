"""What clients do all the time: each function is one piece of work, from its request to its end.

A piece of work asserts what its client may rely on whatever is broken meanwhile. Who is cut off
comes back, as an SDK or a careful program does.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from langgraph_sdk.client import LangGraphClient

from tests.soak.ledger import Ledger

_PAUSE_SECONDS = 0.2
RETRIES = 3
"""``BG_JOB_MAX_RETRIES``, at its default."""


@dataclass
class Client:
    """One client: it does one thing after the other."""

    sdk: LangGraphClient
    http: httpx.AsyncClient
    draw: random.Random
    ledger: Ledger
    folder: Path
    kind: str = ""
    """The work that it is at."""

    def accepted(self, run: Any) -> str:
        """Notes a run that was answered with 2xx."""
        self.ledger.accept(run["run_id"], self.kind)
        return str(run["run_id"])

    def script(self, *steps: list[Any]) -> dict[str, Any]:
        """Arguments for a run of the scriptable graph, whose steps note that they were begun."""
        given = {"script": list(steps), "log": str(self.folder / "side-effects")}
        return {"assistant_id": "script", "input": given, "durability": "sync"}

    async def thread(self) -> str:
        return str((await self.sdk.threads.create())["thread_id"])

    async def run(self, thread: str, *steps: list[Any], **given: Any) -> str:
        return self.accepted(await self.sdk.runs.create(thread, **self.script(*steps), **given))

    async def disturbed(self, error: httpx.HTTPError) -> None:
        """What a client may meet, and tries again after: a cut line, and 503 that says when."""
        match error:
            case httpx.HTTPStatusError(response=response):
                if response.status_code != 503 or "retry-after" not in response.headers:
                    raise error
                self.ledger.disturbed(self.kind, "503")
            case _:
                self.ledger.disturbed(self.kind, f"cut ({type(error).__name__})")
        await asyncio.sleep(_PAUSE_SECONDS)

    async def end_of(self, thread: str, run_id: str) -> str:
        """Waits for a run's end, whatever cuts the wait; returns its status."""
        while True:
            try:
                await self.sdk.runs.join(thread, run_id)
            except httpx.HTTPError as error:
                await self.disturbed(error)
            else:
                return str((await self.asked(f"/threads/{thread}/runs/{run_id}"))["status"])

    async def asked(self, path: str) -> Any:
        """What a path answers, asked until it does."""
        while True:
            try:
                answer = await self.http.get(path)
                answer.raise_for_status()
                return answer.json()
            except httpx.HTTPError as error:
                await self.disturbed(error)

    async def events(
        self, thread: str, run_id: str, patience: Callable[[], int]
    ) -> list[tuple[str, str, Any]]:
        """All events of a run as (id, name, data): the connection is left after ``patience()``
        events and taken up again behind the last one, as often as it takes."""
        seen: list[tuple[str, str, Any]] = []
        path = f"/threads/{thread}/runs/{run_id}"
        while True:
            last = next((place for place, _, _ in reversed(seen) if place), "-1")
            left = patience()
            try:
                async with self.http.stream(
                    "GET", f"{path}/stream", headers={"Last-Event-ID": last}
                ) as answer:
                    answer.raise_for_status()
                    async for event in _parsed(answer):
                        seen.append(event)
                        left -= 1
                        if not left:
                            break
                    else:
                        break
            except httpx.HTTPError as error:
                await self.disturbed(error)
        status = (await self.asked(path))["status"]
        assert status not in ("pending", "running"), f"the stream of a {status} run ended"
        return seen


async def _parsed(answer: httpx.Response) -> AsyncIterator[tuple[str, str, Any]]:
    fields: dict[str, str] = {}
    async for line in answer.aiter_lines():
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.strip()
        elif "event" in fields:
            data = fields.get("data") or "null"
            yield fields.get("id", ""), fields["event"], json.loads(data)
            fields = {}


def _told(client: Client, events: list[tuple[str, str, Any]], parts: list[int]) -> None:
    """The stream told all that steps of such lengths tick, or says itself that it is not whole."""
    ticks = [data["tick"] for _, name, data in events if name == "custom"]
    others = {name for _, name, _ in events} - {"custom", "metadata"}
    for name in others:
        client.ledger.meet(client.kind, name)
    assert others or _whole(ticks, parts), f"of {parts}: {ticks[:100]}"


async def short(client: Client) -> None:
    """A stateless run by plain HTTP."""
    question = str(client.draw.random())
    answer = await client.http.post(
        "/runs/wait", json={"assistant_id": "echo", "input": {"question": question}}
    )
    answer.raise_for_status()
    client.accepted({"run_id": answer.headers["content-location"].rsplit("/", 1)[1]})
    assert answer.json() == {"question": question}, answer.text


async def waited(client: Client) -> None:
    result = await client.sdk.runs.wait(
        await client.thread(),
        **client.script(["sleep", 0.2], ["block", 0.2]),
        on_run_created=client.accepted,
        raise_error=False,
    )
    assert _given_up(result) or result.get("done") == ["0:sleep", "1:block"], result


def _given_up(result: Any) -> bool:
    return RETRIES > 0 and "__error__" in result and "died" in result["__error__"]["message"]


async def streamed(client: Client) -> None:
    """A resumable stream by the SDK, which comes back by itself."""
    events: list[tuple[str, str, Any]] = []
    async for part in client.sdk.runs.stream(
        await client.thread(),
        **client.script(["tick", [20, 0.02]], ["sleep", 0.1], ["tick", [20, 0.02]]),
        stream_mode="custom",
        stream_resumable=True,
        on_run_created=client.accepted,
    ):
        events.append((part.id or "", part.event, part.data))
    _told(client, events, [20, 20])


def _whole(ticks: list[int], parts: list[int]) -> bool:
    """Whether the ticks are all that steps of such lengths tell, some of them more than once."""
    told: list[list[int]] = []
    for tick in ticks:
        if tick == 0:
            told.append([])
        if not told or tick != len(told[-1]):
            return False
        told[-1].append(tick)
    whole = [len(one) for one in told if len(one) in parts]
    return len(whole) >= len(parts) and len(told[-1]) == parts[-1]


async def joined(client: Client) -> None:
    """Background work, read in pieces over many connections."""
    thread = await client.thread()
    run_id = await client.run(
        thread, ["tick", [60, 0.02]], stream_mode="custom", stream_resumable=True
    )
    events = await client.events(thread, run_id, lambda: client.draw.randint(1, 40))
    places = [place for place, _, _ in events if place]
    assert len(places) == len(set(places)), f"an event came twice: {places}"
    _told(client, events, [60])


async def cancelled(client: Client) -> None:
    """Work that would take for ever, of several makes, is stopped."""
    endless = client.draw.choice(
        [["sleep", 600], ["block", 20], ["spin", 20], ["stubborn", 20], ["tick", [10_000, 0.05]]]
    )
    thread = await client.thread()
    run_id = await client.run(thread, endless)
    if client.draw.random() < 0.5:
        await client.http.get(f"/threads/{thread}/runs/{run_id}")
    wait = client.draw.random() < 0.5
    while True:
        try:
            await client.sdk.runs.cancel(thread, run_id, wait=wait)
            break
        except httpx.HTTPError as error:
            if isinstance(error, httpx.HTTPStatusError) and error.response.status_code == 404:
                break  # asked before and cut off: it has been stopped
            await client.disturbed(error)
    assert await client.end_of(thread, run_id) in ("interrupted", "error")


async def enqueued(client: Client) -> None:
    """Runs of one thread, which are executed one after the other."""
    thread = await client.thread()
    line = [
        await client.run(thread, ["sleep", 0.05], multitask_strategy="enqueue") for _ in range(4)
    ]
    client.ledger.lines.append(line)
    for run_id in reversed(line):
        await client.end_of(thread, run_id)


async def resumed(client: Client) -> None:
    """A question, and the answer to it."""
    thread = await client.thread()
    asking = client.accepted(await client.sdk.runs.create(thread, "ask", input={"question": "?"}))
    if await client.end_of(thread, asking) == "error":
        return
    resume = await client.sdk.runs.create(thread, "ask", command={"resume": "yes"})
    if await client.end_of(thread, client.accepted(resume)) == "success":
        values = (await client.asked(f"/threads/{thread}/state"))["values"]
        assert values["answer"] == "yes", values


async def burning(client: Client) -> None:
    """Python that computes, code that keeps the interpreter, and a loop that is held up."""
    step = client.draw.choice([["spin", 0.3], ["gil", 21], ["ablock", 0.4], ["aspin", 0.3]])
    thread = await client.thread()
    await client.end_of(thread, await client.run(thread, step))


async def large(client: Client) -> None:
    """States and events of a megabyte."""
    thread = await client.thread()
    run_id = await client.run(thread, ["blob", 1_000_000], ["big", 1_000_000], ["sleep", 0])
    if await client.end_of(thread, run_id) == "success":
        state = await client.asked(f"/threads/{thread}/state")
        assert len(state["values"]["blob"]) == 1_000_000
    await client.http.delete(f"/threads/{thread}")


async def flooding(client: Client) -> None:
    """More events than a reader keeps up with."""
    thread = await client.thread()
    run_id = await client.run(thread, ["flood", 3000], stream_mode="custom", stream_resumable=True)
    events = await client.events(thread, run_id, lambda: 10_000)
    _told(client, events, [3000])


async def raising(client: Client) -> None:
    strange = client.draw.choice([["raise", "no"], ["strange", "unspeakable"], ["exit", 3]])
    thread = await client.thread()
    assert await client.end_of(thread, await client.run(thread, strange)) == "error"


async def crashing_once(client: Client) -> None:
    """Takes its process with it, and succeeds when it is tried again."""
    marker = client.folder / f"crashed-{client.draw.random()}"
    death = client.draw.choice([["kill", "SIGKILL"], ["_exit", 1], ["kill", "SIGSEGV"]])
    thread = await client.thread()
    await client.end_of(
        thread, await client.run(thread, ["sleep", 0], ["once", [str(marker), death]])
    )


async def crashing(client: Client) -> None:
    """Takes its process with it, each time."""
    thread = await client.thread()
    run_id = await client.run(thread, ["kill", "SIGKILL"])
    assert await client.end_of(thread, run_id) == "error"


async def left(client: Client) -> None:
    """The client leaves in the middle of a stream; the run is stopped, or goes on."""
    thread = await client.thread()
    async for _ in client.sdk.runs.stream(
        thread,
        **client.script(["tick", [100, 0.02]]),
        stream_mode="custom",
        on_disconnect=client.draw.choice(["cancel", "continue"]),
        on_run_created=client.accepted,
    ):
        if client.draw.random() < 0.1:
            break


async def later(client: Client) -> None:
    thread = await client.thread()
    run_id = await client.run(thread, ["sleep", 0], after_seconds=client.draw.choice([1, 2]))
    await client.end_of(thread, run_id)


async def superseded(client: Client) -> None:
    """A second run stops the first one of its thread."""
    thread = await client.thread()
    await client.run(thread, ["sleep", 600])
    second = await client.run(thread, ["sleep", 0], multitask_strategy="interrupt")
    await client.end_of(thread, second)


async def read(client: Client) -> None:
    """What user interfaces ask for."""
    for thread in await client.sdk.threads.search(limit=5):
        for path in ("state", "history", "runs"):
            answer = await client.http.get(f"/threads/{thread['thread_id']}/{path}")
            if answer.status_code != 404:  # it has been deleted meanwhile
                answer.raise_for_status()


Work = Callable[[Client], Awaitable[None]]

CALM: dict[Work, int] = {
    short: 6,
    waited: 4,
    streamed: 4,
    joined: 4,
    enqueued: 3,
    resumed: 3,
    burning: 2,
    large: 1,
    flooding: 1,
    raising: 1,
    left: 1,
    later: 1,
    superseded: 1,
    read: 3,
}
"""How often each kind of work is chosen. Under it no process need die."""

STORMY: dict[Work, int] = {**CALM, cancelled: 2, crashing_once: 1, crashing: 1}

ENDS: dict[Work, set[str]] = {
    cancelled: {"interrupted"},
    raising: {"error"},
    crashing: {"error"},
    left: {"success", "interrupted"},
    superseded: {"success", "interrupted"},
}
"""The statuses in which the runs of a kind of work may end; those not named here succeed."""

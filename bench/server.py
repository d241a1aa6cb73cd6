"""Scenarios against a running server. It has to serve ``bench/graphs/langgraph.json``.

The client mostly shares the machine with the server, so it is kept lean: see http.py.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from bench.figures import milliseconds
from bench.http import Connection, UnexpectedAnswer

Rows = list[tuple[str, str]]

BURN_RUNS = 16
BURN_SECONDS = 0.5
PROBE_SECONDS = 5.0
STUCK = {
    "endless loop in a thread": {"what": "loop", "on_loop": False},
    "endless loop on the loop": {"what": "loop", "on_loop": True},
    "time.sleep in a thread": {"what": "sleep", "on_loop": False},
    "time.sleep on the loop": {"what": "sleep", "on_loop": True},
    "regex that keeps the GIL in a thread": {"what": "regex", "on_loop": False},
    "regex that keeps the GIL on the loop": {"what": "regex", "on_loop": True},
}
STUCK_SECONDS = 2.0
"""How long a run is stuck before somebody cancels it; by then its worker has noticed."""
SCENARIO_SECONDS = 600.0
"""A scenario that takes longer has met a server that hangs."""


class ScenarioFailed(Exception):
    """The server did not do what the scenario measures, so there is no figure."""


@dataclass(frozen=True, slots=True)
class Target:
    """The server under measurement, and how much to ask of it."""

    url: str
    api_key: str | None
    runs: int
    concurrency: int
    samples: int
    cores: int


async def measure(target: Target, only: list[str]) -> None:
    """Runs the scenarios one after the other and prints their figures."""
    try:
        async with connect(target) as connection:
            await wait_run(connection, "trivial", {"n": 0})  # graphs are loaded now
    except (OSError, UnexpectedAnswer) as error:
        raise SystemExit(
            f"{target.url}: expected a server that serves bench/graphs/langgraph.json, got {error}"
        ) from None
    for name in only:
        async with asyncio.timeout(SCENARIO_SECONDS):
            rows = await SCENARIOS[name](target)
        for label, figure in rows:
            print(f"{label:<44} {figure}", flush=True)


async def idle(target: Target) -> Rows:
    """One run at a time on an idle server: from the request to the first event, and to the end."""
    first, last = [], []
    request = {"assistant_id": "trivial", "input": {"n": 0}}
    async with connect(target) as connection:
        for _ in range(target.samples):
            await asyncio.sleep(0.05)  # let workers fall asleep again: that is what idle means
            started = time.perf_counter()
            begun, seen = 0.0, b""
            async for part in connection.stream("POST", "/runs/stream", request):
                seen += part
                if not begun and b"\ndata: " in seen:
                    begun = time.perf_counter()
            first.append(begun - started)
            last.append(time.perf_counter() - started)
            if not seen.startswith(b"event: metadata") or b'"n":3' not in seen:
                raise ScenarioFailed(f"unexpected stream: {seen[-300:]!r}")
    return [
        ("idle: submit to first event", milliseconds(first)),
        ("idle: submit to end of stream", milliseconds(last)),
    ]


async def ends(target: Target) -> Rows:
    """From the end of a run's last node to the answer of who waits, and of who joins.

    By the wall clock of this machine: the server has to be on it.
    """
    waited, joined = [], []
    request = {"assistant_id": "clock", "input": {"seconds": 0.1, "ended_at": 0.0}}
    async with connect(target) as connection:
        for _ in range(target.samples // 2):
            answer = await connection.request("POST", "/runs/wait", request)
            waited.append(time.time() - json.loads(answer)["ended_at"])
            thread = json.loads(await connection.request("POST", "/threads", {}))["thread_id"]
            run = await connection.request("POST", f"/threads/{thread}/runs", request)
            path = f"/threads/{thread}/runs/{json.loads(run)['run_id']}/join"
            answer = await connection.request("GET", path)
            joined.append(time.time() - json.loads(answer)["ended_at"])
    return [
        ("end: last node to the answer of wait", milliseconds(waited)),
        ("end: last node to the answer of join", milliseconds(joined)),
    ]


async def throughput(target: Target) -> Rows:
    """Stateless runs, waited for, as many at a time as the concurrency says."""
    left = iter(range(target.runs))
    took: list[float] = []

    async def client() -> None:
        async with connect(target) as connection:
            for _ in left:
                started = time.perf_counter()
                await wait_run(connection, "trivial", {"n": 0})
                took.append(time.perf_counter() - started)

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(target.concurrency)))
    rate = target.runs / (time.perf_counter() - started)
    return [
        (f"throughput at concurrency {target.concurrency}", f"{rate:.1f} runs/s"),
        ("throughput: a run takes", milliseconds(took)),
    ]


async def burning(target: Target) -> Rows:
    """``GET /ok`` on an idle server, and while all graph processes burn CPU."""
    before = await probe(target, time.perf_counter() + PROBE_SECONDS)
    busy = [asyncio.create_task(burn(target, PROBE_SECONDS)) for _ in range(2 * target.cores)]
    await asyncio.sleep(0.5)  # until they burn
    during = await probe(target, time.perf_counter() + PROBE_SECONDS)
    if any(task.done() for task in busy):
        raise ScenarioFailed("the runs ended before the measurement did")
    await asyncio.gather(*busy)
    return [
        ("GET /ok, idle", milliseconds(before)),
        (f"GET /ok, {2 * target.cores} runs burning CPU", milliseconds(during)),
    ]


async def share(target: Target) -> Rows:
    """Sixteen runs at once that need half a second of CPU each."""
    started = time.perf_counter()
    await asyncio.gather(*(burn(target, BURN_SECONDS) for _ in range(BURN_RUNS)))
    took = time.perf_counter() - started
    used = BURN_RUNS * BURN_SECONDS / (took * target.cores)
    return [
        (
            f"share of {target.cores} cores for {BURN_RUNS} x {BURN_SECONDS} s of CPU",
            f"{100 * used:.0f} %   {took:.2f} s",
        )
    ]


async def cancel(target: Target) -> Rows:
    """From the request to cancel a run that does not come back to the answer that it has ended."""
    rows = []
    for label, given in STUCK.items():
        took = [await _cancel_stuck(target, given) for _ in range(max(1, target.samples // 20))]
        rows.append((f"cancel: {label}", milliseconds(took)))
    return rows


async def _cancel_stuck(target: Target, given: dict[str, Any]) -> float:
    request = {"assistant_id": "stuck", "input": given, "stream_mode": "updates"}
    async with connect(target) as connection, connect(target) as other:
        thread = json.loads(await other.request("POST", "/threads", {}))["thread_id"]
        stream = connection.stream("POST", f"/threads/{thread}/runs/stream", request)
        seen = b""
        async for part in stream:
            seen += part
            if b'"begin"' in seen:
                break
        await asyncio.sleep(STUCK_SECONDS)
        (run,) = json.loads(await other.request("GET", f"/threads/{thread}/runs"))
        path = f"/threads/{thread}/runs/{run['run_id']}"
        started = time.perf_counter()
        await other.request("POST", f"{path}/cancel?wait=true", {})
        took = time.perf_counter() - started
        if (run := json.loads(await other.request("GET", path)))["status"] != "interrupted":
            raise ScenarioFailed(f"the run was not stopped: {run}")
        return took


SCENARIOS: dict[str, Callable[[Target], Awaitable[Rows]]] = {
    "idle": idle,
    "ends": ends,
    "throughput": throughput,
    "burning": burning,
    "share": share,
    "cancel": cancel,
}


def connect(target: Target) -> Connection:
    """A connection of one client."""
    return Connection(target.url, target.api_key)


async def wait_run(connection: Connection, graph_id: str, given: dict[str, Any]) -> None:
    """A stateless run, to its end. Raises ScenarioFailed if it fails."""
    answer = await connection.request(
        "POST", "/runs/wait", {"assistant_id": graph_id, "input": given}
    )
    if not isinstance(output := json.loads(answer), dict) or "__error__" in output:
        raise ScenarioFailed(f"{graph_id}: {output}")


async def burn(target: Target, seconds: float) -> None:
    """A run that needs so much CPU, for a client of its own."""
    async with connect(target) as connection:
        await wait_run(connection, "burn", {"seconds": seconds})


async def probe(target: Target, until: float) -> list[float]:
    """Latencies in seconds of ``GET /ok``, fifty a second at most."""
    took = []
    async with connect(target) as connection:
        while time.perf_counter() < until:
            started = time.perf_counter()
            await connection.request("GET", "/ok")
            took.append(time.perf_counter() - started)
            await asyncio.sleep(0.02)
    return took

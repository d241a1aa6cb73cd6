"""Scenarios against a running server. It has to serve ``bench/graphs/langgraph.json``.

Plain HTTP on purpose: the client shares the machine with the server in most setups, and a leaner
client takes less of what it measures.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx

from bench.figures import milliseconds

Rows = list[tuple[str, str]]

BURN_RUNS = 16
BURN_SECONDS = 0.5
PROBE_SECONDS = 5.0


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
    headers = {"x-api-key": target.api_key} if target.api_key else {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(
        base_url=target.url, headers=headers, timeout=120, limits=limits
    ) as client:
        await wait_run(client, "trivial", {"n": 0})  # graphs loaded, connections open
        for name in only:
            for label, figure in await SCENARIOS[name](client, target):
                print(f"{label:<44} {figure}", flush=True)


async def idle(client: httpx.AsyncClient, target: Target) -> Rows:
    """One run at a time on an idle server: from the request to the first event, and to the end."""
    first, last = [], []
    for _ in range(target.samples):
        await asyncio.sleep(0.05)  # let workers fall asleep again: that is what idle means
        started = time.perf_counter()
        seen = b""
        async with client.stream(
            "POST", "/runs/stream", json={"assistant_id": "trivial", "input": {"n": 0}}
        ) as response:
            response.raise_for_status()
            begun = False
            async for chunk in response.aiter_bytes():
                seen += chunk
                if not begun and b"\ndata: " in seen:
                    first.append(time.perf_counter() - started)
                    begun = True
        last.append(time.perf_counter() - started)
        if not seen.startswith(b"event: metadata") or b'"n":3' not in seen:
            raise ScenarioFailed(f"unexpected stream: {seen[-300:]!r}")
    return [
        ("idle: submit to first event", milliseconds(first)),
        ("idle: submit to end of stream", milliseconds(last)),
    ]


async def throughput(client: httpx.AsyncClient, target: Target) -> Rows:
    """Stateless runs, waited for, as many at a time as the concurrency says."""
    left = iter(range(target.runs))
    took: list[float] = []

    async def client_of_its_own() -> None:
        for _ in left:
            started = time.perf_counter()
            await wait_run(client, "trivial", {"n": 0})
            took.append(time.perf_counter() - started)

    started = time.perf_counter()
    await asyncio.gather(*(client_of_its_own() for _ in range(target.concurrency)))
    rate = target.runs / (time.perf_counter() - started)
    return [
        (f"throughput at concurrency {target.concurrency}", f"{rate:.1f} runs/s"),
        ("throughput: a run takes", milliseconds(took)),
    ]


async def burning(client: httpx.AsyncClient, target: Target) -> Rows:
    """``GET /ok`` on an idle server, and while all graph processes burn CPU."""
    before = await probe(client, time.perf_counter() + PROBE_SECONDS)
    busy = [
        asyncio.create_task(wait_run(client, "burn", {"seconds": PROBE_SECONDS}))
        for _ in range(2 * target.cores)
    ]
    await asyncio.sleep(0.5)  # until they burn
    during = await probe(client, time.perf_counter() + PROBE_SECONDS)
    if any(task.done() for task in busy):
        raise ScenarioFailed("the runs ended before the measurement did")
    await asyncio.gather(*busy)
    return [
        ("GET /ok, idle", milliseconds(before)),
        (f"GET /ok, {2 * target.cores} runs burning CPU", milliseconds(during)),
    ]


async def share(client: httpx.AsyncClient, target: Target) -> Rows:
    """Sixteen runs at once that need half a second of CPU each."""
    started = time.perf_counter()
    await asyncio.gather(
        *(wait_run(client, "burn", {"seconds": BURN_SECONDS}) for _ in range(BURN_RUNS))
    )
    took = time.perf_counter() - started
    used = BURN_RUNS * BURN_SECONDS / (took * target.cores)
    return [
        (
            f"share of {target.cores} cores for {BURN_RUNS} x {BURN_SECONDS} s of CPU",
            f"{100 * used:.0f} %   {took:.2f} s",
        )
    ]


SCENARIOS: dict[str, Callable[[httpx.AsyncClient, Target], Awaitable[Rows]]] = {
    "idle": idle,
    "throughput": throughput,
    "burning": burning,
    "share": share,
}


async def wait_run(client: httpx.AsyncClient, graph_id: str, given: dict[str, Any]) -> None:
    """A stateless run, to its end. Raises ScenarioFailed if it fails."""
    response = await client.post("/runs/wait", json={"assistant_id": graph_id, "input": given})
    response.raise_for_status()
    if not isinstance(output := response.json(), dict) or "__error__" in output:
        raise ScenarioFailed(f"{graph_id}: {output}")


async def probe(client: httpx.AsyncClient, until: float) -> list[float]:
    """Latencies in seconds of ``GET /ok``, fifty a second at most."""
    took = []
    while time.perf_counter() < until:
        started = time.perf_counter()
        (await client.get("/ok")).raise_for_status()
        took.append(time.perf_counter() - started)
        await asyncio.sleep(0.02)
    return took

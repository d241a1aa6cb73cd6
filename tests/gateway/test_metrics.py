"""What /metrics counts, in both its forms, and that gateways which share a port tell their sum."""

import asyncio
import os
import re
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson

from gateway.http_options import HttpOptions
from persistence import runs
from tests.gateway.conftest import Answer, Client, House, Stage
from tests.gateway.test_auth import access


def counted(answer: Answer) -> dict[tuple[str, str, int], int]:
    rows = answer.json["api"]["http_requests_total"]
    return {(row["method"], row["path"], row["status"]): row["count"] for row in rows}


async def test_requests_are_counted_by_route(client: Client) -> None:
    thread_id = await client.thread()
    for _ in range(2):
        await client.get(f"/threads/{thread_id}")
    await client.get(f"/threads/{uuid4()}")
    await client.get("/nope/1")
    await client.ask("PROPFIND", "/nope/2")
    rows = counted(await client.get("/metrics?format=json"))
    assert rows == {
        ("POST", "/threads", 200): 1,
        ("GET", "/threads/{thread_id}", 200): 2,
        ("GET", "/threads/{thread_id}", 404): 1,
        ("GET", "other", 404): 1,
        ("other", "other", 404): 1,
    }
    text = (await client.get("/metrics")).body.decode()
    assert (
        'lg_api_http_requests_total{method="GET",path="/threads/{thread_id}",status="200"} 2.0'
    ) in text
    assert (
        'lg_api_http_requests_latency_count{method="GET",path="/threads/{thread_id}"} 3.0'
    ) in text
    assert "process_resident_memory_bytes" in text


async def test_queue_and_workers_are_told(house: House, stage: Stage) -> None:
    client = await house.gateway()
    busy = await client.thread()
    running = await client.run(busy)
    await client.run(busy)
    await client.run(await client.thread())
    await client.run(await client.thread(), after_seconds=3600)
    await stage.claim(running["run_id"])
    await runs.heartbeat(stage.database, "host/1/boot", 4, 3, [], 30)
    told = (await client.get("/metrics?format=json")).json
    assert set(told) == {"queue", "api", "workers"}
    queue = told["queue"]
    assert (queue.pop("n_pending"), queue.pop("n_running")) == (3, 1)
    assert (
        queue["pending_runs_wait_time_max_secs"]
        >= queue["pending_runs_wait_time_med_secs"]
        >= queue["pending_unblocked_runs_wait_time_max_secs"]
        > 0
    )
    assert len(queue) == 3
    assert told["workers"] == {"max": 4, "active": 1, "available": 3}
    answer = await client.get("/metrics?format=bogus")
    assert answer.headers["Content-Type"].startswith("text/plain; version=")
    lines = answer.body.decode().splitlines()
    assert {
        "lg_api_workers_max 4.0",
        "lg_api_workers_active 1.0",
        "lg_api_workers_available 3.0",
        "lg_api_num_pending_runs 3.0",
        "lg_api_num_running_runs 1.0",
    } <= set(lines)


async def test_postgres_is_asked_once_for_many_scrapes(house: House, stage: Stage) -> None:
    client = await house.gateway()
    await runs.heartbeat(stage.database, "host/1/boot", 4, 3, [], 30)
    first = await client.get("/metrics?format=json")
    await runs.heartbeat(stage.database, "host/1/boot", 4, 0, [], 30)
    second = await client.get("/metrics?format=json")
    assert first.json["workers"] == second.json["workers"]


async def test_without_a_database_the_rest_is_told(house: House) -> None:
    house.database_url = house.database_url.replace("/test_", "/gone_")
    client = await house.gateway()
    await client.get("/ok")
    text = await client.get("/metrics")
    assert text.status == 200
    assert b"lg_api_http_requests_total" in text.body
    assert b"lg_api_workers_max" not in text.body
    told = (await client.get("/metrics?format=json")).json
    assert told["workers"] == {"max": None, "active": None, "available": None}


async def test_everybody_may_ask_unless_it_is_switched_off(house: House) -> None:
    def nobody() -> Any:
        raise AssertionError("nobody is known here")

    client = await house.gateway(access=access(nobody), http=HttpOptions(mount_prefix="/api"))
    assert (await client.get("/metrics")).status == 200
    assert (await client.get("/api/metrics")).status == 200
    client = await house.gateway(http=HttpOptions(disable_meta=True))
    assert (await client.get("/metrics")).status == 404


_PROCESS = """
import asyncio, json, sys
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from gateway.metrics import Metrics

async def main():
    metrics = Metrics()
    app = web.Application(middlewares=[metrics.count])
    async with TestClient(TestServer(app)) as client:
        for _ in range(int(sys.argv[1])):
            await client.get("/nope")
    print(json.dumps([metrics.requests(), metrics.text(None).decode()]))

asyncio.run(main())
"""


async def test_gateways_that_share_a_folder_tell_their_sum(tmp_path: Path) -> None:
    async def process(requests: int) -> Any:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _PROCESS, str(requests)),
            env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "metrics")},
            cwd=Path(__file__).parents[2],
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await child.communicate()
        assert child.returncode == 0
        return orjson.loads(out)

    await process(2)
    requests, text = await process(3)
    assert [row["count"] for row in requests] == [5]
    [total] = re.findall(r"lg_api_http_requests_total\{.*\} (\S+)", text)
    assert float(total) == 5


def test_the_gateways_of_one_start_share_a_folder() -> None:
    text = (Path(__file__).parents[2] / "supervisord.conf").read_text()
    gateway = text.partition("[program:gateway]")[2].partition("[program:")[0]
    assert 'environment=PROMETHEUS_MULTIPROC_DIR="%(ENV_CALLBOARD_RUN)s/metrics"' in gateway
    assert text.count("PROMETHEUS_MULTIPROC_DIR=") == 1, "graphs have metrics of their own"

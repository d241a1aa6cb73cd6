"""LangGraph's stock Postgres saver against the batching one, interleaved on one database.

Each round runs both, and the round's ratio is what counts: on a machine with other work the
absolute figures drift, the ratio of two neighbours in time does not.
"""

import asyncio
import operator
import statistics
import time
import uuid
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Durability
from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool

from actors.child.saver import BatchingSaver
from bench.database import fresh_database
from bench.figures import table

SaverFor = Callable[[uuid.UUID], BaseCheckpointSaver[str]]


class State(TypedDict):
    """What the trivial graph counts and notes."""

    n: int
    log: Annotated[list[str], operator.add]


async def _step(state: State) -> dict[str, Any]:
    return {"n": state["n"] + 1, "log": ["a step"]}


def _trivial() -> StateGraph[State]:
    graph = StateGraph(State)
    for before, name in ((START, "a"), ("a", "b"), ("b", "c")):
        graph.add_node(name, _step)
        graph.add_edge(before, name)
    return graph


async def measure(
    database_url: str, *, rounds: int, runs: int, concurrency: int, durability: Durability
) -> None:
    """Prints runs a second, CPU of this process per run, and the ratios, round by round."""
    with fresh_database(database_url) as url:
        pool: AsyncConnectionPool[AsyncConnection[DictRow]] = AsyncConnectionPool(
            url,
            min_size=4,
            max_size=8,
            open=False,
            kwargs={"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row},
        )
        async with pool:
            stock, batching = AsyncPostgresSaver(pool), BatchingSaver(pool)
            savers: dict[str, SaverFor] = {
                "stock": lambda _: stock,
                "batching": lambda run_id: batching.for_run(run_id, 1),
            }
            for saver_for in savers.values():  # statements prepared, code warm
                await _round(pool, saver_for, 2 * concurrency, concurrency, durability)
            lines = [("round", "stock runs/s", "CPU ms", "batching runs/s", "CPU ms", "faster")]
            ratios, savings = [], []
            for number in range(1, rounds + 1):
                rates, costs = zip(
                    *[
                        await _round(pool, saver_for, runs, concurrency, durability)
                        for saver_for in savers.values()
                    ],
                    strict=True,
                )
                ratios.append(rates[1] / rates[0])
                savings.append(costs[0] / costs[1])
                lines.append(
                    (
                        str(number),
                        f"{rates[0]:.1f}",
                        f"{costs[0]:.2f}",
                        f"{rates[1]:.1f}",
                        f"{costs[1]:.2f}",
                        f"{ratios[-1]:.2f} x",
                    )
                )
            await batching.aclose()
    print(table(lines))
    print(
        f"\ndurability {durability}, concurrency {concurrency}: batching is"
        f" {statistics.median(ratios):.2f} x as fast ({min(ratios):.2f} to {max(ratios):.2f})"
        f" with 1/{statistics.median(savings):.2f} of the CPU"
    )


async def _round(
    pool: AsyncConnectionPool[Any],
    saver_for: SaverFor,
    runs: int,
    concurrency: int,
    durability: Durability,
) -> tuple[float, float]:
    """Runs a second, and CPU milliseconds of this process per run."""
    graph = _trivial()
    left = iter(await _claimed_runs(pool, runs))

    async def slot() -> None:
        for run_id in left:
            app = graph.compile(checkpointer=saver_for(run_id))
            async for _ in app.astream(
                {"n": 0, "log": []},
                {"configurable": {"thread_id": str(run_id)}},
                stream_mode=["values", "updates"],
                durability=durability,
            ):
                pass

    started, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(slot() for _ in range(concurrency)))
    return runs / (time.perf_counter() - started), 1000 * (time.process_time() - cpu) / runs


async def _claimed_runs(pool: AsyncConnectionPool[Any], count: int) -> list[uuid.UUID]:
    """Rows of runs in their first attempt, each on a thread of the same id."""
    ids = [uuid.uuid4() for _ in range(count)]
    async with pool.connection() as connection:
        await connection.execute("INSERT INTO threads (thread_id) SELECT unnest(%s::uuid[])", [ids])
        await connection.execute(
            """INSERT INTO runs (run_id, thread_id, assistant_id, graph_id, status, kwargs,
            multitask_strategy, attempt, claimed_by, lease_expires_at, started_at)
            SELECT id, id, id, 'trivial', 'running', '{}', 'enqueue', 1, 'bench/1/1',
            clock_timestamp() + interval '1 hour', clock_timestamp()
            FROM unnest(%s::uuid[]) AS id""",
            [ids],
        )
    return ids

"""Searches over more and more threads: a page should cost the same however many there are.

Threads have states of some 4 KB, which Postgres keeps outside the row: a search that does not
select ``values`` must not read them. Metadata is as clients write it: a user, a graph, a nested
object. One thread in fifty does not rest.
"""

import re
import statistics
import time
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles

from bench.database import fresh_database
from bench.figures import table
from persistence import threads
from persistence.engine import Database
from persistence.lifecycle import ThreadStatus
from persistence.settings import DatabaseSettings

USERS = 500

# Random, so that it neither compresses nor fits into the row.
_FILL = """
INSERT INTO threads (thread_id, status, metadata, config, "values", interrupts, created_at,
    updated_at, state_updated_at)
SELECT gen_random_uuid(),
    CASE n %% 50 WHEN 7 THEN (ARRAY['busy', 'error', 'interrupted'])[1 + n %% 3] ELSE 'idle' END,
    jsonb_build_object('user', 'u' || n %% %(users)s, 'graph_id', 'agent',
        'nested', jsonb_build_object('a', n %% 7, 'b', n)),
    '{"configurable": {}}',
    jsonb_build_object('messages', (
        SELECT jsonb_agg(md5(random()::text)) FROM generate_series(1, 110) WHERE n > 0)),
    '{}',
    clock_timestamp() - make_interval(secs => n),
    clock_timestamp() - make_interval(secs => (n * 7919) %% 100003),
    clock_timestamp() - make_interval(secs => (n * 6007) %% 100003)
FROM generate_series(%(first)s::int, %(last)s::int) n
"""

_SHORT = ("thread_id", "status", "metadata", "created_at", "updated_at")

Search = Mapping[str, Any]

SEARCHES: dict[str, Search] = {
    "first 10, whole": {"limit": 10},
    "first 1,000, selected": {"limit": 1000, "select": _SHORT},
    "1,000 from the middle": {"limit": 1000, "offset": 0.5, "select": _SHORT},
    "1,000 at the end": {"limit": 1000, "offset": 1.0, "select": _SHORT},
    "10 at the end, whole": {"limit": 10, "offset": 1.0},
    "by created_at": {"limit": 1000, "sort_by": "created_at", "select": _SHORT},
    "by state_updated_at": {"limit": 1000, "sort_by": "state_updated_at", "select": _SHORT},
    "by status": {"limit": 1000, "sort_by": "status", "select": _SHORT},
    "busy": {"limit": 10, "status": ThreadStatus.BUSY, "select": _SHORT},
    "idle": {"limit": 1000, "status": ThreadStatus.IDLE, "select": _SHORT},
    "of a user": {"limit": 100, "metadata": {"user": "u3"}, "select": _SHORT},
    "of a graph": {"limit": 1000, "metadata": {"graph_id": "agent"}, "select": _SHORT},
    "one, by nested metadata": {"limit": 10, "metadata": {"nested": {"b": 500}}},
    "of nobody": {"limit": 10, "metadata": {"user": "nobody"}},
}


class _Recorder(Database):
    """Remembers the statement that was read with last."""

    last: Any = None

    async def fetch_all(self, statement: Any, params: Any = None) -> list[Any]:
        self.last = statement
        return await super().fetch_all(statement, params)


class _Explain(sa.Executable, sa.ClauseElement):
    """EXPLAIN of a statement, as a statement."""

    inherit_cache = False

    def __init__(self, statement: sa.Select[Any]) -> None:
        self.statement = statement


@compiles(_Explain)
def _compile(element: _Explain, compiler: Any, **options: Any) -> str:
    return "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) " + compiler.process(
        element.statement, **options
    )


async def measure(database_url: str, *, sizes: list[int], samples: int, explain: bool) -> None:
    """Prints milliseconds by search and number of threads, and how many pages were touched."""
    with fresh_database(database_url) as url:
        database = _Recorder(DatabaseSettings(url=url))
        await database.open()
        try:
            columns = [await _at(database, size, sizes, samples) for size in sizes]
            counted = [await _count(database) for _ in range(samples)]
            if explain:
                for name, search in SEARCHES.items():
                    print(f"\n{name}\n" + "\n".join(await _plan(database, search, sizes[-1])))
                print()
        finally:
            await database.close()
    head = ("ms (pages touched)", *(f"{size:,} threads" for size in sizes))
    print(table([head, *([name, *(column[name] for column in columns)] for name in SEARCHES)]))
    print(f"count of all {sizes[-1]:,}: {1000 * statistics.median(counted):.1f} ms")


async def _at(database: _Recorder, size: int, sizes: list[int], samples: int) -> dict[str, str]:
    there = max((smaller for smaller in sizes if smaller < size), default=0)
    for first in range(there + 1, size + 1, 5000):
        last = min(first + 4999, size)
        await database.execute(_FILL, {"users": USERS, "first": first, "last": last})
    await database.execute("VACUUM ANALYZE threads")
    figures = {}
    for name, search in SEARCHES.items():
        times = [await _time(database, search, size) for _ in range(samples)]
        pages = _pages(await _plan(database, search, size))
        figures[name] = f"{1000 * statistics.median(times):.1f} ({pages:,})"
    return figures


async def _time(database: Database, search: Search, size: int) -> float:
    started = time.perf_counter()
    await threads.search(database, **_placed(search, size))
    return time.perf_counter() - started


async def _count(database: Database) -> float:
    started = time.perf_counter()
    await threads.count(database)
    return time.perf_counter() - started


def _placed(search: Search, size: int) -> dict[str, Any]:
    """The search with its offset, which is said as a share of all threads."""
    offset = int(search.get("offset", 0) * size)
    return {**search, "offset": max(0, min(offset, size - search["limit"]))}


async def _plan(database: _Recorder, search: Search, size: int) -> list[str]:
    await threads.search(database, **_placed(search, size))
    return [row["QUERY PLAN"] for row in await database.fetch_all(_Explain(database.last))]


def _pages(plan: list[str]) -> int:
    """Pages of 8 KB that the whole statement touched, in memory or not."""
    [buffers, *_] = [line for line in plan if "Buffers: shared" in line]
    shared = buffers.partition("shared")[2].partition(",")[0]
    return sum(map(int, re.findall(r"(?:hit|read)=(\d+)", shared)))

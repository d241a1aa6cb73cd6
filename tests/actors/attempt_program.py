"""A process that executes one attempt and may be killed in it: ``python attempt_program.py JSON``.

The argument: ``{"database_url", "graph", "start": fields of Start}``. Prints the result's end.
"""

import asyncio
import json
import sys

from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from actors.child import runner
from actors.child.saver import BatchingSaver
from tests.graphs.runner import shapes


async def main() -> None:
    """Executes the attempt."""
    order = json.loads(sys.argv[1])

    async def emit(name: str, data: bytes) -> None:
        pass

    async with AsyncConnectionPool(
        order["database_url"],
        min_size=1,
        open=False,
        kwargs={"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row},
    ) as pool:
        saver = BatchingSaver(pool)
        graph = getattr(shapes, order["graph"]).copy({"checkpointer": None})
        result = await runner.run(runner.Start(**order["start"]), graph, saver, None, emit)
        await saver.aclose()
        print(result.end)


if __name__ == "__main__":
    asyncio.run(main())

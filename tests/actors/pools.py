"""What tests ask of a connection pool."""

import asyncio
from typing import Any

from psycopg_pool import AsyncConnectionPool


async def returned(pool: AsyncConnectionPool[Any]) -> None:
    """Returns when nobody holds a connection of the pool.

    One that is still being opened counts as held: the pool grows in the background.
    """
    async with asyncio.timeout(30):
        while (stats := pool.get_stats())["pool_available"] != stats["pool_size"]:
            await asyncio.sleep(0.01)

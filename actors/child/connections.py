"""The connections to Postgres of whoever executes graphs."""

import asyncio
from typing import Any

from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

_CHECK_SECONDS = 5.0
"""A connection that does not answer an empty statement for so long is replaced: behind a proxy that
lost its server nobody says that the line is dead, and TCP sees only the proxy."""


def pool(
    database_url: str, max_size: int, *, prepare_threshold: int | None
) -> AsyncConnectionPool[Any]:
    """A pool, closed as yet. What the URL says itself about time limits is kept."""
    limits: dict[str, str | int | None] = {
        "connect_timeout": 5,
        "tcp_user_timeout": 20_000,  # ms: a peer that vanished is noticed before the lease is over
        "keepalives_idle": 15,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "application_name": "callboard-graphs",
    }
    conninfo = make_conninfo("", **{**limits, **conninfo_to_dict(database_url)})
    return AsyncConnectionPool(
        conninfo,
        min_size=1,
        max_size=max_size,
        open=False,
        timeout=30.0,
        max_lifetime=1800.0,
        check=_check,
        kwargs={
            "autocommit": True,
            "prepare_threshold": prepare_threshold,
            "row_factory": dict_row,
        },
    )


async def _check(connection: AsyncConnection[Any]) -> None:
    try:
        async with asyncio.timeout(_CHECK_SECONDS):
            await AsyncConnectionPool.check_connection(connection)
    except TimeoutError:
        await connection.close()
        raise

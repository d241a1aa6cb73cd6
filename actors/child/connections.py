"""The connections to Postgres of whoever executes graphs."""

import asyncio
from typing import Any

from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from actors.child.dead_lines import DeadLines, WatchedConnection

_CHECK_SECONDS = 5.0
"""A connection that does not answer an empty statement for so long is replaced: behind a proxy that
lost its server nobody says that the line is dead, and TCP sees only the proxy."""


_RESTING_SECONDS = 30
"""A transaction that rests for so long is rolled back by the server: nobody may have told it that
our line is dead, and what it has locked would stay so."""


def pool(
    database_url: str, max_size: int, *, prepare_threshold: int | None
) -> AsyncConnectionPool[WatchedConnection]:
    """A pool, closed as yet. What the URL says itself about time limits of TCP is kept."""
    limits: dict[str, str | int | None] = {
        "connect_timeout": 5,
        "tcp_user_timeout": 20_000,  # ms: a peer that vanished is noticed before the lease is over
        "keepalives_idle": 15,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "application_name": "callboard-graphs",
    }
    conninfo = make_conninfo("", **{**limits, **conninfo_to_dict(database_url)})
    return _Pool(conninfo, max_size, prepare_threshold)


class _Pool(AsyncConnectionPool[WatchedConnection]):
    """A pool that watches the lines of its connections while it is open."""

    def __init__(self, conninfo: str, max_size: int, prepare_threshold: int | None) -> None:
        self._lines = DeadLines(conninfo)
        super().__init__(
            conninfo,
            connection_class=WatchedConnection,
            min_size=1,
            max_size=max_size,
            open=False,
            timeout=30.0,
            max_lifetime=1800.0,
            check=_check,
            # Behind a pooler sessions are not ours to configure.
            configure=None if prepare_threshold is None else _configure,
            kwargs={
                "lines": self._lines,
                "autocommit": True,
                "prepare_threshold": prepare_threshold,
                "row_factory": dict_row,
            },
        )

    async def open(self, wait: bool = False, timeout: float = 30.0) -> None:
        """As psycopg's."""
        self._watching = asyncio.create_task(self._lines.run(), name="dead lines")
        await super().open(wait, timeout)

    async def close(self, timeout: float = 5.0) -> None:
        """As psycopg's."""
        await super().close(timeout)
        self._watching.cancel()


async def _configure(connection: AsyncConnection[Any]) -> None:
    await connection.execute(
        "SELECT set_config('idle_in_transaction_session_timeout', %s, false)",
        [f"{_RESTING_SECONDS}s"],
    )


async def _check(connection: AsyncConnection[Any]) -> None:
    try:
        async with asyncio.timeout(_CHECK_SECONDS):
            await AsyncConnectionPool.check_connection(connection)
    except TimeoutError:
        await connection.close()
        raise

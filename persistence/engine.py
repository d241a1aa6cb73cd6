"""The one pool of a process, and the one place where Postgres' failures get our names."""

import asyncio
import select
from collections.abc import AsyncIterator, Container, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from time import monotonic
from typing import Any, Self, TypeVar

import orjson
import psycopg
from psycopg import AsyncConnection, sql
from psycopg.abc import Buffer, PQGen
from psycopg.adapt import AdaptersMap, Dumper
from psycopg.pq import Format
from psycopg.rows import DictRow, dict_row
from psycopg.types.json import set_json_dumps, set_json_loads
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout, TooManyRequests
from sqlalchemy import ClauseElement
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from persistence.errors import Overtaken, Unavailable
from persistence.settings import DatabaseSettings
from persistence.text import clean, clean_json, dumps
from persistence.watch import Watch

Params = Mapping[str, Any] | Sequence[Any] | None
Row = dict[str, Any]
Connection = AsyncConnection[DictRow]
Answer = TypeVar("Answer")

_DIALECT = PGDialect_psycopg()  # type: ignore[no-untyped-call]  # SQLAlchemy leaves it untyped
_CHECK_SECONDS = 5.0
"""A connection that says nothing for so long is given up: behind a proxy that lost its server
nobody says that the line is dead."""
_CHECK_AFTER_IDLE_SECONDS = 1.0
"""A connection that rested longer is asked for a sign of life before it is lent again."""
# An idle session waits for its client, and one in the middle of a message; so does one whose answer
# nobody takes. Behind a pooler numbers are not the server's, not even the one of who asks.
_WORKING = """
SELECT pg_backend_pid() AS own, ARRAY(
    SELECT pid FROM pg_stat_activity
    WHERE pid = ANY(%s) AND wait_event_type IS DISTINCT FROM 'Client'
) AS working
"""
_OUTAGE_TIMEOUT_SECONDS = 0.2
"""How long a caller waits for a connection while the last attempt to get one failed."""


_OVERTAKEN = (
    psycopg.errors.SerializationFailure,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.LockNotAvailable,
)


class JsonText(bytes):
    """A JSON document to be stored as it is; the statement casts it (``%s::jsonb``)."""

    __slots__ = ()


class _JsonTextDumper(Dumper):
    format = Format.TEXT

    def dump(self, obj: JsonText) -> Buffer:
        return clean_json(bytes(obj))


class _TextDumper(Dumper):
    """Strings of unknown type, as psycopg's own, that can always be stored."""

    format = Format.TEXT

    def dump(self, obj: str) -> Buffer:
        try:
            encoded = obj.encode()
        except UnicodeEncodeError:
            return clean(obj).encode()
        return clean(obj).encode() if b"\0" in encoded else encoded


def _adapters() -> AdaptersMap:
    adapters = AdaptersMap(psycopg.adapters)
    adapters.register_dumper(str, _TextDumper)
    adapters.register_dumper(JsonText, _JsonTextDumper)
    return adapters


class _Outage:
    """Whether the last that was heard of the database is a failure to connect, and which."""

    cause: str | None = None


class _Connection(AsyncConnection[DictRow]):
    """A connection under a watch that knows when it was last seen alive, and notes outages."""

    opened_at: float = 0.0
    last_seen: float = 0.0
    _waiting: dict[AsyncConnection[Any], float]
    _line: select.poll

    @classmethod
    async def connect(cls, conninfo: str = "", **kwargs: Any) -> Self:
        outage: _Outage = kwargs.pop("outage")
        watch: Watch = kwargs.pop("watch")
        opened_at = monotonic()
        try:
            connection = await super().connect(conninfo, **kwargs)
        except psycopg.Error as error:
            outage.cause = str(error).strip()
            raise
        outage.cause = None
        connection.opened_at, connection._waiting = opened_at, watch.waiting
        connection._line = select.poll()
        connection._line.register(connection.fileno(), select.POLLIN)
        return connection

    async def wait(self, gen: PQGen[Answer], *args: Any, **kwargs: Any) -> Answer:
        """As psycopg's, and the watch sees who waits, and since when nothing has moved."""
        # A context manager would cost more than the rest of this.
        self._waiting[self] = monotonic()
        try:
            return await super().wait(self._noting(gen), *args, **kwargs)
        finally:
            del self._waiting[self]

    def _noting(self, steps: PQGen[Answer]) -> PQGen[Answer]:
        """The same steps, each of which is told what the line is ready for; 0 for a mere look."""
        try:
            wanted = next(steps)
            while True:
                if ready := (yield wanted):
                    self._waiting[self] = monotonic()
                wanted = steps.send(ready)
        except StopIteration as end:
            answer: Answer = end.value
            return answer

    def has_word(self) -> bool:
        """Whether the server said something while nothing was asked: most often its farewell."""
        return self.closed or bool(self._line.poll(0))


@contextmanager
def _as_unavailable(outage: _Outage) -> Iterator[None]:
    """Turns "not now" into ``Unavailable``; mistakes in statements or data pass through."""
    try:
        yield
    except (PoolTimeout, PoolClosed, TooManyRequests) as error:
        raise Unavailable(f"no database connection: {outage.cause or error}") from error
    except psycopg.errors.ReadOnlySqlTransaction as error:
        raise Unavailable(f"the database is read-only: {error}") from error
    except psycopg.errors.IdleInTransactionSessionTimeout as error:
        raise Unavailable(f"this process was too slow: {error}") from error
    except _OVERTAKEN as error:
        raise Overtaken(str(error)) from error
    except psycopg.OperationalError as error:
        # Class 54, program limit exceeded: this very data is too much, today and tomorrow.
        if (error.sqlstate or "").startswith("54"):
            raise
        raise Unavailable(str(error).strip() or type(error).__name__) from error


def _compiled(statement: str | ClauseElement, params: Params) -> tuple[sql.SQL, Params]:
    if isinstance(statement, str):
        return sql.SQL(statement), params
    compiled = statement.compile(dialect=_DIALECT, compile_kwargs={"render_postcompile": True})
    values: dict[str, Any] = dict(compiled.params)
    if isinstance(params, Mapping):
        values |= params
    return sql.SQL(str(compiled)), values


class Database:
    """Statements over a pool of autocommit connections.

    Every method raises ``Unavailable`` when Postgres cannot be reached or refuses work for now.
    """

    def __init__(self, settings: DatabaseSettings) -> None:
        self.settings = settings
        self.turn = asyncio.Lock()
        """For what goes one at a time over the whole database: who waits for it here holds no
        connection meanwhile."""
        self._replaced_at = 0.0
        self._outage = _Outage()
        self._watch = Watch(
            self._greet, settings.connect_timeout_seconds, settings.statement_timeout_seconds
        )
        self._watching: asyncio.Task[None] | None = None
        unacknowledged = settings.unacknowledged_timeout_seconds
        self._pool: AsyncConnectionPool[_Connection] = AsyncConnectionPool(
            settings.url,
            connection_class=_Connection,
            kwargs={
                "outage": self._outage,
                "watch": self._watch,
                "autocommit": True,
                "row_factory": dict_row,
                "prepare_threshold": settings.prepare_threshold,
                "context": _adapters(),
                "application_name": "callboard",
                "connect_timeout": settings.connect_timeout_seconds,
                # A black-holed socket: data without acknowledgement, then silence while we wait.
                "tcp_user_timeout": int(unacknowledged * 1000),
                "keepalives_idle": max(1, int(unacknowledged / 2)),
                "keepalives_interval": max(1, int(unacknowledged / 6)),
                "keepalives_count": 3,
            },
            min_size=settings.pool_min,
            max_size=settings.pool_max,
            open=False,
            configure=self._configure,
            check=self._check,
            timeout=settings.pool_timeout_seconds,
            max_lifetime=1800,
            # Retries go 1, 2, 4 s apart and then start anew with the next caller: with the pool's
            # own five minutes the last pauses would outlast an outage by a minute.
            reconnect_timeout=8,
            name="callboard",
        )

    async def __aenter__(self) -> Self:
        """Open as long as the block lasts.

        Always close it: a pool takes the cancellation of a connecting task for a failed attempt, so
        a loop that ends by cancelling what is left would wait for an open one without end.
        """
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Starts connecting; does not wait, so a process can start before its database does."""
        await self._pool.open()
        self._watching = asyncio.create_task(self._watch.run(), name="database watch")

    async def close(self) -> None:
        """Closes every connection."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        await self._pool.close()

    @property
    def _sets_limits(self) -> bool:
        """Whether sessions are ours to configure; behind a pooler they may be somebody else's."""
        return self.settings.prepare_threshold is not None

    async def _greet(self, numbers: Sequence[int]) -> Container[int]:
        seconds = self.settings.connect_timeout_seconds
        connection = await AsyncConnection.connect(
            self.settings.url,
            autocommit=True,
            connect_timeout=seconds,
            application_name="callboard",
        )
        async with connection, asyncio.timeout(seconds):
            cursor = await connection.execute(_WORKING, [list(numbers)], prepare=False)
            row = await cursor.fetchone()
            is_direct = row is not None and row[0] == connection.info.backend_pid
            return row[1] if row is not None and is_direct else numbers

    async def _configure(self, connection: _Connection) -> None:
        set_json_dumps(dumps, connection)
        set_json_loads(orjson.loads, connection)
        seconds = self.settings.statement_timeout_seconds
        if seconds and self._sets_limits:
            # The second is for a process that is stopped (SIGSTOP) while it holds a thread's lock.
            await connection.execute(
                "SELECT set_config('statement_timeout', %(ms)s, false),"
                " set_config('idle_in_transaction_session_timeout', %(ms)s, false)",
                {"ms": str(int(seconds * 1000))},
            )
        connection.last_seen = monotonic()

    async def _check(self, connection: _Connection) -> None:
        is_fresh = monotonic() - connection.last_seen <= _CHECK_AFTER_IDLE_SECONDS
        if is_fresh and not connection.has_word():
            return
        try:
            async with asyncio.timeout(_CHECK_SECONDS):
                await AsyncConnectionPool.check_connection(connection)
        except (psycopg.Error, TimeoutError):
            await connection.close()
            await self._lost(connection)
            raise

    async def _lost(self, connection: _Connection) -> None:
        """One lost connection rarely comes alone: replaces all that are as old as this one.

        The pool itself would find them out one by one, with a pause that doubles in between.
        """
        if connection.opened_at > self._replaced_at:
            self._replaced_at = monotonic()
            await self._pool.drain()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Lends an autocommit connection whose rows are dicts."""
        if self._watch.is_frozen:
            raise Unavailable("the database does not answer")
        timeout = self.settings.pool_timeout_seconds
        if self._outage.cause is not None:
            # Nobody is helped by waiting; the pool tries on, and asking is what makes it.
            timeout = min(timeout, _OUTAGE_TIMEOUT_SECONDS)
        with _as_unavailable(self._outage):
            async with self._pool.connection(timeout) as connection:
                try:
                    yield connection
                    self._outage.cause = None  # while one connection works it is no outage
                finally:
                    if connection.closed:
                        await self._lost(connection)
                    connection.last_seen = monotonic()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """Lends a connection inside a transaction: commits at the end, rolls back on an error."""
        async with self.connection() as connection, connection.transaction():
            yield connection

    async def fetch_all(self, statement: str | ClauseElement, params: Params = None) -> list[Row]:
        """Runs one statement (SQL, or SQLAlchemy Core) and returns all its rows."""
        query, values = _compiled(statement, params)
        async with self.connection() as connection:
            return await (await connection.execute(query, values)).fetchall()

    async def fetch_one(self, statement: str | ClauseElement, params: Params = None) -> Row | None:
        """Runs one statement and returns its first row, or None."""
        query, values = _compiled(statement, params)
        async with self.connection() as connection:
            return await (await connection.execute(query, values)).fetchone()

    async def execute(self, statement: str | ClauseElement, params: Params = None) -> int:
        """Runs one statement and returns how many rows it touched."""
        query, values = _compiled(statement, params)
        async with self.connection() as connection:
            return (await connection.execute(query, values)).rowcount

    async def ping(self) -> None:
        """Returns when Postgres answers and takes writes, raises ``Unavailable`` otherwise."""
        row = await self.fetch_one("SELECT pg_is_in_recovery() AS standby")
        if row is None or row["standby"]:
            raise Unavailable("the database is a standby and takes no writes")

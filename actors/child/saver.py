"""LangGraph's Postgres checkpoint saver, batching and fenced, on LangGraph's own tables.

The stock saver takes one lock around each read and write of a process, so all its runs queue for
one fsync after another. Here reads take a connection each, and writes of all runs share flushes
(see checkpoint_writer.py); each put resolves after its own commit, so the durability modes mean
what they mean with the stock saver. Reading is the stock saver's own code, and what either writes
the other reads.

Where the stock saver would lose or refuse a value we store it as a blob instead of inline: strings
with NUL characters (jsonb refuses them), numbers that jsonb changes, and long strings, which inline
are stored again with each checkpoint although they did not change.
"""

import asyncio
import contextvars
import copy
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_serializable_checkpoint_metadata,
)
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from psycopg import AsyncCursor
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool

from actors.child.checkpoint_rows import Fence, Rows, cells, checkpoint_row, cleaned
from actors.child.checkpoint_values import (
    SMALL_BYTES,
    is_moved,
    is_primitive,
    is_small,
    of_whole_task,
)
from actors.child.checkpoint_writer import (
    CONNECTION_WAIT_SECONDS,
    CheckpointWriter,
    Patience,
    Put,
    StaleAttempt,
)
from actors.child.run_config import without_keys

__all__ = ["BatchingSaver", "PutTooLarge", "StaleAttempt"]

T = TypeVar("T")
Told = Callable[[], Awaitable[None]]

HEAVY_BYTES = 256 * 1024
"""Larger puts go through a writer of their own, so that nobody else's wait for their transfer."""
MAX_PUT_BYTES = 512 * 1024 * 1024
"""The most that one put may store: Postgres cuts the connection at 1 GB in one message."""


class PutTooLarge(Exception):
    """What one step wants to store is more than Postgres takes; the message says how much."""


class BatchingSaver(AsyncPostgresSaver):
    """The checkpoint saver of a graph process: made once, on the event loop, for all its runs.

    Used as it is it writes unfenced; a run gets its own view from ``for_run``. ``patience_seconds``
    bounds how long reads and puts outlive an outage of the database before its error reaches the
    graph. At most about ``max_queued_bytes`` of serialized puts wait for a flush, in each of two
    writers (one for small, one for large puts); beyond that, puts wait.
    """

    def __init__(
        self,
        pool: AsyncConnectionPool[Any],
        *,
        serde: SerializerProtocol | None = None,
        patience_seconds: float = 30.0,
        max_queued_bytes: int = 64 * 1024 * 1024,
        max_flush_bytes: int = 8 * 1024 * 1024,
    ) -> None:
        super().__init__(conn=pool, serde=serde)
        self._pool = pool
        self._patience = Patience(patience_seconds)
        self._light, self._heavy = (
            CheckpointWriter(
                pool,
                self._patience,
                max_queued_bytes=max_queued_bytes,
                max_flush_bytes=max_flush_bytes,
            )
            for _ in range(2)
        )
        # Not the loop's default executor: there, sync nodes of neighbours may occupy every thread.
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="checkpoints")
        self._one_at_a_time = asyncio.Semaphore(1)
        self._fence: Fence | None = None
        self._told: Told | None = None
        self._unsettled: set[asyncio.Future[None]] | None = None
        self._kept: dict[tuple[str, str, str], Any] = {}
        self._secret_keys: frozenset[str] = frozenset()

    def for_run(
        self,
        run_id: uuid.UUID | str,
        attempt: int,
        told: Told | None = None,
        secret_keys: frozenset[str] = frozenset(),
    ) -> "BatchingSaver":
        """The saver of one attempt: writes only while that attempt owns its run.

        told: awaited before anything is written. It returns when what the run has said so far
        cannot be lost: a step that is stored is never executed again, so nobody says it again.
        secret_keys: of ``configurable``, which LangGraph would store with each checkpoint.
        A refused write raises StaleAttempt. Reads see every put of this view that was begun before
        them, also with durability "async", where LangGraph does not wait for its puts.
        """
        view = copy.copy(self)
        view._fence = Fence(uuid.UUID(str(run_id)), attempt)
        view._told = told
        view._secret_keys = secret_keys
        view._unsettled = set()
        view._kept = {}
        return view

    def unfenced(self) -> "BatchingSaver":
        """The saver for writes that belong to no run: a client's change of state."""
        view = copy.copy(self)
        view._fence = view._told = view._unsettled = None
        view._kept = {}
        return view

    async def aclose(self) -> None:
        """Waits until all puts are stored or failed; later ones are refused. Closes no pool."""
        await asyncio.gather(self._light.aclose(), self._heavy.aclose())
        self._threads.shutdown(wait=False)

    # Writing.

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Stores a checkpoint; returns when it is committed.

        Raises StaleAttempt, PutTooLarge, or what the database says of this checkpoint.
        """
        configurable = config["configurable"]
        thread_id, checkpoint_ns = configurable["thread_id"], configurable["checkpoint_ns"]
        stored = without_keys(config, self._secret_keys)
        inline, blobs, versions = self._split(
            str(thread_id), checkpoint_ns, checkpoint, new_versions
        )

        def serialize() -> Rows:
            return Rows(
                checkpoints=[
                    checkpoint_row(
                        str(thread_id),
                        checkpoint_ns,
                        checkpoint["id"],
                        configurable.get("checkpoint_id"),
                        {**checkpoint, "channel_values": inline},
                        get_serializable_checkpoint_metadata(stored, metadata),
                    )
                ],
                blobs=[
                    cells(row)
                    for row in self._dump_blobs(str(thread_id), checkpoint_ns, blobs, versions)
                ],
            )

        await self._store(serialize, (blobs[channel] for channel in versions))
        for channel, version in versions.items():
            if is_moved(blobs[channel]):
                self._kept[str(thread_id), checkpoint_ns, channel] = version
        return {
            "configurable": {
                "thread_id": thread_id,
                "checkpoint_ns": checkpoint_ns,
                "checkpoint_id": checkpoint["id"],
            }
        }

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Stores what a task wrote; returns when it is committed. Raises as ``aput`` does."""
        configurable, writes = config["configurable"], of_whole_task(writes)

        def serialize() -> Rows:
            return Rows(
                writes=[
                    cells(row)
                    for row in self._dump_writes(
                        str(configurable["thread_id"]),
                        configurable["checkpoint_ns"],
                        configurable["checkpoint_id"],
                        task_id,
                        task_path,
                        writes,
                    )
                ],
                overwrite=all(channel in WRITES_IDX_MAP for channel, _ in writes),
            )

        await self._store(serialize, (value for _, value in writes))

    def _split(
        self,
        thread_id: str,
        checkpoint_ns: str,
        checkpoint: Checkpoint,
        new_versions: ChannelVersions,
    ) -> tuple[dict[str, Any], dict[str, Any], ChannelVersions]:
        """The channel values that go inline, those that go in blobs, and the blobs to write now.

        A blob is written when its channel changed. One that the stock saver would have kept inline
        is also written when we cannot know that it is there already: the thread may be older.
        """
        inline: dict[str, Any] = {}
        blobs: dict[str, Any] = {}
        to_write: ChannelVersions = {}
        for channel, value in checkpoint["channel_values"].items():
            version = checkpoint["channel_versions"].get(channel)
            moved = is_moved(value)
            if is_primitive(value) and not (moved and version is not None):
                inline[channel] = value
                continue
            blobs[channel] = value
            if isinstance(value, _DeltaSnapshot):
                inline[channel] = True  # LangGraph's mark of a snapshot
            if channel in new_versions:
                to_write[channel] = new_versions[channel]
            elif moved and self._kept.get((thread_id, checkpoint_ns, channel)) != version:
                to_write[channel] = cast("str", version)
        return inline, blobs, to_write

    async def _store(self, serialize: Callable[[], Rows], values: Iterable[Any]) -> None:
        """Serializes, queues, and waits for the commit."""
        settled: asyncio.Future[None] | None = None
        if self._unsettled is not None:
            settled = self.loop.create_future()
            self._unsettled.add(settled)
        try:
            if is_small(values):
                rows = serialize()
                await self._until_told()
                put = await self._enqueued(rows)
            else:
                # Not while it has its turn: other runs' events may be written long before.
                await self._until_told()
                async with self._one_at_a_time:
                    put = await self._enqueued(await self._in_thread(serialize))
            await put.stored
        finally:
            if settled is not None and self._unsettled is not None:
                self._unsettled.discard(settled)
                settled.set_result(None)

    async def _until_told(self) -> None:
        if self._told is not None:
            await self._told()

    async def _enqueued(self, rows: Rows) -> Put:
        size = rows.size
        if size > MAX_PUT_BYTES:
            raise PutTooLarge(
                f"one step's changes take {size} bytes to store; the limit is {MAX_PUT_BYTES}"
            )
        put = Put(self._fence, rows, size)
        await (self._heavy if size > HEAVY_BYTES else self._light).enqueue(put)
        return put

    async def _in_thread(self, work: Callable[[], T]) -> T:
        context = contextvars.copy_context()
        return await self.loop.run_in_executor(self._threads, context.run, work)

    # Reading: the stock saver's code, each on a connection of its own and through short outages.

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that ``config`` names, or its thread's latest; None if there is none."""
        await self._settle()
        return await self._patience.see_through(
            lambda: super(BatchingSaver, self).aget_tuple(config)
        )

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Checkpoints that match, newest first. The caller's slowness holds no connection."""
        await self._settle()

        async def read() -> list[CheckpointTuple]:
            found = super(BatchingSaver, self).alist(
                config, filter=cleaned(filter), before=before, limit=limit
            )
            return [checkpoint async for checkpoint in found]

        for checkpoint in await self._patience.see_through(read):
            yield checkpoint

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What the ancestors of a checkpoint wrote to ``channels``, as the stock saver has it."""
        await self._settle()
        return await self._patience.see_through(
            lambda: super(BatchingSaver, self).aget_delta_channel_history(
                config=config, channels=channels
            )
        )

    async def _settle(self) -> None:
        """Waits for this view's puts begun so far: the stock saver's lock orders reads so, too."""
        if self._unsettled:
            await asyncio.wait(set(self._unsettled))

    async def _load_checkpoint_tuple(self, value: DictRow) -> CheckpointTuple:
        """As the stock saver's, which always hops to a thread for writes and never for blobs."""
        blobs = value["channel_values"] or ()
        writes = value["pending_writes"] or ()
        size = sum(len(blob or b"") for _, _, blob in blobs) + sum(len(row[3]) for row in writes)

        def load() -> CheckpointTuple:
            stored = value["checkpoint"]
            parent = value["parent_checkpoint_id"]
            place = {"thread_id": value["thread_id"], "checkpoint_ns": value["checkpoint_ns"]}
            return CheckpointTuple(
                {"configurable": {**place, "checkpoint_id": value["checkpoint_id"]}},
                cast(
                    "Checkpoint",
                    {
                        **stored,
                        "channel_values": {
                            **(stored.get("channel_values") or {}),
                            **self._load_blobs(list(blobs)),
                        },
                    },
                ),
                value["metadata"],
                {"configurable": {**place, "checkpoint_id": parent}} if parent else None,
                self._load_writes(list(writes)),
            )

        return load() if size <= SMALL_BYTES else await self._in_thread(load)

    @asynccontextmanager
    async def _cursor(self, *, pipeline: bool = False) -> AsyncIterator[AsyncCursor[DictRow]]:
        """A cursor on a connection of its own; ``pipeline`` asks for a transaction."""
        async with self._pool.connection(timeout=CONNECTION_WAIT_SECONDS) as connection:
            cursor = connection.cursor(binary=True, row_factory=dict_row)
            if pipeline:
                async with connection.transaction():
                    yield cursor
            else:
                yield cursor

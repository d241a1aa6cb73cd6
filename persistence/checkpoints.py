"""LangGraph's checkpoint tables: set up by LangGraph itself, cleaned up by us.

``checkpoints``        one row a checkpoint; ``metadata->>'run_id'`` names the run that wrote it, or
                       ``before_run_id`` the one before whose input it ended a stopped step
``checkpoint_blobs``   channel values by (thread, namespace, channel, version), shared
``checkpoint_writes``  what tasks wrote on top of a checkpoint
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

import psycopg
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg import AsyncConnection, Connection
from psycopg.rows import DictRow

from persistence.engine import Database
from persistence.errors import HistoryNeeded, Overtaken

_PRUNE_RETRIES = 5
"""What is deleted on a snapshot may be gone by then; a new snapshot does not show it."""


def set_up(connection: Connection[DictRow]) -> None:
    """Creates or upgrades the tables. The caller holds the lock.

    connection: in autocommit mode, for ``CREATE INDEX CONCURRENTLY``.
    """
    PostgresSaver(connection).setup()


def is_current(connection: Connection[DictRow]) -> bool:
    """Whether the tables are there, in the version that the installed package wants."""
    found = connection.execute("SELECT max(v) AS version FROM checkpoint_migrations").fetchone()
    return found == {"version": len(PostgresSaver.MIGRATIONS) - 1}


_DELETE_CHECKPOINTS_OF_RUNS = """
DELETE FROM checkpoints
WHERE thread_id = %(thread_id)s
  AND coalesce(metadata->>'run_id', metadata->>'before_run_id') = ANY(%(run_ids)s)
RETURNING checkpoint_ns, checkpoint_id, checkpoint->'channel_versions' AS versions
"""

_DELETE_WRITES = """
DELETE FROM checkpoint_writes w
USING unnest(%(namespaces)s::text[], %(checkpoint_ids)s::text[])
    AS gone (checkpoint_ns, checkpoint_id)
WHERE w.thread_id = %(thread_id)s
  AND w.checkpoint_ns = gone.checkpoint_ns AND w.checkpoint_id = gone.checkpoint_id
"""

# A blob is shared by all checkpoints whose channel_versions name it, so only those go that a
# deleted checkpoint named and no remaining one does. EXCEPT hashes both sides: asking for each blob
# whether some checkpoint still names it would be quadratic in the length of the thread.
_DELETE_BLOBS = """
DELETE FROM checkpoint_blobs b
USING (
    SELECT gone.checkpoint_ns, v.key AS channel, v.value AS version
    FROM unnest(%(namespaces)s::text[], %(versions)s::jsonb[]) AS gone (checkpoint_ns, versions),
         jsonb_each_text(gone.versions) AS v
    EXCEPT
    SELECT c.checkpoint_ns, v.key, v.value
    FROM checkpoints c, jsonb_each_text(c.checkpoint->'channel_versions') AS v
    WHERE c.thread_id = %(thread_id)s
) AS orphan
WHERE b.thread_id = %(thread_id)s
  AND b.checkpoint_ns = orphan.checkpoint_ns
  AND b.channel = orphan.channel
  AND b.version = orphan.version
"""


async def delete_of_runs(
    connection: AsyncConnection[DictRow], thread_id: UUID, run_ids: Sequence[UUID]
) -> int:
    """Removes exactly what the runs wrote, inside the caller's transaction; returns how many."""
    cursor = await connection.execute(
        _DELETE_CHECKPOINTS_OF_RUNS,
        {"thread_id": str(thread_id), "run_ids": [str(run_id) for run_id in run_ids]},
    )
    gone = await cursor.fetchall()
    if not gone:
        return 0
    params = {
        "thread_id": str(thread_id),
        "namespaces": [row["checkpoint_ns"] for row in gone],
        "checkpoint_ids": [row["checkpoint_id"] for row in gone],
        "versions": [psycopg.types.json.Jsonb(row["versions"] or {}) for row in gone],
    }
    await connection.execute(_DELETE_WRITES, params)
    await connection.execute(_DELETE_BLOBS, params)
    return len(gone)


async def delete_of_threads(
    connection: AsyncConnection[DictRow], thread_ids: Sequence[UUID]
) -> None:
    """Removes everything LangGraph keeps of the threads, inside the caller's transaction."""
    ids = [str(thread_id) for thread_id in thread_ids]
    await connection.execute("DELETE FROM checkpoints WHERE thread_id = ANY(%s)", [ids])
    await connection.execute("DELETE FROM checkpoint_blobs WHERE thread_id = ANY(%s)", [ids])
    await connection.execute("DELETE FROM checkpoint_writes WHERE thread_id = ANY(%s)", [ids])


async def copy_thread(connection: AsyncConnection[DictRow], source: UUID, target: UUID) -> None:
    """Copies a thread's whole history, ids and all, inside the caller's transaction."""
    params = {"source": str(source), "target": str(target)}
    await connection.execute(
        """INSERT INTO checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id,
            type, checkpoint, metadata)
        SELECT %(target)s, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint,
            CASE WHEN metadata ? 'thread_id'
                THEN metadata || jsonb_build_object('thread_id', %(target)s::text)
                ELSE metadata END
        FROM checkpoints WHERE thread_id = %(source)s""",
        params,
    )
    await connection.execute(
        """INSERT INTO checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob)
        SELECT %(target)s, checkpoint_ns, channel, version, type, blob
        FROM checkpoint_blobs WHERE thread_id = %(source)s""",
        params,
    )
    await connection.execute(
        """INSERT INTO checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id,
            task_path, idx, channel, type, blob)
        SELECT %(target)s, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type,
            blob
        FROM checkpoint_writes WHERE thread_id = %(source)s""",
        params,
    )


async def keep_latest(db: Database, thread_ids: Sequence[UUID]) -> None:
    """Removes what the latest checkpoint of each namespace of the threads does not need.

    One transaction on one snapshot, of all threads or none; a run that goes on meanwhile does not
    notice. Who deletes the same history at the same time is waited for. Raises HistoryNeeded.
    """
    wanted = sorted(thread_ids)
    for _ in range(_PRUNE_RETRIES):
        with suppress(Overtaken):
            return await _keep_latest(db, wanted)
    await _keep_latest(db, wanted)


# One prune after the other. Unlike a lock of rows this takes no snapshot: who has waited sees what
# the one before has left. Nobody else locks this table, which is LangGraph's list of its changes.
_IN_TURN = "LOCK TABLE checkpoint_migrations IN SHARE UPDATE EXCLUSIVE MODE"

# As long as this lasts nobody deletes the threads; runs may start and end on them.
_PRUNED = """
SELECT thread_id::text FROM threads WHERE thread_id = ANY(%s) ORDER BY thread_id FOR KEY SHARE
"""


async def _keep_latest(db: Database, thread_ids: Sequence[UUID]) -> None:
    async with db.turn, db.transaction() as connection:
        # LangGraph has a transaction for each thread. Inside ours these are savepoints, which
        # cannot choose their isolation but may name the one that there is.
        await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await connection.execute(_IN_TURN)
        rows = await (await connection.execute(_PRUNED, [list(thread_ids)])).fetchall()
        ids = [row["thread_id"] for row in rows]
        try:
            await AsyncPostgresSaver(connection).aprune(ids, strategy="keep_latest")
        except NotImplementedError as error:
            raise HistoryNeeded(str(error)) from error


# Bytes as they are stored: compressed, and without the tables' own overhead.
_STORAGE = """
SELECT
    (SELECT jsonb_build_object('count', count(*), 'bytes', coalesce(sum(
        pg_column_size(checkpoint) + pg_column_size(metadata)), 0))
     FROM checkpoints WHERE thread_id = %(thread_id)s) AS checkpoints,
    (SELECT coalesce(jsonb_object_agg(channel, jsonb_build_object(
        'versions', versions, 'bytes', bytes) ORDER BY channel), '{}')
     FROM (
        SELECT channel, count(*) AS versions, sum(pg_column_size(blob)) AS bytes
        FROM checkpoint_blobs WHERE thread_id = %(thread_id)s AND blob IS NOT NULL
        GROUP BY channel) AS channels) AS channels,
    (SELECT jsonb_build_object('count', count(*), 'bytes', coalesce(sum(
        pg_column_size(blob)), 0))
     FROM checkpoint_writes WHERE thread_id = %(thread_id)s) AS writes
"""


@dataclass(frozen=True, slots=True)
class Storage:
    """What LangGraph keeps of a thread, in rows and bytes.

    channels: for each channel with values of its own how many versions there are, and their bytes.
    """

    checkpoints: Mapping[str, int]
    channels: Mapping[str, Mapping[str, int]]
    writes: Mapping[str, int]


async def storage(db: Database, thread_id: UUID) -> Storage:
    """Returns what is kept of a thread; an unknown one has nothing."""
    row = await db.fetch_one(_STORAGE, {"thread_id": str(thread_id)})
    if row is None:
        raise RuntimeError("an aggregate always has one row")
    return Storage(row["checkpoints"], row["channels"], row["writes"])

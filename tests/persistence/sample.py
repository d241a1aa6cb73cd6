"""Runs to play with."""

from typing import Any
from uuid import UUID, uuid4

from persistence import runs
from persistence.engine import Database
from persistence.runs import ClaimedRun, NewRun, RunRow

OWNER = "host/1/boot-a"


def new_run(thread_id: UUID | None = None, **given: Any) -> NewRun:
    """A run on the thread, which is made if need be."""
    return NewRun(
        **{
            "run_id": uuid4(),
            "thread_id": thread_id or uuid4(),
            "assistant_id": uuid4(),
            "graph_id": "echo",
            "kwargs": b'{"input":{"z":1,"a":2}}',
            "metadata": {},
            "base_metadata": {},
            "config_metadata": {},
            "config": {},
            "if_not_exists": "create",
        }
        | given
    )


async def create(db: Database, thread_id: UUID | None = None, **given: Any) -> RunRow:
    return (await runs.create(db, new_run(thread_id, **given))).run


async def claim(db: Database, run_id: UUID, owner: str = OWNER) -> ClaimedRun:
    [claimed] = await runs.claim(db, [run_id], owner, lease_seconds=30)
    return claimed


async def refuse(db: Database, what: str, when: str) -> None:
    """Lets Postgres give up, as if it went down, over such a change.

    what: ``INSERT ON runs``. when: a condition on ``OLD`` or ``NEW``.
    """
    await db.execute(
        """CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'going down' USING ERRCODE = '57P01'; END $$"""
    )
    await db.execute(
        f"CREATE TRIGGER refuse BEFORE {what} FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION refuse()"
    )


async def column(db: Database, table: str, name: str, key: UUID) -> Any:
    row = await db.fetch_one(f'SELECT "{name}" AS v FROM {table}s WHERE {table}_id = %s', [key])
    return None if row is None else row["v"]


async def thread_status(db: Database, thread_id: UUID) -> str:
    status: str = await column(db, "thread", "status", thread_id)
    return status

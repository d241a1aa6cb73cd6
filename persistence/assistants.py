"""Assistants: a graph with a configuration and a name, and every version it has had.

``allowed`` says which of them the caller may see; the others are not there for the statement.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID, uuid5

import sqlalchemy as sa

from persistence import threads
from persistence.engine import Database, JsonText, Row
from persistence.errors import AssistantNotFound, Conflict, NotFound
from persistence.models import assistants
from persistence.search import matches, ordered
from persistence.text import dumps
from persistence.visibility import Filter, clause, visible

SortBy = Literal["assistant_id", "created_at", "updated_at", "name", "graph_id"]


@dataclass(frozen=True, slots=True)
class AssistantRow:
    """An assistant, or one version of it, as it is read. JSON comes as bytes.

    updated_at: of a version, when it was made.
    """

    assistant_id: UUID
    graph_id: str
    name: str
    description: str | None
    config: bytes
    context: bytes
    metadata: bytes
    version: int
    created_at: datetime
    updated_at: datetime


_ASSISTANT_ROW = """
assistant_id, graph_id, name, description, config::text, context::text, metadata::text, version,
created_at, updated_at
"""

_JSON = ("config", "context", "metadata")


def _assistant_row(row: Row) -> AssistantRow:
    return AssistantRow(**row | {name: row[name].encode() for name in _JSON})


def system_id(graph_id: str) -> UUID:
    """Returns the id of the assistant that every graph has from the start."""
    return uuid5(_NAMESPACE, graph_id)


_NAMESPACE = UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8")

# The version's row is written by the same statement as the assistant's, from what that returns.
_KEEP_VERSION = """
INSERT INTO assistant_versions (assistant_id, version, graph_id, name, description, config, context,
    metadata, created_at)
SELECT assistant_id, version, graph_id, name, description, config, context, metadata, updated_at
FROM changed
"""

_INSERT = f"""
WITH changed AS (
    INSERT INTO assistants (assistant_id, graph_id, name, description, config, context, metadata,
        created_at, updated_at)
    SELECT %(assistant_id)s, %(graph_id)s, %(name)s, %(description)s, %(config)s::jsonb,
        %(context)s::jsonb, %(metadata)s::jsonb, now, now
    FROM clock_timestamp() AS now
    ON CONFLICT (assistant_id) DO NOTHING
    RETURNING *
), kept AS ({_KEEP_VERSION})
SELECT {_ASSISTANT_ROW} FROM changed
"""


async def ensure_system(
    db: Database, graph_ids: Collection[str], descriptions: Mapping[str, str] | None = None
) -> None:
    """Makes the assistant that every graph has from the start, where it is missing.

    descriptions: graph id → what the project says of the graph. An assistant that says something
    else gets a new version; of one that the project does not describe, it stays.
    """
    for graph_id in sorted(graph_ids):
        assistant_id, description = system_id(graph_id), (descriptions or {}).get(graph_id)
        made = await _insert(
            db,
            assistant_id,
            graph_id,
            name=graph_id,
            description=description,
            config={},
            context={},
            metadata={"created_by": "system"},
        )
        if made is None and description is not None:
            await _change(db, assistant_id, _DESCRIBED_OTHERWISE, {"description": description})


async def _insert(
    db: Database,
    assistant_id: UUID,
    graph_id: str,
    *,
    name: str,
    description: str | None,
    config: Mapping[str, Any],
    context: Mapping[str, Any],
    metadata: Mapping[str, Any],
) -> AssistantRow | None:
    row = await db.fetch_one(
        _INSERT,
        {
            "assistant_id": assistant_id,
            "graph_id": graph_id,
            "name": name,
            "description": description,
            "config": JsonText(dumps(config)),
            "context": JsonText(dumps(context)),
            "metadata": JsonText(dumps(metadata)),
        },
    )
    return None if row is None else _assistant_row(row)


async def create(
    db: Database,
    assistant_id: UUID,
    graph_id: str,
    *,
    name: str = "Untitled",
    description: str | None = None,
    config: Mapping[str, Any] | None = None,
    context: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    if_exists: Literal["raise", "do_nothing"] = "raise",
    allowed: Filter | None = None,
) -> AssistantRow:
    """Makes an assistant, or returns the one there is, unchanged. Raises Conflict.

    The one there is must be allowed to be seen, or its id is taken by nobody knows whom.
    """
    made = await _insert(
        db,
        assistant_id,
        graph_id,
        name=name,
        description=description,
        config=config or {},
        context=context or {},
        metadata=metadata or {},
    )
    if made is not None:
        return made
    if if_exists == "raise":
        raise Conflict(f"Assistant {assistant_id} already exists")
    try:
        return await get(db, assistant_id, allowed=allowed)
    except AssistantNotFound:
        raise Conflict(f"Assistant {assistant_id} already exists") from None


async def get(db: Database, assistant_id: UUID, *, allowed: Filter | None = None) -> AssistantRow:
    """Returns an assistant. Raises AssistantNotFound."""
    condition, filters = clause("metadata", allowed)
    row = await db.fetch_one(
        f"""SELECT {_ASSISTANT_ROW} FROM assistants
        WHERE assistant_id = %(assistant_id)s AND {condition}""",
        {"assistant_id": assistant_id, **filters},
    )
    if row is None:
        raise AssistantNotFound(assistant_id)
    return _assistant_row(row)


# A plain update first takes the row's lock, so the highest version is read after earlier changes.
_PATCH = f"""
WITH changed AS (
    UPDATE assistants a
    SET graph_id = coalesce(%(graph_id)s, a.graph_id),
        name = coalesce(%(name)s, a.name),
        description = coalesce(%(description)s, a.description),
        config = coalesce(%(config)s::jsonb, a.config),
        context = coalesce(%(context)s::jsonb, a.context),
        metadata = a.metadata || %(metadata)s::jsonb,
        version = 1 + (SELECT max(v.version) FROM assistant_versions v
            WHERE v.assistant_id = a.assistant_id),
        updated_at = clock_timestamp()
    WHERE a.assistant_id = %(assistant_id)s
    RETURNING *
), kept AS ({_KEEP_VERSION})
SELECT {_ASSISTANT_ROW} FROM changed
"""

_LOCK = """
SELECT 1 FROM assistants WHERE assistant_id = %(assistant_id)s AND {which} FOR NO KEY UPDATE
"""
_DESCRIBED_OTHERWISE = "description IS DISTINCT FROM %(description)s"


async def patch(
    db: Database,
    assistant_id: UUID,
    *,
    graph_id: str | None = None,
    name: str | None = None,
    description: str | None = None,
    config: Mapping[str, Any] | None = None,
    context: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    allowed: Filter | None = None,
) -> AssistantRow:
    """Makes a new version: metadata is merged, the rest replaced, None leaves as it is.

    Raises AssistantNotFound.
    """
    changes = {
        "graph_id": graph_id,
        "name": name,
        "description": description,
        "config": None if config is None else JsonText(dumps(config)),
        "context": None if context is None else JsonText(dumps(context)),
        "metadata": JsonText(dumps(metadata or {})),
    }
    condition, filters = clause("metadata", allowed)
    changed = await _change(db, assistant_id, condition, changes | filters)
    if changed is None:
        raise AssistantNotFound(assistant_id)
    return changed


_UNCHANGED: Mapping[str, Any] = {
    **dict.fromkeys(("graph_id", "name", "description", "config", "context")),
    "metadata": JsonText(b"{}"),
}


async def _change(
    db: Database, assistant_id: UUID, which: str, changes: Mapping[str, Any]
) -> AssistantRow | None:
    """Makes a new version if the condition holds. changes: parameters of both statements."""
    params = {**_UNCHANGED, **changes, "assistant_id": assistant_id}
    async with db.transaction() as connection:
        locked = await connection.execute(_LOCK.format(which=which), params)
        if await locked.fetchone() is None:
            return None
        row = await (await connection.execute(_PATCH, params)).fetchone()
    return None if row is None else _assistant_row(row)


_VERSIONS = """
SELECT v.assistant_id, v.graph_id, v.name, v.description, v.config::text, v.context::text,
    v.metadata::text, v.version, v.created_at, v.created_at AS updated_at
FROM assistant_versions v
WHERE v.assistant_id = %(assistant_id)s AND v.metadata @> %(metadata)s::jsonb
ORDER BY v.version DESC LIMIT %(limit)s OFFSET %(offset)s
"""


async def versions(
    db: Database,
    assistant_id: UUID,
    *,
    metadata: Mapping[str, Any] | None = None,
    limit: int = 10,
    offset: int = 0,
    allowed: Filter | None = None,
) -> list[AssistantRow]:
    """Returns the versions of an assistant, newest first. Raises AssistantNotFound."""
    await get(db, assistant_id, allowed=allowed)
    rows = await db.fetch_all(
        _VERSIONS,
        {
            "assistant_id": assistant_id,
            "metadata": JsonText(dumps(metadata or {})),
            "limit": limit,
            "offset": offset,
        },
    )
    return [_assistant_row(row) for row in rows]


_SET_VERSION = f"""
UPDATE assistants a
SET version = v.version, graph_id = v.graph_id, name = v.name, description = v.description,
    config = v.config, context = v.context, metadata = v.metadata, updated_at = clock_timestamp()
FROM assistant_versions v
WHERE a.assistant_id = %(assistant_id)s
  AND v.assistant_id = a.assistant_id AND v.version = %(version)s AND {{visible}}
RETURNING {", ".join("a." + name.strip() for name in _ASSISTANT_ROW.split(","))}
"""


async def set_version(
    db: Database, assistant_id: UUID, version: int, *, allowed: Filter | None = None
) -> AssistantRow:
    """Makes an assistant what it was at that version. Raises AssistantNotFound, NotFound."""
    condition, filters = clause("a.metadata", allowed)
    row = await db.fetch_one(
        _SET_VERSION.format(visible=condition),
        {"assistant_id": assistant_id, "version": version, **filters},
    )
    if row is None:
        await get(db, assistant_id, allowed=allowed)
        raise NotFound(f"Version {version} not found for assistant {assistant_id}")
    return _assistant_row(row)


async def delete(
    db: Database,
    assistant_id: UUID,
    *,
    delete_threads: bool = False,
    allowed: Filter | None = None,
    allowed_threads: Filter | None = None,
) -> threads.Deleted:
    """Deletes an assistant, and if so asked the threads that its runs were the last to use.

    All in one transaction. allowed_threads: which threads the caller may delete; the others stay.
    Raises AssistantNotFound. Returns what became of the threads.
    """
    await get(db, assistant_id, allowed=allowed)
    condition, filters = clause("metadata", allowed)
    deleted = threads.Deleted(0, (), ())
    async with db.transaction() as connection:
        if delete_threads:  # first: whoever locks a thread and then what is of it goes that way too
            cursor = await connection.execute(
                "SELECT thread_id FROM threads WHERE metadata @> %s::jsonb",
                [JsonText(dumps({"assistant_id": str(assistant_id)}))],
            )
            found = [row["thread_id"] for row in await cursor.fetchall()]
            deleted = await threads.delete_within(connection, found, allowed=allowed_threads)
        cursor = await connection.execute(
            f"DELETE FROM assistants WHERE assistant_id = %(assistant_id)s AND {condition}",
            {"assistant_id": assistant_id, **filters},
        )
        if not cursor.rowcount:
            raise AssistantNotFound(assistant_id)
    return deleted


def _filtered(
    statement: sa.Select[Any],
    metadata: Mapping[str, Any] | None,
    graph_id: str | None,
    name: str | None,
    allowed: Filter | None,
) -> sa.Select[Any]:
    if allowed:
        statement = statement.where(visible(assistants.c.metadata, allowed))
    if metadata:
        statement = statement.where(matches(assistants.c.metadata, metadata))
    if graph_id is not None:
        statement = statement.where(assistants.c.graph_id == graph_id)
    if name is not None:
        statement = statement.where(assistants.c.name.icontains(name, autoescape=True))
    return statement


async def search(
    db: Database,
    *,
    metadata: Mapping[str, Any] | None = None,
    graph_id: str | None = None,
    name: str | None = None,
    limit: int = 10,
    offset: int = 0,
    sort_by: SortBy = "created_at",
    sort_order: Literal["asc", "desc"] = "desc",
    allowed: Filter | None = None,
) -> list[AssistantRow]:
    """Returns assistants, by default the newest first; ties go by id, so pages never overlap.

    metadata: containment, lists must be equal. name: part of it, in any case.
    """
    columns = [
        sa.cast(column, sa.Text).label(column.name) if column.name in _JSON else column
        for column in assistants.c
    ]
    statement = ordered(
        _filtered(sa.select(*columns), metadata, graph_id, name, allowed),
        sa.func.lower(assistants.c.name) if sort_by == "name" else assistants.c[sort_by],
        assistants.c.assistant_id,
        ascending=sort_order == "asc",
    )
    rows = await db.fetch_all(statement.limit(limit).offset(offset))
    return [_assistant_row(row) for row in rows]


async def count(
    db: Database,
    *,
    metadata: Mapping[str, Any] | None = None,
    graph_id: str | None = None,
    name: str | None = None,
    allowed: Filter | None = None,
) -> int:
    """Returns how many assistants ``search`` would find."""
    statement = sa.select(sa.func.count().label("n")).select_from(assistants)
    row = await db.fetch_one(_filtered(statement, metadata, graph_id, name, allowed))
    return 0 if row is None else int(row["n"])

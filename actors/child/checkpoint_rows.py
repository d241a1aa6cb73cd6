"""The rows of LangGraph's checkpoint tables, packed so that one statement writes many puts.

Every flush is the same single statement, whatever it carries: each column travels as one array in
Postgres' binary format, ``unnest`` makes rows of them, and an empty table is an empty array. One
statement is one round trip and one transaction, also behind a pooler that breaks pipelines, and it
reaches the server whole before any of it runs. Arrays are packed here because psycopg would look
for the type of every element of some forty lists, and would send an empty list as another type,
hence as another prepared statement.

The fence is part of the statement. Each row carries the number of its attempt's fence; rows get in
only if the run's row still shows that attempt as running and could be locked ``FOR KEY SHARE``
until the commit. Whoever ends an attempt locks that row ``FOR UPDATE`` first, so it either waits
for this commit or is seen by it: after a newer attempt was claimed, nothing of the older one can
commit. Nobody else waits: a heartbeat prolongs the lease while a large step is being stored,
however long that takes. ``SKIP LOCKED`` because those who end many runs lock them in an order of
their own: waiting could be a deadlock, so a locked row is an answer, and the rows are sent again.
"""

import json
import math
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import orjson
from psycopg.adapt import Dumper, PyFormat
from psycopg.pq import Format

from actors.child.storable import without_nul

Cells = tuple[bytes | None, ...]
"""One row: each column in Postgres' binary format, None for NULL."""


@dataclass(frozen=True, slots=True)
class _Type:
    oid: int
    array_oid: int


_INT4 = _Type(23, 1007)
_TEXT = _Type(25, 1009)
_BYTEA = _Type(17, 1001)
_UUID = _Type(2950, 2951)
_JSONB = _Type(3802, 3807)


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of LangGraph's, the columns we write, and what to do with a row that exists."""

    name: str
    columns: tuple[tuple[str, _Type], ...]
    key: tuple[int, ...]
    on_conflict: str


_CHECKPOINTS = _Table(
    "checkpoints",
    (
        ("thread_id", _TEXT),
        ("checkpoint_ns", _TEXT),
        ("checkpoint_id", _TEXT),
        ("parent_checkpoint_id", _TEXT),
        ("checkpoint", _JSONB),
        ("metadata", _JSONB),
    ),
    (0, 1, 2),
    """(thread_id, checkpoint_ns, checkpoint_id)
    DO UPDATE SET checkpoint = EXCLUDED.checkpoint, metadata = EXCLUDED.metadata""",
)
_BLOBS = _Table(
    "checkpoint_blobs",
    (
        ("thread_id", _TEXT),
        ("checkpoint_ns", _TEXT),
        ("channel", _TEXT),
        ("version", _TEXT),
        ("type", _TEXT),
        ("blob", _BYTEA),
    ),
    (0, 1, 2, 3),
    "(thread_id, checkpoint_ns, channel, version) DO NOTHING",
)
_WRITES = _Table(
    "checkpoint_writes",
    (
        ("thread_id", _TEXT),
        ("checkpoint_ns", _TEXT),
        ("checkpoint_id", _TEXT),
        ("task_id", _TEXT),
        ("task_path", _TEXT),
        ("idx", _INT4),
        ("channel", _TEXT),
        ("type", _TEXT),
        ("blob", _BYTEA),
    ),
    (0, 1, 2, 3, 5),
    "(thread_id, checkpoint_ns, checkpoint_id, task_id, idx) DO NOTHING",
)
_OVERWRITES = _Table(
    "checkpoint_writes",
    _WRITES.columns,
    _WRITES.key,
    """(thread_id, checkpoint_ns, checkpoint_id, task_id, idx)
    DO UPDATE SET channel = EXCLUDED.channel, type = EXCLUDED.type, blob = EXCLUDED.blob""",
)


_ARRAY_PARAMETER = "(SELECT %b)"
"""The subselect hides the array's length from the planner. If it knows the length, small batches
look cheaper than the generic plan, so it plans each flush anew: a millisecond of CPU or more."""


def _insert(name: str, table: _Table) -> str:
    columns = ", ".join(column for column, _ in table.columns)
    arrays = ", ".join([_ARRAY_PARAMETER] * (1 + len(table.columns)))
    return f"""{name} AS (
    INSERT INTO {table.name} ({columns})
    SELECT {columns} FROM unnest({arrays}) AS new (no, {columns}) JOIN allowed USING (no)
    ON CONFLICT {table.on_conflict}
)"""


FLUSH = f"""
WITH fence AS MATERIALIZED (
    SELECT * FROM unnest({", ".join([_ARRAY_PARAMETER] * 3)}) AS fence (no, run_id, attempt)
),
held AS MATERIALIZED (
    SELECT no FROM fence JOIN runs USING (run_id, attempt)
    WHERE status = 'running'
    FOR KEY SHARE OF runs SKIP LOCKED
),
allowed AS MATERIALIZED (
    SELECT no FROM held UNION ALL SELECT 0
),
{_insert("put_blobs", _BLOBS)},
{_insert("put_writes", _WRITES)},
{_insert("put_overwrites", _OVERWRITES)},
{_insert("put_checkpoints", _CHECKPOINTS)}
SELECT no, held.no IS NOT NULL AS held, runs.run_id IS NOT NULL AS current
FROM fence LEFT JOIN held USING (no)
LEFT JOIN runs ON runs.run_id = fence.run_id AND runs.attempt = fence.attempt
    AND runs.status = 'running'
"""
"""Writes a batch. Answers for each fence whether its rows were written (``held``) and, if not,
whether that was only because its row is locked (``current``) or because the attempt is over."""


@dataclass(eq=False, slots=True)
class Fence:
    """The right of one attempt to write; ``lost`` once refused, and then nothing more is tried."""

    run_id: UUID
    attempt: int
    lost: bool = False


@dataclass(eq=False, slots=True)
class Rows:
    """What one put adds to the tables."""

    checkpoints: list[Cells] = field(default_factory=list)
    blobs: list[Cells] = field(default_factory=list)
    writes: list[Cells] = field(default_factory=list)
    overwrite: bool = False
    """Whether ``writes`` replace rows that exist, or leave them as they are."""

    @property
    def size(self) -> int:
        """Bytes of all cells."""
        return sum(
            len(cell)
            for rows in (self.checkpoints, self.blobs, self.writes)
            for row in rows
            for cell in row
            if cell is not None
        )


def checkpoint_row(
    thread_id: str,
    checkpoint_ns: str,
    checkpoint_id: str,
    parent_checkpoint_id: str | None,
    checkpoint: Any,
    metadata: Any,
) -> Cells:
    """The row of a checkpoint. ``checkpoint`` and ``metadata`` are what JSON can express."""
    return (
        thread_id.encode(),
        checkpoint_ns.encode(),
        checkpoint_id.encode(),
        parent_checkpoint_id.encode() if parent_checkpoint_id else None,
        _JSONB_VERSION + to_json(checkpoint),
        _JSONB_VERSION + to_json(metadata),
    )


def cells(row: Iterable[str | int | bytes | bytearray | None]) -> Cells:
    """A row of blobs or writes, as LangGraph dumps it, in binary format.

    Raises UnicodeEncodeError for a lone surrogate in a name: such a name cannot be stored.
    """
    return tuple([_cell(value) for value in row])


def _cell(value: str | int | bytes | bytearray | None) -> bytes | None:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, int):
        return _INT.pack(value)
    return bytes(value) if isinstance(value, bytearray) else value


def arrays(puts: Sequence[tuple[Fence | None, Rows]]) -> tuple[list[Fence], "list[PackedArray]"]:
    """The fences of ``puts``, numbered from 1 by their place, and the parameters of ``FLUSH``.

    Rows of one batch that have the same key are merged here, in order, with the outcome that
    writing them one after another would have: a statement may not touch a row twice.
    """
    numbers: dict[Fence, int] = {}
    blobs: dict[Cells, tuple[int, Cells]] = {}
    writes: dict[Cells, tuple[int, Cells]] = {}
    overwrites: dict[Cells, tuple[int, Cells]] = {}
    checkpoints: dict[Cells, tuple[int, Cells]] = {}
    for fence, rows in puts:
        no = numbers.setdefault(fence, len(numbers) + 1) if fence else 0
        for row in rows.blobs:
            blobs.setdefault(_key(_BLOBS, row), (no, row))
        for row in rows.writes:
            key = _key(_WRITES, row)
            if rows.overwrite:
                writes.pop(key, None)
                overwrites[key] = (no, row)
            elif key not in overwrites:
                writes.setdefault(key, (no, row))
        for row in rows.checkpoints:
            checkpoints[_key(_CHECKPOINTS, row)] = (no, row)
    fences = list(numbers)
    return fences, [
        _packed(_INT4, [_INT.pack(no) for no in numbers.values()]),
        _packed(_UUID, [fence.run_id.bytes for fence in fences]),
        _packed(_INT4, [_INT.pack(fence.attempt) for fence in fences]),
        *_columns(_BLOBS, blobs.values()),
        *_columns(_WRITES, writes.values()),
        *_columns(_OVERWRITES, overwrites.values()),
        *_columns(_CHECKPOINTS, checkpoints.values()),
    ]


def _key(table: _Table, row: Cells) -> Cells:
    return tuple([row[at] for at in table.key])


def _columns(table: _Table, rows: Iterable[tuple[int, Cells]]) -> "Iterable[PackedArray]":
    numbered = list(rows)
    yield _packed(_INT4, [_INT.pack(no) for no, _ in numbered])
    for at, (_, kind) in enumerate(table.columns):
        yield _packed(kind, [row[at] for _, row in numbered])


# Postgres' binary formats.

_INT = struct.Struct(">i")
_NULL = _INT.pack(-1)
_ARRAY = struct.Struct(">iiIii")  # dimensions, whether it holds NULLs, element type, length, origin
_EMPTY_ARRAY = struct.Struct(">iiI")
_JSONB_VERSION = b"\x01"


@dataclass(frozen=True, slots=True)
class PackedArray:
    """A parameter that is already in binary format."""

    oid: int
    data: bytes


class PackedArrayDumper(Dumper):
    """Hands a PackedArray to libpq as it is. To be registered on the cursor that executes FLUSH."""

    format = Format.BINARY

    def get_key(self, obj: PackedArray, format: PyFormat) -> tuple[type, int]:  # type: ignore[override]  # psycopg's own key type is wider than it declares
        """The type decides which dumper serves: one for each."""
        return (type(obj), obj.oid)

    def upgrade(self, obj: PackedArray, format: PyFormat) -> "PackedArrayDumper":
        """A dumper that announces the array's type."""
        dumper = type(self)(type(obj), None)
        dumper.oid = obj.oid
        return dumper

    def dump(self, obj: PackedArray) -> bytes:
        """The array's bytes."""
        return obj.data


def _packed(kind: _Type, items: Sequence[bytes | None]) -> PackedArray:
    if not items:
        return PackedArray(kind.array_oid, _EMPTY_ARRAY.pack(0, 0, kind.oid))
    parts: list[bytes] = [_ARRAY.pack(1, None in items, kind.oid, len(items), 1)]
    for item in items:
        if item is None:
            parts.append(_NULL)
        else:
            parts.append(_INT.pack(len(item)))
            parts.append(item)
    return PackedArray(kind.array_oid, b"".join(parts))


# JSON that jsonb accepts.

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def to_json(value: Any) -> bytes:
    """JSON of ``value``; a NUL or a lone surrogate in it becomes U+FFFD, NaN and infinities null.

    Raises TypeError for what JSON cannot express, as the stock saver does.
    """
    try:
        document = orjson.dumps(value, default=_plain_float, option=_OPTIONS)
    except TypeError:
        # Lone surrogates, or integers of more than 64 bits: both too rare to look for beforehand.
        return json.dumps(cleaned(value), ensure_ascii=False, allow_nan=False).encode()
    return without_nul(document)


_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY


def _plain_float(value: Any) -> float:
    """Subclasses of float are JSON numbers to the standard library, but not to orjson."""
    if isinstance(value, float):
        return float(value)
    raise TypeError(f"{type(value).__name__} is not JSON serializable")


def cleaned(value: Any) -> Any:
    """A copy without what jsonb cannot hold: as it is stored, so it must be looked for."""
    if isinstance(value, str):
        return _UNSTORABLE.sub("\ufffd", value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {cleaned(key): cleaned(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [cleaned(item) for item in value]
    return value

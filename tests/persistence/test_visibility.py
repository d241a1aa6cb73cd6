"""Filters against real rows: what is seen, what is not, and what is refused."""

from typing import Any

import pytest
import sqlalchemy as sa

from persistence.engine import Database, JsonText
from persistence.models import threads
from persistence.text import dumps
from persistence.visibility import InvalidFilter, clause, visible

ROW = {"owner": "ann", "members": ["ann", "bob"], "n": 1, "flag": True, "deep": {"k": 1}}


CASES: list[tuple[Any, bool]] = [
    (None, True),
    ({}, True),
    ({"owner": "ann"}, True),
    ({"owner": "bob"}, False),
    ({"owner": {"$eq": "ann"}}, True),
    ({"owner": "ann", "n": 2}, False),
    ({"owner": None}, False),
    ({"nobody": None}, False),
    ({"n": 1}, True),
    ({"n": "1"}, False),
    ({"n": True}, False),
    ({"flag": True}, True),
    ({"deep": {"k": 1}}, True),
    ({"deep": {}}, False),
    ({"deep.k": 1}, False),
    ({"members": ["ann", "bob"]}, True),
    ({"members": ["ann"]}, False),
    ({"members": "ann"}, False),
    ({"members": {"$contains": "ann"}}, True),
    ({"members": {"$contains": ["bob", "ann"]}}, True),
    ({"members": {"$contains": ["ann", "eve"]}}, False),
    ({"members": {"$contains": []}}, True),
    ({"owner": {"$contains": "ann"}}, False),
    ({"owner": {"$eq": "ann", "$contains": "ann"}}, False),
    ({"$or": [{"owner": "eve"}, {"members": {"$contains": "bob"}}]}, True),
    ({"$or": [{"owner": "eve"}, {"n": 2}]}, False),
    ({"$and": [{"owner": "ann"}, {"$or": [{"n": 2}, {"n": 1}]}]}, True),
    ({"$and": [{"owner": "ann"}, {"n": 2}]}, False),
    ({"owner": "ann' OR 'x'='x"}, False),
    ({"%(owner)s {x} \0": "%s"}, False),
]


async def test_a_row_is_seen_or_not(db: Database) -> None:
    await db.execute(
        "INSERT INTO threads (thread_id, metadata) VALUES (gen_random_uuid(), %s::jsonb)",
        [JsonText(dumps(ROW))],
    )
    for allowed, seen in CASES:
        condition, params = clause("t.metadata", allowed)
        rows = await db.fetch_all(f"SELECT 1 FROM threads t WHERE {condition}", params)
        assert bool(rows) is seen, allowed
        rows = await db.fetch_all(
            sa.select(threads.c.thread_id).where(visible(threads.c.metadata, allowed))
        )
        assert bool(rows) is seen, allowed


@pytest.mark.parametrize(
    "unknown",
    [
        {"owner": {"$ne": "ann"}},
        {"owner": {"$in": ["ann"]}},
        {"owner": {"$eq": "ann", "$ne": "bob"}},
        {"owner": {"$eq": "ann", "other": 1}},
        {"$not": {"owner": "ann"}},
        {"$or": []},
        {"$or": {"owner": "ann"}},
        {"$or": ["owner"]},
        {"members": {"$contains": {"k": 1}}},
        {"owner": object()},
        {1: "ann"},
        "owner",
    ],
)
def test_what_nobody_understands_is_refused(unknown: Any) -> None:
    with pytest.raises(InvalidFilter):
        clause("metadata", unknown)


async def test_the_index_answers_for_an_owner(db: Database) -> None:
    await db.execute(
        "INSERT INTO threads (thread_id, metadata)"
        " SELECT gen_random_uuid(), jsonb_build_object('owner', n::text)"
        " FROM generate_series(1, 5000) n"
    )
    await db.execute("ANALYZE threads")
    condition, params = clause("metadata", {"owner": "7"})
    plan = await db.fetch_all(f"EXPLAIN SELECT 1 FROM threads WHERE {condition}", params)
    assert any("ix_threads_metadata" in row["QUERY PLAN"] for row in plan), plan

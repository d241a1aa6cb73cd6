"""Assistants and their versions."""

import asyncio
from uuid import uuid4

import orjson
import pytest

from persistence import assistants
from persistence.engine import Database
from persistence.errors import AssistantNotFound, Conflict, NotFound, Unavailable
from tests.persistence.sample import create as create_run
from tests.persistence.sample import refuse


async def test_every_graph_has_one_from_the_start(db: Database) -> None:
    await asyncio.gather(*(assistants.ensure_system(db, {"b", "a"}) for _ in range(4)))
    found = await assistants.search(db, sort_by="name", sort_order="asc")
    assert [row.name for row in found] == ["a", "b"]
    assert found[0].assistant_id == assistants.system_id("a")
    assert orjson.loads(found[0].metadata) == {"created_by": "system"}
    assert (found[0].version, found[0].description) == (1, None)


async def test_the_project_describes_its_graphs(db: Database) -> None:
    key = assistants.system_id("a")

    async def start(**descriptions: str) -> assistants.AssistantRow:
        starting = (assistants.ensure_system(db, {"a", "b"}, descriptions) for _ in range(4))
        await asyncio.gather(*starting)
        return await assistants.get(db, key)

    assert (await start()).description is None
    described = await start(a="Answers\0")
    assert (described.version, described.description) == (2, "Answers\ufffd")
    assert (described.name, orjson.loads(described.metadata)) == ("a", {"created_by": "system"})
    assert await start(a="Answers\0") == described
    assert await start(b="Asks") == described  # a client may have said so, for all we know
    assert (await assistants.get(db, assistants.system_id("b"))).version == 2
    assert (await start(a="")).description == ""
    await assistants.patch(db, key, description="a client's")
    assert (await start(a="Sings")).description == "Sings"
    versions = [(row.version, row.description) for row in await assistants.versions(db, key)]
    assert versions == [
        (5, "Sings"),
        (4, "a client's"),
        (3, ""),
        (2, "Answers\ufffd"),
        (1, None),
    ]


async def test_made_once(db: Database) -> None:
    made = await assistants.create(db, uuid4(), "echo", metadata={"a": "\0"}, name="n\0")
    assert (made.name, orjson.loads(made.metadata)) == ("n\ufffd", {"a": "\ufffd"})
    with pytest.raises(Conflict):
        await assistants.create(db, made.assistant_id, "other")
    again = await assistants.create(db, made.assistant_id, "other", if_exists="do_nothing")
    assert again == made == await assistants.get(db, made.assistant_id)


async def test_each_change_is_a_version_and_each_version_can_come_back(db: Database) -> None:
    made = await assistants.create(
        db, uuid4(), "echo", name="one", config={"tags": ["x"]}, metadata={"a": 1}
    )
    key = made.assistant_id
    second = await assistants.patch(
        db, key, name="two", metadata={"b": 2}, config={}, graph_id="other"
    )
    assert (second.version, second.name, second.graph_id) == (2, "two", "other")
    assert (orjson.loads(second.metadata), second.config) == ({"a": 1, "b": 2}, b"{}")
    back = await assistants.set_version(db, key, 1)
    assert (back.version, back.name, back.graph_id, back.config) == (1, "one", "echo", made.config)
    assert (await assistants.patch(db, key)).version == 3
    assert [row.version for row in await assistants.versions(db, key)] == [3, 2, 1]
    assert [row.version for row in await assistants.versions(db, key, metadata={"b": 2})] == [2]
    with pytest.raises(NotFound):
        await assistants.set_version(db, key, 9)
    for unknown in (
        assistants.set_version(db, uuid4(), 1),
        assistants.patch(db, uuid4()),
        assistants.versions(db, uuid4()),
        assistants.get(db, uuid4()),
        assistants.delete(db, uuid4()),
    ):
        with pytest.raises(AssistantNotFound):
            await unknown


async def test_racing_changes_are_a_version_each(db: Database) -> None:
    made = await assistants.create(db, uuid4(), "echo")
    await asyncio.gather(
        *(assistants.patch(db, made.assistant_id, metadata={str(n): n}) for n in range(6))
    )
    row = await assistants.get(db, made.assistant_id)
    assert row.version == 7
    assert len(orjson.loads(row.metadata)) == 6


async def test_search(db: Database) -> None:
    for name, graph in (("Alpha 50%", "g"), ("alphabet", "h"), ("beta", "g")):
        await assistants.create(db, uuid4(), graph, name=name, metadata={"g": graph})
    assert [row.name for row in await assistants.search(db)] == ["beta", "alphabet", "Alpha 50%"]
    assert await assistants.count(db, name="ALPHA") == 2
    assert await assistants.count(db, name="0%") == 1
    assert await assistants.count(db, name="%") == 1
    assert await assistants.count(db, graph_id="g", metadata={"g": "g"}, name="a") == 2
    assert len(await assistants.search(db, limit=2, offset=2)) == 1


async def test_delete_with_threads(db: Database) -> None:
    made = await assistants.create(db, uuid4(), "echo")
    await create_run(db, assistant_id=made.assistant_id)
    await create_run(db)
    deleted = await assistants.delete(db, made.assistant_id, delete_threads=True)
    assert deleted.count == 1
    assert await db.fetch_all("SELECT 1 FROM assistant_versions") == []
    assert len(await db.fetch_all("SELECT 1 FROM threads")) == 1


async def test_it_does_not_go_without_its_threads(db: Database) -> None:
    made = await assistants.create(db, uuid4(), "echo")
    run = await create_run(db, assistant_id=made.assistant_id)
    await refuse(db, "DELETE ON threads", f"OLD.thread_id = '{run.thread_id}'")
    with pytest.raises(Unavailable):
        await assistants.delete(db, made.assistant_id, delete_threads=True)
    assert await assistants.get(db, made.assistant_id) == made

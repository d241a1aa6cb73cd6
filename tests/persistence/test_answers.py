"""Of several answers to one question exactly one is let through."""

import asyncio
from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest

from persistence import runs
from persistence.engine import Database
from persistence.errors import NothingToResume
from persistence.lifecycle import SUCCEED, MultitaskStrategy
from persistence.runs import Answers, Settlement
from tests.persistence.sample import claim, create

Q, R = "a" * 32, "b" * 32


async def settled(db: Database, thread_id: UUID, *asked: str, next_nodes: bool = True) -> None:
    """A run of the thread that has ended with these questions."""
    run = await create(db, thread_id)
    await claim(db, run.run_id)
    interrupts = orjson.dumps({one: [{"id": one, "value": 1}] for one in asked})
    [one] = await runs.settle(
        db,
        [
            Settlement(
                run.run_id,
                1,
                SUCCEED,
                values=b"{}",
                interrupts=interrupts,
                next_nodes=next_nodes,
            )
        ],
    )
    assert one.ok


async def answer(db: Database, thread_id: UUID, resume: Any, **given: Any) -> runs.RunRow:
    named = resume if isinstance(resume, dict) else {}
    kwargs = orjson.dumps({"input": None, "command": {"resume": resume}})
    return await create(
        db, thread_id, kwargs=kwargs, **{"answers": Answers(frozenset(named))} | given
    )


@pytest.mark.parametrize("resume", [True, {Q: "yes"}])
async def test_of_many_at_once_one_is_let_through(db: Database, resume: Any) -> None:
    thread_id = uuid4()
    await settled(db, thread_id, Q)
    found = await asyncio.gather(
        *(answer(db, thread_id, resume) for _ in range(8)), return_exceptions=True
    )
    assert sum(isinstance(one, runs.RunRow) for one in found) == 1
    assert sum(isinstance(one, NothingToResume) for one in found) == 7
    assert len(await runs.list_for_thread(db, thread_id, limit=100)) == 2


async def test_answers_to_different_questions_pass(db: Database) -> None:
    thread_id = uuid4()
    await settled(db, thread_id, Q, R)
    await answer(db, thread_id, {Q: 1})
    await answer(db, thread_id, {R: 2})
    with pytest.raises(NothingToResume):
        await answer(db, thread_id, {Q: 3, R: 4})


async def test_nothing_to_resume(db: Database) -> None:
    never, idle, asking = uuid4(), uuid4(), uuid4()
    with pytest.raises(NothingToResume):
        await answer(db, never, True)
    assert await db.fetch_one("SELECT FROM threads WHERE thread_id = %s", [never]) is None
    await settled(db, idle, next_nodes=False)
    with pytest.raises(NothingToResume):
        await answer(db, idle, True)
    await settled(db, asking, Q)
    with pytest.raises(NothingToResume):
        await answer(db, asking, {R: 1})


async def test_a_breakpoint_is_resumed_without_a_question(db: Database) -> None:
    thread_id = uuid4()
    await settled(db, thread_id)
    await answer(db, thread_id, True)


async def test_an_answer_may_be_sent_ahead_of_the_question(db: Database) -> None:
    """Clients see the question in the stream before the run that asks is settled."""
    thread_id = uuid4()
    await create(db, thread_id)
    await answer(db, thread_id, True)
    other = uuid4()
    await create(db, other)
    with pytest.raises(NothingToResume) as refused:
        await answer(db, other, {Q: 1}, answers=Answers(frozenset({Q}), known=True))
    assert refused.value.unsettled, "it may be asked any moment"


async def test_who_has_read_the_question_must_find_it_open(db: Database) -> None:
    thread_id = uuid4()
    await settled(db, thread_id, Q)
    known = Answers(frozenset({Q}), known=True)
    await answer(db, thread_id, {Q: 1}, answers=known)
    with pytest.raises(NothingToResume) as refused:
        await answer(db, thread_id, {Q: 1}, answers=known)
    assert not refused.value.unsettled


async def test_an_answer_that_makes_others_go_is_let_through(db: Database) -> None:
    thread_id = uuid4()
    await settled(db, thread_id, Q)
    first = await answer(db, thread_id, {Q: 1})
    await answer(db, thread_id, {Q: 2}, multitask_strategy=MultitaskStrategy.ROLLBACK)
    assert [run.run_id for run in await runs.list_for_thread(db, thread_id)][1:] != [first.run_id]

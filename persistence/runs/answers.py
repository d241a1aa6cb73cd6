"""Which of several answers to a thread's question is let through."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from persistence.engine import Connection
from persistence.errors import NothingToResume, ThreadNotFound
from persistence.lifecycle import MultitaskStrategy
from persistence.runs.rows import ACTIVE_STATUSES


@dataclass(frozen=True, slots=True)
class Answers:
    """What questions of the thread a new run answers.

    ids: the interrupts; empty when the answer is for whichever one is open.
    known: whether the questions must be open in the thread's row: who asks has read them there.
    """

    ids: frozenset[str] = frozenset()
    known: bool = False


_ANSWERED = f"""
SELECT r.kwargs->'command'->'resume' AS answer,
       r.kwargs->'command'->'resume' IS NOT NULL AS is_answer -- JSON's null is one
FROM runs r
WHERE r.thread_id = %(thread_id)s AND r.status IN ({ACTIVE_STATUSES})
"""

_ASKED = """
SELECT coalesce(t.interrupts, '{}') AS interrupts,
       t.status NOT IN ('idle', 'busy') OR t.interrupts <> '{}' AS unfinished
FROM threads t WHERE t.thread_id = %(thread_id)s
"""


async def check_answers(
    connection: Connection, thread_id: UUID, strategy: MultitaskStrategy, answers: Answers
) -> None:
    """Lets one of several answers to a question through, on a thread that is locked.

    strategy: of the run that answers; those that make way for it answer nothing any more.

    Raises NothingToResume.
    """
    ids = {"thread_id": thread_id}
    active = await (await connection.execute(_ANSWERED, ids)).fetchall()
    asked = await (await connection.execute(_ASKED, ids)).fetchone()
    if asked is None:
        raise ThreadNotFound(thread_id)
    if strategy is not MultitaskStrategy.ENQUEUE:
        active = []  # they make way, and their answers with them
    given = [row["answer"] for row in active if row["is_answer"]]
    if any(_answers_same(answers, answer) for answer in given):
        raise NothingToResume("The question was answered by another run already")
    open_ids = {question["id"] for task in asked["interrupts"].values() for question in task}
    if answers.known and not answers.ids <= open_ids:
        unsettled = bool(active) and not given
        raise NothingToResume("No such question waits for an answer", unsettled=unsettled)
    if not active and (
        not asked["unfinished"] or (open_ids and answers.ids and not answers.ids & open_ids)
    ):
        raise NothingToResume("There is nothing to resume: no question waits for this answer")


def _answers_same(answers: Answers, given: Any) -> bool:
    """Whether a run that is under way answers what is to be answered. Pure.

    An answer to no question in particular is for the one that is open, and there can be one such.
    """
    named = set(given) if isinstance(given, dict) and all(len(key) == 32 for key in given) else None
    if named is None or not answers.ids:
        return named is None
    return not named.isdisjoint(answers.ids)

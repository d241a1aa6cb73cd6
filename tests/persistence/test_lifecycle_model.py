"""Random interleavings of everything that happens to runs, against a model of what is promised.

Two workers, a reaper and clients act on a few threads, one after the other and at the same time.
Statements that ran together must be explained by some order of the same operations on the model:
what each answered, and what all left behind. After every step the rows agree with the model, and
with promises that do not need one: tokens, limits, ends that never change.
"""

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from persistence import runs
from persistence.engine import Database
from persistence.errors import RunNotFound, ThreadBusy
from persistence.lifecycle import (
    ACTIVE,
    FAIL,
    INTERRUPT,
    SUCCEED,
    TERMINAL,
    TIME_OUT,
    CancelAction,
    MultitaskStrategy,
    RunStatus,
)
from persistence.runs import CancelRequested, Released, Settlement
from persistence.settings import DatabaseSettings
from tests.persistence.lifecycle_model import MAX_RETRIES, Model
from tests.persistence.sample import new_run

LEASE_SECONDS = 3600.0  # no lease ends but by a rule
SLOTS = ("host/1", "host/2")
THREADS = 3
AT_ONCE = 3

Token = tuple[UUID, int]


@dataclass(frozen=True, slots=True)
class Operation:
    """Something that happens: to the rows, and what the model says of it.

    name: for people who read a counterexample. beside_others: what the model says when others
    happened at the same time, given the answer: a claim and a heartbeat pass over rows that
    somebody has locked.
    """

    name: str
    on_rows: Callable[[], Awaitable[Any]]
    on_model: Callable[[Model], Any]
    beside_others: Callable[[Model, Any], Any] | None = None


def _fates(released: list[Released]) -> dict[UUID, RunStatus | None]:
    return {one.run_id: one.status for one in released}


async def _answer(asked: Awaitable[CancelRequested]) -> tuple[str, UUID | None]:
    try:
        requested = await asked
    except RunNotFound:
        return "not found", None
    return requested.kind, requested.next_run_id


class Operations:
    """Draws what may happen next.

    Which choices there are follows from the choices before and not from what came of them, since
    statements at the same time may end one way or another: so a token is drawn by its age.
    """

    def __init__(self, db: Database) -> None:
        self.db = db
        self.model = Model()
        self.threads = [uuid4() for _ in range(THREADS)]
        self.run_ids: list[UUID] = []
        self.thread_of: dict[UUID, UUID] = {}
        self.boots = dict.fromkeys(SLOTS, 0)

    def owner(self, slot: str) -> str:
        return f"{slot}/boot{self.boots[slot]}"

    def draw(self, draw: Callable[..., Any]) -> Operation:
        kinds = [self.create, self.create, self.expire, self.take_back, self.beat]
        if self.run_ids:
            kinds += [self.claim, self.claim, self.claim, self.fall_due, self.cancel, self.delete]
            kinds += [self.settle, self.settle, self.crash, self.hand_back, self.lease_passes]
        operation: Operation = draw(st.sampled_from(kinds))(draw)
        return operation

    def _run(self, draw: Callable[..., Any]) -> UUID:
        # Of the latest: old ones are over, or gone.
        run_id: UUID = draw(st.sampled_from(self.run_ids[-8:]))
        return run_id

    def _token(self, draw: Callable[..., Any]) -> tuple[UUID, int]:
        """Of any run, most often the current token of one that is running."""
        running = draw(st.sampled_from([True, True, True, False]))
        chosen, age = draw(st.integers(0, 7)), draw(st.sampled_from([0, 0, 0, 1, -1]))
        found = [
            run_id
            for run_id, run in self.model.runs.items()
            if not running or run.status is RunStatus.RUNNING
        ] or self.run_ids
        run_id = found[-1 - chosen % len(found)]
        attempt = self.model.runs[run_id].attempt if run_id in self.model.runs else 1
        return run_id, attempt - age

    def create(self, draw: Callable[..., Any]) -> Operation:
        run_id, thread_id = uuid4(), draw(st.sampled_from(self.threads))
        strategy = draw(st.sampled_from(MultitaskStrategy))
        delayed = draw(st.sampled_from([False, False, True]))
        self.run_ids.append(run_id)
        self.thread_of[run_id] = thread_id

        async def on_rows() -> str:
            new = new_run(
                thread_id,
                run_id=run_id,
                multitask_strategy=strategy,
                after_seconds=3600.0 if delayed else 0.0,
            )
            try:
                await runs.create(self.db, new)
            except ThreadBusy:
                return "busy"
            return "created"

        return Operation(
            f"create {strategy} {'delayed ' if delayed else ''}{run_id} on {thread_id}",
            on_rows,
            lambda model: model.create(run_id, thread_id, strategy, delayed),
        )

    def fall_due(self, draw: Callable[..., Any]) -> Operation:
        run_id = self._run(draw)
        return Operation(
            f"{run_id} falls due",
            lambda: self.db.execute(
                """UPDATE runs SET available_at = clock_timestamp()
                WHERE run_id = %s AND status = 'pending' AND available_at > clock_timestamp()""",
                [run_id],
            ),
            lambda model: model.fall_due(run_id),
        )

    def claim(self, draw: Callable[..., Any]) -> Operation:
        owner = self.owner(draw(st.sampled_from(SLOTS)))
        wanted = draw(st.lists(st.sampled_from(self.run_ids[-8:]), min_size=1, max_size=6))
        if draw(st.booleans()):
            wanted = self.run_ids[-20:]  # as a poll does

        async def on_rows() -> dict[UUID, int]:
            claimed = await runs.claim(self.db, wanted, owner, LEASE_SECONDS)
            return {one.run_id: one.attempt for one in claimed}

        return Operation(
            f"{owner} claims {len(wanted)}",
            on_rows,
            lambda model: model.claim(wanted, owner),
            lambda model, got: model.claim([run_id for run_id in wanted if run_id in got], owner),
        )

    def beat(self, draw: Callable[..., Any]) -> Operation:
        owner = self.owner(draw(st.sampled_from(SLOTS)))
        held = [(run_id, run.attempt) for run_id, run in self.model.runs.items()]

        async def on_rows() -> dict[Token, tuple[CancelAction | None, bool]]:
            kept = await runs.heartbeat(self.db, owner, 4, 4, held, LEASE_SECONDS)
            return {(one.run_id, one.attempt): (one.cancel_action, one.renewed) for one in kept}

        return Operation(
            f"{owner} beats",
            on_rows,
            lambda model: model.heartbeat(owner, held),
            lambda model, got: model.heartbeat(
                owner, held, {key for key, (_, renewed) in got.items() if not renewed}
            ),
        )

    def lease_passes(self, draw: Callable[..., Any]) -> Operation:
        run_id, _ = self._token(draw)
        return Operation(
            f"lease of {run_id} passes",
            lambda: self.db.execute(
                """UPDATE runs SET lease_expires_at = clock_timestamp() - interval '1 second'
                WHERE run_id = %s AND status = 'running'""",
                [run_id],
            ),
            lambda model: model.lease_passes(run_id),
        )

    def settle(self, draw: Callable[..., Any]) -> Operation:
        run_id, attempt = self._token(draw)
        move = draw(st.sampled_from([SUCCEED, FAIL, TIME_OUT, INTERRUPT]))
        next_nodes = draw(st.booleans())
        roll_back = move is INTERRUPT and draw(st.booleans())

        async def on_rows() -> tuple[bool, UUID | None]:
            [settled] = await runs.settle(
                self.db,
                [
                    Settlement(
                        run_id,
                        attempt,
                        move,
                        next_nodes=next_nodes,
                        action=CancelAction.ROLLBACK if roll_back else None,
                    )
                ],
            )
            return settled.ok, settled.next_run_id

        return Operation(
            f"settle {run_id}/{attempt} as {'rolled back' if roll_back else move.target}",
            on_rows,
            lambda model: model.settle(run_id, attempt, move, next_nodes, roll_back),
        )

    def hand_back(self, draw: Callable[..., Any]) -> Operation:
        run_id, attempt = self._token(draw)
        owner = self.owner(draw(st.sampled_from(SLOTS)))

        async def on_rows() -> dict[UUID, RunStatus | None]:
            return _fates(await runs.hand_back(self.db, owner, [(run_id, attempt)]))

        return Operation(
            f"{owner} hands {run_id}/{attempt} back",
            on_rows,
            lambda model: model.hand_back(owner, run_id, attempt),
        )

    def crash(self, draw: Callable[..., Any]) -> Operation:
        run_id, attempt = self._token(draw)

        async def on_rows() -> dict[UUID, RunStatus | None]:
            released = await runs.crash(self.db, run_id, attempt, "killed", MAX_RETRIES)
            return {} if released is None else _fates([released])

        return Operation(
            f"{run_id}/{attempt} crashes", on_rows, lambda model: model.crash(run_id, attempt)
        )

    def expire(self, draw: Callable[..., Any]) -> Operation:
        async def on_rows() -> dict[UUID, RunStatus | None]:
            return _fates(await runs.expire(self.db, MAX_RETRIES))

        return Operation("the reaper expires leases", on_rows, lambda model: model.expire())

    def take_back(self, draw: Callable[..., Any]) -> Operation:
        slot = draw(st.sampled_from(SLOTS))
        self.boots[slot] += 1
        boot = f"boot{self.boots[slot]}"

        async def on_rows() -> dict[UUID, RunStatus | None]:
            return _fates(await runs.take_back(self.db, slot, boot, MAX_RETRIES))

        return Operation(
            f"{slot} starts anew as {boot}", on_rows, lambda model: model.take_back(slot, boot)
        )

    def cancel(self, draw: Callable[..., Any]) -> Operation:
        run_id, action = self._run(draw), draw(st.sampled_from(CancelAction))
        thread_id = self.thread_of[run_id]
        return Operation(
            f"cancel {run_id} ({action})",
            lambda: _answer(runs.request_cancel(self.db, thread_id, run_id, action)),
            lambda model: model.request_cancel(run_id, action),
        )

    def delete(self, draw: Callable[..., Any]) -> Operation:
        run_id = self._run(draw)
        thread_id = self.thread_of[run_id]
        return Operation(
            f"delete {run_id}",
            lambda: _answer(runs.delete(self.db, thread_id, run_id)),
            lambda model: model.delete(run_id),
        )


_ROWS = """
SELECT r.*, t.status AS thread_status, t.rest_status, r.lease_expires_at < clock_timestamp()
    AS expired, r.available_at > clock_timestamp() AS delayed
FROM runs r JOIN threads t USING (thread_id) ORDER BY r.available_at, r.queue_seq
"""


def _as_in_rows(model: Model, rows: list[dict[str, Any]]) -> bool:
    """Whether the rows are what the model says."""
    if {row["run_id"] for row in rows} != set(model.runs):
        return False
    for row in rows:
        run = model.runs[row["run_id"]]
        told = (
            *(run.status, run.attempt, run.crashes, run.owner, run.status in TERMINAL or run.wish),
            *(bool(run.expired), model.thread_status(run.thread_id), model.rest[run.thread_id]),
        )
        seen = (
            *(row["status"], row["attempt"], row["crashes"], row["claimed_by"]),
            row["status"] in TERMINAL or row["cancel_action"],
            *(bool(row["expired"]), row["thread_status"], row["rest_status"]),
        )
        if told != seen:
            return False
    waiting = [row for row in rows if row["status"] == RunStatus.PENDING and not row["delayed"]]
    return all(
        model.line(thread_id) == [r["run_id"] for r in waiting if r["thread_id"] == thread_id]
        for thread_id in model.rest
    )


class Lifecycle(RuleBasedStateMachine):
    """What Hypothesis plays with."""

    def __init__(self, runner: asyncio.Runner, db: Database) -> None:
        super().__init__()
        self.runner, self.db = runner, db
        self.operations = Operations(db)
        self.rows: list[dict[str, Any]] = []
        self.ends: dict[UUID, tuple[str, Any]] = {}
        self.attempts: dict[UUID, int] = {}
        self.story: list[str] = []

    @rule(data=st.data(), sizes=st.lists(st.integers(1, AT_ONCE), min_size=4, max_size=4))
    def things_happen(self, data: st.DataObject, sizes: list[int]) -> None:
        """Each size is a number of statements at the same time, after those before have ended."""
        for size in sizes:
            self._happen([self.operations.draw(data.draw) for _ in range(size)])

    def _happen(self, operations: list[Operation]) -> None:
        async def together() -> list[Any]:
            return await asyncio.gather(*(operation.on_rows() for operation in operations))

        answers = self.runner.run(together())
        self.rows = self.runner.run(self.db.fetch_all(_ROWS))
        explained = self._explained(list(zip(operations, answers, strict=True)))
        self.story.append(
            " | ".join(
                f"{operation.name} → {answer}"
                for operation, answer in zip(operations, answers, strict=True)
            )
        )
        assert explained is not None, "no order explains the last of:\n" + "\n".join(self.story)
        self.operations.model = explained

    def _explained(self, happened: list[tuple[Operation, Any]]) -> Model | None:
        """The model after the first order that leads to these answers and these rows."""
        for order in itertools.permutations(happened):
            model = deepcopy(self.operations.model)
            answers_agree = all(
                _same(_told(operation, model, answer, alone=len(order) == 1), answer)
                for operation, answer in order
            )
            if answers_agree and _as_in_rows(model, self.rows):
                return model
        return None

    @invariant()
    def one_run_a_thread(self) -> None:
        running = [row["thread_id"] for row in self.rows if row["status"] == RunStatus.RUNNING]
        assert len(running) == len(set(running))

    @invariant()
    def a_thread_is_busy_while_a_run_of_it_is_active(self) -> None:
        busy = {row["thread_id"] for row in self.rows if row["status"] in ACTIVE}
        for row in self.rows:
            assert (row["thread_status"] == "busy") == (row["thread_id"] in busy)

    @invariant()
    def an_end_is_for_good(self) -> None:
        for row in self.rows:
            run_id, status = row["run_id"], row["status"]
            if run_id in self.ends:
                assert self.ends[run_id] == (status, row["finished_at"])
            elif status in TERMINAL:
                self.ends[run_id] = (status, row["finished_at"])

    @invariant()
    def tokens_only_grow_and_retries_are_limited(self) -> None:
        for row in self.rows:
            assert row["attempt"] >= self.attempts.get(row["run_id"], 0)
            self.attempts[row["run_id"]] = row["attempt"]
            crashes_allowed = MAX_RETRIES + (row["status"] in TERMINAL)
            assert row["crashes"] <= crashes_allowed

    @invariant()
    def whoever_is_not_over_has_an_owner_or_a_place_in_line(self) -> None:
        if not self.rows:
            return
        claimable = set(self.runner.run(runs.claimable(self.db, limit=100)))
        first = {
            self.operations.model.next_in_line(thread_id)
            for thread_id in self.operations.model.rest
        } - {None}
        assert claimable == first
        for row in self.rows:
            if row["status"] == RunStatus.RUNNING:
                assert row["claimed_by"] is not None
                assert row["lease_expires_at"] is not None


def _told(operation: Operation, model: Model, answer: Any, *, alone: bool) -> Any:
    if alone or operation.beside_others is None:
        return operation.on_model(model)
    return operation.beside_others(model, answer)


def _same(told: Any, answer: Any) -> bool:
    return told is None or told == answer


@pytest.fixture
def world(database_url: str) -> Iterator[tuple[asyncio.Runner, Database]]:
    """A loop that outlives a step, with a pool on it."""
    with asyncio.Runner() as runner:
        db = Database(DatabaseSettings(url=database_url, pool_max=AT_ONCE))
        runner.run(db.open())
        yield runner, db
        runner.run(db.close())


def test_every_interleaving_keeps_the_promises(world: tuple[asyncio.Runner, Database]) -> None:
    runner, db = world

    def clean() -> Lifecycle:
        runner.run(db.execute("DELETE FROM threads"))
        runner.run(db.execute("DELETE FROM instances"))
        return Lifecycle(runner, db)

    run_state_machine_as_test(
        clean,
        settings=settings(
            max_examples=40,
            stateful_step_count=12,
            deadline=None,
            phases=[Phase.generate],  # what came at the same time does not come again to be shrunk
            database=None,
            derandomize="CI" in os.environ,
            suppress_health_check=list(HealthCheck),
        ),
    )

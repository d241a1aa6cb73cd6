"""What the statements of ``persistence/runs/`` promise, said without SQL: one dict of runs.

A model is a small value that can be copied, so that a test may ask of statements that ran at the
same time whether there is *any* order of them that explains what they answered and left behind.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from uuid import UUID

from persistence.lifecycle import (
    ACTIVE,
    INTERRUPT,
    TERMINAL,
    CancelAction,
    Move,
    MultitaskStrategy,
    RunStatus,
    ThreadStatus,
)

MAX_RETRIES = 2

_WISHES = {
    MultitaskStrategy.INTERRUPT: CancelAction.INTERRUPT,
    MultitaskStrategy.ROLLBACK: CancelAction.ROLLBACK,
}


@dataclass(slots=True)
class ModelRun:
    """place: its place in line on the thread; None while it is delayed.

    expired: the database's clock has passed the end of its lease.
    """

    thread_id: UUID
    place: int | None
    status: RunStatus = RunStatus.PENDING
    attempt: int = 0
    crashes: int = 0
    owner: str | None = None
    expired: bool = False
    wish: CancelAction | None = None


@dataclass(slots=True)
class Model:
    """Runs, and what each thread is when none of its runs is active.

    What an operation returns is what its statement must answer.
    """

    runs: dict[UUID, ModelRun] = field(default_factory=dict)
    rest: dict[UUID, ThreadStatus] = field(default_factory=dict)
    places: int = 0

    # what can be asked

    def active(self, thread_id: UUID, *statuses: RunStatus) -> list[UUID]:
        return [
            run_id
            for run_id, run in self.runs.items()
            if run.thread_id == thread_id and run.status in (statuses or ACTIVE)
        ]

    def thread_status(self, thread_id: UUID) -> ThreadStatus:
        return ThreadStatus.BUSY if self.active(thread_id) else self.rest[thread_id]

    def line(self, thread_id: UUID) -> list[UUID]:
        """Pending runs of the thread that are due, first in line first."""
        places = {
            run_id: place
            for run_id in self.active(thread_id, RunStatus.PENDING)
            if (place := self.runs[run_id].place) is not None
        }
        return sorted(places, key=places.__getitem__)

    def next_in_line(self, thread_id: UUID) -> UUID | None:
        if self.active(thread_id, RunStatus.RUNNING):
            return None
        return next(iter(self.line(thread_id)), None)

    def holds(self, run_id: UUID, attempt: int) -> bool:
        """Whether the token is the current one."""
        run = self.runs.get(run_id)
        return run is not None and (run.status, run.attempt) == (RunStatus.RUNNING, attempt)

    # what can be done

    def create(
        self, run_id: UUID, thread_id: UUID, strategy: MultitaskStrategy, delayed: bool
    ) -> str:
        self.rest.setdefault(thread_id, ThreadStatus.IDLE)
        if strategy is MultitaskStrategy.REJECT and self.active(thread_id):
            return "busy"
        if wish := _WISHES.get(strategy):
            for other in self.active(thread_id, RunStatus.RUNNING):
                self._wish(other, wish)
            for other in self.active(thread_id, RunStatus.PENDING):
                self._withdraw(other, wish)
        self.runs[run_id] = ModelRun(thread_id, None if delayed else self._new_place())
        return "created"

    def fall_due(self, run_id: UUID) -> None:
        run = self.runs.get(run_id)
        if run and run.status is RunStatus.PENDING and run.place is None:
            run.place = self._new_place()

    def claim(self, run_ids: list[UUID], owner: str) -> dict[UUID, int]:
        first = [
            run_id
            for run_id in dict.fromkeys(run_ids)
            if run_id in self.runs and self.next_in_line(self.runs[run_id].thread_id) == run_id
        ]
        for run_id in first:
            run = self.runs[run_id]
            run.status, run.owner, run.expired = RunStatus.RUNNING, owner, False
            run.attempt += 1
        return {run_id: self.runs[run_id].attempt for run_id in first}

    def heartbeat(
        self,
        owner: str,
        held: list[tuple[UUID, int]],
        passed_over: Collection[tuple[UUID, int]] = (),
    ) -> dict[tuple[UUID, int], tuple[CancelAction | None, bool]]:
        kept = [key for key in held if self.holds(*key) and self.runs[key[0]].owner == owner]
        for key in kept:
            if key not in passed_over:
                self.runs[key[0]].expired = False
        return {key: (self.runs[key[0]].wish, key not in passed_over) for key in kept}

    def lease_passes(self, run_id: UUID) -> None:
        run = self.runs.get(run_id)
        if run and run.status is RunStatus.RUNNING:
            run.expired = True

    def settle(
        self, run_id: UUID, attempt: int, move: Move, next_nodes: bool, roll_back: bool
    ) -> tuple[bool, UUID | None]:
        if not self.holds(run_id, attempt):
            return False, None
        thread_id = self.runs[run_id].thread_id
        if roll_back:
            self._roll_back(run_id)
        else:
            self._end(run_id, move.target, next_nodes)
        return True, self.next_in_line(thread_id)

    def hand_back(self, owner: str, run_id: UUID, attempt: int) -> dict[UUID, RunStatus | None]:
        if not self.holds(run_id, attempt) or self.runs[run_id].owner != owner:
            return {}
        return self._release(run_id, cost=0)

    def crash(self, run_id: UUID, attempt: int) -> dict[UUID, RunStatus | None]:
        return self._release(run_id, cost=1) if self.holds(run_id, attempt) else {}

    def expire(self) -> dict[UUID, RunStatus | None]:
        return self._release_all(lambda run: run.expired)

    def take_back(self, slot: str, boot: str) -> dict[UUID, RunStatus | None]:
        def of_predecessor(run: ModelRun) -> bool:
            assert run.owner is not None
            return run.owner.startswith(f"{slot}/") and run.owner != f"{slot}/{boot}"

        return self._release_all(of_predecessor)

    def request_cancel(self, run_id: UUID, action: CancelAction) -> tuple[str, UUID | None]:
        run = self.runs.get(run_id)
        if run is None:
            return "not found", None
        if run.status is RunStatus.RUNNING:
            self._wish(run_id, action)
            return "asked", None
        if run.status in TERMINAL:
            return "finished", None
        self._withdraw(run_id, action)
        return "withdrawn", self.next_in_line(run.thread_id)

    def delete(self, run_id: UUID) -> tuple[str, UUID | None]:
        run = self.runs.get(run_id)
        if run is None:
            return "not found", None
        if run.status is RunStatus.RUNNING:
            self._wish(run_id, CancelAction.ROLLBACK)
            return "asked", None
        del self.runs[run_id]
        kind = "finished" if run.status in TERMINAL else "withdrawn"
        return kind, self.next_in_line(run.thread_id)

    # how it is done

    def _new_place(self) -> int:
        self.places += 1
        return self.places

    def _wish(self, run_id: UUID, action: CancelAction) -> None:
        run = self.runs[run_id]
        if run.wish is None or action is CancelAction.ROLLBACK:
            run.wish = action

    def _withdraw(self, run_id: UUID, action: CancelAction) -> None:
        if action is CancelAction.ROLLBACK:
            del self.runs[run_id]
            return
        run = self.runs[run_id]
        run.status = RunStatus.INTERRUPTED
        if run.attempt:  # it was handed back, or crashed, in the middle
            self.rest[run.thread_id] = ThreadStatus.INTERRUPTED

    def _end(self, run_id: UUID, status: RunStatus, next_nodes: bool = False) -> None:
        run = self.runs[run_id]
        run.status, run.owner, run.expired = status, None, False
        self.rest[run.thread_id] = {
            RunStatus.SUCCESS: ThreadStatus.INTERRUPTED if next_nodes else ThreadStatus.IDLE,
            RunStatus.ERROR: ThreadStatus.ERROR,
            RunStatus.TIMEOUT: ThreadStatus.ERROR,
            RunStatus.INTERRUPTED: ThreadStatus.INTERRUPTED,
        }[status]

    def _roll_back(self, run_id: UUID) -> None:
        run = self.runs.pop(run_id)
        if self.rest[run.thread_id] is ThreadStatus.ERROR:
            self.rest[run.thread_id] = ThreadStatus.IDLE

    def _release(self, run_id: UUID, cost: int) -> dict[UUID, RunStatus | None]:
        run = self.runs[run_id]
        run.crashes += cost
        if run.wish is CancelAction.ROLLBACK:
            self._roll_back(run_id)
            return {run_id: None}
        if run.wish is CancelAction.INTERRUPT:
            self._end(run_id, INTERRUPT.target)
        elif cost and run.crashes > MAX_RETRIES:
            self._end(run_id, RunStatus.ERROR)
        else:
            run.status, run.owner, run.expired = RunStatus.PENDING, None, False
        return {run_id: run.status}

    def _release_all(self, which: Callable[[ModelRun], bool]) -> dict[UUID, RunStatus | None]:
        found = [
            run_id
            for run_id, run in self.runs.items()
            if run.status is RunStatus.RUNNING and which(run)
        ]
        released: dict[UUID, RunStatus | None] = {}
        for run_id in found:
            released |= self._release(run_id, cost=1)
        return released

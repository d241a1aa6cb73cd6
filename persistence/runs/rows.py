"""A run's row as it is read."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from persistence.engine import Row
from persistence.lifecycle import ACTIVE, CancelAction, MultitaskStrategy, RunStatus
from persistence.models import words

ACTIVE_STATUSES = words(ACTIVE)
"""The statuses of a run that is not over, for ``status IN (...)``."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run as it is read. JSON that is only relayed comes as bytes."""

    run_id: UUID
    thread_id: UUID
    assistant_id: UUID
    graph_id: str
    status: RunStatus
    metadata: bytes
    kwargs: bytes
    multitask_strategy: MultitaskStrategy
    attempt: int
    resumable: bool
    cancel_action: CancelAction | None
    error: bytes | None
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


COLUMNS = """
run_id, thread_id, assistant_id, graph_id, status, metadata::text, kwargs::text,
multitask_strategy, attempt, resumable, cancel_action, error::text, created_at, updated_at,
started_at, finished_at
"""
"""What a statement must return for ``run_row``."""


def run_row(row: Row) -> RunRow:
    """Returns the run that a row of ``COLUMNS`` says."""
    action, error = row["cancel_action"], row["error"]
    return RunRow(
        **row
        | {
            "status": RunStatus(row["status"]),
            "metadata": row["metadata"].encode(),
            "kwargs": row["kwargs"].encode(),
            "multitask_strategy": MultitaskStrategy(row["multitask_strategy"]),
            "cancel_action": None if action is None else CancelAction(action),
            "error": None if error is None else error.encode(),
        }
    )

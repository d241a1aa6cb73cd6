"""The life of a run: its statuses, every legal move, and which moves must show the fencing token.

Pure. SQL, CHECK constraints, documentation and tests derive from what stands here. The values of
``RunStatus`` are LangGraph's own wire words, so no mapping exists that could drift.

    pending ──CLAIM──▶ running ──SUCCEED──▶ success
       ▲                  ├──────FAIL─────▶ error
       ├──HAND_BACK───────┤├─────TIME_OUT──▶ timeout
       ├──RETRY───────────┤├─────INTERRUPT─▶ interrupted
       └──EXPIRE──────────┘
    pending ──WITHDRAW──▶ interrupted

A wish to cancel is a column (``cancel_requested_at``), never a status. A rollback deletes the row.
"""

from dataclasses import dataclass
from enum import StrEnum


class RunStatus(StrEnum):
    """A run's status, in the wire's words."""

    PENDING = "pending"
    """Accepted; waits for its time, its turn on the thread, and a free slot."""
    RUNNING = "running"
    """One attempt holds the lease."""
    SUCCESS = "success"
    """The graph came to an end, or stopped at an interrupt or a breakpoint."""
    ERROR = "error"
    """The graph raised, or its process died more often than retries allow."""
    TIMEOUT = "timeout"
    """Stopped because it ran longer than its limit."""
    INTERRUPTED = "interrupted"
    """Cancelled by a client or superseded by another run."""


class ThreadStatus(StrEnum):
    """A thread's status, in the wire's words."""

    IDLE = "idle"
    """Nothing runs or waits, and the last state has no next nodes."""
    BUSY = "busy"
    """A run of the thread is pending or running."""
    INTERRUPTED = "interrupted"
    """The last run stopped with nodes left to do."""
    ERROR = "error"
    """The last run failed."""


ACTIVE = frozenset({RunStatus.PENDING, RunStatus.RUNNING})
TERMINAL = frozenset(RunStatus) - ACTIVE


class CancelAction(StrEnum):
    """What shall become of a run that is stopped on request."""

    INTERRUPT = "interrupt"
    """Keep the row and its checkpoints; the run ends as ``interrupted``."""
    ROLLBACK = "rollback"
    """Remove the row and its checkpoints; the thread is as it was before."""


class MultitaskStrategy(StrEnum):
    """What a new run does about pending or running ones of its thread, in the wire's words."""

    REJECT = "reject"
    """Refuse the new run."""
    ENQUEUE = "enqueue"
    """Wait until they have ended."""
    INTERRUPT = "interrupt"
    """Stop them and go on from where they stopped."""
    ROLLBACK = "rollback"
    """Stop them, remove them and go on from where they started."""


@dataclass(frozen=True, slots=True)
class Move:
    """A legal change of status.

    ``fenced`` moves must show the attempt number under which the run was claimed; zero rows
    changed then means that the lease is lost, which is an answer and not an accident.
    """

    source: RunStatus
    target: RunStatus
    fenced: bool


CLAIM = Move(RunStatus.PENDING, RunStatus.RUNNING, fenced=False)
SUCCEED = Move(RunStatus.RUNNING, RunStatus.SUCCESS, fenced=True)
FAIL = Move(RunStatus.RUNNING, RunStatus.ERROR, fenced=True)
TIME_OUT = Move(RunStatus.RUNNING, RunStatus.TIMEOUT, fenced=True)
INTERRUPT = Move(RunStatus.RUNNING, RunStatus.INTERRUPTED, fenced=True)
HAND_BACK = Move(RunStatus.RUNNING, RunStatus.PENDING, fenced=True)
"""Drain, hand-over, or being a neighbour of a killed run: costs no retry."""
RETRY = Move(RunStatus.RUNNING, RunStatus.PENDING, fenced=True)
"""The graph process died under the attempt: costs one retry."""
EXPIRE = Move(RunStatus.RUNNING, RunStatus.PENDING, fenced=False)
"""The lease ran out by the database's clock, or its instance was started anew: costs one retry."""
WITHDRAW = Move(RunStatus.PENDING, RunStatus.INTERRUPTED, fenced=False)
"""Cancelled before it started."""

MOVES = (CLAIM, SUCCEED, FAIL, TIME_OUT, INTERRUPT, HAND_BACK, RETRY, EXPIRE, WITHDRAW)

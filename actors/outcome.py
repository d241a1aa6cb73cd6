"""Why an attempt ended, as values, and what that means for the row.

Pure: effects are the caller's.
"""

from dataclasses import dataclass

from persistence.lifecycle import FAIL, INTERRUPT, SUCCEED, TIME_OUT, CancelAction, Move
from persistence.runs import ClaimedRun, Settlement


@dataclass(frozen=True, slots=True)
class Ended:
    """What the thread looks like after an attempt; every part is JSON bytes, ready to relay.

    values: the root state's values, or None when they could not be read.
    interrupts: ``{task_id: [{"id","value"}]}``, ``{}`` when there are none.
    next: names of the nodes left to do; not empty means that the thread is interrupted.
    result: what ``wait`` and ``join`` answer (the values, with ``__interrupt__`` at an interrupt);
        None when it equals ``values``.
    events: how many events the attempt wrote, if that is known.
    """

    values: bytes | None = None
    interrupts: bytes = b"{}"
    next: tuple[str, ...] = ()
    result: bytes | None = None
    events: int | None = None


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The graph came to an end or stopped at an interrupt or breakpoint."""

    ended: Ended


@dataclass(frozen=True, slots=True)
class Failed:
    """The graph raised. ``error`` is the class name, ``message`` the text that clients may see."""

    error: str
    message: str
    ended: Ended


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The attempt was stopped because a client asked for it."""

    action: CancelAction
    ended: Ended


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The attempt was stopped because it ran longer than ``limit`` seconds."""

    limit: float
    ended: Ended


@dataclass(frozen=True, slots=True)
class Crashed:
    """The graph process died under the attempt. ``reason`` says how, for people.

    alone: no other run was in it, so no other can have been the cause.
    """

    reason: str
    alone: bool = True


@dataclass(frozen=True, slots=True)
class HandedBack:
    """The attempt was stopped through no fault of its own (drain, neighbour): costs no retry."""

    reason: str


@dataclass(frozen=True, slots=True)
class LeaseLost:
    """Another attempt owns the run: nothing may be written."""


Outcome = Succeeded | Failed | Cancelled | TimedOut | Crashed | HandedBack | LeaseLost

Terminal = Succeeded | Failed | Cancelled | TimedOut
"""Outcomes that end the run; the others give it back or belong to somebody else."""


def settlement(outcome: Terminal, claimed: ClaimedRun) -> Settlement:
    """What is written to the row for an attempt that ended so.

    A cancelled run's error is not given here: its row knows who asked for the stop.
    """
    move, error = _verdict(outcome)
    ended = outcome.ended
    return Settlement(
        run_id=claimed.run_id,
        attempt=claimed.attempt,
        move=move,
        error=error,
        values=ended.values,
        interrupts=ended.interrupts,
        next_nodes=bool(ended.next),
        output=ended.result,
        action=outcome.action if isinstance(outcome, Cancelled) else None,
        events=ended.events,
    )


def _verdict(outcome: Terminal) -> tuple[Move, dict[str, str] | None]:
    match outcome:
        case Succeeded():
            return SUCCEED, None
        case Failed(error, message):
            return FAIL, {"error": error, "message": message}
        case Cancelled():
            return INTERRUPT, None
        case TimedOut(limit):
            message = f"The run was stopped because it took longer than {limit:g} s"
            return TIME_OUT, {"error": "TimeoutError", "message": message}

"""One attempt inside a graph process: what it is, why it is being stopped, and how it ended."""

import asyncio
from dataclasses import dataclass
from uuid import UUID

from actors.child.protocol import Frame, unpack_parts
from actors.outcome import (
    Cancelled,
    Crashed,
    Ended,
    Failed,
    HandedBack,
    LeaseLost,
    Outcome,
    Succeeded,
    TimedOut,
)
from persistence.lifecycle import CancelAction
from persistence.runs import ClaimedRun


@dataclass(frozen=True, slots=True)
class Asked:
    """A client asked for it."""

    action: CancelAction


@dataclass(frozen=True, slots=True)
class TooLong:
    """It ran for ``limit`` seconds."""

    limit: float


@dataclass(frozen=True, slots=True)
class Draining:
    """This worker stops; another one shall go on."""


@dataclass(frozen=True, slots=True)
class Displaced:
    """Another run holds up the loop of its process; it shall go on elsewhere."""


@dataclass(frozen=True, slots=True)
class Revoked:
    """The lease is lost."""


Stop = Asked | TooLong | Draining | Displaced | Revoked


@dataclass(slots=True, eq=False)
class Attempt:
    """A claimed run on its way through a graph process.

    seat: its number on the board of the process that it was given to.
    idle_looks: how many looks in a row found its process's loop silent and nothing of it executed.
    """

    claimed: ClaimedRun
    outcome: asyncio.Future[Outcome]
    seat: int = 0
    idle_looks: int = 0
    stop: Stop | None = None
    climbing: bool = False

    @property
    def key(self) -> tuple[UUID, int]:
        """The run's id and the number of the attempt."""
        return self.claimed.run_id, self.claimed.attempt

    @property
    def over(self) -> bool:
        """Whether its outcome is known; its code may still spin in a retired process."""
        return self.outcome.done()

    def conclude(self, outcome: Outcome) -> None:
        """Says how it ended; only the first word counts."""
        if not self.outcome.done():
            self.outcome.set_result(outcome)


def outranks(new: Stop, old: Stop | None) -> bool:
    """Whether a new reason to stop takes the place of an old one."""
    match new, old:
        case _, None:
            return True
        case _, Revoked():
            return False
        case Revoked(), _:
            return True
        case Asked(CancelAction.ROLLBACK), Asked(CancelAction.INTERRUPT):
            return True
        case TooLong(), Displaced():
            return True
        case Asked(), Draining() | Displaced() | TooLong():
            return True
        case _:
            return False


def stopped(stop: Stop, ended: Ended) -> Outcome:
    """The outcome of an attempt that was stopped for this reason."""
    match stop:
        case Asked(action):
            return Cancelled(action, ended)
        case TooLong(limit):
            return TimedOut(limit, ended)
        case Draining():
            return HandedBack("the worker is stopping")
        case Displaced():
            return HandedBack("another run holds its graph process up")
        case Revoked():
            return LeaseLost()


def leaves_state(stop: Stop) -> bool:
    """Whether an attempt stopped for this reason is settled with what the thread looks like."""
    return isinstance(stop, TooLong) or stop == Asked(CancelAction.INTERRUPT)


def reported(frame: Frame, stop: Stop | None) -> Outcome:
    """The outcome that a graph process reports, in the light of what it was asked.

    A run that came to its end before it could be stopped has ended; but a lost lease allows no
    word, and a rollback undoes a success as well. A failure while being stopped is the stop.
    """
    ended = _ended(frame)
    end = frame.head.get("end")
    if isinstance(stop, Revoked) or stop == Asked(CancelAction.ROLLBACK):
        return stopped(stop, ended)
    if end == "untouched" and stop is None:
        return HandedBack("its graph process did not take it up")
    if end == "succeeded":
        return Succeeded(ended)
    if stop is not None:
        return stopped(stop, ended)
    if end == "failed":
        return Failed(str(frame.head["error"]), str(frame.head["message"]), ended)
    if end == "cancelled":
        return Failed("CancelledError", "The graph cancelled its own run", ended)
    return Crashed(f"graph process reported an unknown outcome: {end}")


def _ended(frame: Frame) -> Ended:
    parts = unpack_parts(frame.head.get("parts", {}), frame.body)
    return Ended(
        values=parts.get("values"),
        interrupts=parts.get("interrupts", b"{}"),
        next=tuple(frame.head.get("next", ())),
        result=parts.get("result"),
        events=frame.head.get("events"),
    )

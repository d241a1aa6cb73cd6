"""Where the next run goes. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Seats(Generic[Key]):
    """What a graph process offers.

    load: runs in it. limit: runs that it takes at most. answering: its loop answered a ping lately.
    delay: seconds that its last answer took; a process whose cores are busy answers late.
    """

    key: Key
    load: int
    limit: int
    answering: bool
    delay: float


def room(processes: Iterable[Seats[Key]]) -> int:
    """Runs that could be placed now. A process that does not answer offers nothing."""
    return sum(max(0, seats.limit - seats.load) for seats in processes if seats.answering)


def choose(processes: Iterable[Seats[Key]]) -> Key | None:
    """The least loaded process that answers, of equal ones the quickest; None when all are full.

    So CPU-bound runs spread one per process before two share one.
    """
    open_ones = [seats for seats in processes if seats.answering and seats.load < seats.limit]
    if not open_ones:
        return None
    return min(open_ones, key=lambda seats: (seats.load, seats.delay)).key

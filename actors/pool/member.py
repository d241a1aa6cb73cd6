"""A graph process as the pool sees it: which runs are in it, and what shall become of it."""

from dataclasses import dataclass, field
from uuid import UUID

from actors.child.protocol import Frame
from actors.outcome import Crashed, HandedBack
from actors.pool.attempt import Attempt
from actors.pool.graph_process import GraphProcess
from actors.pool.placement import Seats

_SILENT_SECONDS = 0.2
_HELD_UP_LOOKS = 20
"""Five seconds: a shorter wait costs a run less than to go on from its last checkpoint."""
_MOST_HAND_BACKS = 3

Key = tuple[UUID, int]
"""A run's id and the number of its attempt."""


@dataclass(slots=True, eq=False)
class Member:
    """One graph process of the pool.

    serving: it takes runs; one that is ready and does not serve is the warm spare.
    retiring: why it takes no new ones; None while it may.
    fate: what its runs are told when it dies by our hand; a death that nobody ordered is a crash.
    started: runs that it began.
    silent_looks: how many looks in a row found its loop owing an answer.
    lapsed: seats of runs that it did not take up in time, until it has said that it refuses them.
    """

    process: GraphProcess
    graphs: frozenset[str]
    broken: dict[str, str]
    limit: int
    serving: bool = False
    retiring: str | None = None
    fate: HandedBack | Crashed | None = None
    started: int = 0
    silent_looks: int = 0
    attempts: dict[Key, Attempt] = field(default_factory=dict)
    lapsed: dict[Key, int] = field(default_factory=dict)

    @property
    def open(self) -> bool:
        """Whether it takes runs."""
        return self.serving and self.retiring is None

    def seats(self) -> "Seats[Member]":
        """What it offers for the next run."""
        return Seats(
            key=self,
            load=self.load,
            limit=self.limit if self.open else 0,
            answering=self.process.answering,
            delay=self.process.delay,
        )

    def holds(self, run_id: UUID) -> bool:
        """Whether an attempt of the run is in it, or one that it has not refused yet."""
        return any(key[0] == run_id for key in (*self.attempts, *self.lapsed))

    @property
    def load(self) -> int:
        """Seats that are taken."""
        return len(self.attempts) + len(self.lapsed)

    @property
    def has_room(self) -> bool:
        """Whether it could take a run, if its loop turned."""
        return len(self.attempts) < self.limit

    def take(self, attempt: Attempt) -> None:
        """Gives an attempt a seat."""
        taken = {*self.lapsed.values(), *(other.seat for other in self.attempts.values())}
        attempt.seat = next(seat for seat in range(1, self.limit + 1) if seat not in taken)
        self.process.board.clear(attempt.seat)
        self.attempts[attempt.key] = attempt

    def lapse(self, attempt: Attempt) -> None:
        """Takes an attempt back that was not taken up in time. Its start is still on its way."""
        del self.attempts[attempt.key]
        self.started -= 1
        self.lapsed[attempt.key] = attempt.seat

    def has_begun(self, attempt: Attempt) -> bool:
        """Whether the process took the attempt up."""
        return self.process.board.has_begun(attempt.seat)

    def executes(self, attempt: Attempt) -> bool:
        """Whether code of the attempt is being executed at this moment."""
        return self.process.board.executes(attempt.seat)

    def displace(self, attempt: Attempt) -> None:
        """Lets the attempt take no further step in this process, and end when its loop turns."""
        self.process.board.displace(attempt.seat)
        run_id, number = attempt.key
        head = {"run_id": str(run_id), "attempt": number, "step": "cancel"}
        self.process.send(Frame("stop", head))

    def look(self) -> None:
        """Notes who is held up. Called every quarter of a second.

        Looks are counted, not seconds: when this whole machine stood still, nobody was held up.
        """
        is_silent = self.process.silent_seconds >= _SILENT_SECONDS
        self.silent_looks = self.silent_looks + 1 if is_silent else 0
        for attempt in self.unfinished():
            is_idle = is_silent and self.has_begun(attempt) and not self.executes(attempt)
            attempt.idle_looks = attempt.idle_looks + 1 if is_idle else 0

    @property
    def is_held_up(self) -> bool:
        """Whether its loop has not turned for long."""
        return self.silent_looks >= _HELD_UP_LOOKS

    def held_up(self) -> list[Attempt]:
        """Runs that could have gone on for long, if the loop had turned.

        Where no step shows, a run holds the loop up in a callback, or the GIL in a thread of its
        own, and it may be any of them. It would do so wherever it goes: so that it comes to its
        end nevertheless, those that were handed back often are let alone.
        """
        is_known = self.process.board.holder != 0
        return [
            attempt
            for attempt in self.unfinished()
            if attempt.stop is None
            and attempt.idle_looks >= _HELD_UP_LOOKS
            and (is_known or attempt.claimed.handed_back < _MOST_HAND_BACKS)
        ]

    def unfinished(self) -> list[Attempt]:
        """Runs in it whose outcome is not known."""
        return [attempt for attempt in self.attempts.values() if not attempt.over]

    def why_not(self, graph_id: str) -> str | None:
        """Why it cannot execute a graph; None when it can."""
        if graph_id in self.broken:
            return f"Graph '{graph_id}' could not be loaded: {self.broken[graph_id]}"
        if graph_id not in self.graphs:
            known = ", ".join(sorted(self.graphs | self.broken.keys()))
            return f"Graph '{graph_id}' is not served here. Expected one of: {known}"
        return None

"""Who takes the next message: queues that share slots, and the room that their messages need.

Runs come in two lanes. Those that a client waits for go first, so that they start with the next
free slot however many wait in the background; but each fourth slot is the background's, which so
goes on however many clients wait. What decides is counts: no clock, and nothing that is stored.
"""

import threading
from collections.abc import Sequence
from typing import Protocol

IN_A_ROW = 3
"""Messages of the first lane, while others wait, after which it is the others' turn."""


class Room(Protocol):
    """Slots that a message may need before it can be taken."""

    def reserve(self) -> bool:
        """Takes a slot; False when none is free."""
        ...

    def release(self) -> None:
        """Gives back a slot for which no message came."""
        ...


class Unlimited:
    """Room for queues that are bounded by their limit only."""

    def reserve(self) -> bool:
        """Always."""
        return True

    def release(self) -> None:
        """Nothing was taken."""


class Turns:
    """Whose turn it is among the lanes that have messages, or may. Decides and does nothing."""

    def __init__(self, first: str) -> None:
        """first: the lane that goes first."""
        self._first = first
        self._waiting: set[str] = set()
        self._in_a_row = 0

    def asks(self, lane: str) -> bool:
        """Whether the lane may take a message now. From now on it waits, until it ``leaves``."""
        self._waiting.add(lane)
        others_turn = self._in_a_row >= IN_A_ROW
        if lane == self._first:
            return not others_turn or self._waiting == {lane}
        return others_turn or self._first not in self._waiting

    def took(self, lane: str) -> None:
        """A message of the lane was taken."""
        passed_others = lane == self._first and self._waiting > {lane}
        self._in_a_row = self._in_a_row + 1 if passed_others else 0

    def leaves(self, lane: str) -> None:
        """The lane is empty, or out of reach: nobody has to wait for it."""
        self._waiting.discard(lane)


class Lanes:
    """Queues that share a limit and a room. May be used from any thread.

    Each lane has one consumer, which asks before it takes a message.
    """

    def __init__(self, names: Sequence[str], limit: int, room: Room) -> None:
        """names: the lane that goes first, and others. limit: messages in work at once, of all."""
        self._turns = Turns(names[0])
        self._limit = limit
        self._room = room
        self._in_work = 0
        self._closed = False
        self._lock = threading.Lock()

    @property
    def quiet(self) -> bool:
        """Whether nothing is in work."""
        with self._lock:
            return not self._in_work

    def close(self) -> None:
        """Nothing may be taken from now on."""
        with self._lock:
            self._closed = True

    def begin(self, lane: str) -> bool:
        """Counts a message as in work before it is taken, so that whoever closes misses none.

        False when it is not to be taken now. Every True is followed by ``took`` or ``missed``.
        """
        with self._lock:
            may_take = self._turns.asks(lane) and not self._closed and self._in_work < self._limit
            if may_take := may_take and self._room.reserve():
                self._in_work += 1
            return may_take

    def took(self, lane: str) -> None:
        """A message was taken. It is in work, and has its room, until ``end``."""
        with self._lock:
            self._turns.took(lane)

    def missed(self) -> None:
        """There was no message after all: its room is free again."""
        self.end()
        self._room.release()

    def end(self) -> None:
        """A message is not in work any more. Its room is the business of who used it."""
        with self._lock:
            self._in_work -= 1

    def leaves(self, lane: str) -> None:
        """The lane is empty, or out of reach: the others need not wait for it."""
        with self._lock:
            self._turns.leaves(lane)

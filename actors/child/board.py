"""Whose code a graph process executes right now: memory that it shares with its worker.

No pipe can tell it. While a C call keeps the GIL no thread of the process speaks, and while the
loop is held up nothing that a run is told reaches it. So each run has a slot on this board, with
three cells beside the one that says whose step the loop executes:

    begun       the process took the run up
    threads     how many threads execute its code
    displaced   the worker took it back: no further step of it may be executed here

Cells are 16 bits, written and read as a whole. Slots count from 1; slot 0 is nobody's. The worker
clears a slot before it gives it to a run.
"""

import mmap
import os
import tempfile

LOOP = 0
"""The cell that holds the slot of the run whose step the loop executes, or 0."""

_CELL_BYTES = 2


class Board:
    """The cells. Processes that map the same file see the same ones."""

    def __init__(self, fd: int, slots: int) -> None:
        """Maps the file, which may be closed then. slots: how many runs have a place."""
        self.cells = memoryview(mmap.mmap(fd, _size(slots))).cast("H")
        column = slots + 1
        self.begun, self.threads, self.displaced = 1, 1 + column, 1 + 2 * column
        """Where each column begins; a run's cell lies its slot further."""

    @staticmethod
    def file(slots: int) -> int:
        """A file descriptor, open for reading and writing, of a file that has room for a board."""
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("callboard-board")
        else:  # outside Linux
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        os.truncate(fd, _size(slots))
        return fd

    def executes(self, slot: int) -> bool:
        """Whether code of this run is being executed: by the loop, or by a thread."""
        return self.cells[LOOP] == slot or self.cells[self.threads + slot] > 0

    @property
    def holder(self) -> int:
        """The slot of the run whose step the loop executes; 0 when it waits, or calls back."""
        return self.cells[LOOP]

    def begin(self, slot: int) -> None:
        """Shows that the process takes the run up."""
        self.cells[self.begun + slot] = 1

    def has_begun(self, slot: int) -> bool:
        """Whether the process took the run up."""
        return bool(self.cells[self.begun + slot])

    def is_displaced(self, slot: int) -> bool:
        """Whether the run may take no further step here."""
        return bool(self.cells[self.displaced + slot])

    def displace(self, slot: int) -> None:
        """Lets the run take no further step. One that is under way comes to its end."""
        self.cells[self.displaced + slot] = 1

    def clear(self, slot: int) -> None:
        """Makes the slot ready for another run, whatever an earlier one left behind in threads."""
        for column in (self.begun, self.threads, self.displaced):
            self.cells[column + slot] = 0


def _size(slots: int) -> int:
    return (1 + 3 * (slots + 1)) * _CELL_BYTES

"""Whose code a graph process executes right now: memory that it shares with its worker.

No pipe can tell it. While a C call keeps the GIL no thread of the process speaks, and while the
loop is held up nothing that a run is told reaches it. So each run has a seat on this board, with
three cells beside the one that says whose step the loop executes:

    begun       the process took the run up
    threads     how many threads execute its code
    displaced   the worker took it back: no further step of it may be executed here

Cells are 16 bits, written and read as a whole. Seats count from 1; seat 0 is nobody's. The worker
clears a seat before it gives it to a run.
"""

import mmap
import os
import tempfile

LOOP = 0
"""The cell that holds the seat of the run whose step the loop executes, or 0."""

_CELL_BYTES = 2


class Board:
    """The cells. Processes that map the same file see the same ones."""

    def __init__(self, fd: int, seats: int) -> None:
        """Maps the file, which may be closed then. seats: of how many runs."""
        self.cells = memoryview(mmap.mmap(fd, _size(seats))).cast("H")
        column = seats + 1
        self.begun, self.threads, self.displaced = 1, 1 + column, 1 + 2 * column
        """Where each column begins; a run's cell lies its seat further."""

    @staticmethod
    def file(seats: int) -> int:
        """A file descriptor, open for reading and writing, of a file that has room for a board."""
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("callboard-board")
        else:  # outside Linux
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        os.truncate(fd, _size(seats))
        return fd

    def executes(self, seat: int) -> bool:
        """Whether code of this run is being executed: by the loop, or by a thread."""
        return self.cells[LOOP] == seat or self.cells[self.threads + seat] > 0

    @property
    def holder(self) -> int:
        """The seat of the run whose step the loop executes; 0 when it waits, or calls back."""
        return self.cells[LOOP]

    def begin(self, seat: int) -> None:
        """Shows that the process takes the run up."""
        self.cells[self.begun + seat] = 1

    def has_begun(self, seat: int) -> bool:
        """Whether the process took the run up."""
        return bool(self.cells[self.begun + seat])

    def is_displaced(self, seat: int) -> bool:
        """Whether the run may take no further step here."""
        return bool(self.cells[self.displaced + seat])

    def displace(self, seat: int) -> None:
        """Lets the run take no further step. One that is under way comes to its end."""
        self.cells[self.displaced + seat] = 1

    def clear(self, seat: int) -> None:
        """Makes the seat ready for another run, whatever an earlier one left behind in threads."""
        for column in (self.begun, self.threads, self.displaced):
            self.cells[column + seat] = 0


def _size(seats: int) -> int:
    return (1 + 3 * (seats + 1)) * _CELL_BYTES

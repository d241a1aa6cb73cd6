"""Which worker of its host this is. Whoever has the slot may take back its predecessor's leases."""

import fcntl
import hashlib
import itertools
import os
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO
from uuid import uuid4

from actors.errors import WorkerSlotTaken


class WorkerSlot:
    """A place among the workers of a host that share a database, held until the process ends.

    The lock is the kernel's: it goes with the process, however that ends, and two workers cannot
    have one slot, so none takes for dead what its neighbour executes. Locks are told apart by the
    folder they lie in, which has a number of its own: machines, and containers, may well share a
    name without sharing a folder.
    """

    def __init__(self, database_url: str, wanted: str | None = None) -> None:
        """wanted: the slot's name; None for the lowest free number. Raises WorkerSlotTaken."""
        scope = hashlib.sha256(database_url.encode()).hexdigest()[:16]
        self._folder = Path(tempfile.gettempdir()) / f"callboard-{os.getuid()}-{scope}"
        self._folder.mkdir(mode=0o700, exist_ok=True)
        # systemd-tmpfiles removes what is old, but not from a folder that somebody has locked.
        self._kept = os.open(self._folder, os.O_RDONLY)
        fcntl.flock(self._kept, fcntl.LOCK_SH)
        self._lock: IO[bytes] | None = None
        self.name = self._take(wanted)
        self.boot_id = uuid4().hex
        host = socket.gethostname().replace("/", "-")
        self.key = f"{host}.{self._number_of_folder()}/{self.name}"

    @property
    def owner(self) -> str:
        """``host.folder/worker slot/boot id``: who holds a lease."""
        return f"{self.key}/{self.boot_id}"

    def release(self) -> None:
        """Leaves the slot to others."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
            os.close(self._kept)

    def _number_of_folder(self) -> str:
        path, mine = self._folder / "number", self._folder / f"number.{self.boot_id}"
        if not path.exists():
            mine.write_text(uuid4().hex[:12])
            with suppress(FileExistsError):  # another worker was quicker
                os.link(mine, path)
            mine.unlink()
        return path.read_text()

    def _take(self, wanted: str | None) -> str:
        if wanted is not None:
            name = wanted.replace("/", "-")
            if not self._locked(name):
                raise WorkerSlotTaken(
                    f"WORKER_SLOT: got {wanted!r}, expected one that no worker has"
                )
            return name
        return next(name for name in map(str, itertools.count()) if self._locked(name))

    def _locked(self, name: str) -> bool:
        lock = (self._folder / f"{name}.lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return False
        self._lock = lock
        return True

"""Which worker of its host this is. Whoever has the slot may take back its predecessor's leases."""

import fcntl
import hashlib
import itertools
import os
import socket
import tempfile
from pathlib import Path
from typing import IO
from uuid import uuid4

from actors.errors import WorkerSlotTaken


class WorkerSlot:
    """A place among the workers of a host that share a database, held until the process ends.

    The lock is the kernel's: it goes with the process, however that ends, and two workers cannot
    have one slot, so none takes for dead what its neighbour executes.
    """

    def __init__(self, database_url: str, wanted: str | None = None) -> None:
        """wanted: the slot's name; None for the lowest free number. Raises WorkerSlotTaken."""
        scope = hashlib.sha256(database_url.encode()).hexdigest()[:16]
        self._folder = Path(tempfile.gettempdir()) / f"callboard-{os.getuid()}-{scope}"
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._lock: IO[bytes] | None = None
        self.name = self._take(wanted)
        self.boot_id = uuid4().hex
        self.key = f"{socket.gethostname().replace('/', '-')}/{self.name}"

    @property
    def owner(self) -> str:
        """``host/worker slot/boot id``: who holds a lease."""
        return f"{self.key}/{self.boot_id}"

    def release(self) -> None:
        """Leaves the slot to others."""
        if self._lock is not None:
            self._lock.close()

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

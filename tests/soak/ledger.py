"""What clients were promised, what they met, and what was wrong."""

import threading
from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Ledger:
    """Written by clients and by whoever breaks things, read at the end."""

    breaking: bool = False
    """Whether parts are being broken: only then may connections be cut and answers be 503."""
    accepted: dict[str, str] = field(default_factory=dict)
    """Which kind of work each run is that was answered with 2xx."""
    lines: list[list[str]] = field(default_factory=list)
    """Runs that were accepted in this order, to be executed one after the other."""
    met: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often a kind of work met what."""
    wrong: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def accept(self, run_id: str, kind: str) -> None:
        with self._lock:
            self.accepted[run_id] = kind

    def meet(self, kind: str, what: str) -> None:
        with self._lock:
            self.met[kind, what] += 1

    def disturbed(self, kind: str, what: str) -> None:
        """A cut or a refusal: part of the game while things are broken, and a fault otherwise."""
        self.meet(kind, what)
        if not self.breaking:
            self.fault(f"{kind}: {what} although nothing was broken")

    def fault(self, what: str) -> None:
        with self._lock:
            self.wrong.append(what)

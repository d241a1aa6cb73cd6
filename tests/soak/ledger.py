"""What clients were promised, what they met, and what was wrong."""

import threading
import time
from collections import Counter
from dataclasses import dataclass, field

_HELD_SECONDS = 10.0


@dataclass
class Ledger:
    """Written by clients and by whoever breaks things, read at the end."""

    breaking: bool = False
    """Whether parts are being broken: only then may connections be cut and answers be 503."""
    accepted: dict[str, str] = field(default_factory=dict)
    """Which kind of work each run is that was answered with 2xx."""
    lines: list[list[str]] = field(default_factory=list)
    """Runs that were accepted in this order, to be executed one after the other."""
    redis_hurt_at: float = float("-inf")
    """When Redis was hurt last, by the monotonic clock."""
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

    def events_may_be_lost(self, since: float) -> bool:
        """Whether Redis was hurt after a moment, or shortly before.

        What was held for it is gone if the process that holds it is killed then, and the stream
        does not say so if nothing follows.
        """
        return self.redis_hurt_at > since - _HELD_SECONDS

    def hurt_redis(self) -> None:
        self.redis_hurt_at = time.monotonic()

    def fault(self, what: str) -> None:
        with self._lock:
            self.wrong.append(what)

"""How long a thread lives after its last change, and what becomes of it then."""

from dataclasses import dataclass
from enum import StrEnum


class TtlStrategy(StrEnum):
    """What becomes of a thread whose time is over, in the wire's words."""

    DELETE = "delete"
    """The thread goes with everything that is of it."""
    KEEP_LATEST = "keep_latest"
    """The thread and its latest state stay, its history goes."""


@dataclass(frozen=True, slots=True)
class Ttl:
    """minutes: counted from the last change of the thread, so one that is in use lives on."""

    minutes: float
    strategy: TtlStrategy = TtlStrategy.DELETE

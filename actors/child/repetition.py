"""How often one kind of log line may be repeated, in every process."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic

WINDOW_SECONDS = 10.0
WARNINGS, OTHERS = 10, 1000
"""How many lines of one kind are written in a window."""
_KINDS = 1000
"""How many kinds are counted. More than that are no kinds: texts with something inserted."""
_OF_ITS_KIND, _OF_OTHERS = "left_out", "left_out_of_others"
"""Fields of a line that passes: how many were left out before it."""


@dataclass(slots=True)
class _Kind:
    """Lines of one kind: since when they are counted, and what became of them."""

    since: float
    written: int = 0
    left_out: int = 0


class RepetitionLimit(logging.Filter):
    """Lets a few lines of each kind pass in a while; the next that passes says ``left_out``.

    A kind is a logger, a level and a text without what is inserted into it. What fails twice a
    second for as long as a database is away has been said after the first few times. When there
    are too many kinds all are forgotten, and the line that did it tells what was left out of them
    (``left_out_of_others``).
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[tuple[str, int, int], _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written."""
        now = self._clock()
        name = (record.name, record.levelno, hash(_text(record.msg)))  # texts may be large
        kind = self._kinds.get(name)
        if kind is None:
            if len(self._kinds) >= _KINDS:
                forgotten, self._kinds = self._kinds, {}
                _note(record, _OF_OTHERS, sum(kind.left_out for kind in forgotten.values()))
            kind = self._kinds[name] = _Kind(now)
        elif now - kind.since > WINDOW_SECONDS:
            kind.since, kind.written = now, 0
        if kind.written >= (WARNINGS if record.levelno >= logging.WARNING else OTHERS):
            kind.left_out += 1
            return False
        kind.written += 1
        _note(record, _OF_ITS_KIND, kind.left_out)
        kind.left_out = 0
        return True


def _text(message: object) -> str:
    """The constant part: structlog's message is the event's fields, of which one is its name."""
    if isinstance(message, Mapping):
        message = message.get("event")
    # Anything else may fail when it is to be told, and nobody would catch that here.
    return message if isinstance(message, str) else type(message).__name__


def _note(record: logging.LogRecord, field: str, left_out: int) -> None:
    if not left_out:
        return
    if isinstance(record.msg, dict):
        record.msg = {**record.msg, field: left_out}
    else:
        setattr(record, field, left_out)

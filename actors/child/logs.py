"""Log lines of a graph process, on stderr, which the worker inherits to it; and for all processes
how often one kind of line may be repeated."""

import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

WINDOW_SECONDS = 10.0
WARNINGS, OTHERS = 10, 1000
"""How many lines of one kind are written in a window."""
_KINDS = 1000
"""How many kinds are counted. More than that are no kinds: texts with something inserted."""


@dataclass(slots=True)
class _Kind:
    """Lines of one kind: since when they are counted, and what became of them."""

    since: float
    written: int = 0
    left_out: int = 0


class RepetitionLimit(logging.Filter):
    """Lets a few lines of each kind pass in a while; the next that passes says ``left_out``.

    A kind is a logger, a level and a text without what is inserted into it. What fails twice a
    second for as long as a database is away has been said after the first few times.
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
                self._kinds.clear()
            kind = self._kinds[name] = _Kind(now)
        elif now - kind.since > WINDOW_SECONDS:
            kind.since, kind.written = now, 0
        if kind.written >= (WARNINGS if record.levelno >= logging.WARNING else OTHERS):
            kind.left_out += 1
            return False
        kind.written += 1
        if kind.left_out:
            _note(record, kind.left_out)
            kind.left_out = 0
        return True


def _text(message: object) -> str:
    """The constant part: structlog's message is the event's fields, of which one is its name."""
    if isinstance(message, Mapping):
        message = message.get("event")
    # Anything else may fail when it is to be told, and nobody would catch that here.
    return message if isinstance(message, str) else type(message).__name__


def _note(record: logging.LogRecord, left_out: int) -> None:
    if isinstance(record.msg, dict):
        record.msg = {**record.msg, "left_out": left_out}
    else:
        record.left_out = left_out


class _Fields(logging.Formatter):
    """A line, and what the call passed as ``extra`` behind it as ``name=value``."""

    def format(self, record: logging.LogRecord) -> str:
        """The line; tracebacks follow it."""
        extra = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        line, newline, rest = super().format(record).partition("\n")
        return (
            line + "".join(f" {name}={value!r}" for name, value in extra.items()) + newline + rest
        )


def log_to_stderr() -> None:
    """Configures the root logger; user code may change it as it likes."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _Fields(f"%(asctime)s %(levelname)s graphs[{os.getpid()}] %(name)s: %(message)s")
    )
    handler.addFilter(RepetitionLimit())
    logging.basicConfig(level=logging.INFO, handlers=[handler])

"""Log lines of a graph process, on stderr, which the worker inherits to it."""

import logging
import os
import sys

from actors.child.repetition import RepetitionLimit

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


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

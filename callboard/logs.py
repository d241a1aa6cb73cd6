"""One shape for all log lines of a process, whichever library writes them.

``LOG_JSON=true`` (the default unless a person watches at a terminal): one JSON object a line.
``LOG_LEVEL`` (default ``info``): the least level that is written.
What is repeated too often is left out, and counted (``left_out``).
"""

import logging
import os
import sys
from typing import Any

import orjson
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from actors.child.repetition import RepetitionLimit
from callboard.errors import StartError


def configure(part: str) -> None:
    """Sends structlog's and the standard library's records to stdout, each marked with ``part``.

    Raises StartError.
    """

    def mark(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return {"part": part, **event}

    before: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        mark,
    ]
    structlog.configure(
        processors=[*before, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=before,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_rendered()],
        )
    )
    handler.addFilter(RepetitionLimit())
    logging.basicConfig(level=_level(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    for chatty in ("alembic", "apscheduler", "httpx"):
        logging.getLogger(chatty).setLevel(max(_level(), logging.WARNING))


def _rendered() -> list[Processor]:
    if _as_json():
        return [structlog.processors.format_exc_info, _to_json]
    # The default draws every frame with its variables: secrets in the log, and seconds in which
    # nothing else happens.
    plain = structlog.dev.plain_traceback
    colors = sys.stdout.isatty()
    return [_without_part, structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)]


def _to_json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    return orjson.dumps(event, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()


def _without_part(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """At a terminal ``callboard up`` puts the part before each line already."""
    event.pop("part", None)
    return event


def _level() -> int:
    word = os.environ.get("LOG_LEVEL", "").strip().upper() or "INFO"
    levels: dict[str, Any] = logging.getLevelNamesMapping()
    if word not in levels:
        raise StartError(f"LOG_LEVEL: expected one of debug, info, warning, error, got {word}")
    return int(levels[word])


def _as_json() -> bool:
    word = os.environ.get("LOG_JSON", "").strip().lower()
    if word in {"1", "true", "yes", "on"}:
        return True
    if word in {"0", "false", "no", "off"}:
        return False
    if not word:
        return not sys.stdout.isatty()
    raise StartError(f"LOG_JSON: expected true or false, got {word}")

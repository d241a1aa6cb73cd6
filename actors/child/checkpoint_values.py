"""What is stored of which value, and where: decided by looking at the values, without effects."""

import asyncio
import concurrent.futures
import datetime
import decimal
import enum
import math
import uuid
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.serde.types import ERROR

from actors.child.stop import Stopped

MAX_INLINE_CHARACTERS = 4096
"""Longer strings are stored as blobs, once per change."""
SMALL_BYTES = 32 * 1024
"""As much is serialized, or read back, more quickly than it is handed to a thread."""

_SMALL_NODES = 200
_SCALARS = (
    type(None),
    bool,
    int,
    float,
    complex,
    uuid.UUID,
    decimal.Decimal,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    datetime.tzinfo,
    enum.Enum,
)
_CUT_OFF = (asyncio.CancelledError, concurrent.futures.CancelledError, Stopped)


def of_whole_task(writes: Sequence[tuple[str, Any]]) -> Sequence[tuple[str, Any]]:
    """What may be stored of a task's writes: of one that was stopped, only that it was.

    LangGraph hands over all that it has, which may be what the node returned without the edge that
    was being chosen, and later takes a task with such writes for one that has finished: the graph
    would end there, as if nothing were left to do.
    """
    if any(channel == ERROR and isinstance(value, _CUT_OFF) for channel, value in writes):
        return [write for write in writes if write[0] in WRITES_IDX_MAP]
    return writes


def is_primitive(value: object) -> bool:
    """Whether the stock saver keeps the value in the checkpoint's own JSON."""
    return value is None or isinstance(value, (str, int, float, bool))


def is_moved(value: object) -> bool:
    """Whether the value is a primitive that we nevertheless keep as a blob."""
    if isinstance(value, str):
        return len(value) > MAX_INLINE_CHARACTERS or "\0" in value
    if isinstance(value, float):
        # jsonb has no NaN, and gives 1e22 back as an integer.
        return not math.isfinite(value) or "e" in repr(float(value))
    return False


def is_small(values: Iterable[Any]) -> bool:
    """Whether serializing ``values`` is quicker than a hop to a thread and back. Errs towards no.

    Looks at a few hundred objects at most.
    """
    size = seen = 0
    rest = list(values)
    while rest:
        value = rest.pop()
        seen += 1
        parts: Collection[Any] = ()
        if isinstance(value, (str, bytes, bytearray)):
            size += len(value)
        elif isinstance(value, (dict, list, tuple, set, frozenset)):
            parts = value
        elif isinstance(value, _SCALARS):
            pass
        elif isinstance(attributes := getattr(value, "__dict__", None), dict):
            parts = attributes
        elif isinstance(slots := getattr(type(value), "__slots__", None), tuple):
            parts = [getattr(value, slot, None) for slot in slots]
        else:
            return False
        if size > SMALL_BYTES or seen + len(rest) + len(parts) > _SMALL_NODES:
            return False
        rest.extend(parts.items() if isinstance(parts, dict) else parts)
    return True

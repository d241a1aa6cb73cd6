"""The ``checkpointer`` section of ``langgraph.json``: how long threads live."""

from collections.abc import Callable, Mapping
from typing import Any

from persistence.ttl import Ttl, TtlStrategy

Broken = Callable[[str, object, str], Exception]
"""Makes the error of a key: key, what came, what was expected."""

_MOST = 100 * 366 * 24 * 60
"""A century, in minutes."""


def read(section: Mapping[str, Any], broken: Broken) -> Ttl | None:
    """The lifetime of threads for which clients name none. Raises what ``broken`` makes.

    ``sweep_interval_minutes`` and ``sweep_limit`` are checked and not needed: expired threads are
    found by an index, and every sweep of the reaper removes a small batch of them.
    """
    raw = section.get("ttl")
    if raw is None:
        return None
    if not isinstance(raw, dict):
        raise broken("checkpointer.ttl", raw, "an object")
    for key in ("default_ttl", "sweep_interval_minutes", "sweep_limit"):
        value = raw.get(key)
        if value is not None and (type(value) not in (int, float) or not 0 < value <= _MOST):
            raise broken(f"checkpointer.ttl.{key}", value, "a number above 0")
    strategy = raw.get("strategy", TtlStrategy.DELETE)
    if strategy not in set(TtlStrategy):
        raise broken("checkpointer.ttl.strategy", strategy, '"delete" or "keep_latest"')
    minutes = raw.get("default_ttl")
    return None if minutes is None else Ttl(float(minutes), TtlStrategy(strategy))

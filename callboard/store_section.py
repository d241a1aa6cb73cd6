"""The ``store`` section of ``langgraph.json``, checked without importing what it names."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from persistence.store import StoreConfig

Broken = Callable[[str, object, str], Exception]
"""Makes the error of a key: key, what came, what was expected."""

MOST_DIMENSIONS = 16_000
"""What pgvector stores."""

_EMBED = '"provider:model", "./file.py:variable" or "package.module:variable"'
_MINUTES = "minutes, more than 0"


def read(section: Mapping[str, Any], root: Path, broken: Broken) -> StoreConfig:
    """What the server needs to know of it. Raises what ``broken`` makes."""
    index, ttl = section.get("index"), section.get("ttl")
    for key, part in (("index", index), ("ttl", ttl)):
        if part is not None and not isinstance(part, dict):
            raise broken(f"store.{key}", part, "an object")
    minutes, refresh = _ttl(ttl or {}, broken)
    return StoreConfig(
        vector_dims=_dims(index, root, broken) if index else None,
        default_ttl_minutes=minutes,
        refresh_on_read=refresh,
    )


def _dims(index: Mapping[str, Any], root: Path, broken: Broken) -> int:
    dims, fields = index.get("dims"), index.get("fields")
    if type(dims) is not int or not 1 <= dims <= MOST_DIMENSIONS:
        raise broken("store.index.dims", dims, f"a number from 1 to {MOST_DIMENSIONS}")
    if fields is not None and not (
        isinstance(fields, list) and all(isinstance(path, str) and path for path in fields)
    ):
        raise broken("store.index.fields", fields, "a list of paths")
    _check_embed(index.get("embed"), root, broken)
    return dims


def _check_embed(embed: object, root: Path, broken: Broken) -> None:
    if not isinstance(embed, str):
        raise broken("store.index.embed", embed, _EMBED)
    place, _, name = embed.rpartition(":")
    if not place or not name:
        raise broken("store.index.embed", embed, _EMBED)
    if "/" in place or "\\" in place or place.endswith(".py"):
        if not name.isidentifier():
            raise broken("store.index.embed", embed, _EMBED)
        if not (root / place).is_file():
            raise broken("store.index.embed", embed, f"{_EMBED}; there is no such file")


def _ttl(ttl: Mapping[str, Any], broken: Broken) -> tuple[float | None, bool]:
    minutes, refresh = ttl.get("default_ttl"), ttl.get("refresh_on_read", True)
    for key in ("default_ttl", "sweep_interval_minutes"):
        value = ttl.get(key)
        if value is not None and (type(value) not in (int, float) or not value > 0):
            raise broken(f"store.ttl.{key}", value, _MINUTES)
    if not isinstance(refresh, bool):
        raise broken("store.ttl.refresh_on_read", refresh, "true or false")
    return None if minutes is None else float(minutes), refresh

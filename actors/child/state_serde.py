"""How states are packed into checkpoints: as LangGraph does it, and a little more.

LangGraph's serializer refuses single numbers of numpy, integers of more than 64 bits, pure paths
and complex numbers, which are ordinary values in a state: a run that came to one would fail. They
are written in a form that LangGraph reads back as what they were ("call this class with that
argument"). Arrays of objects it
writes as the addresses of these, and reads them back as None: they become lists. States that it
packs by itself are left to it.
"""

import dataclasses
import pathlib
import sys
from collections import deque
from typing import Any

import ormsgpack
from langgraph.checkpoint.serde.jsonplus import (
    EXT_CONSTRUCTOR_KW_ARGS,
    EXT_CONSTRUCTOR_POS_ARGS,
    EXT_CONSTRUCTOR_SINGLE_ARG,
    EXT_PYDANTIC_V2,
    JsonPlusSerializer,
)
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Send

_LOST = (b"\xa2|O", b"|V")
"""Stands in the bytes of an array whose items are objects, or records; elsewhere only by chance."""


class StateSerializer(JsonPlusSerializer):
    """Packs what ``JsonPlusSerializer`` packs, in the same bytes, and what it refuses."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Type and bytes. Raises TypeError for what cannot be packed, as a run's failure."""
        try:
            packed = super().dumps_typed(obj)
        except (TypeError, ValueError) as error:
            refused: Exception | None = error
        else:
            if not any(mark in packed[1] for mark in _LOST):
                return packed
            refused = None
        try:
            packable = self._packable(obj)
        except RecursionError as error:
            raise refused or error from None
        return super().dumps_typed(packable)

    def _packable(self, value: Any) -> Any:
        """The same, with a form for what LangGraph has none for."""
        kind = type(value)
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.generic):
            return self._call("numpy", kind.__name__, _bare(value))
        if numpy is not None and isinstance(value, numpy.ndarray):
            # Only arrays of numbers and texts have bytes that mean something elsewhere.
            return value if value.dtype.kind in "biufcSU" else self._packable(value.tolist())
        if kind is int and not -(2**63) <= value < 2**64:
            return self._ext(EXT_CONSTRUCTOR_POS_ARGS, ("builtins", "int", (hex(value), 16)))
        if kind in (list, tuple):
            return kind(self._packable(item) for item in value)
        if kind is dict:
            return {_key(key): self._packable(item) for key, item in value.items()}
        if kind in (set, frozenset, deque):
            items = tuple(self._packable(item) for item in value)
            return self._call(kind.__module__, kind.__name__, items)
        if isinstance(value, pathlib.PurePath) and not isinstance(value, pathlib.Path):
            return self._call("pathlib", kind.__name__, str(value))
        if isinstance(value, complex):
            return self._call("builtins", "complex", str(value))
        if isinstance(value, Send):
            return Send(value.node, self._packable(value.arg))
        if isinstance(value, _DeltaSnapshot):
            return _DeltaSnapshot(self._packable(value.value))
        if callable(dump := getattr(value, "model_dump", None)):
            fields = self._packable(dump())
            return self._ext(
                EXT_PYDANTIC_V2, (kind.__module__, kind.__name__, fields, "model_validate_json")
            )
        if callable(fields_of := getattr(value, "_asdict", None)):
            content = (kind.__module__, kind.__name__, self._packable(fields_of()))
            return self._ext(EXT_CONSTRUCTOR_KW_ARGS, content)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in dataclasses.fields(value)]
            fields = {name: self._packable(getattr(value, name)) for name in names}
            return self._ext(EXT_CONSTRUCTOR_KW_ARGS, (kind.__module__, kind.__name__, fields))
        return value

    def _call(self, module: str, name: str, argument: Any) -> ormsgpack.Ext:
        return self._ext(EXT_CONSTRUCTOR_SINGLE_ARG, (module, name, argument))

    def _ext(self, code: int, content: Any) -> ormsgpack.Ext:
        return ormsgpack.Ext(code, super().dumps_typed(content)[1])


def _key(key: Any) -> Any:
    """A key of a dict, which must be a plain value."""
    numpy = sys.modules.get("numpy")
    return _bare(key) if numpy is not None and isinstance(key, numpy.generic) else key


def _bare(number: Any) -> Any:
    """Python's own for a number of numpy; texts for what Python has nothing like."""
    bare = number.item()
    return bare if isinstance(bare, (bool, int, float, str, bytes)) else str(number)

"""LangGraph's objects as JSON bytes. Done once, here: everyone after it relays the bytes.

``dumps`` never raises and never turns a value that has a form into null:

    messages, pydantic models, named tuples   their fields
    dataclasses, Enum, datetime, UUID         as orjson has them; timedelta is seconds
    int beyond 64 bit, Decimal                the exact number
    bytes                                     base64
    sets, deques, views, other collections    a list (mappings an object)
    numpy arrays                              nested lists, also strided, text, structured
    exceptions                                ``{"error", "message"}``, masked
    everything else                           its ``repr``

NaN and the infinities are null: JSON has no form for them, clients in JavaScript write them so
themselves, and so does the reference. A lone surrogate becomes U+FFFD, since UTF-8 has no form for
it. NUL stays: it is legal JSON, and the database's border takes care of it. A value inside itself
becomes ``"[circular]"``, and what is nested deeper than any parser reads is only named.
"""

import base64
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import ipaddress
import pathlib
import re
import types
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import orjson
from langchain_core.messages import BaseMessage
from langgraph.types import Send
from pydantic import BaseModel

from actors.child.masking import masked_alone
from actors.child.storable import without_surrogates
from actors.child.user import User

MAX_DEPTH = 500
"""Parsers refuse some 1000 levels, and values are sent inside others."""
MAX_STEPS = 16
"""Reductions from one object to a dict, a list or a text."""
MAX_ITEMS = 1_000_000
"""A collection that only pretends to hold its items (``range(10**12)``) is not spelled out."""
MAX_DESCRIPTION = 10_000
"""Characters of a ``repr`` that are kept."""

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


def dumps(value: Any) -> bytes:
    """The value as JSON on one line. Never raises; see the module's docstring for the forms."""
    try:
        return orjson.dumps(value, _plain, _OPTIONS)
    except (TypeError, RecursionError):  # what orjson refuses: huge, deep, circular, ill-formed
        return _spelled(value)


def dumps_brief(value: Any) -> bytes:
    """The same, but messages say only what they have to say: no field that is empty.

    What takes the long way is written in full.
    """
    try:
        return orjson.dumps(value, _plain_brief, _OPTIONS)
    except (TypeError, RecursionError):
        return _spelled(value)


def _plain_brief(value: Any) -> Any:
    fields = _plain(value)
    if not isinstance(value, BaseMessage) or not isinstance(fields, dict):
        return fields
    return {
        name: field
        for name, field in fields.items()
        if name in _ALWAYS or not (field is None or field in ({}, [], ""))
    }


_ALWAYS = frozenset({"type", "content", "tool_call_id", "status", "artifact"})
"""Fields of messages that are told even when there is nothing in them."""


# One step: an object that orjson does not know → one that it knows better


def _plain(value: Any) -> Any:
    """The same in simpler terms. Never raises."""
    try:
        return _reduced(value)
    except Exception:  # noqa: BLE001  # a user's model_dump or __iter__ may do anything
        return _described(value)


@singledispatch
def _reduced(value: Any) -> Any:
    """By what the object can do, for types that are not named below."""
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    for method in ("model_dump", "dict", "_asdict"):
        if callable(fields := getattr(value, method, None)):
            return fields()
    if callable(items := getattr(value, "tolist", None)):  # numpy, and who follows it
        return items()
    if attributes := getattr(type(value), "__attrs_attrs__", None):
        return {attribute.name: getattr(value, attribute.name) for attribute in attributes}
    if isinstance(value, Collection) and len(value) <= MAX_ITEMS:
        return dict(value) if isinstance(value, Mapping) else list(value)
    return _described(value)


@_reduced.register
def _(value: BaseModel) -> Any:
    try:
        return value.model_dump(warnings=False)
    except TypeError:  # the user's own model_dump knows no such argument
        return value.model_dump()


@_reduced.register
def _(value: BaseException) -> Any:
    return masked_alone(value)


@_reduced.register
def _(value: Send) -> Any:
    return {"node": value.node, "args": value.arg}


@_reduced.register
def _(value: User) -> Any:
    return value.shown()


@_reduced.register(bytes)
@_reduced.register(bytearray)
@_reduced.register(memoryview)
def _(value: Any) -> Any:
    return base64.b64encode(value).decode()


@_reduced.register
def _(value: decimal.Decimal) -> Any:
    return orjson.Fragment(str(value)) if value.is_finite() else None


@_reduced.register
def _(value: datetime.timedelta) -> Any:
    return value.total_seconds()


@_reduced.register
def _(value: re.Pattern) -> Any:  # type: ignore[type-arg]  # singledispatch wants the bare class
    return value.pattern


@_reduced.register
def _(value: types.SimpleNamespace) -> Any:
    return vars(value)


@_reduced.register(complex)
@_reduced.register(fractions.Fraction)
@_reduced.register(pathlib.PurePath)
@_reduced.register(datetime.tzinfo)
@_reduced.register(collections.UserString)
@_reduced.register(ipaddress.IPv4Address)
@_reduced.register(ipaddress.IPv6Address)
@_reduced.register(ipaddress.IPv4Network)
@_reduced.register(ipaddress.IPv6Network)
@_reduced.register(ipaddress.IPv4Interface)
@_reduced.register(ipaddress.IPv6Interface)
def _(value: Any) -> Any:
    return str(value)


def _described(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  # a user's __repr__ may do anything
        text = f"<{type(value).__name__}>"
    return text if len(text) <= MAX_DESCRIPTION else f"{text[:MAX_DESCRIPTION]}…"


# The long way, for what orjson refuses: slower, without recursion, and it gives in to nothing


@dataclass(slots=True)
class _Opened:
    """An array or object that is being written; ``sources`` are the objects it was made from."""

    sources: list[Any]
    entries: Iterator[tuple[bytes, Any]]
    closing: bytes


def _spelled(root: Any) -> bytes:
    written: list[bytes] = []
    opened: list[_Opened] = []
    path: set[int] = set()

    def write(value: Any) -> None:
        sources = [value]
        while (leaf := _leaf(value)) is None and not _is_container(value):
            # A few steps do; an object that never gets simpler is described.
            value = _expanded(value) if len(sources) < MAX_STEPS else _described(value)
            sources.append(value)
        if leaf is not None:
            written.append(leaf)
        elif not path.isdisjoint(map(id, sources)):
            written.append(b'"[circular]"')
        elif len(opened) >= MAX_DEPTH:
            written.append(_text(f"<{type(value).__name__} of {len(value)}, nested too deeply>"))
        else:
            is_object = isinstance(value, dict)
            written.append(b"{" if is_object else b"[")
            entries = _fields(value) if isinstance(value, dict) else _items(value)
            opened.append(_Opened(sources, entries, b"}" if is_object else b"]"))
            path.update(map(id, sources))

    write(root)
    while opened:
        entry = next(opened[-1].entries, None)
        if entry is None:
            closed = opened.pop()
            path.difference_update(map(id, closed.sources))
            written.append(closed.closing)
        else:
            written.append(entry[0])
            write(entry[1])
    return b"".join(written)


def _is_container(value: Any) -> bool:
    """Whether the value is spelled as it stands; a named tuple, for one, is not."""
    return isinstance(value, (dict, list)) or type(value) is tuple


def _fields(value: dict[Any, Any]) -> Iterator[tuple[bytes, Any]]:
    comma = b""
    for key, item in list(value.items()):
        yield comma + _key(key) + b":", item
        comma = b","


def _items(value: list[Any] | tuple[Any, ...]) -> Iterator[tuple[bytes, Any]]:
    comma = b""
    for item in list(value):
        yield comma, item
        comma = b","


def _leaf(value: Any) -> bytes | None:
    """The value's text, when it is not made of others."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, (dict, list, tuple, enum.Enum)) or dataclasses.is_dataclass(value):
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return _number(value)
    try:
        return orjson.dumps(value, option=_OPTIONS)
    except TypeError:
        return None


def _expanded(value: Any) -> Any:
    """One step towards dicts, lists and leaves, also for what orjson would have done itself."""
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (entry.name for entry in dataclasses.fields(value))
        return {name: getattr(value, name, None) for name in names if not name.startswith("_")}
    return _plain(value)


def _key(key: Any) -> bytes:
    """The text of an object's key; what JSON cannot have as a key is described."""
    try:
        return orjson.dumps({key: 0}, option=_OPTIONS)[1:-3]
    except TypeError:
        return _text(key if isinstance(key, str) else _described(key))


def _number(value: int) -> bytes:
    try:
        return str(int(value)).encode()
    except ValueError:  # Python writes at most some thousand decimal digits; so many are no number
        return _text(hex(value))


def _text(value: str) -> bytes:
    try:
        return orjson.dumps(str(value))
    except TypeError:
        return orjson.dumps(without_surrogates(value))

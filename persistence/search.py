"""What searches have in common: matching JSON the way clients expect, and an order without ties."""

from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from persistence.text import clean, dumps


def matches(column: sa.ColumnElement[Any], wanted: Mapping[str, Any]) -> sa.ColumnElement[bool]:
    """The JSON column contains ``wanted``: objects match on a subset, lists must be equal.

    Types count: ``true``, ``1`` and ``"true"`` are three values. A null column never matches.
    """
    conditions: list[sa.ColumnElement[bool]] = [column.op("@>")(_json(wanted))]
    # jsonb's containment takes lists for sets; this narrows what the index has found.
    conditions += [
        column.op("#>")(sa.literal(path, ARRAY(sa.Text))) == _json(value)
        for path, value in _lists(wanted, [])
    ]
    return sa.and_(*conditions)


def _json(value: Any) -> sa.ColumnElement[Any]:
    return sa.cast(sa.literal(dumps(value).decode(), sa.Text), JSONB)


def _lists(value: Any, path: list[str]) -> Iterator[tuple[list[str], Any]]:
    if isinstance(value, list):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _lists(item, [*path, clean(key)])


def ordered(
    statement: sa.Select[Any],
    by: sa.ColumnElement[Any],
    tie_break: sa.ColumnElement[Any],
    *,
    ascending: bool,
) -> sa.Select[Any]:
    """Orders so that pages never overlap: rows that are equal in ``by`` go by the other column."""
    if ascending:
        return statement.order_by(by.asc(), tie_break.asc())
    return statement.order_by(by.desc(), tie_break.desc())

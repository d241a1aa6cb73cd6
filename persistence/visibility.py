"""Which rows a caller may see: what an authorization handler answered, compiled into SQL.

    {"owner": "ann"}                        the value is equal, whatever its type
    {"owner": {"$eq": "ann"}}               the same
    {"members": {"$contains": "ann"}}       the list has this element
    {"members": {"$contains": ["a", "b"]}}  the list has all of these
    {"$or": [filter, …]}, {"$and": [filter, …]}

Several keys are all to hold. What is not understood is refused, never ignored: an operator that is
dropped would show rows that were meant to be hidden.
"""

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from persistence.text import clean, dumps

Filter = Mapping[str, Any]
"""A condition on a row's metadata; an empty one holds for every row."""

_DIALECT = PGDialect_psycopg()  # type: ignore[no-untyped-call]  # SQLAlchemy leaves it untyped
_Bind = Callable[[str], sa.ColumnElement[Any]]
_Condition = sa.ColumnElement[bool]


class InvalidFilter(ValueError):
    """The filter has a form or an operator that nobody knows."""


def visible(column: sa.ColumnElement[Any], allowed: Filter | None) -> _Condition:
    """The condition that the row of this metadata column may be seen. None: every row may.

    Pure. Raises InvalidFilter.
    """
    return _all(column, allowed or {}, lambda text: sa.literal(text, sa.Text))


def clause(
    column: str, allowed: Filter | None, name: str = "visible"
) -> tuple[str, dict[str, Any]]:
    """The same as SQL text and its named parameters, for statements that are written by hand.

    name: what the parameters are called, with a number behind it. Raises InvalidFilter.
    """
    if not allowed:
        return "TRUE", {}
    numbers = count()

    def bind(text: str) -> sa.ColumnElement[Any]:
        return sa.bindparam(f"{name}_{next(numbers)}", text, sa.Text)

    condition = _all(sa.literal_column(column), allowed, bind)
    compiled = condition.compile(dialect=_DIALECT)
    return f"({compiled})", dict(compiled.params)


def _all(column: sa.ColumnElement[Any], allowed: Filter, bind: _Bind) -> _Condition:
    if not isinstance(allowed, Mapping):
        raise InvalidFilter(f"expected an object, got {type(allowed).__name__}")
    return sa.and_(sa.true(), *(_one(column, key, value, bind) for key, value in allowed.items()))


def _one(column: sa.ColumnElement[Any], key: str, wanted: Any, bind: _Bind) -> _Condition:
    if not isinstance(key, str):
        raise InvalidFilter(f"expected text as a key, got {key!r}")
    if key.startswith("$"):
        return _either(column, key, wanted, bind)
    if not isinstance(wanted, Mapping) or not any(str(name).startswith("$") for name in wanted):
        return _equal(column, key, wanted, bind)
    conditions = []
    for operator, operand in wanted.items():
        match operator:
            case "$eq":
                conditions.append(_equal(column, key, operand, bind))
            case "$contains":
                conditions.append(_contains(column, key, operand, bind))
            case _:
                raise InvalidFilter(f"unknown operator {operator!r}")
    return sa.and_(*conditions)


def _either(column: sa.ColumnElement[Any], operator: str, branches: Any, bind: _Bind) -> _Condition:
    if operator not in ("$or", "$and"):
        raise InvalidFilter(f"unknown operator {operator!r}")
    if not isinstance(branches, list | tuple) or not branches:
        raise InvalidFilter(f"expected a list of filters behind {operator!r}")
    conditions = [_all(column, branch, bind) for branch in branches]
    return sa.or_(*conditions) if operator == "$or" else sa.and_(*conditions)


def _equal(column: sa.ColumnElement[Any], key: str, value: Any, bind: _Bind) -> _Condition:
    # Containment is what the index knows; of scalars it is equality already.
    holds: _Condition = column.op("@>", is_comparison=True)(_json({key: value}, bind))
    if isinstance(value, Mapping | list | tuple):
        found = column.op("->")(bind(clean(key)))
        return sa.and_(holds, found.op("=", is_comparison=True)(_json(value, bind)))
    return holds


def _contains(column: sa.ColumnElement[Any], key: str, elements: Any, bind: _Bind) -> _Condition:
    wanted = list(elements) if isinstance(elements, list | tuple) else [elements]
    if any(isinstance(element, Mapping | list | tuple) for element in wanted):
        raise InvalidFilter("expected texts or numbers behind '$contains'")
    holds: _Condition = column.op("@>", is_comparison=True)(_json({key: wanted}, bind))
    return holds


def _json(value: Any, bind: _Bind) -> sa.ColumnElement[Any]:
    try:
        return sa.cast(bind(dumps(value).decode()), JSONB)
    except (TypeError, ValueError) as error:
        raise InvalidFilter(f"a value that is not JSON: {error}") from error

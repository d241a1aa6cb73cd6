"""Rows → JSON: how times, stored documents and pages look in every answer."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
from aiohttp import web


def moment(at: datetime) -> str:
    """A time as the wire has it: UTC, microseconds."""
    return at.astimezone(UTC).isoformat(timespec="microseconds")


def document(text: str | bytes | None) -> orjson.Fragment | None:
    """A JSON column that was read as text, to be relayed as it is."""
    return None if text is None else orjson.Fragment(text)


def answer(
    content: Any, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """A compact JSON answer."""
    return relay(orjson.dumps(content), status=status, headers=headers)


def relay(
    body: bytes, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """A JSON answer whose bytes are there already."""
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)


def no_content() -> web.Response:
    """204: done, nothing to say."""
    return web.Response(status=204)


def page(rows: Sequence[Any], limit: int, offset: int) -> web.Response:
    """A page of a search, made from up to ``limit + 1`` rows: one too many says that more follow.

    ``X-Pagination-Total`` is not the total (counting would cost more than searching): it is the
    least that the total can be.
    """
    more = len(rows) > limit
    headers = {"X-Pagination-Total": str(offset + len(rows))}
    if more:
        headers["X-Pagination-Next"] = str(offset + limit)
    return answer(rows[:limit], headers=headers)


def selected(row: dict[str, Any], select: Sequence[str] | None) -> dict[str, Any]:
    """Only the keys asked for; all when none were."""
    return {key: row[key] for key in select if key in row} if select else row

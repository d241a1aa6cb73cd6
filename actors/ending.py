"""What the world is told when an attempt has ended: readers of the run, and who waits behind it."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson

from actors.dispatch import Dispatcher
from actors.events import End, EventEnds
from persistence.lifecycle import RunStatus
from persistence.runs import Released, Settled

_ERRORS = frozenset({RunStatus.ERROR, RunStatus.TIMEOUT})
"""Ends that readers are told as an error; a cancelled run's stream just closes."""


@dataclass(frozen=True, slots=True)
class Ending:
    """What the row says after an attempt.

    status: ``pending`` when the run will be attempted again; None when it was rolled back.
    next_run_id: the run of the thread that may start now, perhaps this one again.
    events: how many events the attempt wrote, if that is known.
    """

    run_id: UUID
    attempt: int
    status: RunStatus | None
    error: Mapping[str, Any] | None
    next_run_id: UUID | None
    events: int | None = None


def of_settled(settled: Settled, attempt: int, events: int | None = None) -> Ending | None:
    """The ending after a settlement; None when it was refused: then nothing may be said."""
    if not settled.ok:
        return None
    return Ending(
        settled.run_id, attempt, settled.status, settled.error, settled.next_run_id, events
    )


def of_released(released: Released) -> Ending:
    """The ending of an attempt that had no outcome."""
    return Ending(
        released.run_id, released.attempt, released.status, released.error, released.next_run_id
    )


async def announce(ending: Ending, ends: EventEnds, dispatcher: Dispatcher) -> None:
    """Ends the run's stream if it is over, and sends the next in line. Never raises for Redis."""
    if ending.status is not RunStatus.PENDING:
        status = ending.status or RunStatus.INTERRUPTED
        is_error = status in _ERRORS and ending.error is not None
        error = orjson.dumps(ending.error) if is_error else None
        end = End(str(ending.run_id), ending.attempt, status.value, error, ending.events)
        told = ends.end(end)
    else:
        told = asyncio.sleep(0)
    if ending.next_run_id is None:
        await told
    else:
        await asyncio.gather(told, dispatcher.run(ending.next_run_id))

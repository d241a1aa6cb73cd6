"""One attempt as a graph process and in-process mode both execute it: the code, and its outcome."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from langgraph.store.base import BaseStore

from actors.child import loopback, run_config, runner
from actors.child.loader import Graphs
from actors.child.masking import masked
from actors.child.protocol import Frame, pack_parts
from actors.child.saver import BatchingSaver
from actors.child.stop import Stopped, Work, as_failure

_log = logging.getLogger(__name__)

Put = Callable[[str, int, str, bytes], Awaitable[None]]
"""Takes an event: run id, attempt, name, data."""
Settle = Callable[[str], Awaitable[None]]
"""Returns when what was put for a run can be lost no more with this process."""

_TURNS = 5
"""Of the loop, at most, from a task's end to the ``put`` of what it streamed before."""


async def execute(
    start: runner.Start,
    graphs: Graphs,
    saver: BatchingSaver,
    store: BaseStore,
    put: Put,
    settle: Settle,
) -> runner.Result:
    """The run's own code; what happens in here may be hit by a stop at any point."""
    loopback.credential.set(start.credential)

    async def emit(name: str, data: bytes) -> None:
        await put(start.run_id, start.attempt, name, data)

    async def told() -> None:
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        await settle(start.run_id)

    config, context = run_config.compose(start), start.kwargs.get("context")
    async with graphs.open(start.graph_id, config, context=context) as graph:
        secret_keys = run_config.secret_keys(start.kwargs)
        fenced = saver.for_run(start.run_id, start.attempt, told, secret_keys)
        return await runner.run(start, graph, fenced, store, emit)


def outcome(
    run_id: str,
    attempt: int,
    work: Work,
    code: "asyncio.Task[runner.Result]",
    events: int | None = None,
) -> Frame:
    """The outcome frame of an attempt whose code has ended.

    events: how many it put; its end then shows whether some are missing.
    """
    result = _result(code)
    # A graph that swallowed the stop and went on to its end was stopped nevertheless.
    is_swallowed = work.stopped and result.end == "succeeded"
    head: dict[str, Any] = {
        "run_id": run_id,
        "attempt": attempt,
        "end": "cancelled" if is_swallowed else result.end,
        "next": result.next,
        "events": events,
    }
    if result.end == "failed":
        head |= {"error": result.error, "message": result.message}
    head["parts"], body = pack_parts(result.parts)
    return Frame("outcome", head, body)


def untouched(run_id: str, attempt: int) -> Frame:
    """The outcome frame of an attempt whose start came too late: none of its code was executed."""
    return Frame("outcome", {"run_id": run_id, "attempt": attempt, "end": "untouched"})


def _result(code: "asyncio.Task[runner.Result]") -> runner.Result:
    """How the run's code ended, also when it ended outside the graph: in a factory, say."""
    try:
        return code.result()
    except (asyncio.CancelledError, Stopped):
        return runner.Result("cancelled")
    except BaseException as error:  # noqa: BLE001  # whatever a factory raises is its run's end
        _log.warning("run failed outside its graph", exc_info=error)
        shown = masked(as_failure(error))
        return runner.Result("failed", error=shown["error"], message=shown["message"])

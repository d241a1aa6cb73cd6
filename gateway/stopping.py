"""Stopping runs because a client wants it: the wish goes into the row, then the worker is told."""

import contextlib
from uuid import UUID

from gateway.context import Context
from gateway.inspection import show_left
from persistence import runs
from persistence.errors import RunNotFound
from persistence.lifecycle import CancelAction
from persistence.runs import CancelRequested
from persistence.threads import Deleted
from persistence.visibility import Filter

_LEFT = "the client disconnected, and the run was to be cancelled then"


async def stop(
    context: Context,
    thread_id: UUID,
    run_id: UUID,
    action: CancelAction,
    reason: str | None = None,
    *,
    allowed: Filter | None = None,
) -> CancelRequested:
    """Stops a run, or ends it at once when it has not started. Raises RunNotFound.

    allowed: which threads the caller may see.
    A running one has not stopped yet when this returns: wait for its end.
    """
    requested = await runs.request_cancel(
        context.database, thread_id, run_id, action, reason, allowed=allowed
    )
    if requested.left_midway:
        await show_left(context, thread_id, run_id)
    await tell(context, run_id, requested)
    return requested


async def delete(
    context: Context, thread_id: UUID, run_id: UUID, *, allowed: Filter | None = None
) -> None:
    """Removes a run and its checkpoints; a running one as soon as it has stopped."""
    requested = await runs.delete(context.database, thread_id, run_id, allowed=allowed)
    await tell(context, run_id, requested)


async def stop_abandoned(context: Context, thread_id: UUID, run_id: UUID) -> None:
    """Stops a run whose client left; one that has ended or gone meanwhile is fine too."""
    with contextlib.suppress(RunNotFound):
        await stop(context, thread_id, run_id, CancelAction.INTERRUPT, _LEFT)


async def tell(context: Context, run_id: UUID, requested: CancelRequested) -> None:
    """Tells the worker of a running run, or readers of its end; the thread's next one may start."""
    match requested.kind:
        case "asked":
            await context.dispatcher.cancel(run_id)
        case "withdrawn":
            await context.dispatcher.over(run_id)
        case "finished":
            pass
    if requested.next_run_id is not None:
        await context.dispatcher.run(requested.next_run_id)


async def tell_of_deleted(context: Context, deleted: Deleted) -> None:
    """Tells workers and readers of runs that went with their threads; their leases are void."""
    for run_id in deleted.running:
        await context.dispatcher.cancel(run_id)
    await context.dispatcher.over(*deleted.running, *deleted.pending)

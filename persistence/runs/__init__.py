"""Every statement that changes a run, and those that read one.

Three rules hold all of it together:

- Time is the database's: leases, lines and delays are decided by ``clock_timestamp()``.
- Whoever ends or returns a run settles its thread in the same transaction, under the thread's lock.
- Locks are taken in one order: threads by id, then runs by id. ``claim`` takes none but those of
  the runs it wants, and never waits for them.

The one package that offers its modules' names itself: ``runs.claim``, ``runs.settle`` read as what
happens to a run, and nobody outside needs to know which file holds the statement.
"""

from persistence.runs.answers import Answers
from persistence.runs.cancel import CancelRequested, delete, request_cancel
from persistence.runs.creation import Created, NewRun, create, create_all, create_within
from persistence.runs.lease import ClaimedRun, Held, claim, heartbeat, retire
from persistence.runs.line import Waiting, claimable, due, waiting
from persistence.runs.reading import (
    Finished,
    RunResult,
    active,
    caller,
    finished,
    get,
    list_for_thread,
    result,
)
from persistence.runs.release import (
    Released,
    crash,
    expire,
    hand_back,
    left_by_predecessor,
    take_back,
)
from persistence.runs.request_keys import RequestKey
from persistence.runs.request_keys import forget as forget_keys
from persistence.runs.retention import forget
from persistence.runs.rows import RunRow
from persistence.runs.settlement import Settled, Settlement, settle
from persistence.runs.thread import lock_thread

__all__ = [
    "Answers",
    "CancelRequested",
    "ClaimedRun",
    "Created",
    "Finished",
    "Held",
    "NewRun",
    "Released",
    "RequestKey",
    "RunResult",
    "RunRow",
    "Settled",
    "Settlement",
    "Waiting",
    "active",
    "caller",
    "claim",
    "claimable",
    "crash",
    "create",
    "create_all",
    "create_within",
    "delete",
    "due",
    "expire",
    "finished",
    "forget",
    "forget_keys",
    "get",
    "hand_back",
    "heartbeat",
    "left_by_predecessor",
    "list_for_thread",
    "lock_thread",
    "request_cancel",
    "result",
    "retire",
    "settle",
    "take_back",
    "waiting",
]

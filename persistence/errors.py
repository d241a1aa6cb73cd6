"""What can go wrong with rows.

PersistenceError
├── Unavailable        Postgres cannot be reached or refuses work for now
│   └── Overtaken      others were quicker, or hold the rows: it may be tried again at once
├── NotFound           no such row
│   ├── ThreadNotFound
│   ├── RunNotFound
│   ├── AssistantNotFound
│   └── CronNotFound
├── Conflict           the row exists already, or is in a state that forbids the change
│   ├── ThreadBusy     a run of the thread is pending or running
│   ├── NothingToResume  no question of the thread waits for this answer
│   └── HistoryNeeded  the thread's latest state is made of its history
└── IndexRefused       the store cannot have the index that the project wants
"""


class PersistenceError(Exception):
    """Root of this layer's errors."""


class Unavailable(PersistenceError):
    """The database cannot be reached or cannot serve; the caller may try again later."""


class Overtaken(Unavailable):
    """Others hold, or have just changed, the same rows; this transaction did nothing."""


class NotFound(PersistenceError):
    """There is no such row."""


class ThreadNotFound(NotFound):
    """There is no such thread."""


class RunNotFound(NotFound):
    """There is no such run on this thread."""


class AssistantNotFound(NotFound):
    """There is no such assistant."""


class CronNotFound(NotFound):
    """There is no such cron."""


class Conflict(PersistenceError):
    """The row exists already, or its present state forbids the change."""


class ThreadBusy(Conflict):
    """A run of the thread is pending or running, and the caller asked not to wait."""


class NothingToResume(Conflict):
    """No question of the thread waits for this answer: none does, or somebody was quicker.

    unsettled: a run of the thread that answers nothing is active, and may be about to ask.
    """

    def __init__(self, message: str, *, unsettled: bool = False) -> None:
        super().__init__(message)
        self.unsettled = unsettled


class HistoryNeeded(Conflict):
    """The thread's latest state is rebuilt from its history, so none of that can go."""


class IndexRefused(PersistenceError):
    """The database cannot hold the embeddings that the project wants; the text says why."""

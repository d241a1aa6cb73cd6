"""What can go wrong with rows.

PersistenceError
├── Unavailable        Postgres cannot be reached or refuses work for now
├── NotFound           no such row
│   ├── ThreadNotFound
│   ├── RunNotFound
│   ├── AssistantNotFound
│   └── CronNotFound
├── Conflict           the row exists already, or is in a state that forbids the change
│   └── ThreadBusy     a run of the thread is pending or running
├── StaleLease         another attempt owns the run now
└── IndexRefused       the store cannot have the index that the project wants
"""


class PersistenceError(Exception):
    """Root of this layer's errors."""


class Unavailable(PersistenceError):
    """The database cannot be reached or cannot serve; the caller may try again later."""


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


class StaleLease(PersistenceError):
    """The fencing token shown is not the current one: another attempt owns the run."""


class IndexRefused(PersistenceError):
    """The database cannot hold the embeddings that the project wants; the text says why."""

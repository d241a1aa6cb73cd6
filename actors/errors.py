"""What can go wrong between a message and a settled row.

ActorsError
├── WorkerSlotTaken        another worker of this host has the slot
├── WorkerBroken           a part of the worker ended that it cannot do without
├── GraphProcessFailed     a graph process ended before it was ready
└── InspectorUnavailable   nobody can look at a graph or a state for now
"""


class ActorsError(Exception):
    """Root of this layer's errors."""


class WorkerSlotTaken(ActorsError):
    """Another worker of this host has the worker slot that this one was told to take."""


class WorkerBroken(ActorsError):
    """A part of the worker ended that it cannot do without: it must be started anew."""


class GraphProcessFailed(ActorsError):
    """A graph process ended before it was ready; the text says how."""


class InspectorUnavailable(ActorsError):
    """Nobody can look at a graph or a state for now; the caller may try again."""

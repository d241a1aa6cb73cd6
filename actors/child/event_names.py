"""How an event looks in Redis: one stream a run.

The same names are used by the writer here, by the worker that writes the end, and by the reader in
the gateway.
"""

WAKE_CHANNEL = "callboard:wake"
"""Published with a run's id after each batch of its events; says only "read on". The worker adds
``END_MARK`` to the id when it has written the end, for those who wait for nothing else."""
END_MARK = " end"


def events_key(run_id: str) -> str:
    """Key of the Redis Stream that holds the events of a run."""
    return f"callboard:run:{run_id}:events"


FIELD_NAME = b"e"
"""The event's name as the wire has it: ``values``, ``updates|child:uuid``, ``metadata`` …"""
FIELD_DATA = b"d"
"""The event's data: JSON bytes on one line, relayed as they are."""
FIELD_ATTEMPT = b"a"
"""The attempt that wrote it (the fencing token). Readers drop entries of an older attempt."""
FIELD_SEQ = b"n"
"""Number of the event within its attempt, from 1. A batch sent again after a lost connection
repeats numbers; readers drop what they have seen."""

END_EVENT = "__end__"
"""The last entry of a run, written by the worker after the row is settled; data {"status": …}.
Never sent to clients."""

GAP_EVENT = "callboard/gap"
"""Stands where events were lost: trimmed, flushed, or never written because Redis was away too
long. Data ``{"missed": count}``, null when the count is not known."""

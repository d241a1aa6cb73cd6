"""Thread streams on the wire: how they are asked for."""

from typing import Annotated

from pydantic import AfterValidator

from gateway.wire.body import Query
from gateway.wire.runs import modes

THREAD_MODES = ("run_modes", "lifecycle", "state_update")


class ThreadStream(Query):
    """What to hear of a thread. The reference reads ``stream_modes``; its clients send the other.

    Both collect repeated parameters, comma lists and JSON lists.
    """

    stream_mode: Annotated[list[str], AfterValidator(modes)] = []
    stream_modes: Annotated[list[str], AfterValidator(modes)] = []

"""Thread streams on the wire: how they are asked for."""

from typing import Annotated, Any

from pydantic import AfterValidator

from gateway.wire.body import Body, Query
from gateway.wire.runs import modes

THREAD_MODES = ("run_modes", "lifecycle", "state_update")


class ThreadStream(Query):
    """What to hear of a thread. The reference reads ``stream_modes``; its clients send the other.

    Both collect repeated parameters, comma lists and JSON lists.
    """

    stream_mode: Annotated[list[str], AfterValidator(modes)] = []
    stream_modes: Annotated[list[str], AfterValidator(modes)] = []


class ProtocolCommand(Body):
    """A command of the thread protocol, as it is described; malformed ones are answered too."""

    id: int
    method: str
    params: dict[str, Any] = {}


class ProtocolSubscription(Body):
    """What to hear of a thread by the thread protocol, as it is described."""

    channels: list[str]
    namespaces: list[list[str]] | None = None
    depth: int | None = None
    since: int | None = None

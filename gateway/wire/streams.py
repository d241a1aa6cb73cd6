"""Thread streams on the wire: how they are asked for."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from gateway.wire.body import Body, Query
from gateway.wire.fields import Whole
from gateway.wire.runs import modes

THREAD_MODES = ("run_modes", "lifecycle", "state_update")


class ThreadStream(Query):
    """What to hear of a thread. The reference reads ``stream_modes``; its clients send the other.

    Both collect repeated parameters, comma lists and JSON lists.
    """

    stream_mode: Annotated[list[str], AfterValidator(modes)] = []
    stream_modes: Annotated[list[str], AfterValidator(modes)] = []


class ThreadCommand(Body):
    """A command of the thread protocol. What is no command of it is answered in its envelope.

    ``run.start``: ``assistant_id``, and optionally ``input``, ``config``, ``metadata``,
    ``multitask_strategy``. ``input.respond``: ``interrupt_id`` and ``response``, or a list of them
    as ``responses``. Subscriptions need a WebSocket.
    """

    id: int
    method: str
    params: dict[str, Any] | None = None


class EventSubscription(Body):
    """Which events of a thread to send.

    channels: ``values``, ``updates``, ``messages``, ``tools``, ``custom``, ``lifecycle``,
    ``input``, ``tasks``, ``checkpoints`` and ``custom:<name>``. namespaces: prefixes; all without.
    depth: how many levels below a prefix. since: only what comes after this sequence number.
    """

    channels: Annotated[list[str], Field(min_length=1)]
    namespaces: list[list[str]] | None = None
    depth: Whole | None = None
    since: Whole | None = None

"""The thread protocol (event streaming v2): the stored events of a run → the protocol's. Pure.

What the workers store has the names of the older protocol; here it gets the envelope, and what the
older protocol says otherwise is said in the protocol's words:

    metadata                    → lifecycle ``running``
    __interrupt__, and the end  → input.requested for each question, lifecycle ``interrupted``
    error, and the end          → lifecycle ``failed``
    the end                     → lifecycle ``completed``

Questions are told at the run's end, when its row is settled: whoever has read one can answer it.

``seq`` is made of the stored event's id, which Redis gives out rising over all runs of a thread:
milliseconds since ``EPOCH_MS``, then ``PER_MILLISECOND`` places in each. So it is the same at every
gateway and on every connection, whatever is filtered out, expired or deleted; it has gaps, and fits
what JavaScript counts exactly until 2059.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson

from actors.events import END_EVENT, GAP_EVENT, Event
from persistence.lifecycle import RunStatus
from persistence.thread_runs import StartedRun

STREAM_MODES = [
    "values",
    "updates",
    "messages",
    "tools",
    "lifecycle",
    "custom",
    "tasks",
    "checkpoints",
]
"""What runs are made with that the protocol starts."""
GAP = "gap"
"""Method of an event that stands where events are lost; passes every filter."""

EPOCH_MS = 1_735_689_600_000
"""2025-01-01."""
PER_MILLISECOND = 8192
"""Places in one millisecond: a batch of events is stored in one, and has up to 1000."""

_RELAYED = frozenset({"values", "updates", "messages", "tools", "custom", "lifecycle", "tasks"})
_INTERRUPT = "__interrupt__"
_MARKER = b'"__interrupt__"'


@dataclass(frozen=True, slots=True)
class ProtocolEvent:
    """One event of a thread, ready for its envelope. data: JSON bytes."""

    seq: int
    event_id: str
    method: str
    namespace: tuple[str, ...]
    timestamp: int
    data: bytes

    def encode(self) -> bytes:
        """The event as it goes over the line; its data is not parsed again."""
        head = {"type": "event", "event_id": self.event_id, "seq": self.seq, "method": self.method}
        params = {"namespace": self.namespace, "timestamp": self.timestamp}
        return b'%b,"params":%b,"data":%b}}' % (
            orjson.dumps(head)[:-1],
            orjson.dumps(params)[:-1],
            self.data,
        )


def seq_of(event_id: str) -> int:
    """The sequence number of a stored event."""
    milliseconds, _, number = event_id.partition("-")
    return seq_at(int(milliseconds), int(number or 0))


def seq_at(milliseconds: int, number: int = 0) -> int:
    """The sequence number of a place in time."""
    return max(0, milliseconds - EPOCH_MS) * PER_MILLISECOND + min(number, PER_MILLISECOND - 1)


def milliseconds_of(seq: int) -> int:
    """The moment that a sequence number lies in."""
    return EPOCH_MS + seq // PER_MILLISECOND


# Who is at work


def tree(events: Iterable[ProtocolEvent]) -> dict[str, Any] | None:
    """The agents of one run and how they stand, by its lifecycle events; None without any."""
    nodes: dict[tuple[str, ...], dict[str, Any]] = {}
    for event in events:
        if event.method != "lifecycle":
            continue
        told = orjson.loads(event.data)
        node = nodes.setdefault(event.namespace, {"namespace": event.namespace})
        node["status"] = told["event"]
        node["graph_name"] = told.get("graph_name") or node.get("graph_name") or ""
    for namespace, node in nodes.items():
        parents = (namespace[:depth] for depth in range(len(namespace) - 1, -1, -1))
        parent = next((nodes[one] for one in parents if one in nodes), None)
        if namespace and parent is not None:
            parent.setdefault("children", []).append(node)
    return nodes.get(())


# The events of one run


class RunTranslation:
    """The protocol's events of one run, from its stored events, in order and from the first one."""

    def __init__(self, run_id: UUID, graph_id: str) -> None:
        self._run_id = str(run_id)
        self._graph_id = graph_id
        self._started = False
        self._questions: dict[str, tuple[tuple[str, ...], Any]] = {}
        self._error: str | None = None
        self._last = seq_at(EPOCH_MS)
        self.is_over = False
        """Whether the end was told."""

    def translate(self, event: Event) -> Iterator[ProtocolEvent]:
        """What the protocol says of a stored event: nothing, one thing, or at the end several."""
        mode, *namespace = event.name.split("|")
        match mode:
            case "metadata":
                yield from self._begin(seq_of(event.id), _time(event.id))
            case "error":
                self._error = _message(event.data)
            case _ if mode == END_EVENT:
                status = orjson.loads(event.data)["status"]
                yield from self._end(status, seq_of(event.id), _time(event.id))
            case _ if mode == GAP_EVENT:
                yield self._relayed(event, GAP, (), event.data)
            case "checkpoints":
                yield self._relayed(event, mode, tuple(namespace), _checkpoint(event.data))
            case "values" | "updates" if _MARKER in event.data:
                data = self._without_questions(tuple(namespace), event.data)
                if data is not None:
                    yield self._relayed(event, mode, tuple(namespace), data)
            case "messages" if not event.data.startswith(b"{"):
                pass  # chunks of the older protocol: the messages come with the values
            case _ if mode in _RELAYED:
                yield self._relayed(event, mode, tuple(namespace), event.data)
            case _:
                pass  # what the protocol has no word for

    def settle(
        self, status: RunStatus | None, error: str | None, at: int
    ) -> Iterator[ProtocolEvent]:
        """The end of a run whose stored events lack it; status None: its row is gone.

        at: a moment in milliseconds that is not before its beginning, by the row.
        """
        if not self.is_over:
            self._error = self._error or error
            yield from self._end(status, max(seq_at(at), self._last + 1), at)

    def expired(
        self, run: StartedRun, questions: Mapping[str, Any] | None
    ) -> Iterator[ProtocolEvent]:
        """What the row still tells of a run whose events are gone: that it was, and its end.

        questions: ``{task_id: [{"id", "value"}]}`` that still wait, when it is the thread's last.
        """
        start, end = _ms(run.started_at), _ms(run.finished_at or run.started_at)
        yield ProtocolEvent(
            seq_at(start),
            f"synth:{run.run_id}:gap",
            GAP,
            (),
            start,
            orjson.dumps({"run_id": str(run.run_id), "missed": None, "reason": "expired"}),
        )
        yield from self._begin(seq_at(start, 1), start)
        for asked in (questions or {}).values():
            for question in asked:
                self._questions.setdefault(question["id"], ((), question["value"]))
        error = run.error or {}
        yield from self.settle(run.status, error.get("message"), end)

    def _begin(self, seq: int, time: int) -> Iterator[ProtocolEvent]:
        if not self._started:
            self._started = True
            yield self._lifecycle("running", seq, time)

    def _end(self, status: str | None, seq: int, time: int) -> Iterator[ProtocolEvent]:
        self.is_over = True
        yield from self._begin(seq, time)
        match status:
            case RunStatus.SUCCESS if self._questions:
                for place, (asked_id, (namespace, value)) in enumerate(
                    self._questions.items(), seq + 1
                ):
                    yield self._question(asked_id, namespace, value, place, time)
                yield self._lifecycle("interrupted", seq + len(self._questions) + 1, time)
            case RunStatus.SUCCESS:
                yield self._lifecycle("completed", seq + 1, time)
            case RunStatus.ERROR | RunStatus.TIMEOUT:
                yield self._lifecycle("failed", seq + 1, time, error=self._error or "")
            case _:
                yield self._lifecycle("interrupted", seq + 1, time)

    def _without_questions(self, namespace: tuple[str, ...], data: bytes) -> bytes | None:
        """Takes the questions out; None when there was nothing else. The innermost comes first."""
        content = orjson.loads(data)
        if not isinstance(content, dict) or _INTERRUPT not in content:
            return data  # only looks like it
        for question in content.pop(_INTERRUPT) or ():
            self._questions.setdefault(question["id"], (namespace, question["value"]))
        return orjson.dumps(content) if content else None

    def _question(
        self, asked_id: str, namespace: tuple[str, ...], value: Any, seq: int, time: int
    ) -> ProtocolEvent:
        """``value`` is beyond the reference: the Python client reads it, the JavaScript one not."""
        return ProtocolEvent(
            seq,
            f"synth:{self._run_id}:input|{'|'.join(namespace)}|{asked_id}",
            "input.requested",
            namespace,
            time,
            orjson.dumps({"interrupt_id": asked_id, "payload": value, "value": value}),
        )

    def _lifecycle(self, event: str, seq: int, time: int, **more: str) -> ProtocolEvent:
        data = orjson.dumps({"event": event, "graph_name": self._graph_id, **more})
        return ProtocolEvent(seq, f"synth:{self._run_id}:lc||{event}", "lifecycle", (), time, data)

    def _relayed(
        self, event: Event, method: str, namespace: tuple[str, ...], data: bytes
    ) -> ProtocolEvent:
        self._last = seq_of(event.id)
        return ProtocolEvent(self._last, event.id, method, namespace, _time(event.id), data)


def _time(event_id: str) -> int:
    return int(event_id.partition("-")[0])


def _ms(moment: Any) -> int:
    return int(moment.timestamp() * 1000)


def _message(data: bytes) -> str:
    content = orjson.loads(data)
    return str(content.get("message") or content.get("error") or "")


def _checkpoint(data: bytes) -> bytes:
    """What names the checkpoint; runs of the older protocol store all that is in it."""
    content = orjson.loads(data)
    if "id" in content:
        return data
    place = (content.get("config") or {}).get("configurable") or {}
    parent = (content.get("parent_config") or {}).get("configurable") or {}
    metadata = content.get("metadata") or {}
    named = {"id": place.get("checkpoint_id")}
    if parent.get("checkpoint_id"):
        named["parent_id"] = parent["checkpoint_id"]
    return orjson.dumps({**named, "step": metadata.get("step"), "source": metadata.get("source")})

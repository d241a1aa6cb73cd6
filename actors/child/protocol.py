"""What crosses the pipe between a worker and a graph process.

A frame is ``u32 total`` ``u32 head`` ``head`` bytes of JSON and then the body: bytes that are
relayed without being parsed (input, state, answers). Both lengths are big-endian; ``total`` counts
what comes after itself. No pickle crosses the pipe. Frames travel on an inherited socket, never on
stdout, so nothing that user code prints can corrupt them.

Worker → graph process
    init      {project, database_url, redis_url, settings…}  first: what to load, where to write
    start     {run_id, thread_id, assistant_id, graph_id, attempt, metadata, seat, expires_at}
              body: run's kwargs; seat: its number on the board (``board.py``); expires_at: what was
              not taken up by then never is (time.monotonic(): one clock for all processes)
    stop      {run_id, attempt, step}  step: "cancel" (task) | "interrupt" (thread or coroutine)
    ping      {n}                     answered by the event loop: proves that it turns
    inspect   {id, op}                body: arguments
    retire    {}                      end when the last run has ended
Graph process → worker
    ready     {graphs: [...], broken: {graph_id: reason}}
    outcome   {run_id, attempt, end, error, message, next, events, parts}   end: "succeeded" |
              "failed" | "cancelled" | "untouched" (its start had expired; nothing else is said);
              error and message only with "failed"; events: how many were put, or null; body: see
              ``pack_parts``
    pong      {n}
    answer    {id, status}            body: JSON; status is an HTTP status code (200, 400, 404 …) or
                                      ``PROJECT_FAILED``
"""

import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import orjson

from actors.child.storable import without_surrogates

_LENGTHS = struct.Struct(">II")
_LENGTH = struct.Struct(">I")

FD_VARIABLE = "CALLBOARD_CHILD_FD"
BOARD_FD_VARIABLE = "CALLBOARD_CHILD_BOARD_FD"
"""Environment variables: which inherited file descriptors are the process's pipe and its board."""

MAX_FRAME_BYTES = 1 << 30
"""A longer frame means that the stream is out of step; the reader gives up on the process."""


PROJECT_FAILED = 502
"""Status of an answer that there is not, because the project's own code or what that needs failed:
``{"detail": text}`` is for clients to see. They are told 503."""


class BrokenFrame(Exception):
    """The bytes on the pipe are not a frame: the two sides are out of step."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message on the pipe: what it is, its small named values, and a body to relay."""

    kind: str
    head: dict[str, Any] = field(default_factory=dict)
    body: bytes = b""


def encode(frame: Frame) -> bytes:
    """The frame's bytes, lengths included."""
    head = _json({**frame.head, "kind": frame.kind})
    return b"".join((_LENGTHS.pack(4 + len(head) + len(frame.body), len(head)), head, frame.body))


def _json(head: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(head, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        # An error's text may hold a lone surrogate (a file's name, a model's answer): nobody would
        # hear of an end that cannot be written down.
        return without_surrogates(json.dumps(head, ensure_ascii=False)).encode()


class Decoder:
    """Cuts a byte stream into frames, however the bytes arrive."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterable[Frame]:
        """Yields each frame that ``data`` completes. Raises BrokenFrame when out of step."""
        self._buffer += data
        while len(self._buffer) >= _LENGTHS.size:
            total, head_size = _LENGTHS.unpack_from(self._buffer)
            if total > MAX_FRAME_BYTES or head_size + 4 > total:
                raise BrokenFrame(f"frame of {total} bytes with a head of {head_size}")
            end = _LENGTH.size + total
            if len(self._buffer) < end:
                return
            head = orjson.loads(bytes(self._buffer[8 : 8 + head_size]))
            body = bytes(self._buffer[8 + head_size : end])
            del self._buffer[:end]
            yield Frame(head.pop("kind"), head, body)


def pack_parts(parts: dict[str, bytes]) -> tuple[dict[str, int], bytes]:
    """Several named byte strings as one body: ``({name: length}, joined)``, in order.

    An outcome's body carries ``values``, ``interrupts`` and ``result`` this way, so that a state of
    100 MB is never escaped into another JSON text.
    """
    return {name: len(part) for name, part in parts.items()}, b"".join(parts.values())


def unpack_parts(lengths: dict[str, int], body: bytes) -> dict[str, bytes]:
    """The inverse of ``pack_parts``."""
    parts, at = {}, 0
    for name, length in lengths.items():
        parts[name] = body[at : at + length]
        at += length
    return parts


NO_STATE: dict[str, Any] = {
    "values": {},
    "next": [],
    "tasks": [],
    "metadata": None,
    "created_at": None,
    "checkpoint": None,
    "parent_checkpoint": None,
    "interrupts": [],
    "checkpoint_id": None,
    "parent_checkpoint_id": None,
}
"""What is answered for the state of a thread that never ran."""

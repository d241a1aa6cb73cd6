"""One command that appends a batch of events to the streams of their runs.

A script: it is applied as a whole or not at all, so a Redis that is short of memory cannot take an
event and refuse the one before it. Packed by hand, for a tenth of what redis-py's packing costs for
thousands of small events. Pure.
"""

from collections.abc import Iterable, Mapping

from actors.child.event_names import (
    FIELD_ATTEMPT,
    FIELD_DATA,
    FIELD_NAME,
    FIELD_SEQ,
    WAKE_CHANNEL,
    events_key,
)

_APPEND = b"""
local runs = #KEYS
for at = 3 + 2 * runs, #ARGV, 5 do
  local run = tonumber(ARGV[at])
  redis.call('XADD', KEYS[run], 'MAXLEN', '~', ARGV[2 + runs + run], '*', '%b', ARGV[at + 1],
    '%b', ARGV[at + 2], '%b', ARGV[at + 3], '%b', ARGV[at + 4])
end
for run = 1, runs do
  redis.call('EXPIRE', KEYS[run], ARGV[1])
  redis.call('PUBLISH', ARGV[2], ARGV[2 + run])
end
return 1
""" % (FIELD_NAME, FIELD_DATA, FIELD_ATTEMPT, FIELD_SEQ)
"""KEYS: a stream per run. ARGV: the streams' seconds to live, the wake-up channel; in the order of
KEYS the runs' ids, then their streams' lengths; then five per event: index of its key, name, data,
attempt, number.
"""


def pack(name: str, data: bytes, attempt: int, number: int) -> bytes:
    """The four arguments of an event that do not depend on its batch."""
    return b"".join(
        (_bulk(name.encode()), _bulk(data), _bulk(b"%d" % attempt), _bulk(b"%d" % number))
    )


def append(
    events: Iterable[tuple[str, bytes]], lengths: Mapping[str, int], ttl_seconds: int
) -> bytes:
    """The command for events that are given as (run id, packed arguments), in order.

    lengths: how long the runs' streams may be after it. ttl_seconds: how long they live from now.
    """
    index: dict[str, bytes] = {}
    packed: list[bytes] = []
    for run_id, arguments in events:
        at = index.get(run_id)
        if at is None:
            at = index[run_id] = _bulk(b"%d" % (len(index) + 1))
        packed += (at, arguments)
    count = 3 + 2 + 3 * len(index) + 5 * (len(packed) // 2)
    head = b"*%d\r\n$4\r\nEVAL\r\n%b%b" % (count, _bulk(_APPEND), _bulk(b"%d" % len(index)))
    keys = b"".join(_bulk(events_key(run_id).encode()) for run_id in index)
    ids = b"".join(_bulk(run_id.encode()) for run_id in index)
    kept = b"".join(_bulk(b"%d" % lengths[run_id]) for run_id in index)
    settings = _bulk(b"%d" % ttl_seconds) + _bulk(WAKE_CHANNEL.encode())
    return b"".join((head, keys, settings, ids, kept, *packed))


def _bulk(value: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(value), value)

"""How who is behind reads a stream: in pages that are bounded in bytes.

XRANGE counts entries, and what the next ones weigh nobody knows before they are there: among small
ones may stand many of several megabytes. So a script walks on in small steps and stops as soon as
the page is full; and who only asks where a stream has come to is not sent what it says. A script
costs Redis several times what XRANGE does: who keeps up has no need of it.
"""

from collections.abc import Awaitable, Iterable, Sequence
from typing import Any

from redis.asyncio import Redis

from actors.child.event_names import FIELD_DATA
from actors.event_cursor import Entry, EntryId, entry, format_id
from actors.event_feed import PAGE_BYTES, PAGE_EVENTS

_PAGE = """
local found, count, asked = {}, 0, 2
local after, left, room = '(' .. ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
while left > 0 do
  if asked > left then asked = left end
  local some = redis.call('XRANGE', KEYS[1], after, '+', 'COUNT', asked)
  for at = 1, #some do
    local fields = some[at][2]
    count = count + 1
    found[count] = some[at]
    for value = 2, #fields, 2 do room = room - #fields[value] end
    if room <= 0 then return found end
  end
  if #some < asked then return found end
  after, left = '(' .. found[count][1], left - asked
  if asked < 16 then asked = asked * 2 end
end
return found
"""
"""KEYS: a stream. ARGV: the id that the page follows, its entries and its bytes at most. What is in
hand at once, in Redis, is one step: few entries at first, more behind small ones."""

_LATEST = """
local call, found, upto = redis.call, {}, ARGV[1]
for _ = 1, tonumber(ARGV[2]) do
  local entry = call('XREVRANGE', KEYS[1], upto, '-', 'COUNT', 1)[1]
  if not entry then break end
  for at = 1, #entry[2], 2 do
    if entry[2][at] == ARGV[3] then entry[2][at + 1] = '' end
  end
  found[#found + 1] = entry
  upto = '(' .. entry[1]
end
return found
"""
"""KEYS: a stream. ARGV: the id of the greatest entry, how many, and the field that is left out.
Returns the entries, the latest first."""


def page(redis: Redis, key: str, after: EntryId) -> Awaitable[Any]:
    """Asks for the next page of entries after a place; ``entries_of`` reads the reply."""
    return redis.eval(_PAGE, 1, key, format_id(after), PAGE_EVENTS, PAGE_BYTES)


def latest(redis: Redis, key: str, count: int, upto: str = "+") -> Awaitable[Any]:
    """Asks for the last entries up to an id, latest first and without their data."""
    return redis.eval(_LATEST, 1, key, upto, count, FIELD_DATA)


def entries_of(reply: Iterable[Sequence[Any]]) -> list[Entry]:
    """The entries, in the order in which they came."""
    return [
        entry(entry_id, dict(zip(fields[::2], fields[1::2], strict=True)))
        for entry_id, fields in reply
    ]

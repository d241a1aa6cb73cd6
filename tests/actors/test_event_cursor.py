"""The cursor's three promises, for any order in which entries may come to lie in the stream."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from actors.event_cursor import Cursor, Entry, format_id, parse_cursor
from actors.events import END_EVENT, GAP_EVENT, LIVE, Event


def _entries(written: list[tuple[int, int]]) -> list[Entry]:
    """Entries of (attempt, number), in the order in which they are stored."""
    return [
        Entry((1, place), Event(f"1-{place}", "values", b"%d.%d" % each, each[0]), each[1])
        for place, each in enumerate(written)
    ]


_STREAMS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 6)), max_size=30).map(_entries)


@given(_STREAMS, st.lists(st.integers(0, 30)))
def test_pages_do_not_matter(entries: list[Entry], cuts: list[int]) -> None:
    whole, _ = Cursor().take(entries)
    cursor, pieces = Cursor(), []
    bounds = [0, *sorted(min(cut, len(entries)) for cut in cuts), len(entries)]
    for start, end in itertools.pairwise(bounds):
        pieces += cursor.take(entries[start:end])[0]
    assert pieces == whole


@given(_STREAMS)
def test_what_is_seen_only_rises_and_what_is_missing_is_marked(entries: list[Entry]) -> None:
    seen, _ = Cursor().take(entries)
    attempt, number, gap = 0, 0, False
    for event in seen:
        if event.name == GAP_EVENT:
            gap = True
            continue
        now_attempt, now_number = map(int, event.data.split(b"."))
        expected = number + 1 if now_attempt == attempt else 1
        assert now_attempt >= attempt
        assert now_number > expected if gap else now_number == expected
        attempt, number, gap = now_attempt, now_number, False
    assert not gap


@given(_STREAMS.filter(bool), st.data())
def test_who_goes_on_from_an_event_sees_what_followed_it(
    entries: list[Entry], data: st.DataObject
) -> None:
    seen, _ = Cursor().take(entries)
    last = data.draw(st.sampled_from([event for event in seen if event.name != GAP_EVENT]))
    place = next(at for at, entry in enumerate(entries) if entry.event is last)
    cursor = Cursor(known=False)
    cursor.take(entries[: place + 1])
    assert cursor.take(entries[place + 1 :])[0] == seen[seen.index(last) + 1 :]


def _end(attempt: int, number: int) -> Entry:
    return Entry((2, 0), Event("2-0", END_EVENT, b"{}", attempt), number)


@given(st.integers(0, 5), st.integers(0, 5))
def test_the_end_shows_whether_the_last_events_are_missing(written: int, stored: int) -> None:
    entries = _entries([(1, number + 1) for number in range(min(stored, written))])
    seen, ended = Cursor().take([*entries, _end(1, written + 1)])
    assert ended
    missing = written - min(stored, written)
    gaps = [event.data for event in seen if event.name == GAP_EVENT]
    assert gaps == ([b'{"missed":%d}' % missing] if missing else [])


def test_an_end_tells_of_no_gap_to_whom_it_cannot_know() -> None:
    in_the_middle = Cursor((1, 5), known=False)
    assert in_the_middle.take([_end(1, 100)]) == ([], True)
    assert Cursor().take([_end(1, 0)]) == ([], True)  # nobody knows how many there were
    (_, gap), _ended = Cursor().take([*_entries([(1, 1)]), _end(2, 4)])
    assert gap.data == b'{"missed":3}'


@given(st.text())
def test_no_text_is_too_odd(text: str) -> None:
    at = parse_cursor(text)
    assert at is None or parse_cursor(format_id(at)) == at


def test_words_for_places() -> None:
    assert parse_cursor(LIVE) is None
    assert parse_cursor("-1") == parse_cursor("0") == parse_cursor("0-0") == (0, 0)
    assert parse_cursor("12-3") == (12, 3)
    assert parse_cursor("99999999999999999999-1") == (2**64 - 1, 1)

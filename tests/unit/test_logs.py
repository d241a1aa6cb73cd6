"""What is logged, as it reaches standard output, and how much of it."""

import io
import logging
from collections.abc import Iterator

import pytest
import structlog

from actors.child.output import BURST_CHARACTERS, CHARACTERS_PER_SECOND, BoundedText
from actors.child.repetition import WARNINGS, WINDOW_SECONDS, RepetitionLimit
from callboard.logs import configure


@pytest.fixture
def _as_before() -> Iterator[None]:
    """Gives the root logger back what it had."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    logging.captureWarnings(False)
    root.handlers[:], root.level = handlers, level


@pytest.mark.usefixtures("_as_before")
@pytest.mark.parametrize("as_json", ["true", "false"])
def test_a_traceback_shows_no_variables(
    as_json: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOG_JSON", as_json)
    configure("gateway")
    try:
        password = "hunter" + "2"
        raise ValueError(len(password))
    except ValueError:
        logging.getLogger("a.library").exception("it failed")
    logged = capsys.readouterr().out
    assert "it failed" in logged
    assert "ValueError: 7" in logged
    assert "hunter2" not in logged


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def _record(text: object, *inserted: object, level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord("a.library", level, "", 0, text, inserted, None)


def test_a_line_that_is_repeated_is_left_out_and_counted() -> None:
    clock = Clock()
    limit = RepetitionLimit(clock)
    passed = [limit.filter(_record("no connection to %s", n)) for n in range(WARNINGS + 50)]
    assert passed == [True] * WARNINGS + [False] * 50
    assert limit.filter(_record("something else")), "another kind is another matter"
    assert limit.filter(_record("no connection to %s", 0, level=logging.INFO))

    clock.now += WINDOW_SECONDS + 1
    for told in (50, None):
        record = _record("no connection to %s", 0)
        assert limit.filter(record)
        assert getattr(record, "left_out", None) == told


def test_kinds_are_not_counted_without_end_and_what_is_forgotten_is_told() -> None:
    limit = RepetitionLimit()
    for n in range(WARNINGS + 50):
        limit.filter(_record("no connection to %s", n))
    others = [_record(f"text {n}") for n in range(10_000)]
    for record in others:
        assert limit.filter(record)
    assert len(limit._kinds) <= 1000
    told = [getattr(record, "left_out_of_others", None) for record in others]
    assert [left_out for left_out in told if left_out] == [50]

    record = _record("no connection to %s", 0)
    assert limit.filter(record), "it begins anew"
    assert not hasattr(record, "left_out"), "it has been told"


@pytest.mark.usefixtures("_as_before")
def test_every_logger_of_a_process_has_the_limit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOG_JSON", "true")
    configure("scheduler")
    for n in range(WARNINGS * 2):
        structlog.get_logger("ours").warning("it is away", error=n)
        logging.getLogger("theirs").warning("cannot connect: %s", n)
    lines = capsys.readouterr().out.splitlines()
    assert sum("it is away" in line for line in lines) == WARNINGS
    assert sum("cannot connect" in line for line in lines) == WARNINGS


def test_what_is_printed_too_fast_is_left_out_and_counted() -> None:
    clock, written = Clock(), io.BytesIO()
    stream = BoundedText(written, "utf-8", clock)
    line = "x" * 999
    for _ in range(BURST_CHARACTERS // 1000 * 3):
        print(line, file=stream)
    stream.flush()
    assert BURST_CHARACTERS * 0.99 < len(written.getvalue()) <= BURST_CHARACTERS

    clock.now += BURST_CHARACTERS / CHARACTERS_PER_SECOND
    print("at last \ud800", file=stream)
    stream.flush()
    *_, note, last = written.getvalue().decode().splitlines()
    assert note == f"[{BURST_CHARACTERS * 2} characters were printed too fast and left out]"
    assert last == "at last \\ud800"

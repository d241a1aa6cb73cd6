"""When crons are due: expressions, time zones, clock changes, ends."""

from datetime import UTC, datetime, timedelta

import pytest

from persistence import schedule
from persistence.schedule import BadSchedule, Schedule


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def dates(dated: Schedule, after: str, count: int) -> list[str]:
    moment, found = at(after), []
    for _ in range(count):
        date = dated.after(moment)
        assert date is not None
        assert date > moment
        found.append(date.strftime("%d %H:%M:%S"))
        moment = date
    return found


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("*/20 * * * *", ["01 12:20:00", "01 12:40:00"]),
        ("0 9 * * 1", ["07 09:00:00", "14 09:00:00"]),  # Monday is 1, as cron has it
        ("0 0 13 * 5", ["04 00:00:00", "11 00:00:00"]),  # either day
        ("* * * * * */30", ["01 12:00:30", "01 12:01:00"]),  # seconds are the sixth field
        ("@daily", ["02 00:00:00", "03 00:00:00"]),
        ("0 0 l * *", ["31 00:00:00", "31 00:00:00"]),
    ],
)
def test_expressions_mean_what_croniter_says(expression: str, expected: list[str]) -> None:
    assert dates(schedule.read(expression, None, None), "2026-12-01T12:00", 2) == expected


def test_a_date_is_that_of_the_wall_clock_through_the_year() -> None:
    nine = schedule.read("0 9 * * *", "America/New_York", None)
    assert nine.after(at("2026-01-10T00:00")) == at("2026-01-10T14:00")
    assert nine.after(at("2026-07-10T00:00")) == at("2026-07-10T13:00")


def test_a_wall_time_that_spring_skips_comes_when_the_clock_has_jumped() -> None:
    early = schedule.read("30 2 * * *", "America/New_York", None)
    assert dates(early, "2026-03-07T08:00", 3) == ["08 07:00:00", "09 06:30:00", "10 06:30:00"]


def test_a_wall_time_that_autumn_repeats_comes_twice_and_never_stands_still() -> None:
    early = schedule.read("30 1 * * *", "America/New_York", None)
    assert dates(early, "2026-10-31T06:00", 3) == ["01 05:30:00", "01 06:30:00", "02 06:30:00"]
    often = schedule.read("*/15 * * * *", "America/New_York", None)
    quarter = timedelta(minutes=15)
    moment = at("2026-11-01T04:00")
    for _ in range(16):  # through both one o'clocks
        following = often.after(moment)
        assert following is not None
        assert following - moment == quarter
        moment = following


@pytest.mark.parametrize("microsecond", [0, 1, 499_999, 500_001, 999_999])
def test_a_date_is_never_its_own_next_however_late_it_is_noticed(microsecond: int) -> None:
    minutely = schedule.read("* * * * *", None, None)
    noticed = at("2026-12-01T12:00").replace(microsecond=microsecond)
    assert minutely.after(noticed) == at("2026-12-01T12:01")


def test_nothing_comes_at_or_after_the_end() -> None:
    daily = schedule.read("0 9 * * *", None, "2026-12-03T09:00:00Z")
    assert daily.after(at("2026-12-01T10:00")) == at("2026-12-02T09:00")
    assert daily.after(at("2026-12-02T09:00")) is None


def test_an_end_without_offset_is_in_the_time_zone() -> None:
    daily = schedule.read("0 9 * * *", "Asia/Tokyo", "2026-12-03T09:00:00")
    assert daily.ends_at == at("2026-12-03T00:00")


def test_a_schedule_may_run_out_of_dates_or_never_have_any() -> None:
    assert schedule.read("0 0 1 1 * 0 2027", None, None).after(at("2027-06-01")) is None
    assert schedule.never_due(schedule.read("0 0 31 2 *", None, None), at("2026-12-01"))
    assert not schedule.never_due(schedule.read("0 0 29 2 *", None, None), at("2026-12-01"))


@pytest.mark.parametrize(
    "expression",
    [
        *("", "x", "* * * *", "60 * * * *", "@reboot", "*/0 * * * *", "H * * * *", "* * * * *\0"),
        *("* " * 200, ",".join(["1"] * 1000) + " * * * *", "ü * * * *", "* * * * * * * *"),
    ],
)
def test_what_is_no_expression_is_refused(expression: str) -> None:
    with pytest.raises(BadSchedule, match="Invalid cron schedule"):
        schedule.read(expression, None, None)


@pytest.mark.parametrize("name", ["Mars/X", "", "Europe", "../etc/passwd", "/etc/passwd", "UTC\0"])
def test_what_is_no_time_zone_is_refused(name: str) -> None:
    with pytest.raises(BadSchedule, match="Invalid timezone"):
        schedule.read("* * * * *", name, None)


@pytest.mark.parametrize("text", ["", "blah", "2026-13-01", "0001-01-01T00:00:00+23:59"])
def test_what_is_no_end_is_refused(text: str) -> None:
    with pytest.raises(BadSchedule, match="Invalid end_time"):
        schedule.read("* * * * *", None, text)

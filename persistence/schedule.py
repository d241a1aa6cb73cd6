"""When a cron is due: pure reckoning with cron expressions, time zones and ends.

Expressions are croniter's: five fields, seconds as a sixth, years as a seventh, ``@daily`` and its
kin, ``L`` and ``#``. Dates are found in the cron's time zone: a wall time that a clock change skips
comes at its end, one that it repeats comes twice.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from croniter import CroniterBadDateError, CroniterError, croniter

_LONGEST_EXPRESSION = 256


class BadSchedule(ValueError):
    """What was given makes no schedule; the text says why, for clients."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Dates, one after the other.

    zone: where the expression's wall clock hangs. ends_at: no date is this one or later.
    """

    expression: str
    zone: tzinfo = UTC
    ends_at: datetime | None = None

    def after(self, moment: datetime) -> datetime | None:
        """The first date after the moment, in UTC; None when there is no more."""
        try:
            date: datetime = croniter(self.expression, moment.astimezone(self.zone)).get_next(
                datetime
            )
        except CroniterBadDateError:
            return None
        date = date.astimezone(UTC)
        return None if self.ends_at is not None and date >= self.ends_at else date


def read(expression: str, timezone: str | None, end_time: str | None) -> Schedule:
    """The schedule that the texts mean. Raises BadSchedule.

    timezone: an IANA name; UTC by default. end_time: ISO 8601; without an offset it is in the
    timezone.
    """
    zone = UTC if timezone is None else _zone(timezone)
    schedule = Schedule(
        _checked(expression), zone, None if end_time is None else _end(end_time, zone)
    )
    return schedule


def never_due(schedule: Schedule, now: datetime) -> bool:
    """Whether the expression means no date at all from now on, such as the 31st of February."""
    return Schedule(schedule.expression, schedule.zone).after(now) is None


def _checked(expression: str) -> str:
    try:
        if len(expression) <= _LONGEST_EXPRESSION and croniter.is_valid(expression):
            return expression
    except (CroniterError, ValueError, ArithmeticError):
        pass
    raise BadSchedule(
        f"Invalid cron schedule: '{expression[:_LONGEST_EXPRESSION]}'. Reason: expected five fields"
        " (minute hour day_of_month month day_of_week), such as '*/5 * * * *' for every 5 minutes"
    )


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # OSError: "Europe" is a folder
        raise BadSchedule(
            f"Invalid timezone: '{name[:100]}'. Use IANA timezone format (e.g. 'America/New_York')."
        ) from None


def _end(text: str, zone: tzinfo) -> datetime:
    try:
        end = datetime.fromisoformat(text)
        return (end if end.tzinfo else end.replace(tzinfo=zone)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise BadSchedule(
            f"Invalid end_time: '{text[:100]}'. Use ISO 8601 (e.g. '2030-01-01T00:00:00Z')."
        ) from None

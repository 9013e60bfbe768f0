"""Cron expressions: checking, saying in words, and the next runs, as celery beat reads them.

Five fields: minute hour day-of-month month day-of-week. Unlike in Vixie cron, a day must match both
day fields when both are restricted. A local time that the clock skips in spring does not run; one that it shows twice runs once.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from celery.schedules import ParseException, crontab_parser
from cron_descriptor import Options, get_description
from cron_descriptor.Exception import FormatException, MissingFieldException, WrongArgumentException

FIELDS = ("minute", "hour", "day of month", "month", "day of week")
_BOUNDS = ((60, 0), (24, 0), (31, 1), (12, 1), (7, 0))
SEARCH_DAYS = 366 * 8 + 2  # the 29th of February may be eight years away
RULE = "five fields: minute hour day-of-month month day-of-week, such as 0 6 * * 1-5"


class CronError(ValueError):
    """The expression is not one; the text says which field is wrong."""


@dataclass(frozen=True, slots=True)
class Cron:
    """A parsed expression."""

    text: str
    fields: tuple[str, str, str, str, str]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # 0 is Sunday

    def matches(self, day: date) -> bool:
        return day.day in self.days and day.month in self.months and (day.isoweekday() % 7) in self.weekdays

    def next_runs(self, after: datetime, zone: ZoneInfo, count: int) -> list[datetime]:
        """The next `count` instants later than `after` (fewer if there are no more within eight years)."""
        found: list[datetime] = []
        day = after.astimezone(zone).date()
        for _ in range(SEARCH_DAYS):
            if self.matches(day):
                for hour in self.hours:
                    for minute in self.minutes:
                        local = datetime.combine(day, time(hour, minute), zone)
                        instant = local.astimezone(UTC)
                        exists = instant.astimezone(zone).replace(tzinfo=None) == local.replace(tzinfo=None)
                        if exists and instant > after:
                            found.append(instant)
                        if len(found) == count:
                            return found
            day += timedelta(days=1)
        return found


def parse(text: str) -> Cron:
    """Parse an expression; raises CronError."""
    fields = tuple(text.split())
    if len(fields) != 5 or len(text) > 120:
        raise CronError(f"a cron expression has {RULE}; this one has {len(fields)} fields")
    sets = []
    for field, name, (size, least) in zip(fields, FIELDS, _BOUNDS, strict=True):
        try:
            sets.append(crontab_parser(size, least).parse(field))
        except (ParseException, ValueError, KeyError) as error:
            raise CronError(f"the field {name} cannot be read: {field} ({error})") from error
    minutes, hours, days, months, weekdays = sets
    cron = Cron(
        " ".join(fields),
        (fields[0], fields[1], fields[2], fields[3], fields[4]),
        tuple(sorted(minutes)),
        tuple(sorted(hours)),
        frozenset(days),
        frozenset(months),
        frozenset(weekdays),
    )
    if not cron.next_runs(datetime(2024, 1, 1, tzinfo=UTC), ZoneInfo("UTC"), 1):
        raise CronError("no day ever matches this expression")
    return cron


def next_runs(text: str, zone: str, count: int) -> list[datetime]:
    """The next runs of an expression from now on, in UTC; raises CronError."""
    return parse(text).next_runs(datetime.now(UTC), ZoneInfo(zone), count)


def describe(text: str) -> str:
    """The expression in words; the expression itself when there are none for it."""
    options = Options()
    options.use_24hour_time_format = True
    try:
        return str(get_description(text, options))
    except (FormatException, MissingFieldException, WrongArgumentException):
        return text

"""Cron expressions: checking, saying in words, and the instants that they mean.

Five fields: minute hour day-of-month month day-of-week. Unlike in Vixie cron, a day must match both
day fields when both are restricted.

Daylight saving is met as by Vixie cron. A local time that the clock skips in spring is due once, at the first instant after the
gap; one that it shows twice is due the first time only. An expression of every hour goes by the time that passes instead: nothing
is moved, and it is due in both of the hours that look alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from celery.schedules import ParseException, crontab_parser
from cron_descriptor import Options, get_description
from cron_descriptor.Exception import FormatException, MissingFieldException, WrongArgumentException

FIELDS = ("minute", "hour", "day of month", "month", "day of week")
_BOUNDS = ((60, 0), (24, 0), (31, 1), (12, 1), (7, 0))
SEARCH_DAYS = 366 * 8 + 2  # the 29th of February may be eight years away
HOURS = 24
MOST_SET_BACK = timedelta(hours=24)  # what a zone's clock was ever set back at once
RULE = "five fields: minute hour day-of-month month day-of-week, such as 0 6 * * 1-5"


class CronError(ValueError):
    """The expression is not one; the text says which field is wrong."""


@dataclass(frozen=True, slots=True)
class Tick:
    """An instant, in UTC, at which an expression is due. `in_place_of` are the local times that daylight saving skipped and that
    are due now instead, without a zone."""

    at: datetime
    in_place_of: tuple[datetime, ...] = ()


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

    def next_ticks(self, after: datetime, zone: ZoneInfo, count: int) -> list[Tick]:
        """The next `count` ticks later than `after` (fewer if there are no more within eight years)."""
        found: dict[datetime, Tick] = {}
        firsts: set[datetime] = set()
        start = _first_local(after, zone)
        for local in self._locals(start, start.date() + timedelta(days=SEARCH_DAYS)):
            ticks = self._ticks_of(local, zone)
            _collect(found, ticks, after)
            firsts.update(tick.at for tick in ticks[:1] if tick.at > after)
            if len(firsts) > count:
                break
        return [found[at] for at in sorted(found)][:count]

    def ticks_between(self, after: datetime, until: datetime, zone: ZoneInfo) -> list[Tick]:
        """The ticks later than `after` and not later than `until`, oldest first."""
        found: dict[datetime, Tick] = {}
        for local in self._locals(_first_local(after, zone), until.astimezone(zone).date() + timedelta(days=1)):
            ticks = self._ticks_of(local, zone)
            if ticks and ticks[0].at > until:
                break
            _collect(found, [tick for tick in ticks if tick.at <= until], after)
        return [found[at] for at in sorted(found)]

    def latest_ticks(self, after: datetime, until: datetime, zone: ZoneInfo, most: int) -> tuple[list[Tick], bool]:
        """The latest of `ticks_between`, at most so many, oldest first; and whether these are all."""
        span = timedelta(days=1)
        while True:
            start = max(after, until - span)
            found = self.ticks_between(start, until, zone)
            if start == after or len(found) > most:
                return found[-most:], len(found) <= most
            span *= 8

    def _locals(self, start: datetime, last: date) -> Iterator[datetime]:
        """The local times that match, from `start` to the end of the day `last`, without a zone, whether they exist or not."""
        day = start.date()
        while day <= last:
            if self.matches(day):
                begun = start.hour if day == start.date() else 0
                for hour in (each for each in self.hours if each >= begun):
                    for minute in self.minutes:
                        local = datetime.combine(day, time(hour, minute))
                        if local >= start:
                            yield local
            day += timedelta(days=1)

    def _ticks_of(self, local: datetime, zone: ZoneInfo) -> list[Tick]:
        """The ticks of a local time, in order. The first of a later local time is never before the first of an earlier one."""
        is_every_hour = len(self.hours) == HOURS
        instant = local.replace(tzinfo=zone).astimezone(UTC)
        if instant.astimezone(zone).replace(tzinfo=None) != local:
            return [] if is_every_hour else [Tick(_end_of_gap(local, zone), (local,))]
        again = local.replace(tzinfo=zone, fold=1).astimezone(UTC)
        return [Tick(instant), Tick(again)] if is_every_hour and again != instant else [Tick(instant)]


def _first_local(after: datetime, zone: ZoneInfo) -> datetime:
    """The earliest local time that may be shown later than `after`: an earlier one than now when the clock is about to be set
    back."""
    local = after.astimezone(zone)
    soon = (after + MOST_SET_BACK).astimezone(zone)
    back = (local.utcoffset() or timedelta()) - (soon.utcoffset() or timedelta())
    return local.replace(tzinfo=None) - max(back, timedelta())


def _collect(found: dict[datetime, Tick], ticks: list[Tick], after: datetime) -> None:
    """Keep the ticks later than `after`; those of one instant are one."""
    for tick in ticks:
        if tick.at > after:
            present = found.get(tick.at)
            found[tick.at] = Tick(tick.at, present.in_place_of + tick.in_place_of) if present else tick


def _end_of_gap(local: datetime, zone: ZoneInfo) -> datetime:
    """The first instant after the gap in which a local time is that the clock skips."""
    # read with the offset from after the gap it is an instant before it, and the other way round
    before = int(local.replace(tzinfo=zone, fold=1).timestamp())
    after = int(local.replace(tzinfo=zone, fold=0).timestamp())
    offset = datetime.fromtimestamp(after, zone).utcoffset()
    while after - before > 1:
        middle = (before + after) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == offset:
            after = middle
        else:
            before = middle
    return datetime.fromtimestamp(after, UTC)


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
    if not cron.next_ticks(datetime(2024, 1, 1, tzinfo=UTC), ZoneInfo("UTC"), 1):
        raise CronError("no day ever matches this expression")
    return cron


def describe(text: str) -> str:
    """The expression in words; the expression itself when there are none for it."""
    options = Options()
    options.use_24hour_time_format = True
    try:
        return str(get_description(text, options))
    except (FormatException, MissingFieldException, WrongArgumentException):
        return text

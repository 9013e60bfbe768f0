"""When cron expressions are due, and what becomes of each tick, against models that are slow and plain."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from webapp.reports import cron, ticks
from webapp.reports.cron import Cron, Tick
from webapp.reports.ticks import MOST_CAUGHT_UP, MOST_LISTED, MOST_WAITING, Timetable

MINUTE = timedelta(minutes=1)
BERLIN = ZoneInfo("Europe/Berlin")


def at(*moment: int) -> datetime:
    return datetime(*moment, tzinfo=UTC)


def local(*moment: int) -> datetime:
    """What a clock on the wall shows, wherever that is."""
    return at(*moment).replace(tzinfo=None)


def next_runs(expression: str, zone: str, *moment: int, count: int = 3) -> list[str]:
    found = cron.parse(expression).next_ticks(at(*moment), ZoneInfo(zone), count)
    return [f"{each.at:%Y-%m-%dT%H:%MZ}" for each in found]


# ---- when an expression is due


def test_a_time_that_the_clock_skips_is_due_at_the_first_moment_after() -> None:
    assert next_runs("30 2 * * *", "Europe/Berlin", 2026, 3, 28, 12, count=2) == [
        "2026-03-29T01:00Z",
        "2026-03-30T00:30Z",
    ]
    (tick,) = cron.parse("*/20 2 * * *").ticks_between(at(2026, 3, 29), at(2026, 3, 29, 12), BERLIN)
    assert tick == Tick(at(2026, 3, 29, 1), tuple(local(2026, 3, 29, 2, minute) for minute in (0, 20, 40)))
    assert ticks.moved(tick, BERLIN) == (
        "Daylight saving skips 02:00 to 02:40 on 2026-03-29 in Europe/Berlin: "
        "this run was due at the first moment after, 03:00 CEST."
    )


def test_a_skipped_time_and_the_next_one_are_one_tick_if_they_are_one_moment() -> None:
    (tick,) = cron.parse("0 2,3 * * *").ticks_between(at(2026, 3, 29), at(2026, 3, 29, 12), BERLIN)
    assert (tick.at, len(tick.in_place_of)) == (at(2026, 3, 29, 1), 1)


def test_a_time_that_the_clock_shows_twice_is_due_once() -> None:
    found = next_runs("30 2 * * *", "Europe/Berlin", 2026, 10, 24, 12, count=2)
    assert found == ["2026-10-25T00:30Z", "2026-10-26T01:30Z"]
    assert next_runs("30 2 * * *", "Europe/Berlin", 2026, 10, 25, 0, 45, count=1) == ["2026-10-26T01:30Z"]


def test_an_expression_of_every_hour_goes_by_the_time_that_passes() -> None:
    for start in (at(2026, 3, 28, 22), at(2026, 10, 24, 22)):
        hourly = cron.parse("30 * * * *").next_ticks(start, BERLIN, 8)
        assert [tick.at for tick in hourly] == [start + timedelta(hours=hour, minutes=30) for hour in range(8)]
        assert not any(tick.in_place_of for tick in hourly)


@pytest.mark.parametrize(
    ("expression", "zone", "moment", "expected"),
    [
        ("0 0 29 2 *", "UTC", (2026, 1, 1), ["2028-02-29T00:00Z"]),
        ("0 0 31 * *", "UTC", (2026, 1, 31), ["2026-03-31T00:00Z", "2026-05-31T00:00Z", "2026-07-31T00:00Z"]),
        ("0 6 * * *", "Asia/Kolkata", (2026, 1, 1), ["2026-01-01T00:30Z"]),
        ("0 6 * * *", "Asia/Kathmandu", (2026, 1, 1), ["2026-01-01T00:15Z"]),
        # half an hour of daylight saving: 02:15 is skipped, and half past two is the first moment after
        ("15 2 * * *", "Australia/Lord_Howe", (2026, 10, 3, 0), ["2026-10-03T15:30Z", "2026-10-04T15:15Z"]),
        # Samoa skipped the whole of the 30th
        ("0 6 * * *", "Pacific/Apia", (2011, 12, 29, 20), ["2011-12-30T10:00Z", "2011-12-30T16:00Z"]),
    ],
)
def test_days_and_zones_that_are_not_ordinary(
    expression: str, zone: str, moment: tuple[int, ...], expected: list[str]
) -> None:
    assert next_runs(expression, zone, *moment, count=len(expected)) == expected


@settings(max_examples=50)
@given(st.text(alphabet="0123456789*/,-? abcl", max_size=30))
def test_no_expression_breaks_the_parser(text: str) -> None:
    try:
        parsed = cron.parse(text)
    except cron.CronError:
        return
    assert cron.describe(text)
    assert parsed.next_ticks(at(2026, 1, 1), ZoneInfo("UTC"), 2)


def model(expression: Cron, after: datetime, until: datetime, zone: ZoneInfo) -> list[Tick]:
    """Minute by minute of the time that passes, reading the local clock."""

    def is_due(local: datetime) -> bool:
        fields = local.minute in expression.minutes and local.hour in expression.hours
        return fields and expression.matches(local.date())

    found = []
    is_every_hour = len(expression.hours) == 24
    instant = after.replace(second=0, microsecond=0)
    shown = instant.astimezone(zone)
    while instant < until:
        instant += MINUTE
        before, shown = shown.replace(tzinfo=None), instant.astimezone(zone)
        local = shown.replace(tzinfo=None)
        skipped = [before + MINUTE * n for n in range(1, (local - before) // MINUTE)]
        moved = tuple(each for each in skipped if is_due(each)) if not is_every_hour else ()
        if moved or (is_due(local) and (is_every_hour or not shown.fold)):
            found.append(Tick(instant, moved))
    return [tick for tick in found if after < tick.at <= until]


# around these the clocks are moved: by an hour, by half an hour, at midnight, not at all
MOVES = [
    ("Europe/Berlin", at(2026, 3, 29, 1)),
    ("Europe/Berlin", at(2026, 10, 25, 1)),
    ("Australia/Lord_Howe", at(2026, 10, 3, 15, 30)),
    ("Australia/Lord_Howe", at(2026, 4, 4, 15)),
    ("America/Santiago", at(2026, 9, 6, 4)),
    ("America/Santiago", at(2026, 4, 5, 3)),
    ("Pacific/Apia", at(2011, 12, 30, 10)),
    ("Asia/Kolkata", at(2026, 6, 1)),
]
MINUTES = st.sampled_from(["0", "30", "*", "*/7", "15,45", "59"])
HOURS = st.sampled_from(["*", "2", "0", "1-3", "*/2", "23", "0-23", "2,3"])
DAYS = st.sampled_from(["* * *", "* * *", "29-31 * *", "* * 0", "31 * *"])
OFFSETS = st.integers(-48 * 3600, 48 * 3600)


@settings(max_examples=150)
@given(st.sampled_from(MOVES), MINUTES, HOURS, DAYS, OFFSETS, OFFSETS)
def test_ticks_are_those_that_a_clock_on_the_wall_shows(
    move: tuple[str, datetime], minute: str, hour: str, days: str, one: int, other: int
) -> None:
    zone, expression = ZoneInfo(move[0]), cron.parse(f"{minute} {hour} {days}")
    after, until = (move[1] + timedelta(seconds=seconds) for seconds in sorted((one, other)))
    expected = model(expression, after, until, zone)
    assert expression.ticks_between(after, until, zone) == expected
    assert expression.next_ticks(after, zone, len(expected) or 1)[: len(expected)] == expected
    latest, are_all = expression.latest_ticks(after, until, zone, 5)
    assert (latest, are_all) == (expected[-5:], len(expected) <= 5)


@settings(max_examples=60)
@given(st.sampled_from(MOVES), MINUTES, HOURS, st.lists(OFFSETS, min_size=2, max_size=12))
def test_however_often_one_looks_each_tick_is_seen_once(
    move: tuple[str, datetime], minute: str, hour: str, looks: list[int]
) -> None:
    zone, expression = ZoneInfo(move[0]), cron.parse(f"{minute} {hour} * * *")
    moments = [move[1] + timedelta(seconds=seconds) for seconds in sorted(looks)]
    seen = [tick for one, other in pairwise(moments) for tick in expression.ticks_between(one, other, zone)]
    assert [tick.at for tick in seen] == [tick.at for tick in expression.ticks_between(moments[0], moments[-1], zone)]


def test_the_latest_ticks_of_a_very_long_time_are_found_at_once() -> None:
    latest, are_all = cron.parse("* * * * *").latest_ticks(at(1970, 1, 1), at(2026, 1, 1), BERLIN, 3)
    assert ([tick.at for tick in latest], are_all) == ([at(2026, 1, 1) - MINUTE * back for back in (2, 1, 0)], False)
    yearly, are_all = cron.parse("0 0 1 1 *").latest_ticks(at(2000, 6, 1), at(2026, 6, 1), ZoneInfo("UTC"), 100)
    assert (len(yearly), are_all) == (26, True)


# ---- what becomes of ticks

HOURLY = "0 * * * *"


def outcomes(
    expression: str, after: datetime, now: datetime, *, catch_up: Any = "latest", overlap: Any = "skip", **more: Any
) -> dict[str, str]:
    """Of each tick by its local time: "run", or why it is skipped."""
    table = Timetable(cron.parse(expression), BERLIN, catch_up=catch_up, overlap=overlap)
    found = ticks.decide(table, after, now, **more)
    assert [each.at for each in found] == sorted({each.at for each in found})
    return {f"{each.at:%H:%M}": each.skipped or "run" for each in found}


def test_what_is_seen_in_time_is_run() -> None:
    assert outcomes(HOURLY, at(2026, 1, 1, 5, 59, 58), at(2026, 1, 1, 6, 0, 3)) == {"06:00": "run"}
    late = outcomes(HOURLY, at(2026, 1, 1, 5, 59, 58), at(2026, 1, 1, 6, 2), catch_up="none")
    assert late == {"06:00": "run"}, "a restart takes as long; that is not missing it"
    assert outcomes(HOURLY, at(2026, 1, 1, 6), at(2026, 1, 1, 6, 30)) == {}


def test_what_was_missed_is_caught_up_as_the_schedule_says() -> None:
    span = at(2026, 1, 1, 3, 30), at(2026, 1, 1, 6, 30)
    none = f"{ticks.MISSED} {ticks.ONLY['none']}"
    latest = f"{ticks.MISSED} {ticks.ONLY['latest']}"
    assert outcomes(HOURLY, *span, catch_up="none") == {"04:00": none, "05:00": none, "06:00": none}
    assert outcomes(HOURLY, *span, catch_up="latest") == {"04:00": latest, "05:00": latest, "06:00": "run"}
    assert outcomes(HOURLY, *span, catch_up="all") == {"04:00": "run", "05:00": "run", "06:00": "run"}


def test_a_tick_in_time_takes_the_place_of_the_latest_missed_one() -> None:
    latest = f"{ticks.MISSED} {ticks.ONLY['latest']}"
    assert outcomes(HOURLY, at(2026, 1, 1, 4, 30), at(2026, 1, 1, 6, 1)) == {"05:00": latest, "06:00": "run"}
    all_of_them = outcomes(HOURLY, at(2026, 1, 1, 4, 30), at(2026, 1, 1, 6, 1), catch_up="all")
    assert all_of_them == {"05:00": "run", "06:00": ticks.NOT_OVER}, "it would overlap with what is caught up"


def test_after_a_long_absence_the_latest_are_listed_and_the_first_of_them_says_so() -> None:
    after, now = at(2026, 1, 1), at(2026, 3, 1, 0, 3)
    for catch_up, run in (("none", 0), ("latest", 1), ("all", MOST_CAUGHT_UP)):
        found = outcomes("*/5 * * * *", after, now, catch_up=catch_up, overlap="queue")
        assert len(found) == MOST_LISTED
        assert [said == "run" for said in found.values()] == [False] * (MOST_LISTED - run) + [True] * run
        first, *others = found.values()
        assert first.endswith("Earlier ones, after 2026-01-01 00:00 UTC, were missed as well and are not listed.")
        assert not any("Earlier" in each for each in others)


def test_overlap_as_the_schedule_says() -> None:
    span = at(2026, 1, 1, 5, 59, 58), at(2026, 1, 1, 6, 0, 3)
    assert outcomes(HOURLY, *span, overlap="skip", unfinished=1) == {"06:00": ticks.NOT_OVER}
    assert outcomes(HOURLY, *span, overlap="replace", unfinished=1) == {"06:00": "run"}
    assert outcomes(HOURLY, *span, overlap="queue", unfinished=MOST_WAITING - 1) == {"06:00": "run"}
    too_many = ticks.TOO_MANY.format(unfinished=MOST_WAITING)
    assert outcomes(HOURLY, *span, overlap="queue", unfinished=MOST_WAITING) == {"06:00": too_many}


def test_what_is_caught_up_waits_for_the_run_before_and_is_never_replaced_at_once() -> None:
    span = at(2026, 1, 1, 3, 30), at(2026, 1, 1, 6, 30)
    assert outcomes(HOURLY, *span, overlap="skip", unfinished=1)["06:00"] == "run"
    assert list(outcomes(HOURLY, *span, catch_up="all", overlap="replace").values()) == [
        ticks.REPLACED,
        ticks.REPLACED,
        "run",
    ]


def test_runs_say_what_is_unusual_about_them() -> None:
    table = Timetable(cron.parse("30 2 * * *"), BERLIN, catch_up="latest", overlap="skip")
    in_time, late = (ticks.decide(table, at(2026, 3, 29), at(2026, 3, 29, hour, 1)) for hour in (1, 9))
    words = ticks.moved(Tick(at(2026, 3, 29, 1), (local(2026, 3, 29, 2, 30),)), BERLIN)
    assert [(each.at, each.note) for each in in_time] == [(at(2026, 3, 29, 1), words)]
    assert [(each.at, each.note) for each in late] == [(at(2026, 3, 29, 1), f"{words} {ticks.CAUGHT_UP}")]
    (ordinary,) = ticks.decide(table, at(2026, 3, 30), at(2026, 3, 30, 0, 31))
    assert ordinary.note == ""


# ---- a life of looks, with a clock that is moved

STEPS = st.lists(
    st.one_of(
        st.floats(1, 20),  # looks every few seconds, a busy worker
        st.floats(60, 4000),  # a restart, an appliance that was down
        st.floats(-4000, -1),  # the clock is set back
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=150)
@given(
    st.sampled_from(["* * * * *", "*/15 * * * *", "30 2 * * *", "7 * * * *"]),
    st.sampled_from(["latest", "all", "none"]),
    st.sampled_from(["skip", "queue", "replace"]),
    STEPS,
    st.randoms(use_true_random=False),
)
def test_each_tick_has_one_outcome_whatever_the_clock_does(
    expression: str, catch_up: Any, overlap: Any, steps: Sequence[float], chance: Any
) -> None:
    table = Timetable(cron.parse(expression), BERLIN, catch_up=catch_up, overlap=overlap)
    changed = decided_until = now = at(2026, 3, 29, 0, 20)
    rows: dict[datetime, str] = {}
    unfinished = 0
    for step in steps:
        now += timedelta(seconds=step)
        newest = max((tick for tick in rows if tick <= now), default=None)
        after = ticks.look_from(decided_until, changed, newest, now)
        unfinished = chance.randint(0, unfinished)
        for each in ticks.decide(table, after, now, unfinished=unfinished):
            assert each.at not in rows
            assert changed < each.at <= now
            rows[each.at] = each.skipped
            unfinished += not each.skipped
        decided_until = max(decided_until, now)
        assert overlap == "replace" or unfinished <= MOST_WAITING
    expected, are_all = table.cron.latest_ticks(changed, decided_until, BERLIN, MOST_LISTED)
    if are_all:
        assert sorted(rows) == [tick.at for tick in expected]

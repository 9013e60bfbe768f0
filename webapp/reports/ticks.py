"""What becomes of a schedule's ticks, the instants at which it is due: which are run, which are skipped, and why (pure)

Each tick since the last decision gets one outcome. One that was seen in time is run; whether an older one is still run says the
schedule's catch-up policy, and what happens while a run of the schedule is not over says its overlap policy. Runs that are caught
up follow one another; only newer ticks are skipped because of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, Literal
from zoneinfo import ZoneInfo

from webapp.reports.cron import Cron, Tick

# A restart of the appliance takes less; what is seen this late is simply late, and was not missed.
IN_TIME: Final = timedelta(minutes=2)
MOST_CAUGHT_UP: Final = 10
MOST_WAITING: Final = 10
MOST_LISTED: Final = 100

MISSED: Final = (
    "Missed: nobody looked at the schedules when it was due; the appliance was down or its workers were busy."
)
CAUGHT_UP: Final = (
    "Caught up: nobody looked at the schedules when it was due; the appliance was down or its workers were busy."
)
NOT_OVER: Final = "The run before was not over."
TOO_MANY: Final = "{unfinished} runs of this schedule were not over."
NOT_LISTED: Final = "Earlier ones, after {after:%Y-%m-%d %H:%M} UTC, were missed as well and are not listed."
REPLACED: Final = "A newer tick was due by then, and this schedule cancels the run before."
ONLY: Final = {
    "none": "This schedule does not catch up.",
    "latest": "This schedule catches up with the latest one only.",
    "all": f"This schedule catches up with the latest {MOST_CAUGHT_UP} only.",
}


@dataclass(frozen=True, slots=True)
class Timetable:
    """When a schedule is due, and its policies."""

    cron: Cron
    zone: ZoneInfo
    catch_up: Literal["latest", "all", "none"]
    overlap: Literal["skip", "queue", "replace"]


@dataclass(frozen=True, slots=True)
class Decided:
    """One tick. `skipped` is why it is not run, empty when it is; `note` is what else a person should know of it."""

    at: datetime
    skipped: str
    note: str


def look_from(decided_until: datetime, changed: datetime, newest: datetime | None, now: datetime) -> datetime:
    """Ticks later than this, and not later than now, have no row yet.

    That is the last decision. When the clock was set back behind it, it is the `newest` tick up to now that has its row, but not
    before the schedule was `changed` the last time.
    """
    floor = decided_until if now >= decided_until else changed
    return floor if newest is None else max(floor, newest)


def decide(table: Timetable, after: datetime, now: datetime, *, unfinished: int = 0) -> list[Decided]:
    """What becomes of the ticks later than `after` and not later than `now`, oldest first.

    `unfinished` is how many runs of the schedule are not over. Of a very long absence only the latest ticks are listed, and the
    first of these says so.
    """
    ticks, are_all = table.cron.latest_ticks(after, now, table.zone, MOST_LISTED)
    missed = _skipped_as_missed(table, ticks, now)
    decided = []
    running = unfinished
    for tick in ticks:
        is_late = now - tick.at > IN_TIME
        skipped = missed.get(tick.at) or _overlaps(table, running, is_late=is_late, is_last=tick is ticks[-1])
        note = "" if skipped else " ".join(filter(None, [moved(tick, table.zone), CAUGHT_UP if is_late else ""]))
        decided.append(Decided(tick.at, skipped, note))
        running += not skipped
    if decided and decided[0].skipped and not are_all:
        decided[0] = replace(decided[0], skipped=f"{decided[0].skipped} {NOT_LISTED.format(after=after)}")
    return decided


def _skipped_as_missed(table: Timetable, ticks: Sequence[Tick], now: datetime) -> dict[datetime, str]:
    """Those that nobody saw in time and that the catch-up policy gives up, each with the reason."""
    late = [tick.at for tick in ticks if now - tick.at > IN_TIME]
    if table.catch_up == "latest":
        kept = 1 if len(late) == len(ticks) else 0
    else:
        kept = MOST_CAUGHT_UP if table.catch_up == "all" else 0
    return dict.fromkeys(late[: max(0, len(late) - kept)], f"{MISSED} {ONLY[table.catch_up]}")


def _overlaps(table: Timetable, running: int, *, is_late: bool, is_last: bool) -> str:
    """Why the overlap policy skips a tick while so many runs of its schedule are not over; empty when it does not."""
    if table.overlap == "replace":
        return "" if is_last else REPLACED
    if table.overlap == "skip" and running and not is_late:
        return NOT_OVER
    return TOO_MANY.format(unfinished=running) if running >= MOST_WAITING else ""


def moved(tick: Tick, zone: ZoneInfo) -> str:
    """Says that daylight saving moved a tick; empty when it did not."""
    if not tick.in_place_of:
        return ""
    first, last = tick.in_place_of[0], tick.in_place_of[-1]
    times = f"{first:%H:%M}" if first == last else f"{first:%H:%M} to {last:%H:%M}"
    return (
        f"Daylight saving skips {times} on {first:%Y-%m-%d} in {zone.key}: "
        f"this run was due at the first moment after, {tick.at.astimezone(zone):%H:%M %Z}."
    )

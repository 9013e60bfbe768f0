"""Where a run that is queued stands: its place in the line, whom it waits for, and why.

It is kept in the run's own progress, where everything that shows a run finds it, and told anew whenever a run comes, starts or
ends: `{"text": the sentence, "queue": {"place", "ahead", "at_work", "at_once"}}`. Runs are taken in the order in which they were
asked for, but one whose schedule lets runs follow one another steps aside until the run before it is over: that one has no place.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.conf import settings
from django.db import transaction

from webapp import lifecycle
from webapp.lifecycle import FINISHED, State, WorkOver
from webapp.reports import catalogue
from webapp.reports.models import ReportRun, ReportSchedule

log = logging.getLogger(__name__)

JUST_QUEUED: Final = {"text": "queued a moment ago"}
NAMED: Final = 3
_AT_WORK: Final = (State.STARTING, State.RUNNING)


@dataclass(frozen=True, slots=True)
class Line:
    """Who waits, in order, and who is at work, by the names that people know them by."""

    waiting: Sequence[str]
    at_work: Sequence[str]
    at_once: int

    def place(self, index: int) -> dict[str, Any]:
        """The progress of the one that waits at this index."""
        ahead = self.waiting[:index]
        return {
            "text": self._sentence(index + 1, ahead),
            "queue": {
                "place": index + 1,
                "ahead": list(ahead),
                "at_work": list(self.at_work),
                "at_once": self.at_once,
            },
        }

    def _sentence(self, place: int, ahead: Sequence[str]) -> str:
        behind = f", behind {_named(ahead)}" if ahead else ""
        if len(self.at_work) + place <= self.at_once:
            return f"{_ordinal(place)} in line{behind}; a worker takes it within a moment"
        run = "one report runs" if self.at_once == 1 else f"{self.at_once} reports run"
        now = f": now {_named(self.at_work)}" if self.at_work else ""
        return f"{_ordinal(place)} in line{behind}, because {run} at once{now}"


def _named(names: Sequence[str]) -> str:
    shown, more = list(names[:NAMED]), len(names) - NAMED
    if more > 0:
        shown.append(f"{more} more")
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def must_wait(run: ReportRun) -> bool:
    """Whether a schedule's run has to wait for an earlier one of the same schedule."""
    others = ReportRun.objects.filter(schedule=run.schedule_id).exclude(state__in=FINISHED)
    return _follows(run, others)


def tell_places() -> None:
    """Store where each queued run stands now, if that is something new."""
    for run, progress in _places():
        if run.progress != progress:
            _store(run, progress)


def tell_places_after_commit() -> None:
    """As `tell_places`, once the surrounding transaction is durable. A place that is not told costs nobody his run."""
    transaction.on_commit(tell_places, robust=True)


def _places() -> list[tuple[ReportRun, dict[str, Any]]]:
    queued = list(ReportRun.objects.filter(state=State.QUEUED).select_related("schedule").order_by("created_at"))
    if not queued:
        return []
    at_work = list(ReportRun.objects.filter(state__in=_AT_WORK).order_by("started_at"))
    following = {run.pk for run in queued if _follows(run, [*at_work, *queued])}
    waiting = [run for run in queued if run.pk not in following]
    line = Line([_name(run) for run in waiting], [_name(run) for run in at_work], settings.REPORTS_AT_ONCE)
    places = [(run, line.place(index)) for index, run in enumerate(waiting)]
    return places + [(run, _after_its_own(run)) for run in queued if run.pk in following]


def _follows(run: ReportRun, others: Iterable[ReportRun]) -> bool:
    """Whether a schedule's run has to wait for one of these, which are not over. One that a person started does not."""
    if run.schedule is None or run.tick is None or run.schedule.overlap == ReportSchedule.Overlap.REPLACE:
        return False
    return any(
        other.schedule_id == run.schedule_id and _is_earlier(other, run.tick, run.created_at) for other in others
    )


def _is_earlier(other: ReportRun, tick: datetime, created_at: datetime) -> bool:
    return bool(other.created_at < created_at if other.tick is None else other.tick < tick)


def _after_its_own(run: ReportRun) -> dict[str, Any]:
    assert run.schedule is not None
    return {"text": f"waits for the run before it of the schedule {run.schedule.name}, as the schedule says"}


def _name(run: ReportRun) -> str:
    found = catalogue.CATALOGUE.get(run.report)
    title = run.report if found is None else found.title
    return f"{title} ({run.requested_by_name})" if run.requested_by_name else title


def _store(run: ReportRun, progress: dict[str, Any]) -> None:
    try:
        with lifecycle.changing(ReportRun, run.pk) as stored:
            if stored.state == State.QUEUED:
                stored.progress = progress
    except (WorkOver, ReportRun.DoesNotExist) as error:
        log.info("report run %s waits no longer: %s", run.pk, error)

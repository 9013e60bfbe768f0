"""Making the runs that schedules ask for: exactly one row for each schedule and tick.

A tick is an instant at which a schedule is due. What becomes of it is decided in `webapp.reports.ticks`; here the decision meets
the database. `ReportSchedule.decided_until` says up to when every tick has its row, and moves on in the transaction that makes
the rows, under the schedule's lock: a process that dies leaves both or neither, and of two that look at once the second finds
nothing due. It never goes back; while the clock is behind it, the rows themselves say which tick was the last.

The worker looks every few seconds (`tasks.reports.schedules`), and whoever changes a schedule looks before the change, so that
what was due under the old rules is run by them.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.db import transaction
from django.db.models import Max, QuerySet

from webapp.lifecycle import FINISHED, State, WorkOver
from webapp.reports import cron, line, stream, ticks
from webapp.reports.models import ReportRun, ReportSchedule
from webapp.reports.ticks import Decided, Timetable

log = logging.getLogger(__name__)

_IDENTITIES = uuid.UUID("0a3f5f5e-7a54-4b0e-9d5b-2f6f0e6a7c11")


def make_due(now: datetime) -> Iterator[ReportRun]:
    """Make the rows of all ticks up to now; gives the runs that are to be queued, each when its row is durable."""
    for schedule in ReportSchedule.objects.filter(enabled=True):
        try:
            if not _is_at_rest(schedule, now):
                yield from make_due_of(schedule.pk, now)
        except (cron.CronError, ZoneInfoNotFoundError):
            log.exception("the schedule %s cannot be read", schedule.pk)


def make_due_of(schedule_id: int, now: datetime) -> list[ReportRun]:
    """The same for one schedule; nothing when it is gone or disabled."""
    with transaction.atomic():
        schedule = ReportSchedule.objects.select_for_update().filter(pk=schedule_id, enabled=True).first()
        if schedule is None:
            log.info("schedule %s is gone or disabled", schedule_id)
            return []
        made = [_make(schedule, each, now) for each in _decide(schedule, now)]
        schedule.decided_until = max(schedule.decided_until, now)
        schedule.save(update_fields=["decided_until"])
        if made:
            line.tell_places_after_commit()
    return [each for each in made if each.state == State.QUEUED]


def identity(schedule_id: int, tick: datetime) -> uuid.UUID:
    """The id of the run of that schedule and tick."""
    return uuid.uuid5(_IDENTITIES, f"{schedule_id} {int(tick.timestamp())}")


def _timetable(schedule: ReportSchedule) -> Timetable:
    return Timetable(
        cron.parse(schedule.cron), ZoneInfo(schedule.time_zone), catch_up=schedule.catch_up, overlap=schedule.overlap
    )


def _is_at_rest(schedule: ReportSchedule, now: datetime) -> bool:
    """Whether certainly nothing came up since the last decision, as a look without the lock sees it."""
    table = _timetable(schedule)
    after = ticks.look_from(schedule.decided_until, schedule.updated_at, None, now)
    # the latest will do: there may be very many since
    return not table.cron.latest_ticks(after, now, table.zone, 1)[0]


def _decide(schedule: ReportSchedule, now: datetime) -> list[Decided]:
    newest = schedule.runs.filter(tick__lte=now).aggregate(newest=Max("tick"))["newest"]
    after = ticks.look_from(schedule.decided_until, schedule.updated_at, newest, now)
    return ticks.decide(_timetable(schedule), after, now, unfinished=_unfinished(schedule).count())


def _make(schedule: ReportSchedule, decided: Decided, now: datetime) -> ReportRun:
    if not decided.skipped and schedule.overlap == ReportSchedule.Overlap.REPLACE:
        for each in _unfinished(schedule):
            _ask_to_end(each)
    made: ReportRun = ReportRun.objects.create(
        pk=identity(schedule.pk, decided.at),
        report=schedule.report,
        parameters=schedule.parameters,
        schedule=schedule,
        tick=decided.at,
        note=decided.note,
        progress={} if decided.skipped else line.JUST_QUEUED,
        state=State.SKIPPED if decided.skipped else State.QUEUED,
        reason=decided.skipped,
        finished_at=now if decided.skipped else None,
        requested_by=schedule.created_by,
        requested_by_name=f"schedule {schedule.name}"[:150],
    )
    return made


def _ask_to_end(run: ReportRun) -> None:
    try:
        stream.request_cancel(run.pk)
    except WorkOver as error:
        log.info("the run before ended by itself: %s", error)


def _unfinished(schedule: ReportSchedule) -> QuerySet:
    return ReportRun.objects.filter(schedule=schedule).exclude(state__in=FINISHED)

"""Keeping django-celery-beat's tables in step with our schedules; the only writer of the mirrored rows."""

from __future__ import annotations

import json

from django_celery_beat.models import CrontabSchedule, PeriodicTask

from webapp.queue import RUN_REPORT_SCHEDULE
from webapp.reports import cron
from webapp.reports.models import ReportSchedule


def mirror(schedule: ReportSchedule) -> None:
    """Make beat run `schedule` as it now says. Inside the transaction that changed it."""
    minute, hour, day_of_month, month_of_year, day_of_week = cron.parse(schedule.cron).fields
    crontab, _ = CrontabSchedule.objects.get_or_create(
        minute=minute,
        hour=hour,
        day_of_month=day_of_month,
        month_of_year=month_of_year,
        day_of_week=day_of_week,
        timezone=schedule.time_zone,
    )
    PeriodicTask.objects.update_or_create(
        name=_name(schedule.pk),
        defaults={
            "task": RUN_REPORT_SCHEDULE,
            "args": json.dumps([schedule.pk]),
            "crontab": crontab,
            "enabled": schedule.enabled,
            "description": f"Report {schedule.report}: {schedule.name}",
        },
    )


def forget(schedule_id: int) -> None:
    """Make beat forget a schedule."""
    for task in PeriodicTask.objects.filter(name=_name(schedule_id)):
        task.delete()  # one by one: beat notices changes by the signal that each deletion sends


def _name(schedule_id: int) -> str:
    return f"report-schedule-{schedule_id}"

"""Report schedules, runs and their rows.

A **schedule** is due at its ticks, instants that its cron expression and time zone mean. `webapp.reports.schedules` makes the run
of each tick, and the worker calls for that every few seconds; `decided_until` says up to when every tick has its row.

A **run** is made queued, by the console (`webapp.reports.changes`, which then sends `tasks.reports.run` with `[run id]`) or by
the worker for a schedule; `webapp.reports.stream` moves it on. (schedule, tick) is the identity of a schedule's run; one that a
person starts has no tick. A tick that is not run is a row as well, made skipped with its reason. `note` says what is unusual
about a run: its tick was moved by daylight saving, or it is caught up. `spark_session_id` and `spark_tag` are stored before the
first job starts: with them any process can interrupt the run. `progress` is `{"stages": [{"id", "name", "done", "total",
"running"}], "tasks_done", "tasks_total", "rows_read", "rows_total", "text", "summary"}`; unknown parts are absent, never 0;
`summary` is what a run that succeeded says of itself, as sentences; while it is queued, `queue` and `text` say where it stands
(`webapp.reports.line`). `parquet_path` names a file with the whole of the report's first section, when that may be more than the
rows that are kept for the page.

A **row** belongs to one section of the report's result (see `webapp.reports.catalogue`). `(run, section, key)` names it:
writing the same key again replaces its data and gives it a new `seq`. `seq` counts up over the run (`ReportRun.last_seq`), so
"everything after n" is one query. `final` is false while the value may still change.
"""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from django.conf import settings
from django.db import models
from django.utils import timezone

from webapp.lifecycle import Work
from webapp.reports import cron, ticks


class ReportSchedule(models.Model):
    """When a report runs by itself, and with which parameters."""

    class Overlap(models.TextChoices):
        SKIP = "skip", "Skip the new run"
        QUEUE = "queue", "Run it after the one before"
        REPLACE = "replace", "Cancel the one before"

    class CatchUp(models.TextChoices):
        LATEST = "latest", "Run the latest missed one"
        ALL = "all", f"Run all, at most the latest {ticks.MOST_CAUGHT_UP}"
        NONE = "none", "Run none"

    name = models.CharField(max_length=120, unique=True)
    report = models.CharField(max_length=60)
    parameters = models.JSONField(default=dict)
    cron = models.CharField(max_length=120)
    time_zone = models.CharField(max_length=64, default="UTC")
    enabled = models.BooleanField(default=True)
    overlap = models.CharField(max_length=10, choices=Overlap, default=Overlap.SKIP)
    catch_up = models.CharField(max_length=10, choices=CatchUp, default=CatchUp.LATEST)
    decided_until = models.DateTimeField(default=timezone.now, editable=False)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ("name",)

    def next_runs(self, count: int) -> list[datetime]:
        """When it runs next, in UTC; never while it is disabled."""
        if not self.enabled:
            return []
        return [tick.at for tick in cron.parse(self.cron).next_ticks(timezone.now(), ZoneInfo(self.time_zone), count)]


class ReportRun(Work):
    """One execution of a report."""

    NOUN = "run"

    report = models.CharField(max_length=60, db_index=True)
    parameters = models.JSONField(default=dict)
    schedule = models.ForeignKey(ReportSchedule, null=True, blank=True, on_delete=models.SET_NULL, related_name="runs")
    tick = models.DateTimeField(null=True, default=None, editable=False)
    note = models.TextField(blank=True, default="")
    reason = models.TextField(blank=True, default="")
    spark_session_id = models.CharField(max_length=64, blank=True, default="")
    spark_tag = models.CharField(max_length=80, blank=True, default="")
    last_seq = models.BigIntegerField(default=0)
    rows_count = models.BigIntegerField(null=True, default=None)
    parquet_path = models.CharField(max_length=500, blank=True, default="")
    requested_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    requested_by_name = models.CharField(max_length=150, blank=True, default="")

    class Meta(Work.Meta):
        constraints = [  # noqa: RUF012
            models.UniqueConstraint(fields=["schedule", "tick"], name="report_run_tick"),
        ]

    @property
    def as_of(self) -> datetime | None:
        """What the report looks back from: the moment at which a schedule was due, or else when the run was started."""
        return self.tick or self.started_at

    def number_change(self) -> None:
        self.last_seq += 1


class ReportRow(models.Model):
    """One row of one section of a run's result, partial or final."""

    run = models.ForeignKey(ReportRun, on_delete=models.CASCADE, related_name="rows")
    section = models.CharField(max_length=60)
    key = models.CharField(max_length=300)
    seq = models.BigIntegerField()
    final = models.BooleanField(default=False)
    data = models.JSONField()

    class Meta:
        ordering = ("section", "key")
        constraints = [  # noqa: RUF012
            models.UniqueConstraint(fields=["run", "section", "key"], name="report_row_key"),
        ]
        indexes = [models.Index(fields=["run", "seq"])]  # noqa: RUF012

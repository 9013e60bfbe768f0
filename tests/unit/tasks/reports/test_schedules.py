"""The task that makes due runs, and beat, which calls for it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone
from kombu.exceptions import OperationalError

from tasks import beat_scheduler, schedule
from tasks.app import LOOK_EVERY_S, MAKE_DUE_RUNS, app
from tasks.reports import runs
from tasks.reports.schedules import make_due_runs
from tests.unit.tasks.fake_redis import FakeRedis
from webapp.reports.line import must_wait
from webapp.reports.models import ReportRun, ReportSchedule

Sent = list[tuple[list[str], dict[str, Any]]]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """What was queued of runs: (arguments, options)."""
    found: Sent = []
    monkeypatch.setattr(runs.run, "apply_async", lambda arguments=None, **options: found.append((arguments, options)))
    return found


def make(**fields: Any) -> ReportSchedule:
    return ReportSchedule.objects.create(
        **{
            "name": "each minute",
            "report": "throughput",
            "cron": "* * * * *",
            "decided_until": timezone.now() - timedelta(minutes=1),
            **fields,
        }
    )


@pytest.mark.django_db
def test_what_is_due_is_made_and_queued(sent: Sent) -> None:
    make()
    make_due_runs()
    make_due_runs()
    run = ReportRun.objects.get()
    assert sent == [([str(run.pk)], {"queue": "reports"})]


@pytest.mark.django_db
def test_what_is_made_and_not_queued_is_queued_by_the_janitor(
    sent: Sent, redis: FakeRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    make()

    def no_redis(*_: Any, **__: Any) -> None:
        raise OperationalError("no Redis")

    with monkeypatch.context() as patched:
        patched.setattr(runs.run, "apply_async", no_redis)
        with pytest.raises(OperationalError):
            make_due_runs()
    run = ReportRun.objects.get()
    ReportRun.objects.update(created_at=timezone.now() - timedelta(minutes=2))
    schedule.queue_forgotten()
    assert [arguments for arguments, _ in sent] == [[str(run.pk)]]


@pytest.mark.django_db
def test_a_run_of_a_schedule_waits_for_the_one_before(
    sent: Sent, redis: FakeRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timezone, "now", lambda: datetime(2026, 1, 1, 0, 10, tzinfo=UTC))
    make(overlap="queue", catch_up="all", decided_until=datetime(2026, 1, 1, tzinfo=UTC))
    make_due_runs()
    first, second = (arguments[0] for arguments, _ in sent[:2])
    sent.clear()
    runs.run(second)
    assert sent == [([second], {"queue": "reports", "countdown": runs.WAIT_FOR_TURN_S})]
    assert ReportRun.objects.get(pk=second).state == "queued"
    ReportRun.objects.filter(pk=first).update(state="failed")
    assert not must_wait(ReportRun.objects.get(pk=second))


# ---- beat


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tasks that beat calls for."""
    found: list[str] = []
    monkeypatch.setattr(beat_scheduler.Scheduler, "producer", None)
    monkeypatch.setattr(beat_scheduler.Scheduler, "apply_entry", lambda self, entry, **_: found.append(entry.task))
    return found


def turns(beat: Any, count: int = 10) -> None:
    for _ in range(count):
        beat.tick()


def test_beat_calls_at_once_when_it_starts(called: list[str]) -> None:
    for _ in range(3):
        turns(beat_scheduler.Scheduler(app=app))
    assert called == [MAKE_DUE_RUNS] * 3


def test_beat_looks_again_within_its_heartbeat() -> None:
    assert beat_scheduler.Scheduler(app=app).max_interval <= LOOK_EVERY_S


def test_a_clock_that_is_set_back_does_not_silence_beat(called: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    beat = beat_scheduler.Scheduler(app=app)
    turns(beat)
    called.clear()
    now = timezone.now()
    monkeypatch.setattr(timezone, "now", lambda: now - timedelta(hours=1))
    turns(beat)
    assert called == [MAKE_DUE_RUNS]

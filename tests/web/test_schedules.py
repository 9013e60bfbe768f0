"""Schedules: their pages and REST, and the rows that they make: one for each schedule and tick."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

import pytest
from django.apps import apps
from django.db import IntegrityError, connection, transaction
from django.test import Client
from django.utils import timezone

from tests.web.fakes import MemorySnapshots, RecordingQueue
from webapp.accounts.models import User
from webapp.lifecycle import State
from webapp.reports import line, schedules, stream, ticks
from webapp.reports.models import ReportRun, ReportSchedule

pytestmark = pytest.mark.django_db

DAILY = {"name": "daily", "report": "throughput", "cron": "0 6 * * 1-5", "time_zone": "Europe/Berlin"}
LONG = "every day at six, for all the topics whose names are so long that nobody reads them to the end"
LONG_TOPIC = "orders-of-all-shops-and-their-branches-in-all-the-countries-that-we-sell-to-since-2019-" + "x" * 3
JSON = "application/json"


def at(*moment: int) -> datetime:
    return datetime(*moment, tzinfo=UTC)


SIX = at(2026, 1, 1, 6)


def make(overlap: str = "skip", **fields: Any) -> ReportSchedule:
    """An hourly schedule that was made at half past five."""
    made = ReportSchedule.objects.create(
        **{
            "name": "hourly",
            "report": "throughput",
            "parameters": {"minutes": 5},
            "cron": "0 * * * *",
            "decided_until": at(2026, 1, 1, 5, 30),
            "overlap": overlap,
            **fields,
        }
    )
    ReportSchedule.objects.filter(pk=made.pk).update(updated_at=made.decided_until)
    return made


def look(now: datetime) -> list[ReportRun]:
    return list(schedules.make_due(now))


def states() -> list[tuple[datetime, str]]:
    return list(ReportRun.objects.order_by("tick").values_list("tick", "state"))


# ---- making runs


def test_a_tick_makes_one_run_however_often_somebody_looks() -> None:
    made = make(created_by=User.objects.create(username="ann"), name=LONG)
    assert look(SIX - timedelta(seconds=1)) == []
    (run,) = look(SIX + timedelta(seconds=2))
    assert (run.schedule, run.tick, run.parameters, run.state) == (made, SIX, {"minutes": 5}, "queued")
    assert (run.requested_by_name, run.note, run.reason) == (f"schedule {LONG}", "", "")
    for later in (2, 3, 59):
        assert look(SIX + timedelta(seconds=later)) == []
    assert states() == [(SIX, "queued")]


def test_two_that_decide_at_once_make_one_run() -> None:
    """Neither sees the other's decision when it looks without the lock."""
    made = make()
    now = SIX + timedelta(seconds=2)
    (first,) = schedules.make_due_of(made.pk, now)
    assert schedules.make_due_of(made.pk, now) == []
    ReportSchedule.objects.update(decided_until=at(2026, 1, 1, 5, 30))  # as if its decision were lost
    assert schedules.make_due_of(made.pk, now) == []
    assert ReportRun.objects.get() == first


def test_the_database_refuses_a_second_run_of_a_tick() -> None:
    made = make()
    (run,) = look(SIX + timedelta(seconds=2))
    with pytest.raises(IntegrityError), transaction.atomic():
        ReportRun.objects.create(report="throughput", schedule=made, tick=SIX)
    assert run.pk == schedules.identity(made.pk, SIX)
    for _ in range(2):
        ReportRun.objects.create(report="throughput", schedule=made)  # a person may start as many as they like


def test_rows_and_the_decision_are_one_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies in the middle leaves neither."""
    made = make(catch_up="all")

    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ReportSchedule, "save", die)
        with pytest.raises(KeyboardInterrupt):
            look(SIX + timedelta(hours=2, seconds=2))
    made.refresh_from_db()
    assert (made.decided_until, states()) == (at(2026, 1, 1, 5, 30), [])
    assert len(look(SIX + timedelta(hours=2, seconds=2))) == 2, "the third is in time and would overlap"


def test_the_report_looks_back_from_the_tick_however_late_it_starts() -> None:
    make()
    (run,) = look(SIX + timedelta(hours=6))
    started = stream.starting(run.pk)
    assert (started.tick, started.as_of) == (at(2026, 1, 1, 12), at(2026, 1, 1, 12))
    by_hand = stream.starting(ReportRun.objects.create(report="throughput").pk)
    assert by_hand.as_of == by_hand.started_at


def test_what_was_missed_is_listed_as_skipped_and_the_latest_is_run() -> None:
    make()
    (run,) = look(at(2026, 1, 1, 9, 30))
    assert states() == [(SIX + timedelta(hours=n), "queued" if n == 3 else "skipped") for n in range(4)]
    assert run.note == ticks.CAUGHT_UP
    skipped = ReportRun.objects.filter(state=State.SKIPPED)
    assert {each.reason for each in skipped} == {f"{ticks.MISSED} {ticks.ONLY['latest']}"}
    assert all(each.finished and each.finished_at == at(2026, 1, 1, 9, 30) for each in skipped)
    assert all(each.started_at is None for each in skipped)


def test_skip_leaves_a_row_for_what_was_skipped() -> None:
    make("skip")
    (run,) = look(SIX + timedelta(seconds=2))
    assert look(SIX + timedelta(hours=1, seconds=2)) == []
    skipped = ReportRun.objects.get(state=State.SKIPPED)
    assert (skipped.tick, skipped.reason) == (SIX + timedelta(hours=1), "The run before was not over.")
    stream.failed(run.pk, "x")
    (following,) = look(SIX + timedelta(hours=2, seconds=2))
    assert following.state == "queued", "a skipped one is over"


def test_replace_cancels_what_goes_on() -> None:
    made = make("replace")
    waiting = ReportRun.objects.create(report="throughput", schedule=made)
    (going,) = look(SIX + timedelta(seconds=2))
    waiting.refresh_from_db()
    assert waiting.state == "cancelled"
    stream.starting(going.pk)
    (following,) = look(SIX + timedelta(hours=1, seconds=2))
    going.refresh_from_db()
    assert (going.state, going.cancel_requested) == ("starting", True)
    assert not line.must_wait(following)


def test_runs_of_one_schedule_follow_one_another() -> None:
    for name, catch_up, overlap in (("a", "latest", "queue"), ("b", "all", "skip")):
        made = make(overlap, name=name, catch_up=catch_up, cron="*/30 * * * *")
        runs = [*schedules.make_due_of(made.pk, SIX + timedelta(minutes=1))]
        runs += schedules.make_due_of(made.pk, SIX + timedelta(minutes=31))
        runs += schedules.make_due_of(made.pk, SIX + timedelta(minutes=95))
        runs = [each for each in runs if each.state == State.QUEUED]
        assert [line.must_wait(run) for run in runs] == [False] + [True] * (len(runs) - 1)
        assert len(runs) > 2
        by_hand = ReportRun.objects.create(report="throughput", schedule=made)
        assert not line.must_wait(by_hand), "a person asked for it now"
        stream.failed(runs[0].pk, "x")
        assert [line.must_wait(run) for run in runs[1:]] == [False] + [True] * (len(runs) - 2)


def test_a_disabled_or_deleted_schedule_makes_nothing() -> None:
    made = make(enabled=False)
    assert look(SIX + timedelta(seconds=2)) == []
    assert schedules.make_due_of(made.pk, SIX) == []
    made.delete()
    assert schedules.make_due_of(made.pk, SIX) == []
    assert states() == []


def test_a_schedule_deleted_while_somebody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    made, other = make(), make(name="other")
    whole = schedules.make_due_of

    def later(schedule_id: int, now: datetime) -> list[ReportRun]:
        ReportSchedule.objects.filter(pk=made.pk).delete()
        return whole(schedule_id, now)

    monkeypatch.setattr(schedules, "make_due_of", later)
    (run,) = look(SIX + timedelta(seconds=2))
    assert run.schedule == other


def test_a_schedule_that_cannot_be_read_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    make(name="a", time_zone="Mars/Olympus")
    make(name="b", cron="at six")
    other = make(name="c")
    (run,) = look(SIX + timedelta(seconds=2))
    assert run.schedule == other
    assert caplog.text.count("cannot be read") == 2


def test_the_schedules_of_somebody_who_has_gone_go_on() -> None:
    ann = User.objects.create(username="ann")
    make(created_by=ann)
    ann.delete()
    (run,) = look(SIX + timedelta(seconds=2))
    assert (run.requested_by, run.requested_by_name) == (None, "schedule hourly")


def test_a_clock_that_is_set_back_runs_nothing_twice_and_misses_nothing() -> None:
    made = make("queue")
    (first,) = look(SIX + timedelta(seconds=2))
    for minute in (1, 59, 60, 61, 100, 119):
        made_again = look(SIX + timedelta(minutes=minute - 60))
        assert made_again == [], minute
    (second,) = look(SIX + timedelta(hours=1, seconds=2))
    assert [first.tick, second.tick] == [SIX, SIX + timedelta(hours=1)]
    # on by a year, and back: what comes is not held for what was decided in that year
    look(at(2027, 1, 1, 5, 30))
    third = look(SIX + timedelta(hours=2, seconds=2))
    assert [each.tick for each in third] == [SIX + timedelta(hours=2)]
    caught_up = look(SIX + timedelta(hours=5, minutes=30))
    assert [each.tick for each in caught_up] == [SIX + timedelta(hours=5)]
    assert ReportRun.objects.filter(tick__lt=at(2026, 2, 1)).count() == 6
    made.refresh_from_db()
    assert made.decided_until == at(2027, 1, 1, 5, 30)


def test_a_long_absence_costs_one_look_not_a_walk_through_it() -> None:
    """Also when the clock stays behind the last decision, so that each look begins where the schedule was changed."""
    made = make(cron="* * * * *", decided_until=at(2024, 1, 1))
    began = time.process_time()
    assert len(look(SIX)) == 1
    ReportSchedule.objects.filter(pk=made.pk).update(decided_until=at(2030, 1, 1))
    for second in range(0, 60, 5):
        assert look(SIX + timedelta(seconds=second)) == []
    assert time.process_time() - began < 2


def test_a_clock_just_behind_makes_nothing_of_the_time_before_the_schedule() -> None:
    make(decided_until=SIX + timedelta(seconds=30))
    assert look(SIX + timedelta(seconds=29)) == []
    assert look(SIX + timedelta(seconds=40)) == []


def test_daylight_saving_runs_a_skipped_time_once_and_says_so(viewer: Client) -> None:
    make("queue", cron="30 2 * * *", time_zone="Europe/Berlin", decided_until=at(2026, 3, 28, 12), name=LONG)
    start = at(2026, 3, 28, 20, 0, 2)
    runs = [run for half in range(60) for run in look(start + timedelta(minutes=30 * half))]
    assert [run.tick for run in runs] == [at(2026, 3, 29, 1), at(2026, 3, 30, 0, 30)]
    words = "Daylight saving skips 02:30 on 2026-03-29 in Europe/Berlin"
    assert runs[0].note.startswith(words)
    assert runs[1].note == ""
    assert words in viewer.get(f"/reports/runs/{runs[0].pk}/").content.decode()
    document = viewer.get(f"/api/v1/report-runs/{runs[0].pk}").json()
    assert (document["tick"], document["note"]) == ("2026-03-29T01:00:00.000000Z", runs[0].note)


# ---- changes of a schedule


def create(operator: Client, **fields: Any) -> int:
    answer = operator.post("/api/v1/report-schedules", {**DAILY, **fields}, content_type=JSON).json()
    identifier: int = answer["result"]["schedule_id"]
    return identifier


def test_a_schedule_is_made_changed_and_deleted_over_rest(operator: Client) -> None:
    identifier = create(operator)
    address = f"/api/v1/report-schedules/{identifier}"
    document = operator.get(address).json()
    assert (document["overlap"], document["catch_up"]) == ("skip", "latest")
    assert len(document["next_runs"]) == 5
    assert "decided_until" not in document
    change = {"cron": "*/5 * * * *", "enabled": False, "catch_up": "all"}
    operator.patch(address, change, content_type=JSON)
    document = operator.get(address).json()
    assert (document["cron"], document["enabled"], document["catch_up"]) == ("*/5 * * * *", False, "all")
    assert (document["name"], document["next_runs"]) == ("daily", [])
    operator.delete(address)
    assert not ReportSchedule.objects.exists()


def test_what_was_due_before_a_change_is_run_by_the_old_rules(
    operator: Client, django_capture_on_commit_callbacks: Any
) -> None:
    identifier = create(operator, cron="* * * * *", parameters={"minutes": 7})
    ago = timezone.now() - timedelta(minutes=1)
    ReportSchedule.objects.update(decided_until=ago)
    with django_capture_on_commit_callbacks(execute=True):
        change = {"enabled": False, "parameters": {"minutes": 9}}
        operator.patch(f"/api/v1/report-schedules/{identifier}", change, content_type=JSON)
    run = ReportRun.objects.get()
    assert run.tick is not None
    assert ago < run.tick <= timezone.now()
    assert run.parameters["minutes"] == 7
    assert RecordingQueue.sent == [("tasks.reports.run", (str(run.pk),))]


def test_a_run_that_a_change_cannot_queue_is_left_to_the_janitor(
    operator: Client, django_capture_on_commit_callbacks: Any
) -> None:
    identifier = create(operator, cron="* * * * *")
    ReportSchedule.objects.update(decided_until=timezone.now() - timedelta(minutes=1))
    RecordingQueue.broken = True
    with django_capture_on_commit_callbacks(execute=True):
        answer = operator.patch(f"/api/v1/report-schedules/{identifier}", {"name": LONG}, content_type=JSON)
    assert answer.status_code == 200
    assert ReportRun.objects.get().state == State.QUEUED


def test_nothing_is_due_while_a_schedule_is_not_enabled(operator: Client) -> None:
    identifier = create(operator, cron="* * * * *", enabled=False)
    ReportSchedule.objects.update(decided_until=timezone.now() - timedelta(days=3))
    operator.patch(f"/api/v1/report-schedules/{identifier}", {"enabled": True}, content_type=JSON)
    assert look(timezone.now()) == []
    assert not ReportRun.objects.exists()


def test_a_changed_expression_is_not_applied_to_the_past(operator: Client) -> None:
    identifier = create(operator, cron="0 0 1 1 *")
    ReportSchedule.objects.update(decided_until=timezone.now() - timedelta(hours=3))
    operator.patch(f"/api/v1/report-schedules/{identifier}", {"cron": "* * * * *"}, content_type=JSON)
    made = ReportSchedule.objects.get()
    assert timezone.now() - made.decided_until < timedelta(minutes=1)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"cron": "every day"}, "cron"),
        ({"cron": "61 * * * *"}, "cron"),
        ({"cron": "0 0 31 2 *"}, "cron"),
        ({"time_zone": "Mars/Olympus"}, "time_zone"),
        ({"name": ""}, "name"),
        ({"overlap": "explode"}, "overlap"),
        ({"catch_up": "yesterday"}, "catch_up"),
        ({"parameters": {"minutes": -1}}, "parameters.minutes"),
    ],
)
def test_bad_schedules_are_refused_with_the_rule(operator: Client, change: dict[str, Any], field: str) -> None:
    response = operator.post("/api/v1/report-schedules", {**DAILY, **change}, content_type=JSON)
    assert response.status_code == 400
    assert field in response.json()["errors"]
    assert not ReportSchedule.objects.exists()


def test_names_of_schedules_are_unique(operator: Client) -> None:
    for status in (200, 400):
        assert operator.post("/api/v1/report-schedules", DAILY, content_type=JSON).status_code == status


# ---- pages


def test_a_schedule_is_made_changed_and_run_by_its_pages(operator: Client) -> None:
    form = {
        **DAILY,
        "enabled": "on",
        "overlap": "skip",
        "catch_up": "none",
        "p_minutes": "30",
        "p_topics": ["orders"],
        "p_start": "2026-01-01T10:00",
    }
    assert operator.post("/reports/throughput/schedule", form).status_code == 302
    schedule = ReportSchedule.objects.get()
    assert (schedule.parameters["topics"], schedule.catch_up) == (["orders"], "none")
    assert schedule.parameters["start"] == "2026-01-01T10:00:00.000Z"
    edit = operator.get(f"/reports/schedules/{schedule.pk}/edit").content.decode()
    assert 'value="2026-01-01T10:00"' in edit
    assert "<option selected>orders</option>" in edit
    assert '<option value="none" selected>Run none</option>' in edit
    operator.post(f"/reports/schedules/{schedule.pk}/edit", {**form, "enabled": "", "p_minutes": "5"})
    schedule.refresh_from_db()
    assert (schedule.enabled, schedule.parameters["minutes"]) == (False, 5)
    response = operator.post(f"/reports/schedules/{schedule.pk}/run")
    run = ReportRun.objects.get()
    assert response["Location"] == f"/reports/runs/{run.pk}/"
    assert (run.schedule, run.parameters["minutes"], run.tick) == (schedule, 5, None)


def test_an_edit_keeps_what_its_form_cannot_offer(operator: Client) -> None:
    """A topic that the collector does not know now, and a time that is finer than minutes."""
    known = {"topics": [LONG_TOPIC, "orders"], "start": "2026-01-01T10:00:30.500Z"}
    made = make(parameters=known)
    MemorySnapshots.put(None)
    address = f"/reports/schedules/{made.pk}/edit"
    page = operator.get(address).content.decode()
    for topic in known["topics"]:
        assert f"<option selected>{topic}</option>" in page
    assert 'value="2026-01-01T10:00:30.500"' in page
    assert 'step="any"' in page


def test_pages_and_rest_know_what_was_skipped(viewer: Client) -> None:
    made, other = make(name=LONG), make(name="other")
    look(at(2026, 1, 1, 9, 30))
    page = viewer.get("/reports/").content.decode()
    for words in ("skip the new run", "run the latest missed one", "last skipped", LONG, 'tone-calm"'):
        assert words in page
    assert page.count("<span>skipped</span>") == 6
    chosen = viewer.get("/reports/", {"state": "skipped", "schedule": made.pk}).content.decode()
    assert chosen.count("<span>skipped</span>") == 3
    assert viewer.get("/reports/", {"state": "?", "schedule": "x"}).status_code == 200
    items = viewer.get("/api/v1/report-runs", {"state": "skipped", "schedule": other.pk}).json()["items"]
    assert [(each["state"], each["tick"][:16]) for each in items] == [
        ("skipped", f"2026-01-01T{hour}") for hour in ("08:00", "07:00", "06:00")
    ]
    assert viewer.get("/api/v1/report-runs", {"schedule": "x"}).status_code == 400
    run = viewer.get(f"/reports/runs/{items[0]['id']}/").content.decode()
    assert "Why it was skipped" in run
    assert "tone-bad" not in run
    assert viewer.get(f"/api/v1/report-runs/{items[0]['id']}/progress").json()["state"] == "skipped"


def test_the_preview_says_words_five_runs_and_what_is_moved(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def preview(**query: str) -> str:
        return operator.get("/reports/cron", query).content.decode()

    text = preview(cron="0 6 * * 1-5", time_zone="Europe/Berlin")
    assert "Monday through Friday" in text
    assert text.count("<li>") == 5
    assert "06:00 CE" in text
    assert "five fields" in preview(cron="x", time_zone="UTC")
    assert "time zone" in preview(cron="* * * * *", time_zone="?")
    monkeypatch.setattr(timezone, "now", lambda: at(2026, 3, 28, 12))
    text = preview(cron="30 2 * * *", time_zone="Europe/Berlin")
    assert "Sun 2026-03-29 03:00 CEST" in text
    assert text.count("in place of 02:30, which daylight saving skips") == 1


# ---- what was there before


def test_what_older_versions_called_cancelled_is_skipped_now() -> None:
    migration = import_module("webapp.reports.migrations.0002_schedules_ticks")
    skipped = ReportRun.objects.create(
        report="throughput", state="cancelled", reason="skipped: the run before was not over"
    )
    cancelled = ReportRun.objects.create(report="throughput", state="cancelled", reason="cancelled on request")
    migration.name_skipped_runs(apps, None)
    for run in (skipped, cancelled):
        run.refresh_from_db()
    assert (skipped.state, skipped.reason) == ("skipped", "the run before was not over")
    assert cancelled.state == "cancelled"
    assert not [name for name in connection.introspection.table_names() if "celery_beat" in name]

"""Taking, ending and cleaning up runs, with a job and a Spark that the test controls."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.utils import timezone

from remoting.errors import ConnectionLost
from tasks import operations, schedule
from tasks.claims import Claims
from tasks.reports import runs
from tasks.reports.context import Context, ReportFailed, Result
from tasks.spark.lease import SparkUnavailable
from tests.unit.tasks.fake_redis import FakeRedis
from webapp.operations.models import Operation
from webapp.reports import stream
from webapp.reports.catalogue import Row
from webapp.reports.models import ReportRun

pytestmark = pytest.mark.django_db


class FakeSpark:
    """Stands in for pyspark's session and for the job."""

    def __init__(self) -> None:
        self.session_id = "session-1"
        self.work: Callable[[Context], Result] = lambda context: Result([], ["done"])
        self.unavailable: str | None = None
        self.closed = 0
        self.interrupted: list[str] = []

    @contextmanager
    def use(self, settings: Any, waiting: Any, is_cancelled: Any) -> Iterator[Any]:
        waiting("Spark is starting")
        if self.unavailable is not None:
            raise SparkUnavailable(self.unavailable)
        yield SimpleNamespace(session=self, session_id=self.session_id, problem=lambda: None)

    def close(self) -> None:
        self.closed += 1

    def run(self, context: Context) -> Result:
        return self.work(context)

    def registerProgressHandler(self, handler: Any) -> None:
        self.handler = handler

    def removeProgressHandler(self, handler: Any) -> None:
        assert handler is self.handler

    def interruptTag(self, tag: str) -> None:
        self.interrupted.append(tag)


class StillWatch(runs.Watch):
    """No thread: an in-memory test database belongs to one connection. `look` makes one tick."""

    latest: StillWatch

    def __enter__(self) -> StillWatch:
        StillWatch.latest = self
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def look(self) -> None:
        self._tick(0)


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch, redis: FakeRedis) -> FakeSpark:
    fake = FakeSpark()
    monkeypatch.setattr(runs, "sessions", fake)
    monkeypatch.setattr(runs, "job", lambda name: fake)
    monkeypatch.setattr(runs, "Watch", StillWatch)
    return fake


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any, dict[str, Any]]]:
    """What was queued: (task, arguments, options)."""
    found: list[tuple[str, Any, dict[str, Any]]] = []

    def send(task: Any) -> Callable[..., None]:
        return lambda arguments=None, **options: found.append((task.name, arguments, options))

    for task in (runs.run, operations.run):
        monkeypatch.setattr(task, "apply_async", send(task))
    monkeypatch.setattr(operations.run, "delay", lambda *a: found.append((operations.run.name, list(a), {})))
    return found


def queued(**fields: Any) -> ReportRun:
    return ReportRun.objects.create(report="throughput", parameters={"topics": ["orders"]}, **fields)


def after(run: ReportRun) -> ReportRun:
    run.refresh_from_db()
    return run


# ---- running


def test_a_run_goes_from_queued_to_its_final_rows(spark: FakeSpark) -> None:
    made = queued()
    seen: list[Any] = []

    def work(context: Context) -> Result:
        found = after(made)
        seen.append((found.state, found.spark_session_id, found.spark_tag, context.tag))
        context.progress.say("reading")
        context.publish([Row("throughput", "a", {"messages": 1}), Row("throughput", "b", {"messages": 1})])
        StillWatch.latest.look()
        seen.append((after(made).progress["text"], made.rows.filter(final=False).count()))
        return Result([Row("throughput", "a", {"messages": 5})], ["5 messages counted.", "They are all."])

    spark.work = work
    runs.run(str(made.pk))
    tag = f"report-{made.pk}"
    assert seen == [("running", "session-1", tag, tag), ("reading", 2)]
    ended = after(made)
    assert (ended.state, ended.rows_count, ended.progress["text"]) == ("succeeded", 1, "5 messages counted.")
    assert ended.progress["summary"] == ["5 messages counted.", "They are all."]
    assert [(row.key, row.final, row.data) for row in ended.rows.all()] == [("a", True, {"messages": 5})]
    assert ended.parquet_path.endswith(f"reports/{made.pk}.parquet")
    assert spark.closed == 0


def test_a_run_looks_back_from_the_time_its_schedule_was_due_or_from_its_start(spark: FakeSpark) -> None:
    seen: list[int] = []

    def work(context: Context) -> Result:
        seen.append(context.as_of_ms)
        return Result([], ["done"])

    spark.work = work
    scheduled, by_hand = queued(tick=datetime(2026, 1, 1, 6, tzinfo=UTC)), queued()
    for made in (scheduled, by_hand):
        runs.run(str(made.pk))
    started = after(by_hand).started_at
    assert seen == [1_767_247_200_000, int(started.timestamp() * 1000)]


def test_a_second_delivery_finds_the_run_taken_or_over(spark: FakeSpark, redis: FakeRedis) -> None:
    made = queued()
    claim = Claims(redis).take(runs.claim_name(made.pk), 20)
    assert claim is not None
    runs.run(str(made.pk))
    assert after(made).state == "queued"
    claim.release()
    runs.run(str(made.pk))
    spark.work = lambda context: pytest.fail("it ran twice")
    runs.run(str(made.pk))
    assert after(made).state == "succeeded"


def test_cancelling_interrupts_spark_by_the_tag_and_ends_the_run(spark: FakeSpark) -> None:
    made = queued()

    def work(context: Context) -> Result:
        stream.request_cancel(made.pk)
        StillWatch.latest.look()
        context.check()
        raise AssertionError("not reached")

    spark.work = work
    runs.run(str(made.pk))
    assert (after(made).state, made.reason) == ("cancelled", "cancelled on request")
    assert spark.interrupted == [f"report-{made.pk}"]


@pytest.mark.parametrize(("failed", "state"), [(False, "cancelled"), (True, "failed")])
def test_an_end_that_the_job_does_not_notice_is_written_without_it(spark: FakeSpark, failed: bool, state: str) -> None:
    made = queued()

    def work(context: Context) -> Result:
        context.stop.ask("the reason", failed=failed)
        for _ in range(10):
            StillWatch.latest.look()
        assert (after(made).state, made.reason) == (state, "the reason")
        return Result([], ["too late"])

    spark.work = work
    runs.run(str(made.pk))
    assert (after(made).state, made.reason) == (state, "the reason")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ReportFailed("The report would have too much."), "The report would have too much."),
        (
            ConnectionLost("no controller answers"),
            "The cluster did not give what the report needs: no controller answers",
        ),
        (ValueError("a bug"), "An error in the worker: ValueError: a bug"),
    ],
)
def test_a_failing_job_shows_its_reason(spark: FakeSpark, error: Exception, reason: str) -> None:
    def work(context: Context) -> Result:
        raise error

    spark.work = work
    made = queued()
    runs.run(str(made.pk))
    assert (after(made).state, made.reason) == ("failed", reason)


def test_a_run_that_loads_its_job_says_what_it_waits_for(spark: FakeSpark, monkeypatch: pytest.MonkeyPatch) -> None:
    made = queued()
    seen: list[str] = []

    def load(name: str) -> FakeSpark:
        StillWatch.latest.look()
        seen.append(after(made).progress["text"])
        return spark

    monkeypatch.setattr(runs, "job", load)
    runs.run(str(made.pk))
    assert seen == ["waiting for Spark (0 s so far)"]


def test_errors_of_spark_are_one_sentence_and_cost_the_session(spark: FakeSpark) -> None:
    from pyspark.errors import PySparkException

    def work(context: Context) -> Result:
        raise PySparkException("(org.apache.spark.SparkException) Job aborted\n\tat somewhere")

    spark.work = work
    made = queued()
    runs.run(str(made.pk))
    assert (after(made).state, made.reason) == ("failed", "Job aborted")
    assert spark.closed == 1


def test_without_spark_the_run_fails_with_what_to_do(spark: FakeSpark) -> None:
    spark.unavailable = "Spark reports need Java 17 or newer, but no Java was found; install openjdk-17-jre-headless"
    made = queued()
    runs.run(str(made.pk))
    assert (after(made).state, made.reason) == ("failed", spark.unavailable)


def test_an_unknown_report_and_a_missing_row(spark: FakeSpark, caplog: pytest.LogCaptureFixture) -> None:
    made = queued()
    ReportRun.objects.update(report="horoscope")
    runs.run(str(made.pk))
    assert "no report horoscope" in after(made).reason
    runs.run(str(uuid.uuid4()))
    runs.run("no id")
    assert caplog.text.count("there is no report run") == 2


def test_a_run_that_was_ended_by_somebody_else_stays_ended(spark: FakeSpark) -> None:
    made = queued()

    def work(context: Context) -> Result:
        stream.failed(made.pk, "the janitor was here")
        context.publish([Row("throughput", "a", {})])
        raise AssertionError("not reached")

    spark.work = work
    runs.run(str(made.pk))
    assert (after(made).state, made.reason) == ("failed", "the janitor was here")


def test_cancel_ends_a_run_whose_worker_is_gone_and_leaves_a_living_one_to_its_worker(redis: FakeRedis) -> None:
    made = queued()
    stream.starting(made.pk)
    claim = Claims(redis).take(runs.claim_name(made.pk), 20)
    assert claim is not None
    runs.cancel(str(made.pk))
    assert after(made).state == "starting"
    claim.release()
    runs.cancel(str(made.pk))
    assert after(made).state == "cancelled"
    runs.cancel(str(made.pk))
    runs.cancel(str(uuid.uuid4()))


# ---- janitor and retention


def long_ago(run: ReportRun, **fields: Any) -> None:
    ReportRun.objects.filter(pk=run.pk).update(**fields)


def test_a_run_that_lost_its_worker_is_ended_with_the_reason(redis: FakeRedis) -> None:
    before = timezone.now() - timedelta(minutes=2)
    lost, alive, fresh, unwanted = queued(), queued(), queued(), queued()
    for run in (lost, alive, fresh, unwanted):
        stream.starting(run.pk)
    for run in (lost, alive, unwanted):
        long_ago(run, started_at=before)
    stream.request_cancel(unwanted.pk)
    Claims(redis).take(runs.claim_name(alive.pk), 20)
    schedule.end_lost_runs()
    assert after(lost).state == "starting", "one look does not tell a dead worker from a Redis that forgot"
    redis.now_ms += 15_000
    schedule.end_lost_runs()
    assert (after(lost).state, lost.reason) == ("failed", schedule.LOST.format(missing_s=15))
    assert after(unwanted).state == "cancelled"
    assert (after(alive).state, after(fresh).state) == ("starting", "starting")


def test_a_redis_that_forgets_fails_no_healthy_run(spark: FakeSpark, redis: FakeRedis) -> None:
    made = queued()

    def work(context: Context) -> Result:
        long_ago(made, started_at=timezone.now() - timedelta(minutes=2))
        schedule.end_lost_runs()
        redis.restart()
        schedule.end_lost_runs()
        redis.now_ms += 7_000  # a worker that had to connect again takes this long at most
        StillWatch.latest.look()
        redis.now_ms += 8_000
        schedule.end_lost_runs()
        assert after(made).state == "running"
        return Result([], ["done"])

    spark.work = work
    runs.run(str(made.pk))
    assert (after(made).state, made.reason) == ("succeeded", "")


def test_what_a_restarted_queue_forgot_is_sent_again_but_not_all_the_time(
    redis: FakeRedis, sent: list[tuple[str, Any, dict[str, Any]]]
) -> None:
    before = timezone.now() - timedelta(minutes=2)
    run, _ = queued(), queued()
    long_ago(run, created_at=before)
    made = Operation.objects.create(kind="topic.create", parameters={}, requested_by_name="ann")
    taken = Operation.objects.create(kind="topic.create", parameters={}, requested_by_name="ann")
    Operation.objects.update(created_at=before)
    Claims(redis).take(operations.claim_name(taken.pk), 60)
    schedule.queue_forgotten()
    schedule.queue_forgotten()
    assert [(name, arguments) for name, arguments, _ in sent] == [
        ("tasks.reports.run", [str(run.pk)]),
        ("tasks.operations.run", [str(made.pk)]),
    ]
    redis.now_ms += 1000 * schedule.RESEND_EVERY_S
    schedule.queue_forgotten()
    assert len(sent) == 5, "the second operation's claim has run out by now, so it was forgotten too"


def test_what_was_forgotten_is_sent_again_in_the_order_of_its_line(
    redis: FakeRedis, sent: list[tuple[str, Any, dict[str, Any]]]
) -> None:
    now = timezone.now()
    waiting = [queued() for _ in range(4)]
    for place, run in enumerate(waiting):
        long_ago(run, created_at=now - timedelta(seconds=90 - 10 * place))
    schedule.queue_forgotten()
    assert [arguments for _, arguments, _ in sent] == [[str(run.pk)] for run in waiting]


def test_retention_removes_the_old_and_their_files(settings: Any, tmp_path: Any) -> None:
    settings.REPORTS_DIR = tmp_path
    old, young = queued(), queued()
    for run in (old, young):
        stream.failed(run.pk, "x")
        (tmp_path / f"{run.pk}.parquet").write_bytes(b"x")
    long_ago(old, finished_at=timezone.now() - timedelta(days=91))
    ancient = Operation.objects.create(
        kind="x", state="failed", finished_at=timezone.now() - timedelta(days=181), requested_by_name="ann"
    )
    schedule.retention()
    assert list(ReportRun.objects.values_list("pk", flat=True)) == [young.pk]
    assert [path.name for path in tmp_path.iterdir()] == [f"{young.pk}.parquet"]
    assert not Operation.objects.filter(pk=ancient.pk).exists()
    settings.REPORTS_DIR = tmp_path / "nowhere"
    schedule.delete_stray_files()


def test_the_timetable_names_tasks_that_exist() -> None:
    from tasks.app import app

    app.loader.import_default_modules()
    assert {entry["task"] for entry in app.conf.beat_schedule.values()} <= set(app.tasks)
    from webapp import queue

    named = {queue.RUN_OPERATION, queue.RUN_REPORT, queue.CANCEL_REPORT}
    assert named <= set(app.tasks)

"""The parts of a report that need neither Spark nor a database."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from tasks.reports import JOBS, reading
from tasks.reports.context import ReportFailed, RunCancelled, Stop
from tasks.reports.progress import STAGES_SHOWN, Progress
from tasks.reports.throughput import minutes, read, write
from tasks.reports.throughput.minutes import Minutes, TooMany
from tasks.reports.throughput.summary import Counted, Coverage, summary
from tasks.reports.watch import Watch
from tests.unit.tasks.fake_cluster import FakeBroker
from webapp.lifecycle import WorkOver
from webapp.reports.catalogue import CATALOGUE

NOON = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)


def counted(minute: int, messages: int, topic: str = "orders", queue_id: int = 0) -> dict[str, Any]:
    return {
        "topic": topic,
        "broker_name": "broker-a",
        "queue_id": queue_id,
        "minute": NOON + timedelta(minutes=minute),
        "messages": messages,
        "bytes": 100 * messages,
    }


# ---- counting


def test_minutes_add_up_over_slices() -> None:
    found = Minutes()
    found.add([counted(0, 5), counted(1, 2)])
    (changed,) = found.add([counted(1, 3)])
    assert found.row(changed) == {
        "topic": "orders",
        "group": "broker-a",
        "queue_id": 0,
        "minute": "2026-01-31T12:01:00.000Z",
        "messages": 5,
        "bytes": 500,
    }
    assert found.messages == 10
    assert [each.minute.minute for each in found.newest(1)] == [1]


def test_rows_have_the_catalogues_columns_and_names_that_fit() -> None:
    found = Minutes()
    found.add([counted(0, 5, topic="t" * 255), counted(0, 5, topic="t" * 254 + "u")])
    rows = write.minute_rows(found, found.newest(10))
    assert len({row.key for row in rows}) == 2
    assert all(len(row.key) <= 300 for row in rows)
    sizes = write.size_rows([{"topic": "t", "messages": 1, "mean": 1, "p50": 1, "p90": 1, "p99": 1, "max": 1}])
    keys = write.key_rows([{"topic": "t", "key": "k" * 5000, "messages": 1}])
    for row in (rows[0], sizes[0], keys[0]):
        columns = [column.name for column in CATALOGUE["throughput"].section(row.section).columns]
        assert list(row.data) == columns


def test_more_than_can_be_held_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minutes, "MOST_COUNTED", 2)
    found = Minutes()
    found.add([counted(0, 1), counted(1, 1)])
    with pytest.raises(TooMany, match="choose fewer topics or a shorter time range"):
        found.add([counted(2, 1)])


def test_the_parquet_file_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Minutes()
    found.add([counted(1, 2), counted(0, 5), counted(0, 1, queue_id=1)])
    path = tmp_path / "reports" / "run.parquet"
    write.write_parquet(path, found)
    table = pq.read_table(path).to_pylist()
    assert [(row["minute"], row["queue_id"], row["messages"]) for row in table] == [
        (NOON, 0, 5),
        (NOON, 1, 1),
        (NOON + timedelta(minutes=1), 0, 2),
    ]
    monkeypatch.setattr(write, "_table", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write.write_parquet(tmp_path / "other.parquet", found)
    assert [each.name for each in tmp_path.iterdir()] == ["reports"]


# ---- what to read


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as found:
        yield found


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, (NOON_MS - 3_600_000, NOON_MS)),
        ({"minutes": 5}, (NOON_MS - 300_000, NOON_MS)),
        ({"start": "2026-01-31T11:00:00.000Z", "minutes": 5}, (NOON_MS - 3_600_000, NOON_MS)),
        ({"end": "2026-01-31T11:00:00.000Z", "minutes": 5}, (NOON_MS - 3_900_000, NOON_MS - 3_600_000)),
        (
            {"start": "2026-01-31T10:00:00+00:00", "end": "2026-01-31T11:00:00Z"},
            (NOON_MS - 7_200_000, NOON_MS - 3_600_000),
        ),
    ],
)
def test_the_time_range(parameters: dict[str, Any], expected: tuple[int, int]) -> None:
    assert reading.window(parameters, NOON_MS) == expected


def test_what_retention_removed_before_is_covered(broker: FakeBroker) -> None:
    name = "o" * 90
    broker.add_topic(name, 3)
    for index in range(30):
        broker.store(name, index % 2, b"x", at_ms=NOON_MS + index)
    parameters = {"topics": [name], "minutes": 60}
    ranges, coverage = read.find([broker.address], parameters, NOON_MS + 60_000)
    assert sum(each.size for each in ranges) == 30
    assert coverage == Coverage(NOON_MS - 59 * 60_000, NOON_MS + 60_000, [name], 3, 0)
    broker.min_offset = 5
    ranges, coverage = read.find([broker.address], parameters, NOON_MS + 60_000)
    assert (sum(each.size for each in ranges), coverage.trimmed_queues) == (20, 2)
    later = {**parameters, "start": (NOON + timedelta(milliseconds=20)).isoformat()}
    assert read.find([broker.address], later, NOON_MS + 60_000)[1].trimmed_queues == 0, "that was all before the range"
    broker.min_offset = 1000
    ranges, coverage = read.find([broker.address], parameters, NOON_MS + 60_000)
    assert (ranges, coverage.trimmed_queues) == ([], 2), "nothing is left, and that is no empty range"


def test_a_summary_says_what_was_covered_and_what_was_not() -> None:
    topics = [f"{'t' * 88}{number}" for number in range(7)]
    found = summary(Coverage(NOON_MS, NOON_MS + 60_500, topics, 12, 3), Counted(1_200, 1_000, 9, 4, 20, 20))
    assert found == [
        "1,000 messages counted.",
        "They were stored from 2026-01-31 12:00:00 until 2026-01-31 12:01:00.500 UTC, in 12 queues of 7 topics: "
        f"{', '.join(topics[:5])} and 2 more.",
        "Retention had removed the oldest messages of 3 of 12 queues before; those of them that were stored in this range "
        "are not counted.",
        "200 more were removed by retention while the report ran.",
        "The page keeps the newest 4 of 9 rows; the Parquet file has them all.",
        "Only the 20 most frequent keys are listed, as it was asked for.",
    ]
    assert summary(Coverage(NOON_MS, NOON_MS + 60_000, ["orders"], 1, 0), Counted(0, 0)) == [
        "There are no messages in this range.",
        "It goes from 2026-01-31 12:00:00 until 2026-01-31 12:01:00 UTC, in 1 queue of 1 topic: orders.",
    ]
    assert summary(Coverage(0, 1, [], 0, 0), Counted(0, 0)) == [
        "There are no topics but the system's own, so there was nothing to count."
    ]


def test_steps_grow_until_they_take_a_while_and_are_few() -> None:
    rows, elapsed, steps, done = reading.FIRST_SLICE, 0.0, 0, 0
    while done < 100_000_000:
        took = 0.3 + rows / 50_000
        elapsed, steps, done = elapsed + took, steps + 1, done + rows
        rows = reading.next_slice(rows, took, elapsed)
    assert steps < 60
    assert reading.next_slice(2_000, 0.3, 0.3) == 4_000
    assert reading.next_slice(2_000, 9, 10) == 4_000
    assert reading.next_slice(16_000, 2.5, 10) == 16_000
    assert reading.next_slice(16_000, 2.5, 100) == 32_000


def test_console_and_worker_know_the_same_reports() -> None:
    assert set(JOBS) == set(CATALOGUE)


# ---- progress


def stage(stage_id: int, done: int, total: int, over: bool = False) -> Any:
    return SimpleNamespace(stage_id=stage_id, num_completed_tasks=done, num_tasks=total, done=over)


def test_progress_is_absent_until_it_is_known() -> None:
    progress = Progress()
    assert progress.document() == {"text": ""}
    progress.say("reading")
    progress.enter("slice 1")
    progress.stages_changed("a", [stage(6, 1, 2), stage(7, 0, 2)], 2, False)
    progress.stages_changed("a", [stage(6, 1, 2), stage(7, 0, 2)], 2, False)
    rows = 5
    progress.expect_rows(10, lambda: rows)
    assert progress.document() == {
        "text": "reading",
        "stages": [
            {"id": 0, "name": "slice 1", "done": 1, "total": 2, "running": True},
            {"id": 1, "name": "slice 1", "done": 0, "total": 2, "running": True},
        ],
        "tasks_done": 1,
        "tasks_total": 4,
        "rows_read": 5,
        "rows_total": 10,
    }
    progress.stages_changed("a", [stage(6, 2, 2, True), stage(7, 2, 2)], 0, True)
    rows = 999
    document = progress.document()
    assert [each["running"] for each in document["stages"]] == [False, False]
    progress.stages_changed("b", [stage(8, 2, 2, True), stage(9, 0, 4)], 0, True)
    document = progress.document()
    assert document["tasks_done"] == document["tasks_total"] == 6, "skipped tasks are not waited for"
    assert [each["id"] for each in document["stages"]] == [0, 1, 2], "a skipped stage is not shown"
    assert document["rows_read"] == 10, "a task that was tried again may have told more"


def test_only_the_last_stages_are_shown_but_all_are_counted() -> None:
    progress = Progress()
    for index in range(20):
        progress.stages_changed(str(index), [stage(0, 1, 1, True)], 0, True)
    document = progress.document()
    assert len(document["stages"]) == STAGES_SHOWN
    assert document["tasks_done"] == 20


# ---- ending early


def test_the_first_reason_to_stop_counts() -> None:
    stop = Stop()
    stop.check()
    stop.ask("cancelled on request")
    stop.ask("Spark went away", failed=True)
    with pytest.raises(RunCancelled, match="cancelled on request"):
        stop.check()
    stop = Stop()
    stop.ask("Spark went away", failed=True)
    with pytest.raises(ReportFailed, match="Spark went away"):
        stop.check()


class MemoryStore:
    """A run's row in memory."""

    def __init__(self) -> None:
        self.progress: list[dict[str, Any]] = []
        self.cancel = False
        self.over = False
        self.broken = 0
        self.closed = False
        self.ended: list[str] = []

    def publish_progress(self, progress: dict[str, Any]) -> bool:
        self.progress.append(progress)
        return self.wants_cancel()

    def wants_cancel(self) -> bool:
        if self.broken:
            self.broken -= 1
            raise OSError("the database is locked")
        if self.over:
            raise WorkOver("ended by somebody else")
        return self.cancel

    def end(self, stop: Stop) -> None:
        self.ended.append(stop.reason)

    def close(self) -> None:
        self.closed = True


class Watched:
    """A watch whose ticks come at once, and what it did."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tasks.reports.watch.EVERY_S", 0.001)
        self.store, self.progress, self.stop = MemoryStore(), Progress(), Stop()
        self.interrupted = threading.Event()
        self.given_up = threading.Event()
        self.kept = 0
        self.stopping = False
        self.problem: str | None = None

    def watch(self) -> Watch:
        found = Watch(
            self.store,
            self.progress,
            self.stop,
            keep_claim=self._keep,
            is_worker_stopping=lambda: self.stopping,
            give_up=self.given_up.set,
        )
        found.use_spark(self.interrupted.set, lambda: self.problem)
        return found

    def _keep(self) -> bool:
        self.kept += 1
        return True


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def test_a_cancelled_run_is_interrupted_until_the_job_notices(watched: Watched) -> None:
    with watched.watch():
        watched.progress.say("reading")
        watched.store.cancel = True
        assert watched.stop.event.wait(10)
        for _ in range(3):
            watched.interrupted.clear()
            assert watched.interrupted.wait(10), "an interrupt between two jobs hits nothing, so there must be another"
    assert (watched.stop.reason, watched.stop.failed) == ("cancelled on request", False)
    assert watched.store.progress == [{"text": ""}, {"text": "reading"}] or watched.store.progress == [
        {"text": "reading"}
    ]
    assert watched.store.closed
    assert watched.kept


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("stopping", True, "appliance was stopped"),
        ("problem", "exit code 1", "Spark went away while this report ran: exit code 1"),
    ],
)
def test_a_stopping_worker_and_a_lost_spark_fail_the_run(watched: Watched, field: str, value: Any, told: str) -> None:
    setattr(watched, field, value)
    with watched.watch():
        assert watched.stop.event.wait(10)
    assert watched.stop.failed
    assert told in watched.stop.reason


def test_a_job_that_does_not_react_is_ended_without_it_and_then_given_up(watched: Watched) -> None:
    with watched.watch():
        watched.store.cancel = True
        assert watched.given_up.wait(20)
    assert watched.store.ended == ["cancelled on request"]


def test_a_run_that_somebody_else_ended_stops_the_work(watched: Watched) -> None:
    watched.store.over = True
    with watched.watch():
        assert watched.stop.event.wait(10)
    assert watched.stop.reason == "ended by somebody else"


def test_a_busy_database_does_not_end_the_watch(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    watched.store.broken = 3
    with watched.watch():
        watched.store.cancel = True
        assert watched.stop.event.wait(10)
    assert "trying again" in caplog.text


def test_what_is_waited_for_is_shown_with_its_time() -> None:
    now_s = 100.0
    progress = Progress(lambda: now_s)
    progress.wait("Spark is starting")
    assert progress.document()["text"] == "Spark is starting (0 s so far)"
    now_s = 107.4
    progress.wait("Spark listens; its first query is on its way")
    assert progress.document()["text"] == "Spark listens; its first query is on its way (7 s so far)"
    progress.say("reading")
    assert progress.document()["text"] == "reading"
    progress.wait("waiting again")
    assert progress.document()["text"] == "waiting again (0 s so far)"


def test_groups_that_could_not_be_asked_are_said() -> None:
    coverage = Coverage(NOON_MS, NOON_MS + 60_000, ["orders"], 8, 0, ("broker-b",))
    told = " ".join(summary(coverage, Counted(5, 5, 1, 1)))
    assert "The broker group broker-b had no master: topics and queues that only it has are missing." in told

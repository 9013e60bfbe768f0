"""The whole job in a real Spark, reading from a broker of ours in this process; the run's row is a list in memory."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

from tasks.reports.context import Context, ReportFailed, RunCancelled, Stop
from tasks.reports.progress import Progress
from tasks.reports.throughput import job, write
from tasks.spark.session import Sessions
from tests.reports.conftest import SparkProcess
from tests.support.cluster import eventually
from tests.unit.tasks.fake_cluster import FakeBroker
from webapp.reports.catalogue import Row

pytestmark = pytest.mark.slow

NOON_MS = 1_769_860_800_000


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(answer_most=500) as found:
        found.add_topic("orders", 4)
        found.add_topic("bills", 1)
        found.add_topic("rmq_sys_hidden", 1, system=True)
        found.store("rmq_sys_hidden", 0, b"x", at_ms=NOON_MS)
        for index in range(6000):
            properties = {"KEYS": "often" if index % 3 else f"k{index}"}
            found.store("orders", index % 4, b"x" * (index % 100), properties, at_ms=NOON_MS + 20 * index)
        for index in range(100):
            found.store("bills", 0, b"y" * 1000, at_ms=NOON_MS + index)
        yield found


class Run:
    """A run whose rows are kept in lists."""

    def __init__(self, spark: Any, broker: FakeBroker, tmp_path: Path, **parameters: Any) -> None:
        self.published: list[list[Row]] = []
        self.progress, self.stop = Progress(), Stop()
        self.path = tmp_path / "run.parquet"
        self.on_publish: Any = None
        self.ended = threading.Event()
        self.context = Context(
            run_id="0f2c",
            parameters={"topics": [], "start": None, "end": None, "minutes": 60, "top_keys": 3, **parameters},
            as_of_ms=NOON_MS + 1_800_000,
            controllers=[broker.address],
            spark=spark,
            tag="report-0f2c",
            progress=self.progress,
            stop=self.stop,
            result_path=self.path,
            publish=self._publish,
        )

    def _publish(self, rows: Iterable[Row]) -> None:
        self.published.append(list(rows))
        if self.on_publish is not None:
            self.on_publish()


def of(rows: Iterable[Row], section: str) -> list[dict[str, Any]]:
    return [dict(row.data) for row in rows if row.section == section]


def kept_by_spark(spark: Any) -> list[str]:
    return [table.name for table in spark.catalog.listTables() if table.name.startswith("logboom_")]


def test_partial_rows_come_first_and_the_exact_result_in_the_end(
    spark: Any, broker: FakeBroker, tmp_path: Path
) -> None:
    run = Run(spark, broker, tmp_path)
    spark.registerProgressHandler(
        handler := lambda stages, inflight_tasks, operation_id, done: run.progress.stages_changed(
            operation_id, stages or (), inflight_tasks, done
        )
    )
    result = job.run(run.context)
    spark.removeProgressHandler(handler)
    counts = [sum(row["messages"] for row in of(rows, "throughput")) for rows in run.published]
    assert len([count for count in counts if 0 < count < 6100]) >= 2, "rows were shown before all was read"
    minutes = of(result.rows, "throughput")
    assert sum(row["messages"] for row in minutes) == 6100
    assert sum(row["bytes"] for row in minutes) == sum(index % 100 for index in range(6000)) + 100_000
    assert {row["topic"] for row in minutes} == {"orders", "bills"}
    first = next(
        row for row in minutes if (row["topic"], row["queue_id"]) == ("orders", 1) and "12:00" in row["minute"]
    )
    assert first == {
        "topic": "orders",
        "group": "broker-a",
        "queue_id": 1,
        "minute": "2026-01-31T12:00:00.000Z",
        "messages": 750,
        "bytes": sum(index % 100 for index in range(1, 3000, 4)),
    }
    sizes = {row["topic"]: row for row in of(result.rows, "sizes")}
    assert (sizes["bills"]["p50"], sizes["bills"]["max"], sizes["orders"]["max"]) == (1000, 1000, 99)
    keys = of(result.rows, "keys")
    assert keys[0] == {"topic": "orders", "key": "often", "messages": 4000}
    assert len(keys) == 3
    assert result.summary == [
        "6,100 messages counted.",
        "They were stored from 2026-01-31 11:30:00 until 2026-01-31 12:30:00 UTC, in 5 queues of 2 topics: bills, orders.",
        "Only the 3 most frequent keys are listed, as it was asked for.",
    ]
    table = pq.read_table(run.path)
    assert (table.num_rows, sum(table["messages"].to_pylist())) == (len(minutes), 6100)
    document = run.progress.document()
    assert document["rows_read"] == document["rows_total"] == 6100
    assert document["tasks_done"] == document["tasks_total"] > 5
    assert kept_by_spark(spark) == []


def test_a_time_range_and_topics_narrow_it(spark: Any, broker: FakeBroker, tmp_path: Path) -> None:
    end = "2026-01-31T12:01:00.000Z"
    run = Run(spark, broker, tmp_path, topics=["orders"], start="2026-01-31T12:00:00.000Z", end=end)
    minutes = of(job.run(run.context).rows, "throughput")
    assert {row["minute"] for row in minutes} == {"2026-01-31T12:00:00.000Z"}
    assert sum(row["messages"] for row in minutes) == 3000


def test_nothing_to_read_is_a_result_too(spark: Any, broker: FakeBroker, tmp_path: Path) -> None:
    run = Run(spark, broker, tmp_path, start="2020-01-01T00:00:00Z", end="2020-01-02T00:00:00Z")
    result = job.run(run.context)
    assert result.rows == []
    assert result.summary[0] == "There are no messages in this range."
    assert pq.read_table(run.path).num_rows == 0


def test_the_page_keeps_the_newest_rows_and_says_so(
    spark: Any, broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "MOST_ROWS", 4)
    run = Run(spark, broker, tmp_path)
    result = job.run(run.context)
    assert {row["minute"] for row in of(result.rows, "throughput")} == {"2026-01-31T12:01:00.000Z"}
    assert "keeps the newest 4 of 9 rows" in " ".join(result.summary)
    assert pq.read_table(run.path).num_rows == 9


def test_messages_that_retention_takes_meanwhile_are_said(spark: Any, broker: FakeBroker, tmp_path: Path) -> None:
    run = Run(spark, broker, tmp_path, topics=["orders"])

    def retention() -> None:
        broker.min_offset = 1000
        run.on_publish = None

    run.on_publish = retention
    result = job.run(run.context)
    assert "more were removed by retention" in " ".join(result.summary)


def test_cancelling_leaves_no_job_and_nothing_kept(spark: Any, broker: FakeBroker, tmp_path: Path) -> None:
    run = Run(spark, broker, tmp_path)
    reading = threading.Event()
    broker.answer_most = 1
    broker.on_pull = reading.set

    def cancel() -> None:
        assert reading.wait(60)
        run.stop.ask("cancelled on request")
        while not run.ended.wait(0.05):
            spark.interruptTag("report-0f2c")

    canceller = threading.Thread(target=cancel)
    canceller.start()
    try:
        with pytest.raises(RunCancelled, match="cancelled on request"):
            job.run(run.context)
    finally:
        run.ended.set()
        canceller.join()
    assert kept_by_spark(spark) == []
    assert not run.path.exists()
    pulls = broker.pulls
    quiet = []

    def nobody_pulls() -> bool:
        quiet.append(broker.pulls)
        return len(quiet) > 20 and quiet[-20] == quiet[-1]

    eventually("the tasks of the cancelled job stop reading", nobody_pulls)
    assert broker.pulls >= pulls
    broker.answer_most = 500
    assert job.run(Run(spark, broker, tmp_path).context).summary[0] == "6,100 messages counted."


def python_workers(spark_process: SparkProcess) -> list[int]:
    """The processes that were forked to run Python for Spark's JVM."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(") ")[2].split()[1])
    jvm = json.loads(spark_process.settings.state_path.read_bytes())["jvm_pid"]
    return [pid for pid, parent in parents.items() if parents.get(parent) == jvm]


@pytest.mark.parametrize("times", [1, 2])
def test_killed_python_workers_cost_no_row_and_double_none(
    spark: Any, spark_process: SparkProcess, broker: FakeBroker, tmp_path: Path, times: int
) -> None:
    broker.answer_most = 20
    killed: list[int] = []
    kills = [40 * (number + 1) for number in range(times)]

    def kill() -> None:
        if kills and broker.pulls >= kills[0]:
            kills.pop(0)
            for pid in python_workers(spark_process):
                killed.append(pid)
                os.kill(pid, signal.SIGKILL)

    broker.on_pull = kill
    run = Run(spark, broker, tmp_path)
    result = job.run(run.context)
    assert len(killed) >= times
    minutes = of(result.rows, "throughput")
    assert sum(row["messages"] for row in minutes) == 6100
    assert sum(row["bytes"] for row in minutes) == sum(index % 100 for index in range(6000)) + 100_000
    assert of(result.rows, "keys")[0] == {"topic": "orders", "key": "often", "messages": 4000}
    assert kept_by_spark(spark) == []


def test_two_clients_share_the_session_and_neither_ends_the_other(
    spark: Any, spark_process: SparkProcess, broker: FakeBroker, tmp_path: Path
) -> None:
    beside = Sessions()
    with beside.use(spark_process.settings, lambda _: None, lambda: False) as handle:
        assert handle.session_id == spark.session_id
        reading = threading.Event()
        broker.on_pull = reading.set
        mine, other = Run(spark, broker, tmp_path), Run(handle.session, broker, tmp_path)
        broker.answer_most = 20
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(job.run(mine.context)))
        thread.start()
        assert reading.wait(120)
        other.context.stop.ask("cancelled on request")
        with pytest.raises(RunCancelled):
            job.run(other.context)
        handle.session.interruptTag("a tag of the other")
    beside.close()
    thread.join()
    assert results[0].summary[0] == "6,100 messages counted."


def test_a_broker_that_is_gone_fails_the_job_with_its_reason(
    spark: Any, broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.spark.errors import reason

    broker.break_records = True
    with pytest.raises(PySparkException) as failure:
        job.run(Run(spark, broker, tmp_path).context)
    assert "no record starts at offset 0" in reason(failure.value)
    assert kept_by_spark(spark) == []


def test_too_many_rows_are_refused_with_what_to_do(
    spark: Any, broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.reports.throughput.minutes.MOST_COUNTED", 3)
    with pytest.raises(ReportFailed, match="choose fewer topics or a shorter time range"):
        job.run(Run(spark, broker, tmp_path).context)

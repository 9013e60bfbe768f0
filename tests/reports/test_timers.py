"""The report on timers in a real Spark, from a log that is not tidy; `timers.json` is what has to come of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from remoting.facts.broker_state import TimerState
from remoting.names import TIMER_TOPIC
from tasks.reports.context import Context, ReportFailed, Stop
from tasks.reports.progress import Progress
from tasks.reports.timers import hours, job
from tests.unit.tasks.fake_cluster import FakeBroker
from webapp.reports.catalogue import Row

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).with_name("timers.json")
NOON_MS = 1_769_860_800_000
HOUR_MS = 3_600_000
SECTIONS = ("hours", "topics", "lateness", "groups")


class Log:
    """Writes what brokers do."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker

    def timer(self, topic: str, due_ms: int, key: str, at_ms: int = NOON_MS - HOUR_MS, **more: str) -> int:
        """A record of the timer topic; its offset is the timer's place."""
        properties = {"REAL_TOPIC": topic, "UNIQ_KEY": key, "TIMER_DUE_MS": str(due_ms), "TIMER_OUT_MS": slot(due_ms)}
        properties = {name: text for name, text in {**properties, **more}.items() if text}
        return self.broker.store(TIMER_TOPIC, 0, b"x", properties, at_ms=at_ms)

    def delivered(self, topic: str, place: object, due_ms: object, at_ms: int, **more: str) -> None:
        properties = {"TIMER_PLACE": str(place), "TIMER_DUE_MS": str(due_ms), **more}
        self.broker.store(topic, 0, b"x", {name: text for name, text in properties.items() if text}, at_ms=at_ms)

    def came(self, topic: str, due_ms: int, late_ms: int, **more: str) -> int:
        """A timer and its delivery."""
        place = self.timer(topic, due_ms, f"k{due_ms}")
        self.delivered(topic, place, due_ms, due_ms + late_ms, **more)
        return place


def slot(due_ms: int) -> str:
    return str((due_ms - 1) // 1000 * 1000)


@pytest.fixture
def log() -> Iterator[Log]:
    with FakeBroker(answer_most=500) as broker:
        for topic in ("orders", "bills", "t" * 127):
            broker.add_topic(topic, 1)
        broker.add_topic("%RETRY%readers", 1)
        broker.add_topic(TIMER_TOPIC, 1, system=True)
        broker.timers = TimerState(waiting=6, aside=1, overdue_ms=2000, delivered=9, rolled=1, recalled=2, lost=1)
        yield Log(broker)


@pytest.fixture
def untidy(log: Log) -> Log:
    start, end = NOON_MS, NOON_MS + 2 * HOUR_MS
    for number in range(200):
        if number == 100:
            for plain in range(2500):
                log.broker.store("orders", 0, b"plain", {"KEYS": f"k{plain}"}, at_ms=start + 10_100)
        log.came("orders", start + 10_000 + number, number % 4)
    # what must not be, and what only a switch of the master explains
    log.came("orders", start + 20_000, -3)
    repeated = log.came("orders", start + 30_000, 1)
    log.delivered("orders", repeated, start + 30_000, start + HOUR_MS + 5)
    # properties that say nothing, or only what the original's say
    log.delivered("orders", "x", start, start + HOUR_MS)
    log.delivered("orders", 7_000_001, "", start + HOUR_MS + 1500, TIMER_OUT_MS=str(start + HOUR_MS))
    log.delivered("orders", 7_000_002, "", start + HOUR_MS + 1600)
    log.delivered("orders", 7_000_003, "9" * 20, start + HOUR_MS + 1700)
    # appended again on the way
    first = log.timer("bills", start + 50_000, "far")
    log.timer("bills", start + 50_000, "far", TIMER_PLACE=str(first), TIMER_ROLL_TIMES="1")
    log.delivered("bills", first, start + 50_000, start + 50_040, TIMER_ROLL_TIMES="1")
    log.came("t" * 127, start + HOUR_MS, 86_400)
    # taken back by handle and by name, and by a name in another slot, which is nothing
    back = log.timer("orders", start + 60_000, "back")
    marker = {"TIMER_DEL_UNIQKEY": "orders+back", "TIMER_PLACE": str(back)}
    log.timer("orders", start + 60_000, "back", at_ms=start + 59_000, **marker)
    log.timer("bills", start + 61_000, "named")
    log.timer("bills", start + 60_500, "a marker", at_ms=start + 1, TIMER_DEL_UNIQKEY="bills+named")
    log.timer("bills", start + 63_000, "kept")
    log.timer("bills", start + 70_000, "a marker", at_ms=start + 2, TIMER_DEL_UNIQKEY="bills+kept")
    log.timer("orders", end, "early back", at_ms=start - 5)
    log.timer("orders", end, "x", at_ms=start - 4, TIMER_DEL_UNIQKEY="orders+early back")
    # not delivered: due in the range, before it, for a topic that is gone, and later than any calendar goes
    log.timer("orders", start + HOUR_MS + 5000, "missing")
    log.timer("orders", start - 1, "before")
    log.timer("gone", start + 1000, "gone")
    log.timer("", start + 1000, "nowhere")
    log.timer("orders", end + 60_000, "later")
    log.timer("orders", 9_999_999_999_999_999, "never")
    # copies are no deliveries
    log.delivered("%RETRY%readers", repeated, start + 30_000, start + 31_000)
    return log


class Run:
    """A run whose rows are kept in lists."""

    def __init__(self, spark: Any, log: Log, tmp_path: Path, **parameters: Any) -> None:
        self.published: list[list[Row]] = []
        self.path = tmp_path / "run.parquet"
        self.progress = Progress()
        self.context = Context(
            run_id="0f2d",
            parameters={"topics": [], "start": None, "end": None, "minutes": 120, **parameters},
            as_of_ms=NOON_MS + 2 * HOUR_MS,
            controllers=[log.broker.address],
            spark=spark,
            tag="report-0f2d",
            progress=self.progress,
            stop=Stop(),
            result_path=self.path,
            publish=lambda rows: self.published.append(list(rows)),
        )


def of(rows: Iterable[Row], section: str) -> list[dict[str, Any]]:
    return [dict(row.data) for row in rows if row.section == section]


def test_an_untidy_log_gives_what_is_written_down(spark: Any, untidy: Log, tmp_path: Path) -> None:
    run = Run(spark, untidy, tmp_path)
    result = job.run(run.context)
    found = {"summary": result.summary, **{name: of(result.rows, name) for name in SECTIONS}}
    for name in SECTIONS:
        found[name].sort(key=str)
    assert found == json.loads(GOLDEN.read_bytes())
    shown = [sum(row["delivered"] for row in of(rows, "hours")) for rows in run.published]
    assert len([count for count in shown if 0 < count < 208]) >= 1, "rows were shown before all was read"
    table = pq.read_table(run.path)
    assert table.num_rows == len(of(result.rows, "hours"))
    assert sum(table["delivered"].to_pylist()) == 208
    document = run.progress.document()
    assert document["rows_read"] == document["rows_total"]
    assert not [table.name for table in spark.catalog.listTables() if table.name.startswith("logboom_")]


def test_topics_narrow_it(spark: Any, untidy: Log, tmp_path: Path) -> None:
    result = job.run(Run(spark, untidy, tmp_path, topics=["bills"]).context)
    assert {row["topic"] for row in of(result.rows, "topics")} == {"(all)", "bills"}
    assert {row["topic"] for row in of(result.rows, "hours")} == {"bills"}


def test_without_timers_it_says_so(spark: Any, log: Log, tmp_path: Path) -> None:
    run = Run(spark, log, tmp_path)
    result = job.run(run.context)
    assert result.summary[0] == "No timers were delivered in this range."
    assert [row.section for row in result.rows] == ["groups"]
    log.broker.store("orders", 0, b"x", at_ms=NOON_MS)
    result = job.run(run.context)
    assert [row.section for row in result.rows] == ["groups"]
    assert pq.read_table(run.path).num_rows == 0


def test_what_retention_removed_makes_nothing_overdue(spark: Any, log: Log, tmp_path: Path) -> None:
    for number in range(10):
        log.came("orders", NOON_MS + 1000 * number, 1)
    log.timer("orders", NOON_MS + 20_000, "missing")
    log.broker.store("orders", 0, b"x", at_ms=NOON_MS + 30_000)
    log.broker.min_offset = 5
    result = job.run(Run(spark, log, tmp_path, topics=["orders"]).context)
    (row,) = of(result.rows, "hours")
    assert (row["delivered"], row["overdue"]) == (5, 1)
    assert "nothing that came due before is called overdue" in " ".join(result.summary)


def test_too_many_rows_are_refused(spark: Any, untidy: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hours, "MOST_HOURS", 1)
    with pytest.raises(ReportFailed, match="choose fewer topics or a shorter time range"):
        job.run(Run(spark, untidy, tmp_path).context)


def test_the_page_keeps_the_newest_hours(
    spark: Any, untidy: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.reports.timers.write.MOST_ROWS", 1)
    result = job.run(Run(spark, untidy, tmp_path).context)
    assert len(of(result.rows, "hours")) == 1
    assert "The page keeps the newest 1 of " in " ".join(result.summary)

"""The parts of the report on timers that need neither Spark nor a database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from remoting.errors import RequestError
from remoting.facts.broker_state import BrokerState
from remoting.names import TIMER_TOPIC
from tasks.reports.timers import read, write
from tasks.reports.timers.hours import Hours, moment
from tasks.reports.timers.summary import Counted, Coverage, summary
from tests.unit.tasks.fake_cluster import FakeBroker
from webapp.reports.catalogue import CATALOGUE

NOON_MS = 1_769_860_800_000
HOUR_MS = 3_600_000


def counted(hour: int, delivered: int, topic: str | None = "orders", max_ms: int | None = 5) -> dict[str, Any]:
    values = {"messages": delivered, "delivered": delivered, "rolled": 1, "early": 0, "max_ms": max_ms}
    return {"topic": topic, "hour_ms": NOON_MS + hour * HOUR_MS, **values}


def test_hours_add_up_over_slices_and_percentiles_come_later() -> None:
    hours = Hours()
    plain = {"topic": None, "hour_ms": None, "messages": 100, "delivered": 0, "rolled": 0, "early": 0, "max_ms": None}
    hours.add([plain, counted(0, 5, max_ms=None), counted(1, 2)])
    (changed,) = hours.add([counted(0, 3)])
    row = hours.row(changed)
    assert (row["delivered"], row["rolled"], row["max_ms"], row["p99_ms"]) == (8, 2, 5, None)
    assert hours.messages == 110
    hours.put([{**counted(0, 8), "p99_ms": 4}], "p99_ms")
    assert hours.row(changed)["p99_ms"] == 4
    assert hours.total("delivered") == hours.total("delivered", "orders") == 10
    assert [each.hour_ms for each in hours.newest(1)] == [NOON_MS + HOUR_MS]


def test_rows_have_the_catalogues_columns_and_names_that_fit(tmp_path: Path) -> None:
    hours = Hours()
    hours.add([counted(0, 5, "t" * 255), counted(0, 5, "t" * 254 + "u")])
    rows = write.hour_rows(hours, hours.newest(10))
    assert len({row.key for row in rows}) == 2
    late = write.lateness_rows([{"bucket": -1, "delivered": 1}, {"bucket": 2, "delivered": 3}])
    assert [row.data["late"] for row in late] == ["early", "up to 2 ms", "up to 5 ms", "up to 10 ms"]
    assert [row.data["up_to_here"] for row in late] == [0.25, 0.25, 0.25, 1.0]
    state = BrokerState(cluster_name="c", broker_name="b", broker_id=1, role="master")  # type: ignore[arg-type]
    groups = write.group_rows({"b": state})
    for row in (rows[0], late[0], groups[0]):
        columns = [column.name for column in CATALOGUE["timers"].section(row.section).columns]
        assert set(columns) <= set(row.data) <= {*columns, "order"}
    assert all(len(row.key) <= 300 for row in rows)
    path = tmp_path / "reports" / "run.parquet"
    write.write_parquet(path, hours)
    assert pq.read_table(path).column_names == [each.name for each in CATALOGUE["timers"].section("hours").columns]


def test_times_that_no_calendar_has_are_unknown() -> None:
    assert moment(NOON_MS + 5) == "2026-01-31T12:00:00.005Z"
    assert moment(9_999_999_999_999_999) is None
    assert moment(None) is None


def test_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeBroker() as broker:
        assert read.find([broker.address], {"minutes": 60}, NOON_MS).coverage.topics == []
        broker.add_topic("orders", 2)
        broker.add_topic("%DLQ%readers", 1)
        for number in range(10):
            broker.store("orders", number % 2, b"x", at_ms=NOON_MS - 10 + number)
        found = read.find([broker.address], {"minutes": 60}, NOON_MS)
        assert (sum(each.size for each in found.messages), list(found.timers)) == (10, [])
        assert found.coverage.whole_from_ms == {"broker-a": NOON_MS - HOUR_MS}
        broker.add_topic(TIMER_TOPIC, 1, system=True)
        broker.store(TIMER_TOPIC, 0, b"x", at_ms=NOON_MS - 100 * HOUR_MS)
        broker.store(TIMER_TOPIC, 0, b"x", at_ms=NOON_MS)
        broker.min_offset = 1
        found = read.find([broker.address], {"minutes": 60, "topics": ["orders", "%DLQ%readers"]}, NOON_MS + 1)
        assert [each.end for each in found.timers] == [2]
        assert found.coverage.whole_from_ms == {"broker-a": NOON_MS - 8}
        assert (found.coverage.topics, found.coverage.trimmed_queues) == (["orders"], 2)
        with pytest.raises(RequestError):
            read.find([broker.address], {"minutes": 60, "topics": ["other"]}, NOON_MS)


def test_a_summary_says_what_was_found_and_what_it_cannot_see() -> None:
    coverage = Coverage(NOON_MS, NOON_MS + HOUR_MS, ["orders"], 4, 2, {"a": NOON_MS + 500}, ("b",))
    found = summary(coverage, Counted(1, 0, 0, 0, 0, 0, 12_000, 12_345, 10, 8, 3, 5, 4))
    assert found[0] == "1 timer delivered, 99 of 100 at most 12.0 s late and the latest 12.3 s."
    assert found[-4:] == [
        "Retention had removed the oldest messages of 2 of 4 queues: what was delivered before 2026-01-31 12:00:00.500 UTC is "
        "counted as far as it is left, and nothing that came due before is called overdue.",
        "2 messages were removed by retention while the report ran; timers that were delivered with them may be among the "
        "overdue ones.",
        "The page keeps the newest 4 of 5 hours; the Parquet file has them all.",
        "The broker group b had no master: what only it has is missing.",
    ]
    assert summary(Coverage(0, 1, []), Counted())[0].startswith("There are no topics")
    assert summary(coverage, Counted(delivered=2))[0] == "2 timers delivered."

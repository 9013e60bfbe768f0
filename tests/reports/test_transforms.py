from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tasks.reports.throughput import transforms
from tasks.spark.source import schema_of

pytestmark = pytest.mark.slow

NOON = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


def message(
    topic: str, second: float, size: int, keys: str | None = None, queue_id: int = 0, group: str = "broker-a"
) -> tuple[Any, ...]:
    return topic, group, queue_id, NOON + timedelta(seconds=second), size, keys


MESSAGES = [
    message("orders", 0, 100, "ann bob"),
    message("orders", 59.999, 200, "ann"),
    message("orders", 60, 300, "ann  ann"),
    message("orders", 61, 400, None, queue_id=1),
    message("orders", 61, 500, "", queue_id=1, group="broker-b"),
    message("bills", 30, 0, "bob"),
    message("bills", 90, 2_000_000_000, "eve"),
    message("bills", 91, 2_000_000_000, "eve"),
]


@pytest.fixture
def messages(spark: Any) -> Any:
    return spark.createDataFrame(MESSAGES, schema_of(transforms.COLUMNS))


def rows(frame: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in frame.toArrow().to_pylist()), key=str)


def test_minutes_are_counted_by_queue_and_bytes_do_not_overflow(messages: Any) -> None:
    found = transforms.per_minute(messages)
    assert found.columns == ["topic", "broker_name", "queue_id", "minute", "messages", "bytes"]
    later = NOON + timedelta(minutes=1)
    assert rows(found) == sorted(
        [
            ("orders", "broker-a", 0, NOON, 2, 300),
            ("orders", "broker-a", 0, later, 1, 300),
            ("orders", "broker-a", 1, later, 1, 400),
            ("orders", "broker-b", 1, later, 1, 500),
            ("bills", "broker-a", 0, NOON, 1, 0),
            ("bills", "broker-a", 0, later, 2, 4_000_000_000),
        ],
        key=str,
    )


def test_sizes_have_percentiles_that_occur(messages: Any) -> None:
    found = transforms.body_sizes(messages)
    assert found.columns == ["topic", "messages", "mean", "p50", "p90", "p99", "max"]
    assert rows(found) == [
        ("bills", 3, 1_333_333_333, 2_000_000_000, 2_000_000_000, 2_000_000_000, 2_000_000_000),
        ("orders", 5, 300, 300, 500, 500, 500),
    ]


def test_each_key_of_a_message_counts_once_and_ties_have_an_order(messages: Any) -> None:
    found = [tuple(row.values()) for row in transforms.top_keys(messages, 3).toArrow().to_pylist()]
    assert found == [("orders", "ann", 3), ("bills", "eve", 2), ("bills", "bob", 1)]
    assert transforms.top_keys(messages, 10).columns == ["topic", "key", "messages"]


def test_nothing_gives_nothing(spark: Any) -> None:
    nothing = spark.createDataFrame([], schema_of(transforms.COLUMNS))
    for frame in (transforms.per_minute(nothing), transforms.body_sizes(nothing), transforms.top_keys(nothing, 5)):
        assert rows(frame) == []

"""The data source in a real Spark, against a broker of ours in this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkException

from tasks.spark.errors import reason
from tasks.spark.meter import MeterReceiver
from tasks.spark.records import USUAL_COLUMNS
from tasks.spark.source import schema_of
from tests.unit.tasks.fake_cluster import FakeBroker

pytestmark = pytest.mark.slow


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(answer_most=500) as found:
        found.add_topic("orders", 4)
        for index in range(2000):
            properties = {"KEYS": f"k{index % 7}", "UNIQ_KEY": f"u{index}", "colour": "blue"}
            found.store("orders", index % 4, f"body {index}".encode(), properties, at_ms=1_790_000_000_000 + index)
        yield found


def read(spark: Any, broker: FakeBroker, **options: str) -> Any:
    reader = spark.read.format("logboom").option("controllers", broker.address).option("subscribe", "orders")
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader


def test_a_topic_is_a_table_with_typed_columns(spark: Any, broker: FakeBroker) -> None:
    frame = read(spark, broker, minPartitions="2").load()
    assert frame.columns == list(USUAL_COLUMNS)
    found = frame.where("msg_id = 'u5'").selectExpr("*", "properties['colour'] as colour").toArrow().to_pylist()
    assert len(found) == 1
    row = found[0]
    assert (row["topic"], row["broker_name"], row["queue_id"], row["queue_offset"]) == ("orders", "broker-a", 1, 1)
    assert (row["body"], row["body_size"], row["keys"], row["colour"]) == (b"body 5", 6, "k5", "blue")
    assert frame.selectExpr("count(*)", "count(distinct msg_id)").toArrow().to_pylist()[0] == {
        "count(1)": 2000,
        "count(DISTINCT msg_id)": 2000,
    }


def test_a_users_schema_is_the_projection(spark: Any, broker: FakeBroker) -> None:
    frame = read(spark, broker).schema(schema_of(("queue_id", "body_size"))).load()
    assert frame.columns == ["queue_id", "body_size"]
    assert frame.count() == 2000


def test_rows_are_told_from_inside_the_tasks(spark: Any, broker: FakeBroker) -> None:
    with MeterReceiver() as receiver:
        options = {"meterAddress": receiver.address, "meterToken": receiver.token, "minPartitions": "3"}
        assert read(spark, broker, **options).load().count() == 2000
    assert receiver.totals()[0] == 2000


@pytest.mark.parametrize(
    ("options", "schema", "told"),
    [
        ({"controllers": ""}, "topic string", "controllers is empty"),
        ({"colour": "blue"}, "topic string", "has no option colour"),
        ({}, "size int", "has no column size"),
        ({}, "queue_id string", "has the type int, not string"),
        ({"subscribe": "nothing"}, "topic string", "a remark"),
        ({"controllers": "127.0.0.1:1"}, "topic string", "no controller of 127.0.0.1:1 answers"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    spark: Any, broker: FakeBroker, options: dict[str, str], schema: str, told: str
) -> None:
    with pytest.raises(PySparkException) as failure:
        read(spark, broker, **options).schema(schema).load().count()
    assert told in reason(failure.value)
    assert "\n" not in reason(failure.value)


def test_messages_gone_in_the_middle_fail_the_query_with_the_reason(spark: Any, broker: FakeBroker) -> None:
    ends = '{"orders": {"broker-a": {"0": 9999}}}'
    assert read(spark, broker, endingOffsets=ends).load().count() == 2000
    frame = read(spark, broker, startingOffsets='{"orders": {"broker-a": {"0": 5}}}').load()
    broker.min_offset = 50
    with pytest.raises(PySparkException) as failure:
        frame.count()
    assert "are gone" in reason(failure.value)

"""The arithmetic of the report: DataFrame -> DataFrame, nothing else.

Messages that were delivered from the timer topic are known by TIMER_PLACE, which says where they waited first; with their
broker group that names a timer. In the timer topic the records of one timer have the same place, however often it was appended
again, and delete markers name what they take back by its place, or, those of clients, by its topic, key and slot.

Nothing here reads, writes, collects or knows a session, as in `tasks.reports.throughput.transforms`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

MESSAGE_COLUMNS: Final = ("topic", "broker_name", "store_ts", "timer_place", "timer_due_ms", "timer_rolled")
TIMER_COLUMNS: Final = (
    *("broker_name", "queue_offset", "store_ts", "msg_id"),
    *("timer_place", "timer_due_ms", "timer_slot_ms", "timer_topic", "timer_recalls"),
)
HOUR_MS: Final = 3_600_000
LATE_BOUNDS_MS: Final = (
    *(2, 5, 10, 20, 50, 100, 200, 500),
    *(1_000, 2_000, 5_000, 10_000, 60_000, 600_000, HOUR_MS, 24 * HOUR_MS),
)
EARLY: Final = -1  # the number of the bucket of what came before it was due
PERCENTILES: Final = (0.5, 0.95, 0.99)
_ACCURACY: Final = 10_000


def measured(messages: DataFrame) -> DataFrame:
    """topic, broker_name, place, at_ms, late_ms, rolled: of every message. `place` is null where it was no timer, and `late_ms`
    where it does not say when it was due."""
    at_ms = F.unix_millis("store_ts")
    return messages.select(
        "topic",
        "broker_name",
        F.col("timer_place").alias("place"),
        F.coalesce(at_ms, F.lit(0)).alias("at_ms"),
        (at_ms - F.col("timer_due_ms")).alias("late_ms"),
        F.coalesce("timer_rolled", F.lit(0)).alias("rolled"),
    )


def deliveries(messages: DataFrame) -> DataFrame:
    """Of `measured` those that were timers."""
    return messages.where(F.col("place").isNotNull())


def per_hour(messages: DataFrame) -> DataFrame:
    """topic, hour_ms, messages, delivered, rolled, early, max_ms: of what is `measured`, by the hour in which it was stored; all
    that were no timers in one row without topic and hour. Parts add up."""
    is_timer = F.col("place").isNotNull()
    by = (F.when(is_timer, F.col("topic")).alias("topic"), F.when(is_timer, _hour("at_ms")).alias("hour_ms"))
    return messages.groupBy(*by).agg(F.count("*").alias("messages"), *_counts(), F.max("late_ms").alias("max_ms"))


def lateness(delivered: DataFrame) -> DataFrame:
    """topic, hour_ms, delivered, rolled, early, max_ms, p50_ms, p95_ms, p99_ms: of each hour; without an hour of the topic, and
    without a topic of all.
    """
    percentiles = F.percentile_approx("late_ms", list(PERCENTILES), _ACCURACY)
    found = delivered.withColumn("hour_ms", _hour("at_ms")).rollup("topic", "hour_ms")
    return found.agg(*_counts(), F.max("late_ms").alias("max_ms"), percentiles.alias("percentiles")).select(
        *("topic", "hour_ms", "delivered", "rolled", "early", "max_ms"),
        *(F.col("percentiles")[n].alias(name) for n, name in enumerate(("p50_ms", "p95_ms", "p99_ms"))),
    )


def buckets(delivered: DataFrame) -> DataFrame:
    """bucket, delivered: how many were late by at most `LATE_BOUNDS_MS[bucket]`, and not by at most the one before; EARLY before
    they were due; len(LATE_BOUNDS_MS) beyond the last."""
    bucket = F.when(F.col("late_ms") < 0, EARLY)
    for number, bound_ms in enumerate(LATE_BOUNDS_MS):
        bucket = bucket.when(F.col("late_ms") <= bound_ms, number)
    bucket = bucket.otherwise(len(LATE_BOUNDS_MS)).alias("bucket")
    return delivered.where(F.col("late_ms").isNotNull()).groupBy(bucket).agg(F.count("*").alias("delivered"))


def duplicates(delivered: DataFrame) -> DataFrame:
    """topic, hour_ms, duplicates: deliveries of what had been delivered before, by their own hour."""
    in_order = Window.partitionBy("broker_name", "topic", "place").orderBy("at_ms")
    again = delivered.withColumn("number", F.row_number().over(in_order)).where("number > 1")
    return again.groupBy("topic", _hour("at_ms")).agg(F.count("*").alias("duplicates"))


def counted(records: DataFrame) -> DataFrame:
    """records: how many there are."""
    return records.agg(F.count("*").alias("records"))


def waiting(records: DataFrame) -> DataFrame:
    """broker_name, place, topic, due_ms, name, slot_ms: each timer that has a record in the timer topic."""
    found = records.where(F.col("timer_recalls").isNull()).select(
        "broker_name",
        F.coalesce("timer_place", "queue_offset").alias("place"),
        "queue_offset",
        F.col("timer_topic").alias("topic"),
        F.coalesce("timer_due_ms", F.unix_millis("store_ts")).alias("due_ms"),
        F.concat("timer_topic", F.lit("+"), "msg_id").alias("name"),
        F.col("timer_slot_ms").alias("slot_ms"),
    )
    last = [F.max_by(name, "queue_offset").alias(name) for name in ("topic", "due_ms", "name", "slot_ms")]
    return found.groupBy("broker_name", "place").agg(*last)


def recalls(records: DataFrame, timers: DataFrame) -> DataFrame:
    """broker_name, place, topic, at_ms: the timers that delete markers take back, and when the first one was stored."""
    markers = records.where(F.col("timer_recalls").isNotNull()).withColumn("at_ms", F.unix_millis("store_ts"))
    by_place = markers.where(F.col("timer_place").isNotNull()).select(
        "broker_name", F.col("timer_place").alias("place"), F.col("timer_topic").alias("topic"), "at_ms"
    )
    by_name = markers.where(F.col("timer_place").isNull()).select(
        "broker_name", F.col("timer_recalls").alias("name"), F.col("timer_slot_ms").alias("slot_ms"), "at_ms"
    )
    named = timers.join(by_name, ["broker_name", "name", "slot_ms"]).select("broker_name", "place", "topic", "at_ms")
    found = by_place.unionByName(named).groupBy("broker_name", "place")
    return found.agg(F.min_by("topic", "at_ms").alias("topic"), F.min("at_ms").alias("at_ms"))


def recalled_per_hour(recalled: DataFrame, start_ms: int) -> DataFrame:
    """topic, hour_ms, recalled: of what was taken back from `start_ms` on, by the hour of that."""
    found = recalled.where(F.col("at_ms") >= start_ms).groupBy("topic", _hour("at_ms"))
    return found.agg(F.count("*").alias("recalled"))


def open_timers(timers: DataFrame, delivered: DataFrame, recalled: DataFrame) -> DataFrame:
    """The timers that were neither delivered nor taken back."""
    place = ["broker_name", "place"]
    return timers.join(delivered, place, "left_anti").join(recalled, place, "left_anti")


def overdue_per_hour(still_open: DataFrame, whole_from_ms: Mapping[str, int], end_ms: int) -> DataFrame:
    """topic, hour_ms, overdue, first_ms: what was due from where the messages of its broker group are all there, by the hour in
    which it was due."""
    is_known = F.lit(False)
    for broker_name, from_ms in whole_from_ms.items():
        is_known = is_known | ((F.col("broker_name") == broker_name) & (F.col("due_ms") >= from_ms))
    found = still_open.where(is_known & (F.col("due_ms") < end_ms)).groupBy("topic", _hour("due_ms"))
    return found.agg(F.count("*").alias("overdue"), F.min("due_ms").alias("first_ms"))


def pending(still_open: DataFrame, end_ms: int) -> DataFrame:
    """topic, pending, next_ms: what is due at `end_ms` or later, and when the first of that is."""
    found = still_open.where(F.col("due_ms") >= end_ms).groupBy("topic")
    return found.agg(F.count("*").alias("pending"), F.min("due_ms").alias("next_ms"))


def _counts() -> list[Column]:
    return [
        F.count("place").alias("delivered"),
        F.count_if(F.col("rolled") > 0).alias("rolled"),
        F.count_if(F.col("late_ms") < 0).alias("early"),
    ]


def _hour(time_ms: str) -> Column:
    """The hour's begin in UTC."""
    return (F.floor(F.col(time_ms) / HOUR_MS) * HOUR_MS).alias("hour_ms")

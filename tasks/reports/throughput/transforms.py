"""The arithmetic of the report: DataFrame -> DataFrame, nothing else.

All take the columns of `COLUMNS`. Nothing here reads, writes, collects or knows a session, so that a test can hand in a dozen
rows, and the result is the same on every kind of Spark.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

COLUMNS: Final = ("topic", "broker_name", "queue_id", "store_ts", "body_size", "keys")
PERCENTILE_ACCURACY: Final = 10_000


def per_minute(messages: DataFrame) -> DataFrame:
    """topic, broker_name, queue_id, minute, messages, bytes: by the minute in which they were stored. Sums of parts add up."""
    return messages.groupBy("topic", "broker_name", "queue_id", F.date_trunc("minute", "store_ts").alias("minute")).agg(
        F.count("*").alias("messages"), F.sum(F.col("body_size").cast("long")).alias("bytes")
    )


def body_sizes(messages: DataFrame) -> DataFrame:
    """topic, messages, mean, p50, p90, p99, max of the stored body sizes."""
    percentiles = F.percentile_approx("body_size", [0.5, 0.9, 0.99], PERCENTILE_ACCURACY)
    return (
        messages.groupBy("topic")
        .agg(
            F.count("*").alias("messages"),
            F.round(F.avg("body_size")).cast("long").alias("mean"),
            percentiles.alias("percentiles"),
            F.max("body_size").cast("long").alias("max"),
        )
        .select(
            "topic",
            "messages",
            "mean",
            *(F.col("percentiles")[at].cast("long").alias(name) for at, name in enumerate(("p50", "p90", "p99"))),
            "max",
        )
    )


def top_keys(messages: DataFrame, most: int) -> DataFrame:
    """topic, key, messages: the `most` most frequent keys. A message with several keys counts once for each of them."""
    keys = F.explode(F.array_distinct(F.split("keys", " "))).alias("key")
    return (
        messages.select("topic", keys)
        .where(F.col("key") != "")
        .groupBy("topic", "key")
        .agg(F.count("*").alias("messages"))
        .orderBy(F.desc("messages"), "topic", "key")
        .limit(most)
    )

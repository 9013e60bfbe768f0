"""What reports read, and how: a time range as queue offsets, and slices of them as DataFrames."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from remoting import codes
from tasks.spark.cluster import Cluster, find_ranges
from tasks.spark.options import Options
from tasks.spark.planning import QueueRange
from tasks.tier.settings import source_options

MINUTE_MS: Final = 60_000
FIRST_SLICE: Final = 2_000
SMALL_SLICE: Final = 16_000
SLICE_S: Final = 2.0
SLICE_SHARE: Final = 0.1
# Two tasks at a time read beside the brokers. Tasks are short, since Spark takes no place away from one that runs: a small
# report beside this one gets the next place that becomes free.
TASKS_PER_SLICE: Final = 2
MOST_RECORDS_PER_TASK: Final = 64_000


def window(parameters: Mapping[str, Any], as_of_ms: int) -> tuple[int, int]:
    """The time range [start, end) in milliseconds, of store times."""
    end = _milliseconds(parameters.get("end"))
    start = _milliseconds(parameters.get("start"))
    end = as_of_ms if end is None else end
    minutes = int(parameters.get("minutes") or 60)
    return (end - minutes * MINUTE_MS if start is None else start), end


def _milliseconds(text: str | None) -> int | None:
    return None if not text else int(datetime.fromisoformat(text).timestamp() * 1000)


def ranges_of(
    cluster: Cluster, controllers: Sequence[str], topics: Sequence[str], start_ms: int, end_ms: int
) -> list[QueueRange]:
    """Where the messages are that were stored in [start, end). Raises RequestError when a topic does not exist."""
    options = Options.parse(
        {
            "controllers": ",".join(controllers),
            "subscribe": ",".join(topics),
            "startingTimestamp": str(start_ms),
            "endingTimestamp": str(end_ms),
            # what retention removed is no reason to fail: the report tells of it
            "failOnDataLoss": "false",
        }
    )
    return find_ranges(cluster, options)


def is_trimmed(cluster: Cluster, topic: str, broker_name: str, queue_id: int, start_ms: int) -> bool:
    """Whether retention has removed messages of the queue that may have been stored after the start."""
    where = {"topic": topic, "queueId": str(queue_id)}

    def offset(code: int, **more: str) -> int:
        return cluster.ask_master(
            topic, broker_name, lambda master: int(master.call(code, {**where, **more}).ext["offset"])
        )

    oldest = offset(codes.GET_MIN_OFFSET)
    return oldest > 0 and offset(codes.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=str(start_ms)) <= oldest


def next_slice(rows: int, took_s: float, elapsed_s: float) -> int:
    """How many messages to read in the next step, after one that read `rows` in `took_s`, `elapsed_s` after the start.

    Something is to appear early and again and again, but each step costs something, whatever it reads: steps double until one
    takes about two seconds, or a tenth of the time so far. A small one that takes longer shows a busy machine: it doubles too.
    """
    is_long = took_s >= max(SLICE_S, SLICE_SHARE * elapsed_s)
    return rows if is_long and rows >= SMALL_SLICE else 2 * rows


def frame(
    spark: Any, controllers: Sequence[str], ranges: Sequence[QueueRange], columns: Sequence[str], meter: tuple[str, str]
) -> Any:
    """The messages of these ranges, these columns only. `meter` is where to tell how far that is: address and token."""
    from tasks.spark.source import NAME, schema_of

    address, token = meter
    offsets: dict[str, dict[str, Any]] = {"assign": _assign(ranges), "startingOffsets": {}, "endingOffsets": {}}
    for each in ranges:
        for name, offset in (("startingOffsets", each.start), ("endingOffsets", each.end)):
            groups = offsets[name].setdefault(each.topic, {})
            groups.setdefault(each.broker_name, {})[str(each.queue_id)] = offset
    reader = spark.read.format(NAME).schema(schema_of(columns)).option("controllers", ",".join(controllers))
    for name, document in offsets.items():
        reader = reader.option(name, json.dumps(document))
    options = {
        "minPartitions": TASKS_PER_SLICE,
        "maxRecordsPerPartition": MOST_RECORDS_PER_TASK,
        # retention may remove the oldest while the report runs; the job compares the counts and says so
        "failOnDataLoss": "false",
        "meterAddress": address,
        "meterToken": token,
        **source_options(os.environ),
    }
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def _assign(ranges: Sequence[QueueRange]) -> dict[str, Any]:
    assignment: dict[str, dict[str, list[int]]] = {}
    for each in ranges:
        assignment.setdefault(each.topic, {}).setdefault(each.broker_name, []).append(each.queue_id)
    return assignment

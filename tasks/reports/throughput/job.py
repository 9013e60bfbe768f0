"""The job of the report: read slice by slice, show what is known, then the exact rest.

Messages are read from the brokers once. Each slice is kept by Spark (columns of the report only) while it is counted by minute,
and the counts so far are shown; sizes and keys, which do not add up from parts, come at the end from what Spark kept.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import reduce
from typing import Any

from tasks.reports.context import Context, ReportFailed, Result
from tasks.reports.throughput import read, transforms, write
from tasks.reports.throughput.minutes import Minutes, TooMany
from tasks.reports.throughput.summary import Counted, Coverage, summary
from tasks.spark.meter import MeterReceiver
from tasks.spark.planning import QueueRange, part
from tasks.spark.retrying import again_if_worker_lost

log = logging.getLogger(__name__)


def run(context: Context) -> Result:
    """Make the report; raises RunCancelled, ReportFailed, or what Spark and the cluster raise."""
    context.progress.say("asking the brokers how much there is to read")
    ranges, coverage = read.find(context.controllers, context.parameters, context.as_of_ms)
    total = sum(each.size for each in ranges)
    if not total:
        write.write_parquet(context.result_path, Minutes())
        return Result([], summary(coverage, Counted(0, 0)))
    minutes = Minutes()
    kept = _Kept(context)
    try:
        with MeterReceiver() as meter:
            context.progress.expect_rows(total, lambda: meter.totals()[0])
            _count_all(context, kept, minutes, ranges, meter)
        return _finish(context, kept, minutes, coverage, total)
    except TooMany as error:
        raise ReportFailed(f"The report would have {error}.") from error
    finally:
        kept.forget()


def _count_all(
    context: Context, kept: _Kept, minutes: Minutes, ranges: Sequence[QueueRange], meter: MeterReceiver
) -> None:
    total = sum(each.size for each in ranges)
    begun = time.monotonic()
    position, rows, number = 0, read.FIRST_SLICE, 1
    while position < total:
        started = time.monotonic()
        end = min(position + rows, total)
        name = f"slice {number}"
        context.progress.enter(name)
        context.progress.say(f"reading {name}: messages {position + 1:,} to {end:,} of {total:,}")
        _count_slice(context, kept, minutes, part(ranges, position, end), meter)
        now = time.monotonic()
        rows = read.next_slice(rows, now - started, now - begun)
        position, number = end, number + 1


def _count_slice(
    context: Context, kept: _Kept, minutes: Minutes, ranges: Sequence[QueueRange], meter: MeterReceiver
) -> None:
    context.check()
    if not ranges:
        return
    messages = kept.keep(read.frame(context.spark, context.controllers, ranges, (meter.address, meter.token)))
    changed = minutes.add(context.collect(transforms.per_minute(messages)))
    # beyond the cap the newest are shown in the end; until then the first ones are
    shown = changed if len(minutes.counts) <= write.MOST_ROWS else []
    context.publish(write.minute_rows(minutes, shown))


def _finish(context: Context, kept: _Kept, minutes: Minutes, coverage: Coverage, total: int) -> Result:
    messages = kept.all()
    context.progress.enter("body sizes")
    context.progress.say("sorting body sizes")
    sizes = write.size_rows(context.collect(transforms.body_sizes(messages)))
    context.publish(sizes)
    context.progress.enter("keys")
    context.progress.say("counting keys")
    most = int(context.parameters.get("top_keys") or 20)
    keys = write.key_rows(context.collect(transforms.top_keys(messages, most)))
    context.publish(keys)
    context.progress.say("writing the result")
    write.write_parquet(context.result_path, minutes)
    shown = minutes.newest(write.MOST_ROWS)
    counted = Counted(
        expected=total,
        messages=minutes.messages,
        rows=len(minutes.counts),
        rows_kept=len(shown),
        keys=len(keys),
        keys_wanted=most,
    )
    return Result([*write.minute_rows(minutes, shown), *sizes, *keys], summary(coverage, counted))


class _Kept:
    """The slices that Spark keeps, by the name of a temporary view: a view is analysed once, however often it is used."""

    def __init__(self, context: Context) -> None:
        self._spark = context.spark
        self._prefix = f"logboom_{context.run_id.replace('-', '_')}"
        self._names: list[str] = []

    def keep(self, frame: Any) -> Any:
        """Keep a slice from its first use on."""
        name = f"{self._prefix}_{len(self._names)}"
        again_if_worker_lost(lambda: frame.createOrReplaceTempView(name))
        self._names.append(name)
        again_if_worker_lost(lambda: self._spark.catalog.cacheTable(name))
        return self._spark.table(name)

    def all(self) -> Any:
        """All slices as one."""
        return reduce(lambda one, other: one.unionByName(other), (self._spark.table(name) for name in self._names))

    def forget(self) -> None:
        """Free what was kept. If Spark is gone, so is what it kept."""
        from pyspark.errors import PySparkException

        names, self._names = self._names, []
        try:
            for name in names:
                self._spark.catalog.uncacheTable(name)
                self._spark.catalog.dropTempView(name)
        except (PySparkException, OSError) as error:
            log.warning("Spark did not forget the report's slices: %s", str(error)[:200])

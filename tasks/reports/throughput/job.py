"""The job of the report: read slice by slice, show what is known, then the exact rest.

Messages are read from the brokers once. Each slice is kept by Spark (columns of the report only) while it is counted by minute,
and the counts so far are shown; sizes and keys, which do not add up from parts, come at the end from what Spark kept.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tasks.reports.context import Context, ReportFailed, Result
from tasks.reports.kept import Kept
from tasks.reports.slices import read_in_slices
from tasks.reports.sources import sources
from tasks.reports.throughput import read, transforms, write
from tasks.reports.throughput.minutes import Minutes, TooMany
from tasks.reports.throughput.summary import Counted, Coverage, summary
from tasks.spark.meter import MeterReceiver


def run(context: Context) -> Result:
    """Make the report; raises RunCancelled, ReportFailed, or what Spark and the cluster raise."""
    context.progress.say("asking the brokers how much there is to read")
    ranges, coverage = read.find(context.controllers, context.parameters, context.as_of_ms)
    total = sum(each.size for each in ranges)
    if not total:
        write.write_parquet(context.result_path, Minutes())
        return Result([], summary(coverage, Counted(0, 0)))
    minutes = Minutes()
    kept = Kept(context)
    try:
        with MeterReceiver() as meter:
            context.progress.expect_rows(total, lambda: meter.totals()[0])
            count = partial(_count_slice, context, kept, minutes)
            read_in_slices(context, ranges, transforms.COLUMNS, meter, count)
            told = sources(minutes.messages, meter.rows_from)
        result = _finish(context, kept, minutes, coverage, total)
        return Result(result.rows, [*result.summary, *told])
    except TooMany as error:
        raise ReportFailed(f"The report would have {error}.") from error
    finally:
        kept.forget()


def _count_slice(context: Context, kept: Kept, minutes: Minutes, frame: Any) -> None:
    messages = kept.keep(frame)
    changed = minutes.add(context.collect(transforms.per_minute(messages)))
    # beyond the cap the newest are shown in the end; until then the first ones are
    shown = changed if len(minutes.counts) <= write.MOST_ROWS else []
    context.publish(write.minute_rows(minutes, shown))


def _finish(context: Context, kept: Kept, minutes: Minutes, coverage: Coverage, total: int) -> Result:
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

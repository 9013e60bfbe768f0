"""Reading a report's messages slice by slice, so that something is shown early and again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from tasks.reports import reading
from tasks.reports.context import Context
from tasks.spark.meter import MeterReceiver
from tasks.spark.planning import QueueRange, part


def read_in_slices(
    context: Context,
    ranges: Sequence[QueueRange],
    columns: Sequence[str],
    meter: MeterReceiver,
    take: Callable[[Any], None],
    of_what: str = "messages",
) -> None:
    """Hand the messages of these ranges to `take`, as one DataFrame after another."""
    total = sum(each.size for each in ranges)
    begun = time.monotonic()
    position, rows, number = 0, reading.FIRST_SLICE, 1
    while position < total:
        started = time.monotonic()
        end = min(position + rows, total)
        name = f"slice {number}"
        context.progress.enter(name)
        context.progress.say(f"reading {name}: {of_what} {position + 1:,} to {end:,} of {total:,}")
        context.check()
        if wanted := part(ranges, position, end):
            address = (meter.address, meter.token)
            take(reading.frame(context.spark, context.controllers, wanted, columns, address))
        now = time.monotonic()
        rows = reading.next_slice(rows, now - started, now - begun)
        position, number = end, number + 1

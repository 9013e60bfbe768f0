"""Queue-offset ranges -> the partitions of a read (pure)

A task costs some 30 ms before it reads anything, so small queues share one; a large queue is cut. Together the partitions cover
each range exactly once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class QueueRange(NamedTuple):
    """The messages [start, end) of one queue of one broker group."""

    topic: str
    broker_name: str
    queue_id: int
    start: int
    end: int

    @property
    def size(self) -> int:
        """How many messages that is."""
        return self.end - self.start


def plan(ranges: Sequence[QueueRange], min_partitions: int, max_records: int) -> list[list[QueueRange]]:
    """Partitions of about equal size: `min_partitions` if there are as many messages, more where needed for `max_records`."""
    assert min_partitions >= 1 <= max_records, (min_partitions, max_records)
    filled = [each for each in ranges if each.size > 0]
    total = sum(each.size for each in filled)
    if total == 0:
        return []
    size = min(max_records, -(-total // min(min_partitions, total)))
    partitions: list[list[QueueRange]] = []
    room = 0
    for each in sorted(filled):
        start = each.start
        while start < each.end:
            if room == 0:
                partitions.append([])
                room = size
            end = min(each.end, start + room)
            partitions[-1].append(each._replace(start=start, end=end))
            room -= end - start
            start = end
    return partitions


def part(ranges: Sequence[QueueRange], start: int, end: int) -> list[QueueRange]:
    """Of all messages together those from the `start`-th to before the `end`-th, taken evenly from every range.

    Queues fill side by side, so parts in order are about in the order of time. Parts that follow one another cover every
    message once.
    """
    total = sum(each.size for each in ranges)
    assert 0 <= start <= end <= total, (start, end, total)
    if total == 0:
        return []
    found = [
        each._replace(start=each.start + each.size * start // total, end=each.start + each.size * end // total)
        for each in ranges
    ]
    return [each for each in found if each.size > 0]

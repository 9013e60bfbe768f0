"""Where a group that asks for the end starts: a young queue is read from its first message, and one in the tier is not young."""

from __future__ import annotations

import pytest

from brokerd.metadata.start_offsets import InitMode, StartOffsets

LOG_END, RECENT_BYTES = 1000, 100


class Queue:
    """A queue that can be read from its begin on, whose first message is where `first` says in the log, None: not in files."""

    def __init__(self, first: int | None, end: int) -> None:
        self.first = first
        self.end = end

    def min_offset(self, topic: str, queue_id: int) -> int:
        return 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        return self.end

    def read_units(self, topic: str, queue_id: int, queue_offset: int, count: int) -> list[tuple[int, int, int]]:
        return [] if self.first is None else [(self.first, 100, 0)]


@pytest.mark.parametrize(
    ("first", "end", "starts_at"),
    [(None, 0, 0), (950, 5, 0), (200, 5, 4), pytest.param(None, 5, 4, id="in the tier alone")],
)
def test_the_first_message_counts_when_it_is_recent(first: int | None, end: int, starts_at: int) -> None:
    starts = StartOffsets(Queue(first, end), lambda: LOG_END, RECENT_BYTES)
    assert starts.first_offset("T", 0, InitMode.MAX) == starts_at
    assert starts.first_offset("T", 0, InitMode.MIN) == 0

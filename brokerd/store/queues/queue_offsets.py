"""The next queue offset of every (topic, queue id): what an append numbers its messages with.

Owned by the event loop's thread. A number is taken only by a message that is in the log: the appender reads the next offsets,
appends, and then stores them back with `advance`, so a failed append leaves no hole. After a start or a role change the table is
rebuilt from the consume queues and the part of the log that is not dispatched yet (those numbers are taken too).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from brokerd.store.derived.derive import Entry

QueueKey = tuple[str, int]


class QueueOffsets:
    """`table` may be read directly: `table.get((topic, queue_id), 0)`."""

    __slots__ = ("table",)

    def __init__(self) -> None:
        self.table: dict[QueueKey, int] = {}

    def next(self, topic: str, queue_id: int) -> int:
        return self.table.get((topic, queue_id), 0)

    def advance(self, next_offsets: Mapping[QueueKey, int]) -> None:
        """Store what comes next in the queues that an append wrote to."""
        self.table.update(next_offsets)

    def rebuild(self, max_offsets: Mapping[QueueKey, int]) -> None:
        """Start over from the ends of the consume queues; then `take` what the log holds behind them."""
        self.table = dict(max_offsets)

    def take(self, entries: Iterable[Entry]) -> None:
        """Count entries of the log, in log order. Offset 0 starts a queue again: its topic was deleted before."""
        table = self.table
        for topic, queue_id, queue_offset, _, _, _, _, count in entries:
            key = (topic, queue_id)
            table[key] = max(table.get(key, 0), queue_offset + count) if queue_offset else count

    def forget(self, topic: str) -> None:
        """The topic is deleted: its queues start at 0 again."""
        for key in [key for key in self.table if key[0] == topic]:
            del self.table[key]

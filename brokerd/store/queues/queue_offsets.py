"""The next queue offset of every (topic, queue id): what an append numbers its messages with.

Owned by the event loop's thread, written by the store alone. A number is taken only by a message that is in the log: who lays out
records takes numbers from a view (`TakenOffsets`), and the store stores the view back with `advance` when they are appended, so a
failed append leaves no hole. After a start or a role change the table is rebuilt from the consume queues and the part of the log
that is not dispatched yet (those numbers are taken too).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from brokerd.store.log.derive import Entry

QueueKey = tuple[str, int]


class TakenOffsets(dict[QueueKey, int]):
    """What comes next in the queues, with numbers taken that are not stored yet: those are the items, the table has the others.

    `taken[key]` is the next number, `taken[key] = number + 1` takes it.
    """

    __slots__ = ("_table",)

    def __init__(self, table: Mapping[QueueKey, int]) -> None:
        self._table = table

    def __missing__(self, key: QueueKey) -> int:
        return self._table.get(key, 0)

    def next_of(self, keys: Iterable[QueueKey]) -> list[int]:
        """`self[key]` of each."""
        if self:
            return [self[key] for key in keys]
        get = self._table.get
        return [get(key, 0) for key in keys]


class QueueOffsets:
    """`table` has what comes next in each queue that is not at 0; for reading."""

    __slots__ = ("table",)

    def __init__(self) -> None:
        self.table: dict[QueueKey, int] = {}

    def next(self, topic: str, queue_id: int) -> int:
        return self.table.get((topic, queue_id), 0)

    def taking(self) -> TakenOffsets:
        """A view to take numbers from, for `advance` or to be dropped."""
        return TakenOffsets(self.table)

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

"""What is seen of a batch that is a row of a block (pure).

It has no state: what can change is read from the row and written to it, so two of one batch never differ, and one that somebody
keeps while the batch ends sees that it has ended. What never changes is read once. Rows move, so the place of its row is checked
each time, and looked for again when another row is there.
"""

from __future__ import annotations

from typing import Protocol

from brokerd.pop.batch import NEVER_MS, Batch, Queue
from brokerd.pop.blocks import (
    ACKED,
    DUE,
    FLAGS,
    GROUP,
    GROUPED,
    INT64,
    LEASE_END,
    NAMED,
    ONCE,
    ORDERED,
    REMAINING,
    ROW,
    ROW_BYTES,
    TAG,
    TIMER,
    UINT32,
    UINT64,
    Block,
)


class Home(Protocol):
    """Where the rows are."""

    @property
    def queue(self) -> Queue: ...

    def find(self, pop_time_ms: int) -> tuple[Block, int] | None:
        """The block and the number of a row that is open or remembered."""

    def client_id(self, number: int) -> str: ...

    def attempt_id(self, pop_time_ms: int) -> str: ...

    def changes(self, block: Block) -> None:
        """A row of the block is about to change in what snapshots hold."""


class PackedBatch(Batch):
    """Equal to whatever else is seen of the same batch."""

    __slots__ = (
        "_block",
        "_home",
        "_number",
        "attempt_id",
        "client_id",
        "count",
        "counts",
        "first",
        "groups",
        "invisible_time_ms",
        "ordered",
        "pop_time_ms",
        "queue",
        "tag",
    )

    distances = None

    def __init__(self, home: Home, block: Block, number: int) -> None:
        self._home = home
        self._block = block
        self._number = number
        self.queue = home.queue
        self.pop_time_ms = pop_time_ms = block.times[number]
        found = ROW.unpack_from(block.rows, number * ROW_BYTES)
        self.first, self.invisible_time_ms, self.tag, group, _, _, _, client, deliveries, _, _, count, flags = found
        self.count = count
        self.counts = None if deliveries == ONCE else [deliveries] * count
        self.groups = [group] if flags & GROUPED else None
        self.ordered = bool(flags & ORDERED)
        self.client_id = home.client_id(client) if client else ""
        self.attempt_id = home.attempt_id(pop_time_ms) if flags & NAMED else ""

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, PackedBatch):
            return False
        return self.pop_time_ms == other.pop_time_ms and self.queue is other.queue

    def __hash__(self) -> int:
        return self.pop_time_ms

    @property
    def block(self) -> Block | None:
        """Where its row is; None when it is gone."""
        return self._block if self._at() >= 0 else None

    def mark(self, tag: int, acked: int) -> None:
        at = self._at()
        assert at >= 0
        self._home.changes(self._block)
        UINT64.pack_into(self._block.rows, at + TAG, tag)
        UINT32.pack_into(self._block.rows, at + ACKED, acked)
        self.tag = tag

    def know_group(self, group: int) -> None:
        """The message group of its only message."""
        at = self._at()
        assert at >= 0
        assert self.count == 1
        self._home.changes(self._block)
        UINT64.pack_into(self._block.rows, at + GROUP, group)
        self._block.rows[at + FLAGS] |= GROUPED
        self.groups = [group]

    # ---- what changes

    @property
    def remaining(self) -> int:
        at = self._at()
        found: int = UINT32.unpack_from(self._block.rows, at + REMAINING)[0] if at >= 0 else 0
        return found

    @remaining.setter
    def remaining(self, mask: int) -> None:
        self._set_mask(REMAINING, mask)

    @property
    def acked(self) -> int:
        at = self._at()
        found: int = UINT32.unpack_from(self._block.rows, at + ACKED)[0] if at >= 0 else 0
        return found

    @acked.setter
    def acked(self, mask: int) -> None:
        self._set_mask(ACKED, mask)

    @property
    def due_ms(self) -> int:
        return self._time(DUE)

    @due_ms.setter
    def due_ms(self, due_ms: int) -> None:
        self._set_time(DUE, due_ms)

    @property
    def timer_ms(self) -> int:
        return self._time(TIMER)

    @timer_ms.setter
    def timer_ms(self, timer_ms: int) -> None:
        self._set_time(TIMER, timer_ms)

    @property
    def lease_end_ms(self) -> int:
        return self._time(LEASE_END)

    @lease_end_ms.setter
    def lease_end_ms(self, lease_end_ms: int) -> None:
        self._set_time(LEASE_END, lease_end_ms)

    # ---- inside

    def _at(self) -> int:
        """Where its row begins in the block; -1 when it is gone."""
        number, times = self._number, self._block.times
        if number >= len(times) or times[number] != self.pop_time_ms:
            found = self._home.find(self.pop_time_ms)
            if found is None:
                return -1
            self._block, self._number = found
            number = found[1]
        return number * ROW_BYTES

    def _set_mask(self, field: int, mask: int) -> None:
        at = self._at()
        if at >= 0:
            self._home.changes(self._block)
            UINT32.pack_into(self._block.rows, at + field, mask)

    def _time(self, field: int) -> int:
        at = self._at()
        found: int = INT64.unpack_from(self._block.rows, at + field)[0] if at >= 0 else NEVER_MS
        return found

    def _set_time(self, field: int, time_ms: int) -> None:
        at = self._at()
        if at >= 0:
            INT64.pack_into(self._block.rows, at + field, time_ms)

"""Which transactions are open (pure): a function of the half topic and the op topic, in the order of the log.

A half message opens a transaction, one that takes its place moves it, an op record that names it closes it. So a half message
below `next_offset` that is not in the table is done, and needs no memory. Owned by the transaction service.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from brokerd.transactions.records import EndedAs, Half

_MAX_ENDED: Final = 10_000


class Ended(NamedTuple):
    """What became of a transaction, and where in the log that stands."""

    ended_as: EndedAs
    end_offset: int


class OpenTransactions:
    """`start` is the queue offset from which on half messages were looked at; everything before it is done, or has a successor
    behind it."""

    def __init__(self) -> None:
        self.restart(0)

    def restart(self, start: int) -> None:
        """Forget everything; the first half message to come is at or behind that queue offset."""
        self.start = self.next_offset = start
        self.size_bytes = 0
        # By the queue offset of the first half message, in the order of the present ones
        self._open: dict[int, Half] = {}
        self._moved: dict[int, int] = {}  # the present queue offset -> the first
        self._by_key: dict[str, int] = {}  # the unique key -> the first queue offset
        # The last ones that ended, by the queue offset of any of their half messages: who asks again is told the same
        self._ended: dict[int, Ended] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Half]:
        """Oldest present half message first. The table may change meanwhile only through a copy."""
        return iter(self._open.values())

    @property
    def oldest(self) -> Half | None:
        """The one whose present half message comes first."""
        return next(iter(self._open.values()), None)

    @property
    def longest_open(self) -> Half | None:
        """The one that began first."""
        return self._open[min(self._open)] if self._open else None

    @property
    def done_before(self) -> int:
        """Every half message below this queue offset is done, or has a successor."""
        oldest = self.oldest
        return self.next_offset if oldest is None else oldest.queue_offset

    def get(self, first: int) -> Half | None:
        return self._open.get(first)

    def find(self, half: Half) -> Half | None:
        """The open transaction that a half message belongs to, or belonged to before another took its place."""
        found = self._open.get(half.first)
        if found is None:
            first = self._moved.get(half.queue_offset)
            found = None if first is None else self._open.get(first)
        return found

    def ended(self, half: Half) -> Ended | None:
        """What became of the transaction of a half message; None when it is open, or that is not known any more."""
        return self._ended.get(half.first) or self._ended.get(half.queue_offset)

    def apply_half(self, half: Half) -> None:
        """A half message is in the log."""
        if half.queue_offset < self.next_offset:
            return
        if half.queue_offset > self.next_offset:
            self._begin_later(half.queue_offset)
        self.next_offset = half.queue_offset + 1
        if half.is_successor:
            placed = self._in_its_place(half)
            if placed is None:
                return
            half = placed
        self._open[half.first] = half
        self.size_bytes += half.size
        if half.first != half.queue_offset:
            self._moved[half.queue_offset] = half.first
        if half.unique_key:
            self._by_key[half.unique_key] = half.first

    def apply_done(self, queue_offsets: Sequence[int], ended_as: EndedAs | None = None, end_offset: int = 0) -> None:
        """An op record that ends at `end_offset` is in the log: it names present half messages, or first ones, and perhaps what
        became of their transactions."""
        for offset in queue_offsets:
            self._close(self._moved.get(offset, offset))
            if ended_as is not None:
                self._ended[offset] = Ended(ended_as, end_offset)
        while len(self._ended) > _MAX_ENDED:
            del self._ended[next(iter(self._ended))]

    def begun_by(self, half: Half, now_ms: int) -> Half:
        """The open transaction as one that began no later than now.

        When it began was written by a clock. Should that have been ahead (another master's, or this one's before it was set
        back), its producer would be left unasked for so much longer: no longer than it wants from now on is right whatever the
        clocks say.
        """
        if half.since_ms <= now_ms:
            return half
        begun = self._open[half.first] = half._replace(since_ms=now_ms)
        return begun

    def _begin_later(self, queue_offset: int) -> None:
        """The log has no half messages before that one: it was copied from the middle of another broker's. Of what they began,
        only what has a successor here may be open, and no memory of it is no sign that it has ended."""
        self.start = queue_offset

    def _in_its_place(self, half: Half) -> Half | None:
        """Close the place that the half message takes, and return the half message as one of that transaction, which began when
        it did. None when the transaction has ended."""
        if half.first != half.queue_offset:
            before = self._close(half.first)
            if before is None:
                return half if half.first < self.start else None
        else:
            # A broker of the original names no predecessor when it has a message checked.
            known = self._by_key.get(half.unique_key)
            before = None if known is None else self._close(known)
            if before is None:
                return half
        return half._replace(first=before.first, since_ms=min(before.since_ms, half.since_ms))

    def _close(self, first: int) -> Half | None:
        half = self._open.pop(first, None)
        if half is None:
            return None
        self.size_bytes -= half.size
        self._moved.pop(half.queue_offset, None)
        if self._by_key.get(half.unique_key) == first:
            del self._by_key[half.unique_key]
        return half

"""Rows of batches, packed into blocks: how a batch looks in memory (pure).

What is in flight may be a million messages, taken one by one; as objects they cost 600 bytes each. So a batch whose offsets
follow one another, whose messages were delivered equally often and that has one message where it knows groups, is a row of 74
bytes, and its pop time beside it in an array that is sorted, to be found by bisection. A block has up to `ROWS` of them.

A row is open while something of it is unfinished (`REMAINING`), then it is gone, unless it is remembered (`REMEMBERED`). Rows
that are gone stay until half of the block is; then the others move together. So nobody keeps the number of a row: a batch is
named by its pop time.

What many rows would need an entry for each of is kept for the block: the ledger's timers have one for its earliest timer. Rows
whose timers are not behind `looked_to_ms` are in `near`, (timer, pop time) ascending, with some that are outdated; `later_ms` is
not later than the timer of any other open row. `lowest` is not above any unfinished offset. While the offsets of a block ascend
as its pop times do, which they do unless messages come again, `head` is its first row that may be open, and nothing has to be
looked for.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from brokerd.pop.batch import NEVER_MS

ROWS: Final = 256

ROW: Final = Struct("<qqQQqqqIIIIBB")
ROW_BYTES: Final = ROW.size
# where in a row, behind its first offset and its invisible time
TAG: Final = 16
GROUP: Final = TAG + 8
DUE: Final = GROUP + 8
TIMER: Final = DUE + 8
LEASE_END: Final = TIMER + 8
CLIENT: Final = LEASE_END + 8
REMAINING: Final = CLIENT + 8  # behind the client and the deliveries
ACKED: Final = REMAINING + 4
FLAGS: Final = ROW_BYTES - 1

ORDERED: Final = 1
GROUPED: Final = 2
REMEMBERED: Final = 4
NAMED: Final = 8  # it has an attempt id

INT64: Final = Struct("<q")
UINT64: Final = Struct("<Q")
UINT32: Final = Struct("<I")
ONCE: Final = 0xFFFF_FFFF  # deliveries of what was delivered for the first time, and says nothing of it

_OFFSETS: Final = Struct("<q56xI6x")  # first, remaining
TIMERS: Final = Struct("<40xq16xI6x")  # timer, remaining
WAITING: Final = Struct("<q32xq12xII6x")  # first, timer, deliveries, remaining
STATE: Final = Struct("<40xq8xIIIIBB")  # timer, client, deliveries, remaining, acked, count, flags
_TIMES: Final = Struct("<8xq16xqqqI4xI6x")  # invisible time, due, timer, lease end, client, remaining
_LIVE: Final = Struct("<64xI5xB")  # remaining, flags
_FIRING: Final = Struct("<qq24xq8xIII5xB")  # first, invisible time, timer, client, deliveries, remaining, flags

DueRow = tuple[int, int, int, int]  # pop time, first offset, remaining, deliveries


class Resumed(NamedTuple):
    """When this broker became the master, and what leases are given then, as `PopLedger.resume` says."""

    now_ms: int
    lease_grace_ms: int
    inherited_lease_ms: int

    def times(self, due_ms: int, invisible_time_ms: int, lease_end_ms: int, *, is_lease: bool) -> tuple[int, int]:
        """When a batch from before is due, and when its lease ends."""
        due_ms = min(due_ms, self.now_ms + max(0, invisible_time_ms))
        if is_lease:
            return max(due_ms, self.now_ms + self.lease_grace_ms), self.now_ms + self.inherited_lease_ms
        return due_ms, lease_end_ms


class Fired(NamedTuple):
    """What of a block is due: `rows` that are nothing but a batch which comes again, as no client leases it, no message group
    waits for it, and it does not leave; the pop times of the `others`; and how many messages all of them have."""

    rows: list[DueRow]
    others: list[int]
    messages: int


class Block:
    """Rows of one queue. `live` of them are open or remembered. Its times are of the mastership that began with `resumed`."""

    __slots__ = (
        "end_offset",
        "head",
        "is_ascending",
        "later_ms",
        "live",
        "looked_to_ms",
        "lowest",
        "near",
        "queue_number",
        "resumed",
        "rows",
        "times",
    )

    def __init__(self, queue_number: int, resumed: Resumed | None) -> None:
        self.queue_number = queue_number
        self.resumed = resumed
        self.times = array("q")
        self.rows = bytearray()
        self.clear()

    def clear(self) -> None:
        """No row is left."""
        del self.times[:]
        del self.rows[:]
        self.live = 0
        self.look_again(NEVER_MS)
        self.lowest = NEVER_MS
        self.is_ascending = True
        self.head = 0
        self.end_offset = -1  # behind the last message of any row

    def copy(self) -> Block:
        """Its rows as they are now, for who only reads them."""
        block = Block(self.queue_number, self.resumed)
        block.times, block.rows = self.times[:], self.rows[:]
        return block

    def add(self, pop_time_ms: int, row: bytes, first: int, end: int) -> None:
        """One more; usually it is the latest."""
        times = self.times
        self.live += 1
        if not times or pop_time_ms > times[-1]:
            times.append(pop_time_ms)
            self.rows += row
            if first < self.end_offset:
                self.is_ascending = False
        else:
            number = bisect_left(times, pop_time_ms)
            assert times[number] != pop_time_ms
            times.insert(number, pop_time_ms)
            self.rows[number * ROW_BYTES : number * ROW_BYTES] = row
            self.is_ascending = False
        if end > self.end_offset:
            self.end_offset = end

    def find(self, pop_time_ms: int) -> int:
        """The number of the row, -1 when there is none."""
        times = self.times
        number = bisect_left(times, pop_time_ms)
        return number if number < len(times) and times[number] == pop_time_ms else -1

    def remaining(self, number: int) -> int:
        found: int = UINT32.unpack_from(self.rows, number * ROW_BYTES + REMAINING)[0]
        return found

    def tighten(self) -> None:
        """Move the live rows together."""
        rows, times = self.rows, self.times
        kept = [number for number, (rest, flags) in enumerate(_LIVE.iter_unpack(rows)) if rest or flags & REMEMBERED]
        self.times = array("q", [times[number] for number in kept])
        self.rows = bytearray().join(rows[number * ROW_BYTES : (number + 1) * ROW_BYTES] for number in kept)
        self.head = 0

    def lowest_unfinished(self) -> int | None:
        """The lowest unfinished offset; None without any."""
        if not self.is_ascending:
            found = [first + (rest & -rest).bit_length() - 1 for first, rest in _OFFSETS.iter_unpack(self.rows) if rest]
            return min(found, default=None)
        for number in self.open_rows():
            first, rest = _OFFSETS.unpack_from(self.rows, number * ROW_BYTES)
            lowest: int = first + (rest & -rest).bit_length() - 1
            return lowest
        return None

    def open_rows(self) -> Iterator[int]:
        """The open rows by their lowest unfinished offset. Nothing may change meanwhile."""
        if not self.is_ascending:
            offsets = [
                (first + (rest & -rest).bit_length() - 1, number)
                for number, (first, rest) in enumerate(_OFFSETS.iter_unpack(self.rows))
                if rest
            ]
            yield from (number for _, number in sorted(offsets))
            return
        while self.head < len(self.times) and not self.remaining(self.head):
            self.head += 1
        for number in range(self.head, len(self.times)):
            if self.remaining(number):
                yield number

    # ---- timers

    @property
    def earliest_ms(self) -> int:
        """Not later than the timer of any open row."""
        return self.near[0][0] if self.near else self.later_ms

    def look_again(self, at_ms: int) -> None:
        """The timers of the rows are not known until somebody looks."""
        self.near: list[tuple[int, int]] = []
        self.later_ms = at_ms
        self.looked_to_ms = 0

    def look(self, to_ms: int) -> None:
        """Know the timers up to a time, and the first one behind it."""
        near, later_ms = [], NEVER_MS
        for (timer_ms, rest), pop_time_ms in zip(TIMERS.iter_unpack(self.rows), self.times, strict=True):
            if not rest or timer_ms >= NEVER_MS:
                continue
            if timer_ms <= to_ms:
                near.append((timer_ms, pop_time_ms))
            elif timer_ms < later_ms:
                later_ms = timer_ms
        near.sort()
        self.near, self.later_ms, self.looked_to_ms = near, later_ms, to_ms

    def note_timer(self, pop_time_ms: int, timer_ms: int) -> None:
        """The timer of a row was set."""
        if timer_ms <= self.looked_to_ms:
            insort(self.near, (timer_ms, pop_time_ms))
        elif timer_ms < self.later_ms:
            self.later_ms = timer_ms

    def fire(self, now_ms: int, limit: int) -> Fired:
        """The near rows that are due, with `limit` messages or a few more; their timers are off then."""
        due: list[DueRow] = []
        others: list[int] = []
        rows = self.rows
        passed = messages = 0
        number = -1
        for timer_ms, pop_time_ms in self.near:
            if timer_ms > now_ms or messages >= limit:
                break
            passed += 1
            number = self._behind(number, pop_time_ms)
            if number < 0:
                continue
            at = number * ROW_BYTES
            first, invisible_ms, set_ms, client, deliveries, rest, flags = _FIRING.unpack_from(rows, at)
            if set_ms != timer_ms or not rest:
                continue
            INT64.pack_into(rows, at + TIMER, NEVER_MS)
            messages += rest.bit_count()
            if client or flags & GROUPED or invisible_ms < 0 or not deliveries:
                others.append(pop_time_ms)
            else:
                due.append((pop_time_ms, first, rest, 1 if deliveries == ONCE else deliveries))
        del self.near[:passed]
        return Fired(due, others, messages)

    def number_timers(self, due: Sequence[DueRow], first: int) -> None:
        """Set the timers of rows, each one more than the one before."""
        number = -1
        for timer_ms, (pop_time_ms, _, _, _) in enumerate(due, first):
            number = self._behind(number, pop_time_ms)
            INT64.pack_into(self.rows, number * ROW_BYTES + TIMER, timer_ms)

    def first_held(self) -> int | None:
        """The earliest pop time of a row that is open and does not wait to be taken again; None without any."""
        for number, (timer_ms, rest) in enumerate(TIMERS.iter_unpack(self.rows)):
            if rest and timer_ms <= NEVER_MS:
                return self.times[number]
        return None

    def resume(self, resumed: Resumed | None) -> None:
        """The times of the rows are those of a new mastership from now on."""
        self.resumed = resumed
        if resumed is None:
            return
        rows = self.rows
        for number, (invisible_ms, due_ms, timer_ms, lease_end_ms, client, rest) in enumerate(
            list(_TIMES.iter_unpack(rows))
        ):
            if rest:
                new_due_ms, new_end_ms = resumed.times(due_ms, invisible_ms, lease_end_ms, is_lease=bool(client))
                if (new_due_ms, new_due_ms, new_end_ms) != (due_ms, timer_ms, lease_end_ms):
                    at = number * ROW_BYTES
                    INT64.pack_into(rows, at + DUE, new_due_ms)
                    INT64.pack_into(rows, at + TIMER, new_due_ms)
                    INT64.pack_into(rows, at + LEASE_END, new_end_ms)

    # ---- inside

    def _behind(self, number: int, pop_time_ms: int) -> int:
        """As `find`, for what is usually right behind the row of that number."""
        number += 1
        times = self.times
        return number if number < len(times) and times[number] == pop_time_ms else self.find(pop_time_ms)

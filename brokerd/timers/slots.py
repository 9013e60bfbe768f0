"""How many timers are due in each second, for a limit that an owner may set (pure).

What is in the timer topic's queue is counted by its entries: what was there before in slices, what comes as it is dispatched. An
entry counts in the second that it says, so one that is appended again on its way counts in the second of that. What was laid out
and is not dispatched yet is counted by who lays it out, with the queue offset that it gets; whoever gets the same offset later
says that it was never appended. Replicas count, too, so that the next master knows at once; who is not done with what was there
before (`is_behind`) takes nothing, as there may be no room for it.

A timer that is farther ahead than the window says in its entry when its first leg ends, so the second in which it is due is
counted by whoever takes it, and kept until that second. It is known of such seconds what this broker took since it became the
master, or since the cursor went back: then all is counted again.

What is in the tier counts as well (`tier_slots.py`).

A second takes 4 bytes where others of its quarter of an hour have timers, too.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import compress
from operator import not_
from typing import Final, Protocol

from brokerd.store.unit import Unit
from brokerd.timers.codes import RECALL, SLOT_MS, due_of, encode_code, key_of, kind_of, slot_of
from brokerd.timers.done import Done
from brokerd.timers.rolling import Wait

_PAGE_BITS: Final = 10
_PAGE_SLOTS: Final = 1 << _PAGE_BITS
_PAGE_BYTES: Final = 4 * _PAGE_SLOTS
_MOST_PAGES: Final = 1 << 14  # of each kind: 64 MB, half a year of seconds that all have timers
_SCANNED_AT_ONCE: Final = 8192
_KIND_BITS: Final = 2


class SlotCounts:
    """A count for each slot (`codes.slot_of`). Where too many seconds have one, others have none."""

    def __init__(self) -> None:
        self._pages: dict[int, array[int]] = {}
        self._first = 0  # pages below are gone

    def of(self, slot_ms: int) -> int:
        second = slot_ms // SLOT_MS
        page = self._pages.get(second >> _PAGE_BITS)
        return 0 if page is None else page[second & _PAGE_SLOTS - 1]

    def add(self, slot_ms: int, count: int) -> None:
        """A negative count takes off what was added before."""
        second = slot_ms // SLOT_MS
        number, inside = second >> _PAGE_BITS, second & _PAGE_SLOTS - 1
        page = self._pages.get(number)
        if page is None:
            if count <= 0 or number < self._first or len(self._pages) >= _MOST_PAGES:
                return
            page = self._pages[number] = array("I", bytes(_PAGE_BYTES))
        page[inside] = max(0, page[inside] + count)

    def forget_before(self, slot_ms: int) -> None:
        """Those slots are over."""
        first = slot_ms // SLOT_MS // _PAGE_SLOTS
        if first > self._first:
            self._first = first
            self._pages = {number: page for number, page in self._pages.items() if number >= first}


class TierCounts(Protocol):
    """What waits in the tier, by slot."""

    def most_of(self, slot_ms: int) -> int:
        """How many timers of that slot are there; as long as it `is_unsure`, how many may be."""

    @property
    def is_unsure(self) -> bool: ...

    def forget_before(self, slot_ms: int) -> None:
        """Those slots are over."""


class NoTierCounts:
    """Nothing is in the tier."""

    is_unsure = False

    def most_of(self, slot_ms: int) -> int:
        return 0

    def forget_before(self, slot_ms: int) -> None:
        """There is none."""


# What was laid out, and is not dispatched yet: its queue offset, its slot, whether it has a leg, and the code of its entry
_Taken = tuple[int, int, bool, int]
_OFFSET: Final = 0
_SLOT_MS: Final = 1


class SlotLimit:
    """The counts of a broker, as far as there is a limit. `queue_range` and `read_units` are of the timer topic's queue, `done()`
    says what of it is done with, and `undispatched()` what the log holds for it behind its end: the codes of the entries."""

    def __init__(
        self,
        most: Callable[[], int],
        queue_range: Callable[[], tuple[int, int]],
        read_units: Callable[[int, int], Sequence[Unit]],
        done: Callable[[], Done],
        undispatched: Callable[[], Sequence[int]],
        tier: TierCounts | None = None,
    ) -> None:
        """`most()` is how many timers may be due in a slot, as it is now; 0: any number."""
        self._most = most
        self._queue_range = queue_range
        self._read_units = read_units
        self._done = done
        self._undispatched = undispatched
        self._tier: TierCounts = NoTierCounts() if tier is None else tier
        self.begin()

    def begin(self) -> None:
        """Nothing is counted yet."""
        self._waiting, self._legs = SlotCounts(), SlotCounts()
        self._taken: deque[_Taken] = deque()
        self._ahead: dict[int, int] = {}  # by slot, what is taken and has no leg
        self._counted: int | None = None  # entries below that queue offset are; None: there was no limit
        self._seen = self._done()  # when it was looked at last

    def lead(self) -> None:
        """This broker becomes the master: what its log holds is appended, and what it laid out before is that or was cut."""
        if self.is_set:
            self._let_go(self._taken)
            self._taken.clear()
            self._take_undispatched()

    @property
    def is_set(self) -> bool:
        """Whether there is a limit."""
        is_set, done = self._most() > 0, self._done()
        if self._counted is not None and (not is_set or done.went_back(self._seen)):
            self.begin()  # seconds that were over are ahead once more
        elif self._counted is not None and done.moved > self._seen.moved:
            self._take_off(self._seen, min(done.moved, self._counted))
        self._seen = done
        if is_set and self._counted is None:
            self._counted = self._queue_range()[0]
            self._take_undispatched()
        return is_set

    @property
    def is_behind(self) -> bool:
        """Whether `step` has something to do: until then counts are too low."""
        return self._counted is not None and self._counted < self._queue_range()[1]

    def most(self) -> int:
        """The limit."""
        return self._most()

    def take(self, offset: int, wait: Wait) -> bool:
        """Whether there is room for a timer that is laid out now, with that queue offset: then it counts. There is a limit
        (`is_set` was asked), and all is counted."""
        return self.take_all(offset, (wait.due_ms,), (wait.code,)) == 1

    def take_all(self, offset: int, due_ms: Sequence[int], codes: Sequence[int]) -> int:
        """The same of several, from that queue offset on, which are due at these times and have entries with these codes: how
        many have room, up to the first that has none."""
        gone: list[_Taken] = []
        while self._taken and self._taken[-1][_OFFSET] >= offset:
            gone.append(self._taken.pop())
        self._let_go(gone)
        slots_ms = list(map(slot_of, due_ms))
        has_leg = [code >> _KIND_BITS < due for code, due in zip(codes, due_ms, strict=True)]
        room = self._with_room(slots_ms, has_leg)
        self._taken.extend(zip(range(offset, offset + room), slots_ms, has_leg, codes, strict=False))
        self._count_taken(slots_ms[:room], has_leg[:room], 1)
        return room

    def count(self, slot_ms: int) -> int:
        """How many timers are known to be due then. It is more than there are by those that were recalled, and by what was laid
        out and never appended, until what has its offset is laid out or dispatched."""
        return max(self._without_leg(slot_ms), self._legs.of(slot_ms))

    @property
    def is_unsure(self) -> bool:
        """Whether what has no room may have some once the tier is counted."""
        return self._tier.is_unsure

    def arrived(self, end: int, codes: Sequence[int]) -> None:
        """Entries with these codes were dispatched; the last of them has the queue offset `end - 1`."""
        if not self.is_set:
            return
        begin = end - len(codes)
        gone: list[_Taken] = []
        while self._taken and self._taken[0][_OFFSET] < end:
            offset, _, has_leg, code = taken = self._taken.popleft()
            is_there = offset < begin or codes[offset - begin] == code
            if not (is_there and has_leg):
                gone.append(taken)  # else its second is not what its entry says
        self._let_go(gone)
        if self._counted == begin:
            self._add(codes, self._counted)
        self._forget()

    def step(self) -> bool:
        """Count a portion of what was there before; whether there is more, for further turns."""
        if not self.is_set or self._counted is None:
            return False
        low, end = self._queue_range()
        first = self._counted = max(self._counted, low)
        if first < end:
            units = self._read_units(first, min(_SCANNED_AT_ONCE, end - first))
            self._add([code for _, _, code in units], first)
            if not units:
                return False
        return self.is_behind

    # ---- inside

    def _add(self, codes: Sequence[int], first: int) -> None:
        """Entries from that queue offset on have these codes."""
        done = self._done()
        passed = encode_code(max((done.cursor, *(fence.key for fence in done.fences))).due_ms + 1, 0)
        pending: Iterable[int] = [
            code
            for offset, code in enumerate(codes, first)
            if kind_of(code) != RECALL
            and offset >= done.moved
            and (code >= passed or not done.is_over(key_of(code, offset)))
        ]
        for second, count in Counter(((code >> _KIND_BITS) - 1) // SLOT_MS for code in pending).items():
            self._waiting.add(second * SLOT_MS, count)
        self._counted = first + len(codes)

    def _take_off(self, before: Done, end: int) -> None:
        """Entries up to there were appended again since it was so, before their time: they count by what was appended."""
        first = max(before.moved, self._queue_range()[0])
        units = self._read_units(first, end - first) if first < end else ()
        codes = (code for offset, (_, _, code) in enumerate(units, first) if not before.has(key_of(code, offset)))
        for code in codes:
            if kind_of(code) != RECALL:
                self._waiting.add(slot_of(due_of(code)), -1)

    def _take_undispatched(self) -> None:
        for offset, code in enumerate(self._undispatched(), self._queue_range()[1]):
            if kind_of(code) != RECALL:
                self._taken.append((offset, slot_of(due_of(code)), False, code))
                self._count_taken((self._taken[-1][_SLOT_MS],), (False,), 1)

    def _with_room(self, slots_ms: Sequence[int], has_leg: Sequence[bool]) -> int:
        """How many timers of these slots, from the first on, have room."""
        most = self._most()
        if all(self.count(slot_ms) + more <= most for slot_ms, more in Counter(slots_ms).items()):
            return len(slots_ms)
        before: Counter[tuple[int, bool]] = Counter()
        for room, (slot_ms, leg) in enumerate(zip(slots_ms, has_leg, strict=True)):
            if (
                max(self._without_leg(slot_ms) + before[slot_ms, False], self._legs.of(slot_ms) + before[slot_ms, True])
                >= most
            ):
                return room
            before[slot_ms, leg] += 1
        return len(slots_ms)

    def _without_leg(self, slot_ms: int) -> int:
        return self._waiting.of(slot_ms) + self._ahead.get(slot_ms, 0) + self._tier.most_of(slot_ms)

    def _let_go(self, taken: Collection[_Taken]) -> None:
        """They were never appended, or are counted by their entries from now on."""
        self._count_taken([slot_ms for _, slot_ms, _, _ in taken], [has_leg for _, _, has_leg, _ in taken], -1)

    def _count_taken(self, slots_ms: Sequence[int], has_leg: Sequence[bool], by: int) -> None:
        for slot_ms, count in Counter(compress(slots_ms, has_leg)).items():
            self._legs.add(slot_ms, by * count)
        for slot_ms, count in Counter(compress(slots_ms, map(not_, has_leg))).items():
            ahead = self._ahead.get(slot_ms, 0) + by * count
            if ahead:
                self._ahead[slot_ms] = ahead
            else:
                self._ahead.pop(slot_ms, None)

    def _forget(self) -> None:
        slot_ms = slot_of(max(1, self._done().cursor.due_ms))
        self._waiting.forget_before(slot_ms)
        self._legs.forget_before(slot_ms)
        self._tier.forget_before(slot_ms)

"""Moves the dispatch offset along the log, up to the confirm offset, and tells who waits for messages.

Entries come from the appender, which made them anyway (`offer`), as long as they continue where dispatch stands; otherwise the
log is read back and walked. Both ways give the same entries. Invariant: everything before `dispatch_offset` is in the consume
queues, nothing behind it is, and `dispatch_offset` is a record boundary at or before `confirm_offset`, which is one in the log.
Both only grow, but by a cut or a restart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple, overload

from brokerd.store.log.commitlog import CommitLog
from brokerd.store.log.derive import CodeRules, Derived, Entry, derive_range, not_as_appended
from brokerd.store.log.entry_columns import EntryColumns, of_topic
from brokerd.store.log.laid_out import LaidOut
from brokerd.store.queues.consume_queues import ConsumeQueues
from brokerd.store.queues.queue_offsets import QueueKey
from brokerd.store.queues.round_codes import RoundCodes
from remoting.invariants import monotonic
from remoting.record.walk import Stop

# Offered entries wait for the confirm offset; beyond this many the log is read back instead.
_MAX_OFFERED_ENTRIES = 1 << 16


class Arrival(NamedTuple):
    """Messages that became visible in one queue in one round of dispatch; `tags_codes` are theirs, in order."""

    topic: str
    queue_id: int
    max_offset: int
    tags_codes: list[int]


class Arrivals(Sequence[Arrival]):
    """What became visible in one round of dispatch; `topics` are those that it is of. They are put together when somebody looks:
    of many queues that get messages, hardly one is waited for."""

    __slots__ = ("_codes", "_end_of", "_known", "topics")

    def __init__(self, codes: RoundCodes, end_of: Callable[[QueueKey], int]) -> None:
        """`end_of` says where a queue ends."""
        self._codes = codes
        self._end_of = end_of
        self._known: list[Arrival] | None = None
        self.topics = codes.topics()

    def all(self) -> list[Arrival]:
        """All of them, as they are when that is asked first."""
        if self._known is None:
            end_of = self._end_of
            self._known = [Arrival(*key, end_of(key), codes) for key, codes in self._codes.all().items()]
        return self._known

    def ends(self) -> Sequence[tuple[QueueKey, int]]:
        """Where each queue that got some ends, as it is for `all`, for who does not want to know of what."""
        if self._known is not None:
            return [((each.topic, each.queue_id), each.max_offset) for each in self._known]
        end_of = self._end_of
        return [(key, end_of(key)) for key in self._codes.queues()]

    def awaited(self, is_awaited: Callable[[str], bool]) -> Sequence[Arrival]:
        """Those in the topics for which that is so; it is asked once for each topic."""
        topics = set(filter(is_awaited, self.topics))
        return [each for each in self.all() if each.topic in topics] if topics else ()

    def __len__(self) -> int:
        return len(self._codes.all())

    def __iter__(self) -> Iterator[Arrival]:
        return iter(self.all())

    @overload
    def __getitem__(self, index: int) -> Arrival: ...

    @overload
    def __getitem__(self, index: slice) -> list[Arrival]: ...

    def __getitem__(self, index: int | slice) -> Arrival | list[Arrival]:
        return self.all()[index]


class _Offer(NamedTuple):
    start: int
    entries: Sequence[Entry]
    end: int


@dataclass(slots=True)
class _Kept:
    """Of one topic's queue 0: where records begin and their codes, as offers that end at `end` or before have them."""

    codes: deque[tuple[int, int]]
    end: int = 0


def _split(entries: Sequence[Entry], target: int) -> tuple[Sequence[Entry], Sequence[Entry]]:
    """The entries of records that end at or before the target, and the others; one entry of several records may be cut in two."""
    for index, entry in enumerate(entries):
        _, _, queue_offset, physical_offset, size, tags_code, timestamp, count = entry
        if physical_offset + count * size > target:
            fit = max(0, (target - physical_offset) // size)
            if not fit:
                return entries[:index], entries[index:]
            place = (queue_offset + fit, physical_offset + fit * size)
            rest = (*entry[:2], *place, size, tags_code, timestamp, count - fit)
            return [*entries[:index], (*entry[:7], fit)], [rest, *entries[index + 1 :]]
    return entries, []


class Dispatcher:
    """Makes messages visible up to the confirm offset.

    `listeners` are called with the arrivals of a round, after all of them are visible.
    """

    def __init__(self, commitlog: CommitLog, queues: ConsumeQueues, chunk_bytes: int, rules: CodeRules) -> None:
        self._commitlog = commitlog
        self._queues = queues
        self._chunk_bytes = chunk_bytes
        self._rules = rules
        self._offers: deque[_Offer] = deque()
        self._kept: dict[str, _Kept] = {}  # so that nobody looks at an offer twice
        self._offered_entries = 0
        self.dispatch_offset = self.confirm_offset = commitlog.min_offset
        self.last_timestamp_ms = 0  # of the last message that was dispatched
        self.listeners: list[Callable[[Arrivals], None]] = []

    def offer(self, start: int, entries: Sequence[Entry], end: int) -> None:
        """Hand over the entries of the log range `[start, end)`, which was just appended."""
        self._offers.append(_Offer(start, entries, end))
        self._offered_entries += len(entries)
        if self._offered_entries > _MAX_OFFERED_ENTRIES:
            self._drop_offers()

    def dispatch(self, confirm_offset: int) -> Sequence[Arrival]:
        """Make visible what lies before the confirm offset; reads about one chunk of the log back per call.

        Call again while `dispatch_offset` moves and is behind: a call may move it without an arrival, over records that enter
        no queue. Raises CorruptedFile when the log is not what was appended.
        """
        target = min(confirm_offset, self._commitlog.complete_offset)
        self.confirm_offset = max(self.confirm_offset, target)
        before = self.dispatch_offset
        arrivals = RoundCodes()
        read_back = 0
        while self.dispatch_offset < target:
            offer = self._offers[0] if self._offers else None
            if offer is None or offer.start > self.dispatch_offset:
                moved = self._read_back(target if offer is None else min(target, offer.start), arrivals)
                read_back += moved
                if not moved or read_back >= self._chunk_bytes:
                    break
            elif offer.start < self.dispatch_offset:
                self._take_offer()
            elif offer.end <= target:
                self._take_offer()
                self._apply(offer.entries, arrivals)
                self.dispatch_offset = offer.end
            elif not self._apply_part(offer, target, arrivals):
                break
        dispatched = monotonic(before, self.dispatch_offset, "the dispatch offset")
        assert dispatched <= self.confirm_offset <= self._commitlog.complete_offset, "dispatched what is not confirmed"
        return self._notify(arrivals)

    def restart(self, offset: int) -> None:
        """Stand at a record boundary, with nothing confirmed behind it."""
        self._drop_offers()
        self.dispatch_offset = self.confirm_offset = offset

    def truncate(self, offset: int) -> None:
        """The log was cut at the offset."""
        self._drop_offers()
        self.dispatch_offset = min(self.dispatch_offset, offset)
        self.confirm_offset = min(self.confirm_offset, offset)

    def undispatched(self) -> Iterator[Derived]:
        """What the log holds behind the dispatch offset, record by record, without dispatching it: all of it, since numbers are
        given out by it. Raises CorruptedFile when one of these records is not what was appended."""
        for derived in self._derive(self.dispatch_offset, self._commitlog.complete_offset):
            if derived.stop is not Stop.END:
                raise not_as_appended(derived.end_offset)
            yield derived

    def offered_codes(self, topic: str, start: int) -> list[int] | None:
        """The codes of the entries of queue 0 of a topic for what lies behind `start` and the dispatch offset; None when the
        appender's entries for that are not here any more."""
        begin = max(start, self.dispatch_offset)
        if begin >= self._commitlog.complete_offset:
            return []
        if not self._offers or self._offers[0].start > begin or self._offers[-1].end < self._commitlog.complete_offset:
            return None
        kept = self._kept.setdefault(topic, _Kept(deque()))
        new = list(takewhile(lambda offer: offer.end > kept.end, reversed(self._offers)))
        for offer in reversed(new):
            kept.codes += [
                (entry[3] + n * entry[4], entry[5])
                for entry in of_topic(offer.entries, topic)
                if entry[1] == 0
                for n in range(entry[7])
            ]
        kept.end = self._offers[-1].end
        while kept.codes and kept.codes[0][0] < self.dispatch_offset:
            kept.codes.popleft()
        return [code for physical_offset, code in kept.codes if physical_offset >= begin]

    def _read_back(self, stop: int, arrivals: RoundCodes) -> int:
        """Dispatch one chunk of the log before `stop`; returns how far that went."""
        before = self.dispatch_offset
        for derived in self._derive(before, stop):
            has_nothing = derived.end_offset == before
            if derived.stop is Stop.DAMAGED and has_nothing:
                raise not_as_appended(before)
            if has_nothing and before + derived.needs > self._commitlog.complete_offset:
                raise not_as_appended(before)  # its size is not what it was: all records here are whole
            self._apply(derived.entries, arrivals)
            self.dispatch_offset = derived.end_offset
            break
        return self.dispatch_offset - before

    def _derive(self, start: int, end: int) -> Iterator[Derived]:
        """From records that are what was stored: a unit of a rotten one would deny its message to who asks for its tag."""
        log = self._commitlog
        return derive_range(log.read, start, end, log.shape.checked(), self._chunk_bytes, self._rules)

    def _apply(self, entries: Sequence[Entry], arrivals: RoundCodes) -> None:
        if entries:
            if isinstance(entries, LaidOut):
                self._queues.apply_laid_out(entries, arrivals)
            elif isinstance(entries, EntryColumns):
                self._queues.apply_derived(entries, arrivals)
            else:
                self._queues.apply(entries, arrivals.present())
            self.last_timestamp_ms = entries[-1][6]

    def _apply_part(self, offer: _Offer, target: int, arrivals: RoundCodes) -> bool:
        """Apply the entries of an offer whose records lie wholly before the target; whether there were any."""
        before, behind = _split(offer.entries, target)
        self._take_offer()
        if not before:
            self._offers.appendleft(offer)
            self._offered_entries += len(offer.entries)
            return False
        _, _, _, physical_offset, size, _, _, count = before[-1]
        self.dispatch_offset = physical_offset + count * size
        self._offers.appendleft(_Offer(self.dispatch_offset, behind, offer.end))
        self._offered_entries += len(behind)
        self._apply(before, arrivals)
        return True

    def _take_offer(self) -> None:
        self._offered_entries -= len(self._offers.popleft().entries)

    def _drop_offers(self) -> None:
        self._offers.clear()
        self._kept.clear()
        self._offered_entries = 0

    def _notify(self, arrivals: RoundCodes) -> Sequence[Arrival]:
        if not arrivals:
            return []
        table = self._queues.table
        result = Arrivals(arrivals, lambda key: table[key].max_offset)
        for listener in self.listeners:
            listener(result)
        return result

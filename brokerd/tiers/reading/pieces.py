"""What a fetch brings: entries, and the messages that they name, checked before anybody gets them (pure).

Where a helper thread reads from a disk, it reads both, one behind the other, and checks them: the event loop hears of it once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple

from brokerd.store.log.record_checks import FirstAstray
from brokerd.store.unit import UNIT
from brokerd.tiers.objects.interface import NotThere, Read
from remoting.disk import Bytes
from remoting.tier.contents import Queue
from remoting.tier.names import ENTRY_BYTES
from remoting.tier.segments import Segment

MOST_BYTES: Final = 16 << 20
PART_BYTES: Final = 2 << 20  # of a fetch, at most; each part is given out when it comes, and is an answer in bulk


class Range(NamedTuple):
    """Messages `[first, end)` of a queue's segment."""

    queue: Queue
    first: int
    end: int
    segment: Segment

    @property
    def entries_name(self) -> str:
        return self.segment.entries_name(*self.queue)

    @property
    def messages_name(self) -> str:
        return self.segment.messages_name(*self.queue)

    @property
    def entries_place(self) -> tuple[int, int]:
        """Where their entries begin in the object, and how many bytes they have."""
        return (self.first - self.segment.first) * ENTRY_BYTES, (self.end - self.first) * ENTRY_BYTES

    def whole_entries(self, found: Bytes) -> bytes:
        """Those of as many messages as are fetched at once. Raises NotThere when they cannot be right."""
        entries = bytes(found)
        count = _count_of(entries, self.segment)
        if not count:
            raise NotThere(f"the entries of {self.entries_name} are not what was stored")
        return entries[: count * ENTRY_BYTES]

    def messages_place(self, entries: bytes) -> tuple[int, int]:
        """Where the entries' messages begin in the segment, and how many bytes they have. Raises NotThere as above."""
        begin, length = UNIT.unpack_from(entries)[0], _bytes_of(entries)
        is_long = length > MOST_BYTES and len(entries) > ENTRY_BYTES
        if begin < self.segment.base or not 0 < length <= self.segment.message_end - begin or is_long:
            raise NotThere(f"the entries of {self.entries_name} are not what was stored")
        return begin - self.segment.base, length

    def check(self, first_astray: FirstAstray, content: Bytes, entries: bytes) -> None:
        """Raises NotThere when the content is not the entries' messages as they were stored."""
        if first_astray(content, UNIT.unpack_from(entries)[0], entries) is not None:
            raise NotThere(f"messages in {self.messages_name} are not what was stored")


def read_at_once(wanted: Range, first_astray: FirstAstray, read: Read) -> tuple[list[bytes], Bytes]:
    """The entries in parts, and the messages of the first part, as they are stored. Raises ObjectStoreError."""
    parts = parts_of(wanted.whole_entries(read(wanted.entries_name, *wanted.entries_place)))
    return parts, read_part(wanted, parts[0], first_astray, read)


def read_part(wanted: Range, entries: bytes, first_astray: FirstAstray, read: Read) -> Bytes:
    """The entries' messages, as they are stored. Raises ObjectStoreError."""
    content = read(wanted.messages_name, *wanted.messages_place(entries))
    wanted.check(first_astray, content, entries)
    return content


def parts_of(entries: bytes) -> list[bytes]:
    """The entries, cut where their messages make parts of about as many bytes each, as few as there can be."""
    count, whole, begin = len(entries) // ENTRY_BYTES, _bytes_of(entries), UNIT.unpack_from(entries)[0]

    def place_of(number: int) -> int:
        place: int = UNIT.unpack_from(entries, number * ENTRY_BYTES)[0] - begin
        return place

    parts = -(-whole // PART_BYTES)
    cuts = [0]
    for number in range(1, parts):
        cut = bisect_left(range(count), whole * number // parts, key=place_of)
        if cuts[-1] < cut < count:
            cuts.append(cut)
    return [entries[first * ENTRY_BYTES : end * ENTRY_BYTES] for first, end in pairwise((*cuts, count))]


def _bytes_of(entries: bytes, first: int = 0, end: int = 0) -> int:
    """How many bytes the messages `[first, end)` of the entries have; without an end, all from there on."""
    begin: int = UNIT.unpack_from(entries, first * ENTRY_BYTES)[0]
    place, size, _ = UNIT.unpack_from(entries, (end or len(entries) // ENTRY_BYTES) * ENTRY_BYTES - ENTRY_BYTES)
    length: int = place + size - begin
    return length


def _count_of(entries: bytes, segment: Segment) -> int:
    """How many messages from the first one on are fetched at once; 0 when the entries cannot be right."""
    count = len(entries) // ENTRY_BYTES
    begin = UNIT.unpack_from(entries)[0]
    if _bytes_of(entries) > MOST_BYTES:
        count = max(1, bisect_right(range(1, count + 1), MOST_BYTES, key=partial(_bytes_of, entries, 0)))
    is_right = segment.base <= begin and 0 < _bytes_of(entries, 0, count) <= segment.message_end - begin
    return count if is_right else 0

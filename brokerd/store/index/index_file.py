"""One index file. Items and slots change in memory; a `FileWrite` brings what changed to disk.

On disk the order is: items, sync, slots and header, sync, and only then the page that vouches for them. So a slot on disk never
names an item that is not there, whatever a power loss leaves of the slots: `repair` finds back to the state that was vouched for.
The slots of a file that takes items are in memory (pages of them that were never used take no room); a full file that is on disk
holds nothing.
"""

from __future__ import annotations

import mmap
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import repeat
from operator import rshift
from typing import Final, NamedTuple, cast

from brokerd.native.library import Library
from brokerd.store.index.layout import (
    HEADER,
    ITEM,
    MAX_TIME_DIFF,
    SLOT_BYTES,
    Header,
    IndexShape,
    decode_header,
    path_of,
)
from brokerd.store.index.native_items import NativeItems
from brokerd.store.index.postings import Postings, WalkMemory, derive_postings, example_log
from remoting.disk import Disk, FileSegment
from remoting.errors import CorruptedFile

_PAGE_BITS: Final = 10  # of the number of slots that are written together: 4 KiB
_READ_BYTES: Final = 1 << 18
_NEWEST_FIRST_ITEMS: Final = 1024


class Item(NamedTuple):
    """One entry of the file; `time_diff_s` counts from the file's begin, `previous` is the next older item of the slot."""

    key_hash: int
    physical_offset: int
    time_diff_s: int
    previous: int


class FileWrite(NamedTuple):
    """What makes the present state of a file durable. Slots come as (first slot, values in the machine's byte order)."""

    file: IndexFile
    generation: int
    header: Header
    first_item: int
    items: bytes
    slots: Sequence[tuple[int, bytes]]

    def run(self, disk: Disk) -> None:
        """Write and sync; blocks."""
        shape, path = self.file.shape, path_of(self.file.name)
        segment = disk.open(path, create=True, size_bytes=shape.size_bytes)
        self.file.on_disk = True
        with closing(segment):
            if self.items:
                segment.write(shape.item_at(self.first_item), (self.items,))
                segment.sync()
            for first, values in self.slots:
                segment.write(shape.slot_at(first), (_swapped(values),))
            segment.write(0, (HEADER.pack(*self.header),))
            segment.sync()


class IndexFile:
    """One file of the index of keys; its `header` is as of now."""

    def __init__(self, disk: Disk, name: str, shape: IndexShape, header: Header, *, on_disk: bool) -> None:
        self.name = name
        self.shape = shape
        self.generation = 0
        self.is_open = True
        self._disk = disk
        self._segment: FileSegment | None = None
        self.on_disk = on_disk
        self._slots: memoryview | None = None
        self._dirty: set[int] = set()  # pages of slots to be written,
        self._dirty_in_c = bytearray()  # and those that the library changed, by their numbers
        self._in_flight: set[int] = set()  # those that a write took and that are not known to be on disk
        self._tail = bytearray()
        self._tail_start = header.next_item
        self.header = header

    @property
    def is_full(self) -> bool:
        return self.header.next_item >= self.shape.items

    @property
    def has_items(self) -> bool:
        return self.header.next_item > 1

    @property
    def unsaved_items(self) -> int:
        return self.header.next_item - self._tail_start

    # -- adding and reading ------------------------------------------------------------------------------------------------

    def put(self, found: Postings, first: int) -> int:
        """Add what was found from the first on, as much as there is room for; returns the index behind the last one added."""
        header = self.header
        end = min(len(found.hashes), first + self.shape.items - header.next_item)
        if end <= first:
            return end
        hashes, offsets, timestamps = found.hashes[first:end], found.offsets[first:end], found.timestamps[first:end]
        differences = time_differences(timestamps, header.begin_timestamp_ms)
        if header.next_item == 1:
            header = header._replace(begin_offset=offsets[0], begin_timestamp_ms=timestamps[0])
            differences[1:] = time_differences(timestamps[1:], timestamps[0])
        slots = self._slots = self._slots or self._load_slots()
        slot_count = self.shape.slots
        places = [each % slot_count for each in hashes]
        previous: list[int] = []
        add = previous.append
        for number, place in enumerate(places, header.next_item):
            add(slots[place])
            slots[place] = number
        self._dirty.update(map(rshift, places, repeat(_PAGE_BITS)))
        self._tail += _pack_items(hashes, offsets, differences, previous)
        self.header = header._replace(
            end_timestamp_ms=timestamps[-1],
            end_offset=offsets[-1],
            slots_used=header.slots_used + previous.count(0),
            next_item=header.next_item + end - first,
        )
        return end

    def put_in_c(self, in_c: NativeItems, data: bytes | int, length: int, physical_offset: int, file_size: int) -> int:
        """Add the keys of whole records of the log, given as bytes or by their address, to a file that has items: how many of the
        bytes were taken, before what is for `put`."""
        slots = self._slots = self._slots or self._load_slots()
        self._dirty_in_c = self._dirty_in_c or bytearray((self.shape.slots >> _PAGE_BITS) + 1)
        self.header, items, end = in_c.put(
            self.header, self.shape, slots, self._dirty_in_c, (data, length, physical_offset, file_size)
        )
        self._tail += items
        return end

    @property
    def _is_dirty(self) -> bool:
        return bool(self._dirty) or 1 in self._dirty_in_c

    def _gather_dirty(self) -> set[int]:
        """All pages that changed, as they are noted without the library."""
        changed = self._dirty_in_c
        page = changed.find(1)
        while page >= 0:
            self._dirty.add(page)
            changed[page] = 0
            page = changed.find(1, page + 1)
        return self._dirty

    def item(self, number: int) -> Item:
        if number >= self._tail_start:
            return Item(*ITEM.unpack_from(self._tail, (number - self._tail_start) * ITEM.size))
        return self._written_item(number)

    def _written_item(self, number: int) -> Item:
        return Item(*ITEM.unpack(self._open().read(self.shape.item_at(number), ITEM.size)))

    def newest_of(self, key_hash: int) -> int:
        """The number of the newest item in the slot of a hash, 0 without one."""
        slot = key_hash % self.shape.slots
        if self._slots is not None:
            return self._slots[slot]
        content = self._open().read(self.shape.slot_at(slot), SLOT_BYTES)
        return int.from_bytes(content, "big")

    def first_at_or_behind(self, physical_offset: int) -> int:
        """The number of the first item of a message at or behind the offset; `next_item` without one."""
        return bisect_left(
            range(self.header.next_item), physical_offset, 1, key=lambda number: self.item(number).physical_offset
        )

    def header_is_right(self) -> bool:
        """Whether the header on disk is the one in memory; of a file that takes no more items, and is written."""
        if not self.on_disk or not self.is_full or self.unsaved_items or self._is_dirty or self._in_flight:
            return True
        return decode_header(self._open().read(0, HEADER.size)) == self.header

    def items(self, first: int, count: int) -> list[Item]:
        """The items `[first, first + count)` that there are."""
        end = min(first + count, self.header.next_item)
        written = max(first, min(end, self._tail_start))
        content = (
            self._open().read(self.shape.item_at(first), (written - first) * ITEM.size) if first < written else b""
        )
        tail = self._tail[(written - self._tail_start) * ITEM.size : (end - self._tail_start) * ITEM.size]
        return [Item(*each) for each in ITEM.iter_unpack(content + tail)]

    def are_right(
        self, number: int, items: Sequence[Item], hashes: list[int], offsets: list[int], timestamps: list[int]
    ) -> bool:
        """Whether the items from that number on are those of these keys, and are linked with items of their own slots alone."""
        differences = time_differences(timestamps, self.header.begin_timestamp_ms)
        if number == 1 and items:  # its time counts from what the file's header said before it had an item
            differences[0] = items[0].time_diff_s
        if [tuple(item[:3]) for item in items] != list(zip(hashes, offsets, differences, strict=True)):
            return False
        return all(self._is_linked(at, item) for at, item in enumerate(items, number))

    def _is_linked(self, number: int, item: Item) -> bool:
        key_hash, _, _, previous = item
        newest = self.newest_of(key_hash)
        if not (0 <= previous < number <= newest < self.header.next_item):
            return False
        slot_count = self.shape.slots
        slot = key_hash % slot_count
        return not (previous and self.item(previous).key_hash % slot_count != slot) and not (
            newest != number and self.item(newest).key_hash % slot_count != slot
        )

    # -- writing -----------------------------------------------------------------------------------------------------------

    def begin_write(self) -> FileWrite | None:
        """What is to be written, or None when all of it was. What an earlier write holds, which may never run, is in it, too."""
        pages = self._gather_dirty() | self._in_flight
        if not pages and not self.unsaved_items:
            return None
        slots = list(self._slots_of(sorted(pages)))
        self._dirty, self._in_flight = set(), pages
        return FileWrite(self, self.generation, self.header, self._tail_start, bytes(self._tail), slots)

    def finish_write(self, write: FileWrite) -> None:
        """The write has run; a cut that came after its begin has written everything again."""
        if self.generation != write.generation:
            return
        self._in_flight.clear()
        del self._tail[: len(write.items)]
        self._tail_start += len(write.items) // ITEM.size
        if self.is_full and not self._is_dirty and not self._tail:
            self._slots = None
            self._dirty_in_c = bytearray()

    def abandon_write(self) -> None:
        """The write that was begun failed, or was not run; all of it is still to be written, unless a cut has done that."""
        self._dirty |= self._in_flight
        self._in_flight.clear()

    def _slots_of(self, pages: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """The first slot and the values of the pages, neighbouring ones together."""
        index = 0
        while index < len(pages):
            last = index
            while last + 1 < len(pages) and pages[last + 1] == pages[last] + 1:
                last += 1
            first_slot = pages[index] << _PAGE_BITS
            assert self._slots is not None
            yield first_slot, self._slots[first_slot : (pages[last] + 1) << _PAGE_BITS].tobytes()
            index = last + 1

    # -- cutting and repairing ---------------------------------------------------------------------------------------------

    def forget_from(self, number: int, end_offset: int, end_timestamp_ms: int) -> None:
        """Drop the items from a number on, in memory; then `write_cut` does the same on disk."""
        slots = self._slots = self._slots or self._load_slots()
        slots_used = self.header.slots_used
        for item in self._backwards(number):
            slot = item.key_hash % self.shape.slots
            slots[slot] = item.previous
            self._dirty.add(slot >> _PAGE_BITS)
            slots_used -= not item.previous
        if number < self._tail_start:
            self._tail.clear()
            self._tail_start = number
        else:
            del self._tail[(number - self._tail_start) * ITEM.size :]
        self.header = self.header._replace(
            end_timestamp_ms=end_timestamp_ms, end_offset=end_offset, slots_used=slots_used, next_item=number
        )

    def _backwards(self, number: int) -> Iterator[Item]:
        """The items from a number on, newest first."""
        end = self.header.next_item
        while end > number:
            first = max(number, end - _NEWEST_FIRST_ITEMS)
            yield from reversed([self.item(each) for each in range(first, end)])
            end = first

    def write_cut(self) -> None:
        """Bring a cut to disk: first the slots, so that none names an item that goes; blocks."""
        self.generation += 1
        if not self.on_disk:
            return
        write = self.begin_write()
        if write is not None:
            write.run(self._disk)
            self.finish_write(write)
        segment = self._open()
        segment.truncate(self.shape.item_at(self.header.next_item))
        segment.truncate(self.shape.size_bytes)
        segment.sync()

    def repair(self) -> None:
        """After an unclean end: make the slots name no item from `next_item` on. Raises CorruptedFile when that is impossible."""
        slots = self._slots = self._load_slots()
        end, slot_count = self.header.next_item, self.shape.slots
        torn = [slot for slot, number in enumerate(slots) if not 0 <= number < end]
        for slot in torn:
            number = slots[slot]
            while not 0 <= number < end:
                item = self._written_item(number) if end <= number < self.shape.items else None
                if item is None or item.key_hash % slot_count != slot or not 0 <= item.previous < number:
                    raise CorruptedFile(f"{path_of(self.name)}: slot {slot} names item {number}, which is not its own")
                number = item.previous
            slots[slot] = number
            self._dirty.add(slot >> _PAGE_BITS)
        self.write_cut()

    # -- the file ----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Nothing is read from it or written to it any more."""
        self.is_open = False
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def _open(self) -> FileSegment:
        if self._segment is None:
            self._segment = self._disk.open(path_of(self.name))
        return self._segment

    def _load_slots(self) -> memoryview:
        size = self.shape.slots * SLOT_BYTES
        content = memoryview(mmap.mmap(-1, size))
        if self.on_disk:
            segment = self._open()
            for start in range(0, size, _READ_BYTES):
                part = segment.read(HEADER.size + start, min(_READ_BYTES, size - start))
                if part.count(0) < len(part):
                    content[start : start + len(part)] = _swapped(part)
        return content.cast("i")


def time_differences(timestamps: Sequence[int], begin_ms: int) -> list[int]:
    """Seconds since the begin, as far as an item holds them."""
    if begin_ms <= 0 or not timestamps:
        return [0] * len(timestamps)
    earliest, latest = ((each - begin_ms) // 1000 for each in (min(timestamps), max(timestamps)))
    if earliest == latest and 0 <= earliest <= MAX_TIME_DIFF:
        return [earliest] * len(timestamps)
    return [min(max((each - begin_ms) // 1000, 0), MAX_TIME_DIFF) for each in timestamps]


def _pack_items(
    hashes: Sequence[int], offsets: Sequence[int], differences: Sequence[int], previous: Sequence[int]
) -> bytes:
    """Items in the file's format, each made of five 4-byte words: column by column that is faster than item by item."""
    words = array("i", bytes(len(hashes) * ITEM.size))
    halves = array("i", array("q", offsets).tobytes())
    high = 1 if sys.byteorder == "little" else 0
    words[0::5] = array("i", hashes)
    words[1::5], words[2::5] = halves[high::2], halves[1 - high :: 2]
    words[3::5], words[4::5] = array("i", differences), array("i", previous)
    if sys.byteorder == "little":
        words.byteswap()
    return words.tobytes()


def _swapped(values: bytes) -> bytes:
    """4-byte integers from the machine's byte order to the file's, or back."""
    numbers = array("i", values)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers.tobytes()


def items_agree(library: Library) -> bool:
    """Whether the library puts keys into a file as Python does, up to the first record that it leaves."""
    shape, in_c, log = IndexShape(3, 99), NativeItems(library), example_log()
    for begin_ms in (0, 1, 1003):
        header = Header(begin_ms, begin_ms, 0, 0, 0, 2)
        ours, wanted = (IndexFile(cast("Disk", None), "", shape, header, on_disk=False) for _ in range(2))
        end = ours.put_in_c(in_c, log, len(log), 0, 1 << 20)
        postings = derive_postings(log[:end], 0, 1 << 20, WalkMemory())
        wanted.put(postings, 0)
        if not end or _state(ours) != _state(wanted):
            return False
    return True


def _state(file: IndexFile) -> tuple[object, ...]:
    assert file._slots is not None
    return file.header, file._tail, file._slots.tolist(), sorted(file._gather_dirty())

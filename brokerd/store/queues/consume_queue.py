"""One consume queue: for each message of a (topic, queue id), a unit that says where in the log it is.

Units are kept in a memory tail until a store checkpoint wrote them to files; a queue that nobody appends to holds no tail and no
open file. The files are derived data: whatever a crash leaves in them is checked against the log at start. Units before the first
known one of a file are blank.

Called by the event loop's thread only; `QueueWrite` (queue_write.py) writes from a helper thread through its own handles.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import count as count_from

from brokerd.store.log.layout import file_name, parse_file_name
from brokerd.store.queues import unit_checks
from brokerd.store.queues.native_reads import NativeReads
from brokerd.store.queues.unit_checks import BLOCK_UNITS, ENTRY_BYTES, NOT_KNOWN, Check
from brokerd.store.unit import BLANK_SIZE, BLANK_UNIT, UNIT, UNIT_BYTES, Unit
from remoting.disk import Disk, FileSegment
from remoting.errors import CorruptedFile
from remoting.invariants import monotonic

_NEIGHBOURS = 3  # units on either side that say whether one between them may be right
_CLOSE_UNITS = 16  # to read over so many costs no more than to read once more
_STRETCH_BLOCKS = 8  # that are read and checked at once
STRETCH_UNITS = _STRETCH_BLOCKS * BLOCK_UNITS
_KNOWN_STRETCHES = 128  # of 20 KiB
DIRECTORY = "consumequeue"
CHECKS_DIRECTORY = "queueChecks"
_NAME_AT = len(DIRECTORY) + 1  # where the names of a topic and a queue begin in a queue's directory


class DamagedUnits(CorruptedFile):
    """Some units of the block that begins with unit `first` are not what was written, by their checksum."""

    def __init__(self, directory: str, first: int) -> None:
        super().__init__(
            f"units of {directory} from {first} on are not what was written; they are derived from the log again, ask again"
        )
        self.first = first


def checks_of(directory: str) -> str:
    """Where the checksums for a directory of queue files are."""
    return CHECKS_DIRECTORY + directory.removeprefix(DIRECTORY)


class QueueFiles:
    """The files of all consume queues; keeps the most recently read ones open, up to a bound."""

    def __init__(self, disk: Disk, file_units: int, open_files: int) -> None:
        self._disk = disk
        self._open_files = open_files
        self._handles: OrderedDict[tuple[str, int], FileSegment] = OrderedDict()
        # Stretches of units that passed their checks, read when so many writes had been made: later ones may have changed them
        self._stretches: OrderedDict[tuple[str, int], tuple[int, bytes]] = OrderedDict()
        self._writes = count_from(1)
        self.written = 0  # as many as were noted; another number after each
        self.file_units = file_units
        self.file_bytes = file_units * UNIT_BYTES
        self.native: NativeReads | None = None

    def read(self, directory: str, first: int, count: int) -> bytes:
        """Up to `count` units from unit `first` on, fewer at the end of its file."""
        file = first // self.file_units
        position = (first - file * self.file_units) * UNIT_BYTES
        handle = self._handle(directory, file)
        return handle.read(position, min(count * UNIT_BYTES, self.file_bytes - position))

    def read_checked(self, directory: str, first: int, count: int) -> bytes:
        """The same. Raises DamagedUnits when units in their blocks are not what was written. Changed,
        `brokerd/native/queue_files.c` has to be changed, too."""
        units = self._read_in_c(directory, first, count)
        if units is not None:
            return units
        file, inside = divmod(first, self.file_units)
        last = min(inside + count, self.file_units)
        block, end = inside // BLOCK_UNITS, -(-last // BLOCK_UNITS)
        checks = self.checks(directory, file, block, end)  # before the units: what they cover was written before them
        begin = block * BLOCK_UNITS
        units = self.read(directory, file * self.file_units + begin, end * BLOCK_UNITS - begin)
        for number in unit_checks.failing(checks, units):
            raise DamagedUnits(directory, file * self.file_units + begin + number * BLOCK_UNITS)
        return units[(inside - begin) * UNIT_BYTES : (last - begin) * UNIT_BYTES]

    def read_run(self, directory: str, first: int, count: int) -> bytes:
        """As `read_checked`, for who goes on behind that the next time: stretches are remembered while nothing is written, but
        for where C reads, which costs as little."""
        units = self._read_in_c(directory, first, count)
        if units is not None:
            return units
        at = first % self.file_units % STRETCH_UNITS
        stretch = self._stretch(directory, first, at)
        if stretch is None:
            return self.read_checked(directory, first, min(count, STRETCH_UNITS - at))
        return stretch[at * UNIT_BYTES : (at + count) * UNIT_BYTES]

    def read_ahead(self, directory: str, first: int, count: int) -> bytes:
        """Up to `count` units from unit `first` on that are known to be right with what is at hand; maybe none."""
        units = self._read_in_c(directory, first, count)
        if units is not None:
            return units
        at = first % self.file_units % STRETCH_UNITS
        stretch = self._stretch(directory, first, at)
        return b"" if stretch is None else stretch[at * UNIT_BYTES : (at + count) * UNIT_BYTES]

    def _read_in_c(self, directory: str, first: int, count: int) -> bytes | None:
        """The same, where C reads and finds nothing wrong."""
        native = self.native
        if native is None:
            return None
        # the name of a topic that came with a taken over log may be any bytes
        return native.read(directory[_NAME_AT:].encode("utf-8", "surrogateescape"), first, count)

    def _stretch(self, directory: str, first: int, at: int) -> bytes | None:
        """The stretch in which unit `first` is the one at that place."""
        key = directory, first - at
        found = self._stretches.get(key)
        if found is None or found[0] != self.written:
            file, inside = divmod(first - at, self.file_units)
            found = self._read_stretch(directory, file, inside // STRETCH_UNITS)
            if found is None:
                return None
            self._stretches[key] = found
            if len(self._stretches) > _KNOWN_STRETCHES:
                self._stretches.popitem(last=False)
        else:
            self._stretches.move_to_end(key)
        return found[1]

    def _read_stretch(self, directory: str, file: int, number: int) -> tuple[int, bytes] | None:
        """A whole one, if all of it is covered and passes, and how many writes had been made before it was read."""
        written, block = self.written, number * _STRETCH_BLOCKS
        end = block + _STRETCH_BLOCKS
        if end * BLOCK_UNITS > self.file_units:
            return None
        checks = self.checks(directory, file, block, end)
        if any(check.covered != BLOCK_UNITS for check in checks):
            return None
        units = self.read(directory, file * self.file_units + block * BLOCK_UNITS, STRETCH_UNITS)
        return (written, units) if not any(True for _ in unit_checks.failing(checks, units)) else None

    def fails_check(self, directory: str, unit: int) -> bool:
        """Whether units in the block of this one are not what was written."""
        try:
            self.read_checked(directory, unit, 1)
        except DamagedUnits:
            return True
        return False

    def checks(self, directory: str, file: int, block: int, end: int) -> list[Check]:
        """What covers the blocks `[block, end)` of a file."""
        place = checks_of(directory)
        if (place, file) not in self._handles and not self._disk.exists(self.path(place, file)):
            return [NOT_KNOWN] * (end - block)
        entries = self._handle(place, file).read(block * ENTRY_BYTES, (end - block) * ENTRY_BYTES)
        return unit_checks.decode(entries.ljust((end - block) * ENTRY_BYTES, b"\0"))

    def cover(self, directory: str, first: int, units: bytes) -> None:
        """The units, all that there are of the block that begins with unit `first`, are right: let them be covered. Opens the
        file itself: a helper thread may call this."""
        file, inside = divmod(first, self.file_units)
        with closing(self._open_checks(directory, file)) as handle:
            checks = unit_checks.extended(NOT_KNOWN, inside, units)
            handle.write(inside // BLOCK_UNITS * ENTRY_BYTES, (unit_checks.encode(checks),))
            handle.sync()

    def _open_checks(self, directory: str, file: int) -> FileSegment:
        path, size = self.path(checks_of(directory), file), unit_checks.file_bytes(self.file_units)
        return self._disk.open(path, create=not self._disk.exists(path), size_bytes=size)

    def _handle(self, directory: str, file: int) -> FileSegment:
        key = (directory, file)
        handle = self._handles.get(key)
        if handle is None:
            is_checks = directory.startswith(CHECKS_DIRECTORY)
            handle = self._disk.open(self.path(directory, file)) if is_checks else self._open(directory, file)
            self._handles[key] = handle
            if len(self._handles) > self._open_files:
                self._handles.popitem(last=False)[1].close()
        else:
            self._handles.move_to_end(key)
        return handle

    def write(self, directory: str, first: int, units: bytes) -> None:
        """Write units from unit `first` on and make them durable. Opens the files itself: a helper thread may call this. Changed,
        `brokerd/native/queue_files.c` has to be changed, too."""
        while units:
            file = first // self.file_units
            position = (first - file * self.file_units) * UNIT_BYTES
            part = units[: self.file_bytes - position]
            path = self.path(directory, file)
            fresh = not self._disk.exists(path)
            handle = (
                self._disk.open(path, create=True, size_bytes=self.file_bytes) if fresh else self._open(directory, file)
            )
            with closing(handle):
                if fresh and position:
                    handle.write(0, (BLANK_UNIT * (position // UNIT_BYTES),))
                handle.write(position, (part,))
                handle.sync()
            self._cover_written(directory, file, position // UNIT_BYTES, part, fresh=fresh)
            self.note_written()
            units = units[len(part) :]
            first += len(part) // UNIT_BYTES

    def note_written(self) -> None:
        """Units were written, here or by somebody else: what was read before may not be what is there. Any thread."""
        self.written = next(self._writes)

    def _cover_written(self, directory: str, file: int, first: int, units: bytes, *, fresh: bool) -> None:
        if fresh:
            first, units = 0, BLANK_UNIT * first + units
        with closing(self._open_checks(directory, file)) as handle:
            place = first // BLOCK_UNITS * ENTRY_BYTES
            (before,) = unit_checks.decode(handle.read(place, ENTRY_BYTES).ljust(ENTRY_BYTES, b"\0"))
            handle.write(place, (unit_checks.encode(unit_checks.extended(before, first, units)),))

    def _open(self, directory: str, file: int) -> FileSegment:
        handle = self._disk.open(self.path(directory, file))
        if handle.size_bytes < self.file_bytes:  # its creation, or a cut, was interrupted
            handle.truncate(self.file_bytes)
        return handle

    def zero_from(self, directory: str, first: int, files: list[int], *, sync: bool) -> None:
        """Blank out everything from unit `first` on; later files go."""
        self._stretches.clear()
        for file in reversed(files):
            if file * self.file_units > first:
                self.remove_file(directory, file)
            elif first < (file + 1) * self.file_units:
                inside = first - file * self.file_units
                with closing(self._disk.open(self.path(directory, file))) as handle:
                    block = inside // BLOCK_UNITS * BLOCK_UNITS
                    units = handle.read(block * UNIT_BYTES, BLOCK_UNITS * UNIT_BYTES)
                    handle.truncate(inside * UNIT_BYTES)
                    handle.truncate(self.file_bytes)
                    if sync:
                        handle.sync()
                self._uncover(directory, file, inside, units, sync=sync)

    def _uncover(self, directory: str, file: int, first: int, units: bytes, *, sync: bool) -> None:
        """Nothing is known any more of units from this one on; `units` are those that its block had."""
        path = self.path(checks_of(directory), file)
        if self._disk.exists(path):
            with closing(self._disk.open(path)) as handle:
                place = first // BLOCK_UNITS * ENTRY_BYTES
                (before,) = unit_checks.decode(handle.read(place, ENTRY_BYTES).ljust(ENTRY_BYTES, b"\0"))
                handle.truncate(place)
                handle.truncate(unit_checks.file_bytes(self.file_units))
                handle.write(place, (unit_checks.encode([unit_checks.shortened(before, units, first % BLOCK_UNITS)]),))
                if sync:
                    handle.sync()

    def _numbers(self, names: Iterable[str]) -> list[int]:
        numbers = []
        for name in names:
            start = parse_file_name(name)
            if start is None or start % self.file_bytes:
                break
            numbers.append(start // self.file_bytes)
        return numbers

    def list(self, directory: str) -> list[int]:
        """The numbers of a queue's files in order; ends before a name that no file of this size can have."""
        return self._numbers(self._disk.names(directory))

    def contiguous(self, directory: str) -> range | None:
        """The numbers of a queue's files; None unless all are of this size and without a hole between them."""
        names = self._disk.names(directory)
        files = self._numbers(names)
        if len(files) != len(names):
            return None
        found = range(files[0], files[0] + len(files)) if files else range(0)
        if files != list(found) or any(self._handle(directory, file).size_bytes > self.file_bytes for file in files):
            return None
        return found

    def remove_file(self, directory: str, file: int) -> None:
        places = (checks_of(directory), directory)
        self._stretches.clear()
        self._forget(lambda key: key[0] in places and key[1] == file)
        for place in places:
            self._disk.remove(self.path(place, file))

    def forget(self, directory: str) -> None:
        """Close the handles of one queue."""
        both = (directory, checks_of(directory))
        self._stretches.clear()
        self._forget(lambda key: key[0] in both)

    def path(self, directory: str, file: int) -> str:
        return f"{directory}/{file_name(file * self.file_bytes)}"

    def close(self) -> None:
        self._stretches.clear()
        self._forget(lambda _: True)

    def _forget(self, chosen: Callable[[tuple[str, int]], bool]) -> None:
        for key in [key for key in self._handles if chosen(key)]:
            self._handles.pop(key).close()


class ConsumeQueue:
    """The units `[first_offset, max_offset)` of one queue. `tail` holds those from `tail_start` on; those before `written_offset`
    are in files: both only grow, but by a cut or a restart. `last_physical` is the physical offset in the last unit, -1 without
    one. `generation` changes when units are cut, so that a write that began before knows."""

    __slots__ = (
        "_files",
        "_min_checked",
        "_min_offset",
        "directory",
        "dirty",
        "first_offset",
        "generation",
        "last_physical",
        "max_offset",
        "queue_id",
        "tail",
        "tail_start",
        "topic",
        "written_offset",
    )

    def __init__(self, topic: str, queue_id: int, files: QueueFiles, first_offset: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.directory = f"{DIRECTORY}/{topic}/{queue_id}"
        self._files = files
        self.generation = 0
        self.dirty = False
        self.restart(first_offset)

    def restart(self, first_offset: int) -> None:
        """Be empty, and continue at the offset."""
        self.generation += 1
        self.tail = bytearray()
        self.first_offset = self.max_offset = self.tail_start = self.written_offset = first_offset
        self.last_physical = -1
        self._min_offset, self._min_checked = first_offset, -1

    def leave_blank(self, count: int) -> None:
        """Have units without a message at the end. Where no message before them is in the log any more, the queue begins behind
        them; `max_offset` is still where they begin."""
        self.append(BLANK_UNIT * count, self.max_offset, self.last_physical)
        if self._min_offset >= self.max_offset:
            self._min_checked = -1

    # -- reading -----------------------------------------------------------------------------------------------------------

    def read(self, first: int, count: int) -> bytes:
        """Some of the units from `first` on: at least one and at most `count`, none outside of the queue."""
        last = min(first + count, self.max_offset)
        if first >= self.tail_start:
            return self.tail_part((first - self.tail_start) * UNIT_BYTES, (last - self.tail_start) * UNIT_BYTES)
        if first < self.first_offset:
            return b""
        return self._files.read(self.directory, first, min(last, self.tail_start) - first)

    def read_written(self, first: int, count: int) -> bytes:
        """The units `[first, first + count)` that are in files, as they are there."""
        last, parts = min(first + count, self.written_offset), []
        while first < last and (part := self._files.read(self.directory, first, last - first)):
            parts.append(part)
            first += len(part) // UNIT_BYTES
        return b"".join(parts)

    def read_checked(self, first: int, count: int) -> bytes:
        """As `read`. Raises DamagedUnits when units are not what was written."""
        if first >= self.tail_start or first < self.first_offset:
            return self.read(first, count)
        return self._files.read_checked(self.directory, first, min(first + count, self.tail_start) - first)

    def read_run(self, first: int, count: int) -> bytes:
        """The units `[first, first + count)` that exist, for who goes on behind them the next time. Raises DamagedUnits when
        units are not what was written."""
        last = min(first + count, self.max_offset)
        if first >= self.tail_start or first < self.first_offset:
            return self.read(first, count)
        parts = []
        while first < last:
            if first >= self.tail_start:
                part = self.read(first, last - first)
            else:
                part = self._files.read_run(self.directory, first, min(last, self.tail_start) - first)
            if not part:
                break
            parts.append(part)
            first += len(part) // UNIT_BYTES
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_ahead(self, first: int, least: int, most: int = STRETCH_UNITS) -> bytes:
        """As `read_run` with `least` units, and those behind them that are at hand and right, too, `most` of all unless `least`
        is more."""
        most = max(least, most)
        if first >= self.tail_start:
            return self.read(first, most)
        if first >= self.first_offset:
            wanted = min(most, self.tail_start - first)
            units = self._files.read_ahead(self.directory, first, wanted)
            if len(units) >= least * UNIT_BYTES:
                return units
        return self.read_run(first, least)

    @property
    def writes(self) -> int:
        """Another number after each write to files of queues: what was read of them before may not be what is there."""
        return self._files.written

    def checked_units(self, first: int, count: int) -> Iterator[Unit]:
        """As `units`. Raises DamagedUnits when units are not what was written."""
        last = min(first + count, self.max_offset)
        while first < last and (data := self.read_checked(first, last - first)):
            yield from UNIT.iter_unpack(data)
            first += len(data) // UNIT_BYTES

    def units(self, first: int, count: int) -> Iterator[Unit]:
        """The units `[first, first + count)` that exist."""
        last = min(first + count, self.max_offset)
        while first < last and (data := self.read(first, last - first)):
            yield from UNIT.iter_unpack(data)
            first += len(data) // UNIT_BYTES

    def units_at(self, offsets: Sequence[int]) -> list[Unit]:
        """The units at these offsets, in any order, up to the first that does not exist. Those that are close behind one another
        are read together."""
        found: list[Unit] = []
        count = len(offsets)
        while (at := len(found)) < count:
            first = last = offsets[at]
            end = at + 1
            while end < count and last < offsets[end] <= last + _CLOSE_UNITS:
                last = offsets[end]
                end += 1
            if not self.first_offset <= first < self.max_offset:
                break
            data = self.read(first, last + 1 - first)
            there = len(data) // UNIT_BYTES
            if last - first == end - at - 1:
                found += UNIT.iter_unpack(data)
            else:
                found += [
                    UNIT.unpack_from(data, (offset - first) * UNIT_BYTES)
                    for offset in offsets[at:end]
                    if offset - first < there
                ]
            if not there:
                break
        return found

    def unit(self, offset: int) -> Unit:
        """One unit of the queue."""
        unit: Unit = UNIT.unpack(self.read(offset, 1))
        return unit

    def min_offset(self, log_min_offset: int) -> int:
        """The first unit whose record is still in the log; `max_offset` when there is none."""
        if log_min_offset > self._min_checked:
            if self.last_physical < log_min_offset:
                self._min_offset = self.max_offset
            else:
                self._min_offset = self.first_behind(log_min_offset, max(self._min_offset, self.first_offset))
            self._min_checked = log_min_offset
        return self._min_offset

    def first_behind(self, physical_offset: int, low: int) -> int:
        """The first unit from `low` on whose record is at or behind the offset. One that was changed on disk counts as such,
        unless a later one, which is as it was written, is not: then none before it is."""

        def is_behind(unit: Unit) -> bool:
            return unit[1] != BLANK_SIZE and unit[0] >= physical_offset

        found = self.first_where(is_behind, low, self.max_offset)
        while found < self.max_offset and not self._is_credible(found, self.unit(found)):
            later = self.first_where(is_behind, found + 1, self.max_offset)
            if later == found + 1:
                break
            found = later
        return found

    def first_where(self, is_behind: Callable[[Unit], bool], low: int, high: int) -> int:
        """The first unit in `[low, high)` that satisfies a condition which, once true, stays true; `high` without one. A unit
        that is not what was written counts as if it did, so that nothing before it is passed over."""

        def decides(offset: int) -> bool:
            unit = self.unit(offset)
            return is_behind(unit) or not self._is_credible(offset, unit)

        return bisect_left(range(high), True, low, key=decides)

    def _is_credible(self, offset: int, unit: Unit) -> bool:
        """Whether the unit names a place that there may be, in order with most of those around it: later messages of a queue are
        later in the log."""
        if unit[1] == BLANK_SIZE:
            return True
        if unit[1] <= 0 or not 0 <= unit[0] <= self.last_physical:
            return False
        begin = max(self.first_offset, offset - _NEIGHBOURS)
        around = enumerate(self.units(begin, offset + _NEIGHBOURS + 1 - begin), begin)
        in_order = [
            (other < offset) == (physical_offset < unit[0])
            for other, (physical_offset, size, _) in around
            if other != offset and size != BLANK_SIZE
        ]
        return 2 * sum(in_order) > len(in_order) or not in_order

    def tail_part(self, begin: int, end: int | None = None) -> bytes:
        """Some bytes of the tail."""
        return bytes(self.tail[begin:end])

    # -- changing ----------------------------------------------------------------------------------------------------------

    def append(self, units: bytes, max_offset: int, last_physical: int) -> None:
        """Have these units behind the others; what the queue's end is then."""
        self.tail += units
        self.max_offset = max_offset
        self.last_physical = last_physical

    def cut(self, offset: int) -> None:
        """Drop the units from `offset` on, in memory and in files."""
        self.generation += 1
        self._files.forget(self.directory)
        self._files.zero_from(self.directory, offset, self._files.list(self.directory), sync=True)
        if offset < self.tail_start:
            self.tail = bytearray()
            self.tail_start = offset
        else:
            self.tail = bytearray(self.tail_part(0, (offset - self.tail_start) * UNIT_BYTES))
        self.max_offset = offset
        self.written_offset = min(self.written_offset, offset)
        self._min_offset = min(self._min_offset, offset)
        self.last_physical = self._last_physical()

    def written(self, offset: int, keep_units: int) -> None:
        """The units before `offset` are in files; keep the newest ones in memory for readers at the end."""
        assert offset <= self.max_offset, "more is in files than the queue has"
        self.written_offset = monotonic(self.written_offset, offset, "what is in a consume queue's files")
        keep_from = max(self.tail_start, min(offset, self.max_offset - keep_units))
        if keep_from > self.tail_start:
            self.drop((keep_from - self.tail_start) * UNIT_BYTES)
            self.tail_start = keep_from

    def drop(self, size: int) -> None:
        """Let so many bytes at the tail's begin go."""
        self.tail = bytearray(self.tail_part(size))

    def rest(self) -> None:
        """Hold nothing in memory; everything is in files."""
        if self.written_offset == self.max_offset:
            self.tail = bytearray()
            self.tail_start = self.max_offset

    def adopt(self, first_offset: int, max_offset: int) -> None:
        """Take over units found in files at start."""
        self.first_offset = first_offset
        self.max_offset = self.tail_start = self.written_offset = max_offset
        self._min_offset, self._min_checked = first_offset, -1
        self.last_physical = self._last_physical()

    def take_over(self, max_offset: int, last_physical: int) -> None:
        """Continue a queue whose units up to there are in files, without a look at them."""
        self.max_offset = self.tail_start = self.written_offset = max_offset
        self.last_physical = last_physical

    def drop_files_before(self, offset: int) -> list[str]:
        """Forget the files that hold only units before `offset`, never the last; returns the paths to remove."""
        units = self._files.file_units
        first, keep = self.first_offset // units, min(offset, self.max_offset - 1, self.written_offset) // units
        if first >= keep:
            return []
        self._files.forget(self.directory)
        self.first_offset = monotonic(self.first_offset, keep * units, "a consume queue's begin")
        places = (checks_of(self.directory), self.directory)
        return [self._files.path(place, file) for file in range(first, keep) for place in places]

    def _last_physical(self) -> int:
        if self.max_offset == self.first_offset:
            return -1
        physical_offset, size, _ = self.unit(self.max_offset - 1)
        return -1 if size == BLANK_SIZE else physical_offset

"""All consume queues of a broker: applying dispatched entries, writing them at checkpoints, finding them again at start.

Invariant: a queue's unit n is the n-th message of that queue in the log. An entry that contradicts it is never stored at another
place: what is there already is skipped, a gap is filled with blank units, units that the log no longer bears out are replaced,
and queue offset 0 behind existing units starts the queue again (its topic had been deleted).

Files are written by `QueueWrite` (queue_write.py) in a helper thread while the loop goes on; everything else belongs to the
loop's thread.
"""

from __future__ import annotations

import logging
import struct
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from brokerd.native.library import Library
from brokerd.store.log.commitlog import CommitLog
from brokerd.store.log.derive import Entry, derive
from brokerd.store.log.entry_columns import EntryColumns, QueueEntries
from brokerd.store.log.laid_out import LaidOut
from brokerd.store.queues import queue_ends
from brokerd.store.queues.borne_out import holds_bytes, is_one_bit_off, lacks_begin, matches_log
from brokerd.store.queues.consume_queue import CHECKS_DIRECTORY, DIRECTORY, ConsumeQueue, QueueFiles, checks_of
from brokerd.store.queues.named_tails import Landing, NamedTails
from brokerd.store.queues.native_reads import NativeReads
from brokerd.store.queues.native_tails import NativeQueue, NativeTails
from brokerd.store.queues.native_writes import NativeWrites
from brokerd.store.queues.queue_offsets import QueueKey
from brokerd.store.queues.queue_write import QueuePart, QueueWrite, Untaken
from brokerd.store.queues.round_codes import ReadBack, RoundCodes
from brokerd.store.queues.unit_checks import BLOCK_UNITS
from brokerd.store.settings import StoreSettings
from brokerd.store.unit import BLANK_SIZE, UNIT, UNIT_BYTES
from remoting.disk import Disk, LocalDisk
from remoting.errors import StorageError

log = logging.getLogger(__name__)

# Units kept in memory behind a queue's end for consumers that keep up, and of all queues that got messages.
_WARM_UNITS = 1024
_ALL_WARM_UNITS = 1 << 18
_SLICE_QUEUES = 256  # a millisecond's work
_MAX_NAME_BYTES = 255
# How far behind the known units leftovers of a crash are looked for.
_PEEK_UNITS = 3276
# Where the end of a queue is looked for first, and how many times as far then.
_FIRST_LOOK = 64
_LOOK_FARTHER = 8
# How many units after the first one that the log does not bear out are looked at: more than a page of a disk holds.
_ROT_UNITS = 256


@lru_cache(maxsize=128)
def _units(count: int) -> struct.Struct:
    return struct.Struct(">" + "qiq" * count)


def _pack_units(physical_offset: int, size: int, tags_code: int, count: int) -> bytes:
    """The units of records of one size and tags code that lie one behind the other."""
    fields = [0, size, tags_code] * count
    fields[0::3] = range(physical_offset, physical_offset + count * size, size)
    return _units(count).pack(*fields)


def _one_by_one(
    key: QueueKey, queue_offset: int, physical_offset: int, size: int, tags_code: int, timestamp: int, count: int
) -> list[Entry]:
    """An entry for each of the records that one entry stands for."""
    return [
        (*key, queue_offset + index, physical_offset + index * size, size, tags_code, timestamp, 1)
        for index in range(count)
    ]


class ConsumeQueues:
    """`table` maps (topic, queue id) to its queue and may be read directly."""

    def __init__(self, disk: Disk, settings: StoreSettings, *, library: Library | None = None) -> None:
        """With the library, entries are put behind their queues in C, and many queues on a real disk written by it."""
        self._disk = disk
        self._files = QueueFiles(disk, settings.queue_file_units, settings.open_queue_files)
        self._native: NativeWrites | None = None
        self._tails: NativeTails | None = None
        self._named_tails: NamedTails | None = None
        if library is not None:
            self._tails = NativeTails(library)
            self._named_tails = NamedTails(library, self._tails)
        if library is not None and type(disk) is LocalDisk:  # any other one has the writes, and faults, that it says
            self._native = NativeWrites(library, disk, self._files)
            places = disk.full_path(DIRECTORY), disk.full_path(CHECKS_DIRECTORY)
            self._files.native = NativeReads(library, *places, settings.queue_file_units)
        self._dirty: list[ConsumeQueue] = []
        self._warm: list[ConsumeQueue] = []
        self._doomed: list[str] = []
        self._write_lock = threading.Lock()
        self.table: dict[QueueKey, ConsumeQueue] = {}
        self.buffered_units = 0
        self.refused_entries = 0

    def max_offsets(self) -> dict[QueueKey, int]:
        return {key: queue.max_offset for key, queue in self.table.items()}

    # -- applying ----------------------------------------------------------------------------------------------------------

    def apply(self, entries: Sequence[Entry], arrivals: dict[QueueKey, list[int]]) -> None:
        """Append the entries' units, in log order, and add to `arrivals` which queues got messages with which tags codes."""
        if isinstance(entries, EntryColumns):
            odd = {each.key for each in entries.by_queue() if not self._append_all(each, arrivals)}
            entries = [entry for entry in entries if entry[:2] in odd] if odd else ()
        table = self.table
        pack = UNIT.pack
        key: QueueKey = ("", -1)
        queue: ConsumeQueue | None = None
        codes: list[int] = []
        appended = 0
        for topic, queue_id, queue_offset, physical_offset, size, tags_code, timestamp, count in entries:
            if queue is None or queue_id != key[1] or topic != key[0]:  # a batch stays in one queue
                key = (topic, queue_id)
                queue = table.get(key) or self._create(key, queue_offset)
                if queue is None:
                    continue
                codes = arrivals.setdefault(key, [])
            if queue_offset != queue.max_offset:
                if not codes:
                    del arrivals[key]  # until something is appended
                if count > 1:
                    self.apply(
                        _one_by_one(key, queue_offset, physical_offset, size, tags_code, timestamp, count), arrivals
                    )
                    queue = None
                    continue
                if not self._make_room(queue, queue_offset, physical_offset):
                    queue = None
                    continue
                arrivals[key] = codes
            if not queue.dirty:
                queue.dirty = True
                self._dirty.append(queue)
            if count == 1:
                queue.append(pack(physical_offset, size, tags_code), queue_offset + 1, physical_offset)
                codes.append(tags_code)
            else:
                units = _pack_units(physical_offset, size, tags_code, count)
                queue.append(units, queue_offset + count, physical_offset + (count - 1) * size)
                codes += [tags_code] * count
            appended += count
        self.buffered_units += appended

    def apply_laid_out(self, entries: LaidOut, arrivals: RoundCodes) -> None:
        """The same for what C laid out, which C puts behind the queues that it knows."""
        tails = self._tails
        if tails is None:
            self.apply(entries, arrivals.present())
            return
        count, at, told, met = len(entries), 0, 0, -1
        while True:
            at, messages, dirty = tails.apply(entries, at)
            self._dirty += dirty
            self.buffered_units += messages
            if at == count:
                break
            entry = entries[at]
            queue = self.table.get(entry[:2])
            if queue is not None and queue.max_offset == entry[2]:
                assert met != at, "C leaves an entry for which everything is ready"
                tails.meet(queue, entries, at)
                met = at
                continue
            if at > told:
                arrivals.add(entries.part(told, at))
            self.apply([entry], arrivals.present())
            at += 1
            told = at
        if told < count:
            arrivals.add(entries.part(told, count) if told else entries)

    def apply_derived(self, entries: EntryColumns, arrivals: RoundCodes) -> None:
        """The same for what C derived, where it has that yet."""
        named = self._named_tails
        if named is None or not entries.walk:
            self.apply(entries, arrivals.present())
            return
        landing = Landing(entries)
        messages = self._land(named, landing)
        if landing.left_count:
            for key, first, count, is_known in landing.wanting():
                queue = self.table.get(key)
                if queue is None and _can_be_queue(key, first):
                    queue = self._create(key, first)
                if queue is not None:
                    named.prepare(queue, count, is_known=is_known)
            messages += self._land(named, landing)
        odd = landing.left() if landing.left_count else set()
        if messages:
            arrivals.add(ReadBack(entries, named.topics_of(landing), odd))
        if odd:
            self.apply([entry for entry in entries if entry[:2] in odd], arrivals.present())

    def _land(self, named: NamedTails, landing: Landing) -> int:
        """How many messages are in their places now that were not."""
        named.land(landing)
        self._dirty += landing.dirty
        self.buffered_units += landing.messages
        return landing.messages

    def _append_all(self, entries: QueueEntries, arrivals: dict[QueueKey, list[int]]) -> bool:
        """Append the units at once, when they continue their queue or begin it; whether they do."""
        key, first, is_dense, units, codes, last_physical = entries
        queue = self.table.get(key)
        if queue is None and is_dense and _can_be_queue(key, first):
            queue = self._create(key, first)
        if queue is None or not is_dense or queue.max_offset != first:
            return False
        arrivals.setdefault(key, []).extend(codes)
        if not queue.dirty:
            queue.dirty = True
            self._dirty.append(queue)
        queue.append(bytes(units), first + len(codes), last_physical)
        self.buffered_units += len(codes)
        return True

    def _create(self, key: QueueKey, first_offset: int) -> ConsumeQueue | None:
        topic, queue_id = key
        if not _can_be_queue(key, first_offset):
            self.refused_entries += 1
            if self.refused_entries.bit_count() == 1:  # 1st, 2nd, 4th, ...: bad records may come in any number
                log.error("a message for topic %r queue %d has no possible consume queue", topic, queue_id)
            return None
        queue = self.table[key] = self._new(topic, queue_id, first_offset)
        return queue

    def _new(self, topic: str, queue_id: int, first_offset: int) -> ConsumeQueue:
        kind = ConsumeQueue if self._tails is None else NativeQueue
        return kind(topic, queue_id, self._files, first_offset)

    def _make_room(self, queue: ConsumeQueue, queue_offset: int, physical_offset: int) -> bool:
        """Handle an entry that is not for the queue's end; whether its unit is to be appended now."""
        if queue_offset > queue.max_offset:
            missing = queue_offset - queue.max_offset
            log.error(
                "%s/%d lacks %d messages before queue offset %d", queue.topic, queue.queue_id, missing, queue_offset
            )
            if missing > self._files.file_units:
                self._begin_again(queue, queue_offset)
            else:
                queue.leave_blank(missing)
            return True
        if queue_offset < queue.first_offset:
            if queue_offset > 0 or physical_offset < queue.last_physical:
                return False
            self._begin_again(queue, 0)
            return True
        present, size, _ = queue.unit(queue_offset)
        if size != BLANK_SIZE and present == physical_offset:
            return False
        if size == BLANK_SIZE or present > physical_offset:
            self._cut(queue, queue_offset)
            return True
        if queue_offset == 0:
            self._begin_again(queue, 0)
            return True
        log.error(
            "%s/%d has two messages of queue offset %d, at %d and %d of the log; the second stays unreachable",
            *(queue.topic, queue.queue_id, queue_offset, present, physical_offset),
        )
        return False

    def _begin_again(self, queue: ConsumeQueue, offset: int) -> None:
        self._cut(queue, queue.first_offset)
        queue.restart(offset)

    def truncate(self, physical_offset: int) -> None:
        """Drop every unit whose record is at or behind the offset."""
        for queue in self.table.values():
            if queue.last_physical >= physical_offset:
                self._cut(queue, queue.first_behind(physical_offset, queue.first_offset))

    def delete(self, topic: str, before: int) -> list[QueueKey]:
        """Forget the queues of a topic that was deleted at a position of the log; returns their keys.

        Queues that hold later messages belong to a new topic of that name and stay. Files go with the next write.
        """
        keys = [key for key, queue in self.table.items() if key[0] == topic and queue.last_physical < before]
        if not keys:
            return []  # and no wait for who writes, who has the lock for as long as a disk stands still
        with self._write_lock:
            for key in keys:
                queue = self.table.pop(key)
                queue.restart(0)
                if self._tails is not None:
                    self._tails.forget(queue)
                self._doom(queue.directory)
            if not any(key[0] == topic for key in self.table):
                self._doom(f"{DIRECTORY}/{topic}")
        return keys

    def expired(self, log_min_offset: int) -> dict[QueueKey, int]:
        """The ends of the queues that hold units, all of them for records before the offset."""
        return {
            key: queue.max_offset
            for key, queue in self.table.items()
            if queue.first_offset < queue.max_offset and queue.last_physical < log_min_offset
        }

    def empty(self, ends: Mapping[QueueKey, int], log_min_offset: int) -> None:
        """Let queues go on at the given ends, without the units of records before the offset. A queue that holds others stays."""
        others = {key: end for key, end in ends.items() if not self._is_empty_at(key, end)}
        if not others:
            return  # as in `delete`
        with self._write_lock:
            for key, end in others.items():
                queue = self.table.get(key)
                if queue is None:
                    queue = self._create(key, end)
                elif queue.max_offset <= end and queue.last_physical < log_min_offset:
                    if queue.first_offset < queue.max_offset:
                        self._doom(queue.directory)
                    queue.restart(end)

    def _is_empty_at(self, key: QueueKey, end: int) -> bool:
        queue = self.table.get(key)
        return queue is not None and queue.first_offset == queue.max_offset == end and queue.last_physical == -1

    def begin_later(self, entries: Iterable[Entry], log_min_offset: int) -> None:
        """Have queues go on where the first of these entries does, if all of their own units are for records before the offset.
        Of a log whose first files are gone, a queue may be unknown, or known as it was long before."""
        firsts: dict[QueueKey, int] = {}
        for topic, queue_id, queue_offset, *_ in entries:
            firsts.setdefault((topic, queue_id), queue_offset)
        ends = self.max_offsets()
        self.empty({key: first for key, first in firsts.items() if first > ends.get(key, 0)}, log_min_offset)

    def _doom(self, directory: str) -> None:
        """The directory goes with the next write, and what covers its files."""
        self._files.forget(directory)
        self._doomed += [checks_of(directory), directory]

    def clear(self) -> None:
        """Forget all queues and remove their files."""
        with self._write_lock:
            self._disk.remove(queue_ends.PATH)
            for queue in self.table.values():
                queue.restart(0)
                if self._tails is not None:
                    self._tails.forget(queue)
            self._files.close()
            self._disk.remove(CHECKS_DIRECTORY)
            self._disk.remove(DIRECTORY)
        self.table.clear()
        self._dirty, self._warm, self._doomed = [], [], []
        self.buffered_units = 0

    def _cut(self, queue: ConsumeQueue, offset: int) -> None:
        with self._write_lock:  # a write of this queue has ended, or will see the new generation
            queue.cut(offset)

    # -- writing -----------------------------------------------------------------------------------------------------------

    def begin_write(self) -> QueueWrite:
        """What has to be written to make the present state of all queues durable."""
        write = self.begin_write_in_slices()
        while self.take_slice(write):
            pass
        return write

    def begin_write_in_slices(self) -> QueueWrite:
        """The same, whole when `take_slice` says so; then it has what was here before, and some of what came meanwhile."""
        untaken = Untaken(deque(self._warm), deque(self._dirty))
        self._warm, self._dirty = [], []
        self.buffered_units = 0
        return QueueWrite(self._disk, self._files, [], [], self._write_lock, self._native, untaken)

    def take_slice(self, write: QueueWrite) -> bool:
        """Take what some queues have for the write; whether others are left."""
        untaken = write.untaken
        for _ in range(min(_SLICE_QUEUES, len(untaken.warm))):
            queue = untaken.warm.popleft()
            if not queue.dirty:
                queue.rest()
        for _ in range(min(_SLICE_QUEUES, len(untaken.dirty))):
            queue = untaken.dirty.popleft()
            queue.dirty = False
            if self.table.get((queue.topic, queue.queue_id)) is not queue:
                continue
            self._warm.append(queue)
            first = max(queue.written_offset, queue.first_offset)
            units = queue.tail_part((first - queue.tail_start) * UNIT_BYTES)
            assert first + len(units) // UNIT_BYTES == queue.max_offset, "a queue's end is not that of its units"
            write.parts.append(QueuePart(queue, queue.generation, first, units))
        if untaken.warm or untaken.dirty:
            return True
        # Not before: a queue that begins again between two slices has its new units in the write
        write.doomed, self._doomed = self._doomed, []
        if write.doomed:
            write.doomed.insert(0, queue_ends.PATH)  # it lists what goes now
        return False

    def finish_write(self, write: QueueWrite) -> None:
        """Take note that the write has run."""
        while self.finish_slice(write):
            pass

    def finish_slice(self, write: QueueWrite) -> bool:
        """The same for some of its queues; whether others are left."""
        keep_units = min(_WARM_UNITS, _ALL_WARM_UNITS // max(1, len(write.parts)))
        begin = write.finished
        write.finished = end = min(begin + _SLICE_QUEUES, len(write.parts))
        for queue, generation, first, units in write.parts[begin:end]:
            if queue.generation == generation:
                queue.written(first + len(units) // UNIT_BYTES, keep_units)
            else:
                self._write_again(queue)
        return end < len(write.parts)

    def abandon_write(self, write: QueueWrite) -> None:
        """Take note that the write failed: its units are still to be written."""
        for part in write.parts[write.finished :]:
            self._write_again(part.queue)
        self._doomed[:0] = write.doomed  # if they are gone, what is in their place will be written again
        self._dirty += write.untaken.dirty
        self._warm += write.untaken.warm

    def _write_again(self, queue: ConsumeQueue) -> None:
        """The next write has to have what this one left out, because it failed or because the queue was cut meanwhile."""
        if not queue.dirty and queue.written_offset < queue.max_offset:
            queue.dirty = True
            self._dirty.append(queue)

    def unproven(self, queue: ConsumeQueue, offset: int) -> bool:
        """Whether no checksum covers the block of the written unit."""
        units = self._files.file_units
        file, inside = divmod(offset, units)
        block = inside // BLOCK_UNITS
        return not self._files.checks(queue.directory, file, block, block + 1)[0].covered

    def block_of(self, queue: ConsumeQueue, offset: int) -> tuple[int, int]:
        """From which unit to which the block of a written unit is in files."""
        file, inside = divmod(offset, self._files.file_units)
        first = file * self._files.file_units + inside // BLOCK_UNITS * BLOCK_UNITS
        end = min(first + BLOCK_UNITS, (file + 1) * self._files.file_units, queue.written_offset)
        return max(first, queue.first_offset), end

    def cover(self, queue: ConsumeQueue, first: int, end: int) -> None:
        """The units `[first, end)` of a block fit the log: what a checksum says of them is so from now on."""
        if first % self._files.file_units % BLOCK_UNITS == 0:
            self._files.cover(queue.directory, first, queue.read_written(first, end - first))

    def rewrite(self, queue: ConsumeQueue, generation: int, first: int, units: bytes) -> QueueWrite:
        """What writes units that belong at `first` over damaged ones, unless the queue was cut since the generation."""
        parts = [QueuePart(queue, generation, first, units)]
        return QueueWrite(self._disk, self._files, parts, [], self._write_lock, self._native, Untaken(deque(), deque()))

    def forget_expired(self, log_min_offset: int) -> list[str]:
        """Forget queue files whose messages are all gone from the log; returns the paths to remove, which may block. Those of a
        queue that cannot be read stay until it can."""
        paths = []
        for queue in self.table.values():
            if queue.first_offset // self._files.file_units < (queue.max_offset - 1) // self._files.file_units:
                try:
                    paths += queue.drop_files_before(queue.min_offset(log_min_offset))
                except StorageError as error:
                    log.warning("files of consume queue %s/%d stay: %s", queue.topic, queue.queue_id, error)
        return paths

    def close(self) -> None:
        self._files.close()

    # -- finding them at start ---------------------------------------------------------------------------------------------

    def recover(
        self, commitlog: CommitLog, trusted_offset: int, latest: Mapping[QueueKey, int], *, clean: bool
    ) -> bool:
        """Take over the files: of every queue the units for records before `trusted_offset`, which are known to be durable.
        `latest`: the offsets that the last of these records have in their queues, as far as somebody looked.

        After an unclean end everything behind them is blanked out. Returns False when the files contradict each other; the
        caller then rebuilds all queues from the log.
        """
        ends = queue_ends.decode(self._disk.read_bytes(queue_ends.PATH))
        if ends is not None and ends.file_units == self._files.file_units:
            is_newest = clean and ends.queues_offset == trusted_offset
            if not self._are_there(ends, in_full=is_newest):
                log.error("files of consume queues are missing, so all queues are made again")
                return False
            if is_newest:
                self._adopt(ends)
                return True
        for topic, name in self._directories():
            if not (name.isascii() and name.isdigit()):
                log.error("%s/%s/%s is no consume queue", DIRECTORY, topic, name)
                return False
            if not self._recover_queue(topic, int(name), commitlog, trusted_offset, clean):
                log.error("the files of consume queue %s/%s do not fit together", topic, name)
                return False
        known = {} if ends is None else {(each.topic, each.queue_id): each for each in ends.queues}
        for key, queue in self.table.items():
            if self._lacks_end(queue, latest.get(key, -1), known.get(key), commitlog):
                log.error("the newest files of consume queue %s/%s are missing, so all queues are made again", *key)
                return False
        return True

    def _lacks_end(
        self, queue: ConsumeQueue, latest: int, before: queue_ends.QueueEnd | None, commitlog: CommitLog
    ) -> bool:
        """Whether the queue ends before its message `latest`, or had more units at the last clean end, of records that the log
        still has."""
        if queue.max_offset <= latest:
            return True
        if before is None or before.max_offset <= queue.max_offset:
            return False
        record = commitlog.record_at(before.last_physical)
        entries = derive(record, before.last_physical, commitlog.shape).entries if record is not None else []
        return [entry[:3] for entry in entries] == [(queue.topic, queue.queue_id, before.max_offset - 1)]

    def _directories(self) -> Iterator[tuple[str, str]]:
        """(topic, queue id) as the directories are named."""
        for topic in self._disk.names(DIRECTORY):
            for name in self._disk.names(f"{DIRECTORY}/{topic}"):
                yield topic, name

    def ends(self, queues_offset: int) -> bytes:
        """What a start after a clean end needs to know of the queues, all of which are written."""
        found = [
            queue_ends.QueueEnd(queue.topic, queue.queue_id, queue.first_offset, queue.max_offset, queue.last_physical)
            for queue in self.table.values()
            if queue.first_offset < queue.max_offset
        ]
        assert all(queue.written_offset == queue.max_offset for queue in self.table.values()), "a queue is not written"
        return queue_ends.encode(queues_offset, self._files.file_units, found)

    def _are_there(self, ends: queue_ends.QueueEnds, *, in_full: bool) -> bool:
        """Whether no queue's files are missing; after a clean end `in_full`: exactly these files, and no queue more."""
        units = self._files.file_units
        if in_full and set(self._directories()) != {(end.topic, str(end.queue_id)) for end in ends.queues}:
            return False
        for end in ends.queues:
            files = self._files.list(f"{DIRECTORY}/{end.topic}/{end.queue_id}")
            expected = list(range(end.first_offset // units, (end.max_offset - 1) // units + 1))
            if not files or (in_full and files != expected):
                return False
        return True

    def _adopt(self, ends: queue_ends.QueueEnds) -> None:
        for topic, queue_id, first, end, last_physical in ends.queues:
            queue = self.table[(topic, queue_id)] = self._new(topic, queue_id, first)
            queue.take_over(end, last_physical)

    def expired_ends(self, commitlog: CommitLog, end: int) -> dict[QueueKey, int]:
        """Where queues end, by their files, whose messages are all gone from the log: nothing else knows that any more."""
        ends = {}
        for topic, name in self._directories():
            if not (name.isascii() and name.isdigit()):
                continue
            queue = ConsumeQueue(topic, int(name), self._files, 0)
            if files := self._files.contiguous(queue.directory):
                first, low, _ = self._find_confirmed_end(queue, files, commitlog, end)
                queue.adopt(first, low)
                if low > first and queue.last_physical < commitlog.min_offset:
                    ends[(topic, int(name))] = low
                self._files.forget(queue.directory)
        return ends

    def _recover_queue(self, topic: str, queue_id: int, commitlog: CommitLog, trusted: int, clean: bool) -> bool:
        queue = self._new(topic, queue_id, 0)
        files = self._files.contiguous(queue.directory)
        if not files:
            return files is not None
        first, low, end = self._find_confirmed_end(queue, files, commitlog, trusted)
        if self._is_rotten(queue, low, end, commitlog, trusted) or lacks_begin(queue, low, commitlog):
            return False
        if low == first:
            self._files.forget(queue.directory)
            self._disk.remove(queue_ends.PATH)  # it may list what goes now
            self._disk.remove(checks_of(queue.directory))
            self._disk.remove(queue.directory)
            return True
        if not clean:
            # Old units there would do no harm to us (they are never borne out), but the original would take them.
            file_end = (low // self._files.file_units + 1) * self._files.file_units
            visible = low < end and holds_bytes(
                self._files.read(queue.directory, low, min(_PEEK_UNITS, file_end - low))
            )
            if visible or file_end < end:
                self._files.forget(queue.directory)
                self._files.zero_from(queue.directory, low, list(files), sync=visible)
        queue.adopt(first, low)
        self.table[(topic, queue_id)] = queue
        return True

    def _is_rotten(self, queue: ConsumeQueue, low: int, end: int, commitlog: CommitLog, trusted: int) -> bool:
        """Whether the unit at `low`, which the log does not bear out, was changed on disk, and is not the queue's end: units
        follow that the log does bear out, the units there do not pass their check, or it is one bit away from being right, since
        a power loss may take the check."""
        if low == end:
            return False
        if is_one_bit_off(queue, low, commitlog, trusted):
            return True
        units = self._files.read(queue.directory, low, min(_ROT_UNITS, end - low))
        return self._files.fails_check(queue.directory, low) or any(
            commitlog.min_offset <= physical_offset < trusted
            and 0 < size < BLANK_SIZE
            and matches_log(queue, low + number, commitlog, trusted)
            for number, (physical_offset, size, _) in enumerate(UNIT.iter_unpack(units))
        )

    def _find_confirmed_end(
        self, queue: ConsumeQueue, files: range, commitlog: CommitLog, trusted: int
    ) -> tuple[int, int, int]:
        """Where a queue's files begin, where the units that the log bears out end, and where the files end.

        What was durable comes first and is borne out; what a crash or an old cut left behind it is not. So: binary search, within
        what most of thousands of queues have, or a few times as much.
        """
        first, end = files.start * self._files.file_units, files.stop * self._files.file_units
        queue.adopt(first, end)
        low, high = first, first + _FIRST_LOOK
        while high < end and matches_log(queue, high, commitlog, trusted):
            low, high = high + 1, first + _LOOK_FARTHER * (high - first)
        high = min(high, end)
        known = bisect_left(range(high), True, low, key=lambda at: not matches_log(queue, at, commitlog, trusted))
        return first, known, end


def _can_be_queue(key: QueueKey, first_offset: int) -> bool:
    topic, queue_id = key
    return queue_id >= 0 and first_offset >= 0 and is_directory_name(topic)


def is_directory_name(name: str) -> bool:
    """Whether a topic can name the directory of its queues."""
    if not name or name in (".", "..") or "/" in name or "\0" in name:
        return False
    return len(name.encode("utf-8", "surrogateescape")) <= _MAX_NAME_BYTES

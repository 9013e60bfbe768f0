"""The wheel and the timer log as one: the timers behind a cursor, in the order in which they came.

Invariants: every timer that was put and is behind the cursor `passed`, which the log says at `known_at`, is in the wheel's slot
of its time, exactly once, and has a record in the timer log; records are in the order of the queue. Slots before the cursor's
are dead: nothing reads them, and later rounds of the wheel take their place. `messages` counts what the others say.
"""

from __future__ import annotations

from array import array
from typing import Final

from brokerd.timers.codes import RECALL, SLOT_MS, START, Key
from brokerd.timers.files.layout import (
    EMPTY,
    MAGIC,
    MAGIC_DELETE,
    MAGIC_ELSEWHERE,
    MAGIC_ROLL,
    NO_POSITION,
    DamagedTimerFiles,
    Shape,
    Slot,
    TimerRecord,
    encode_record,
    slot_for,
)
from brokerd.timers.files.native_link import NativeLink, Place
from brokerd.timers.files.page import MOST_FILES, Page
from brokerd.timers.files.source import Delivered, Origin, hash_of
from brokerd.timers.files.timer_log import TimerLog
from brokerd.timers.files.wheel import TimerWheel, write_slots
from brokerd.timers.said import ROW, STORED_MS, Said
from remoting.disk import Disk

_LONGEST_LEG_MS: Final = 7 * 86_400_000  # half a round of the wheel
_MOST_LOOKED_AT: Final = 10_000


class PendingTimers:
    """One thread calls everything. Raises DamagedTimerFiles when wheel and log contradict each other."""

    def __init__(self, disk: Disk, shape: Shape) -> None:
        self._disk = disk
        self.shape = shape
        self.wheel = TimerWheel(shape)
        self.log = TimerLog(disk, shape)
        self.clear()

    def clear(self) -> None:
        """Have none, without a thought to the files."""
        self.wheel.clear()
        self.log.clear()
        self.passed = START
        self.known_at = 0
        self.messages = 0
        self.stored_ms = 0  # when the last message was
        self._latest_ms: list[int] = []  # slots of the records in the log's files

    # -- coming and going --------------------------------------------------------------------------------------------------

    def put(self, key: Key, physical_offset: int, size: int, kind: int, origin: Origin) -> bool:
        """Add the timer of the next entry; False when there is no room for it yet."""
        slot_ms = slot_for(key.due_ms)
        if not self._is_free(slot_ms) or not self._has_room():
            return False
        magic = MAGIC | (MAGIC_ROLL if origin.is_leg else 0) | (MAGIC_DELETE if kind == RECALL else 0)
        self._link(slot_ms, TimerRecord(NO_POSITION, magic, key.due_ms, physical_offset, size, key.offset), origin)
        self.stored_ms = origin.stored_ms
        return True

    def put_all(self, link: NativeLink, said: Said, queue_offset: int) -> int:
        """Add the timers of the next entries, all of them messages, as far as `put` would, and a file goes; returns how many."""
        if not said.timers or not self._has_room():
            return 0
        file, inside = divmod(self.log.end - self.log.first, self.shape.file_records)
        count = min(said.timers, self.shape.file_records - inside)
        place = Place(queue_offset, self.log.end_position, slot_for(self.passed.due_ms))
        hashes = array("q", map(hash_of, said.topics))
        linked = link(self.wheel.image, self.shape.slots, said, hashes, place, count)
        if linked is None:
            return 0
        records, places, first_ms, last_ms = linked
        self.log.append(records)
        self.wheel.touched(places, first_ms, last_ms)
        self.messages += len(places)
        self._latest_ms[file] = max(self._latest_ms[file], last_ms)
        self.stored_ms = said.rows[(len(places) - 1) * ROW + STORED_MS]
        return len(places)

    def put_elsewhere(self, key: Key, physical_offset: int, size: int, origin: Origin, *, is_ahead: bool) -> None:
        """Add a delete marker once more, for the original: with us it has its effect at once, there in the slot of what it takes
        back, or on the way there. It is left out where it would be of no use or has no room. `is_ahead`: it was put, too."""
        wanted_ms, least_ms = origin.slot_ms or 0, slot_for(self.passed.due_ms)
        slot_ms = min(wanted_ms, max(least_ms, slot_for(origin.stored_ms)) + _LONGEST_LEG_MS)
        is_linked = is_ahead and slot_ms == slot_for(key.due_ms)
        if slot_ms < least_ms or is_linked or not self._is_free(slot_ms) or not self._has_room():
            return
        magic = MAGIC | MAGIC_DELETE | MAGIC_ELSEWHERE | (MAGIC_ROLL if slot_ms < wanted_ms else 0)
        self._link(
            slot_ms, TimerRecord(NO_POSITION, magic, slot_ms + SLOT_MS, physical_offset, size, key.offset), origin
        )

    def leave(self, physical_offset: int, size: int, queue_offset: int) -> None:
        """Say for the original, which goes on behind the timer log's last record, how far the queue was followed: by a record of
        the last entry in a slot that has passed, where nobody reads it. It is in no slot of ours."""
        if self.log.end > self.log.first and self.log.record(self.log.end - 1).queue_offset == queue_offset:
            return
        slot_ms = slot_for(self.passed.due_ms) - SLOT_MS
        if slot_ms < SLOT_MS or not self._is_free(slot_ms) or not self._has_room():
            return
        magic = MAGIC | MAGIC_ELSEWHERE
        record = TimerRecord(NO_POSITION, magic, slot_ms + SLOT_MS, physical_offset, size, queue_offset)
        self.log.append(encode_record(record, self.stored_ms, 0))

    def is_slot_done(self) -> bool:
        """Whether nothing in the cursor's slot is behind the cursor; False also when that takes long to find out."""
        position, left = self.wheel.slot(slot_for(self.passed.due_ms)).last, _MOST_LOOKED_AT
        while position != NO_POSITION and left:
            record = self.log.record_at(position)
            if record is None:
                break
            if record.key > self.passed:
                return False
            position, left = record.previous, left - 1
        return left > 0

    def _is_free(self, slot_ms: int) -> bool:
        """Whether no other round of the wheel waits in the place of the slot."""
        other_ms = self.wheel.time_at(slot_ms)
        return other_ms == slot_ms or other_ms < slot_for(self.passed.due_ms)

    def _has_room(self) -> bool:
        """Whether there is a file for the next record."""
        file = (self.log.end - self.log.first) // self.shape.file_records
        if file == len(self._latest_ms):
            if file == MOST_FILES:
                return False
            self._latest_ms.append(0)
        return True

    def _link(self, slot_ms: int, record: TimerRecord, origin: Origin) -> None:
        """Append the record as the last one of the slot."""
        file = (self.log.end - self.log.first) // self.shape.file_records
        first, last, messages = self.wheel.slot(slot_ms)
        encoded = encode_record(record._replace(previous=last), origin.stored_ms, origin.topic_hash)
        position = self.log.append(encoded)
        count = messages + record.is_message
        self.wheel.put(slot_ms, Slot(position if first == NO_POSITION else first, position, count))
        self.messages += record.is_message
        self._latest_ms[file] = max(self._latest_ms[file], slot_ms)

    def move_to(self, delivered: Delivered) -> None:
        """The cursor went there, which is ahead."""
        (cursor, *_), known_at = delivered
        before_ms, now_ms = slot_for(self.passed.due_ms), slot_for(cursor.due_ms)
        if self.messages and before_ms < now_ms:
            self.messages -= self.wheel.messages_between(before_ms, now_ms)
        self.passed, self.known_at = cursor, known_at

    def forget_behind(self, physical_offset: int) -> int:
        """Drop, in memory, the timers whose records stand from that offset of the commitlog on; returns the queue offset of the
        last one that is left, -1 without one."""
        log, least_ms, end = self.log, slot_for(self.passed.due_ms), self.log.end
        begin = self.shape.position_of(log.first)
        last_offset = -1
        while end > log.first:
            record = log.record(end - 1)
            if record.physical_offset < physical_offset:
                last_offset = record.queue_offset
                break
            end -= 1
            slot_ms, position = record.slot_ms, self.shape.position_of(end)
            slot = self.wheel.slot(slot_ms)
            if slot.last == position:
                left = Slot(slot.first, record.previous, slot.messages - record.is_message)
                left = left if record.previous >= begin else EMPTY
                self.wheel.put(slot_ms, left)
                self.messages -= slot.messages - left.messages if slot_ms >= least_ms else 0
            elif slot_ms >= least_ms:
                raise DamagedTimerFiles(f"the slot {slot_ms} ends at {slot.last}, not with its record at {position}")
        log.forget_from(end)
        del self._latest_ms[-(-(end - log.first) // self.shape.file_records) :]
        return last_offset

    def drop_files(self, log_min_offset: int) -> list[str]:
        """Forget the log's first files as long as the cursor passed all that is in them, or the commitlog has nothing of it any
        more; returns the paths to remove."""
        paths = []
        records, least_ms = self.shape.file_records, slot_for(self.passed.due_ms)
        while self.log.first + records <= self.log.written:
            if self._latest_ms[0] >= least_ms:
                last = self.log.record(self.log.first + records - 1)
                if last.physical_offset >= log_min_offset:
                    break
            paths.append(self.log.drop_file())
            self._latest_ms.pop(0)
        return paths

    # -- the files ---------------------------------------------------------------------------------------------------------

    def page(self, offset: int, applied: int, counter: int, *, is_slot_done: bool = False) -> Page:
        """What is true when all of the present state is on disk."""
        return Page(
            offset,
            applied,
            self.log.end_position,
            self.passed,
            self.known_at,
            self.messages,
            self.shape,
            self.log.first // self.shape.file_records,
            tuple(self._latest_ms),
            counter,
            self.stored_ms,
            is_slot_done,
        )

    def load(self, page: Page, *, clean: bool) -> None:
        """Take over what the page vouches for, and take back what a crash left beyond it. Raises StorageError."""
        self.clear()
        end = self.shape.number_at(page.end)
        if page.shape != self.shape or end is None:
            raise DamagedTimerFiles("they are of another shape")
        self.log.load(page.first_file, end)
        if end:
            self.wheel.load(self._disk)
        torn = self._take_back(page.end)
        if torn or not clean:
            self.write_cut()
        if self.wheel.messages_from(slot_for(page.passed.due_ms)) != page.messages:
            raise DamagedTimerFiles(f"the wheel has not the {page.messages} messages that it had")
        self.passed, self.known_at = page.passed, page.known_at
        self.messages, self.stored_ms = page.messages, page.timestamp_ms
        self._latest_ms = list(page.latest_slots_ms)

    def _take_back(self, end: int) -> bool:
        """Let no slot name a record from a position on; whether one did. Those records are on disk: they were written first."""
        torn = self.wheel.slots_beyond(end)
        for slot_ms, (first, last, messages) in torn:
            while last >= end:
                number = self.shape.number_at(last)
                record = self.log.written_record(number) if number is not None else None
                if record is None or record.slot_ms != slot_ms or record.previous >= last:
                    raise DamagedTimerFiles(f"the slot {slot_ms} names a record at {last} that is not its own")
                last, messages = record.previous, messages - record.is_message
            self.wheel.put(slot_ms, Slot(first, last, messages))
        return bool(torn)

    def write_cut(self) -> None:
        """Bring a cut to disk: first the slots, so that none names a record that goes; blocks."""
        if parts := self.wheel.begin_write():
            write_slots(self._disk, self.shape, parts)
            self.wheel.finish_write()
        self.log.write_cut()

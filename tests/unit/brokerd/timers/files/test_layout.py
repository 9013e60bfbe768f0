"""The bytes of the timer files: what the original reads and writes."""

from __future__ import annotations

from contextlib import closing

import pytest
from hypothesis import given
from hypothesis.strategies import integers

from brokerd.timers.codes import MAX_DUE_MS, MESSAGE, RECALL, Key, key_of
from brokerd.timers.files.layout import (
    LOG_DIRECTORY,
    WHEEL_PATH,
    Shape,
    TimerRecord,
    blank_of,
    decode_record,
    encode_record,
    slot_for,
)
from brokerd.timers.files.page import MOST_FILES, PATH, Page, decode_page, encode_page
from brokerd.timers.files.slot_keys import SlotKeys
from brokerd.timers.files.source import Origin
from remoting.java_hash import java_hash
from tests.support.disks import MemoryDisk
from tests.unit.brokerd.timers.files.queue_model import TINY, ListedQueue, ask, follow, open_files, write

DUE_MS = 1_700_000_061_234
SLOT_MS = 1_700_000_061_000


def test_the_shape_is_the_originals() -> None:
    shape = Shape()
    assert shape.slots == 1_209_600
    assert shape.file_records == 2_016_492
    assert shape.position_of(shape.file_records - 1) == 104_857_532
    assert shape.position_of(shape.file_records) == shape.file_bytes == 104_857_600
    assert blank_of(shape).hex(" ", 4) == "00000010 00000000 00000000 cbd43194"
    assert slot_for(DUE_MS) == SLOT_MS
    assert slot_for(SLOT_MS) == SLOT_MS - 1000  # what is due when a second begins is in the slot before it


def test_a_record_byte_by_byte() -> None:
    record = TimerRecord(0x1000, 1, DUE_MS, 0x0123456789, 0x200, 77)
    encoded = encode_record(record, 1_700_000_000_000, java_hash("TopicTest"))
    assert encoded.hex(" ") == (
        "00 00 00 34 "  # size
        "00 00 00 00 00 00 10 00 "  # prevPos
        "00 00 00 01 "  # magic
        "00 00 01 8b cf e5 68 00 "  # writeTime
        "00 00 ef 31 "  # delay: to the last millisecond before it is due
        "00 00 00 01 23 45 67 89 "  # phyOffset
        "00 00 02 00 "  # phySize
        "8e 98 76 41 "  # topicHash
        "00 00 00 00 00 00 00 4d"  # reserved: the offset in the queue
    )
    assert decode_record(encoded) == record


@given(due_ms=integers(0, MAX_DUE_MS), write_ms=integers(0, MAX_DUE_MS))
def test_any_time_fits(due_ms: int, write_ms: int) -> None:
    record = TimerRecord(-1, 5, due_ms, 0, 100, 1)
    assert decode_record(encode_record(record, write_ms, 0)) == record


@pytest.mark.parametrize("at", [3, 4, 12, 15])
def test_what_is_no_record_is_none(at: int) -> None:
    encoded = bytearray(encode_record(TimerRecord(-1, 1, DUE_MS, 0, 100, 1), DUE_MS, 0))
    encoded[at] ^= 0x10 if at != 4 else 0x01
    assert decode_record(bytes(encoded)) is None
    assert decode_record(bytes(encoded[:-1])) is None


def test_a_page_byte_by_byte() -> None:
    page = Page(1000, 70, 208, Key(DUE_MS, 5), 900, 4, TINY, 0, (SLOT_MS, SLOT_MS + 1000), 7, 1_700_000_000_000)
    encoded = encode_page(page)
    assert encoded[:56].hex(" ", 8) == (
        "0000018bcfe65648 00000000000000d0 0000000000000046 0000000000000046 "
        "0000000000000000 0000018bcfe56800 0000000000000007"
    )
    assert encoded[56:140].hex(" ", 4) == (
        "4c4f4742 4f4f4d31 00000000 000003e8 0000018b cfe65732 00000000 00000005 00000000 00000384 "
        "00000000 00000004 0000000f 000000e4 00000000 00000000 00000002 "
        "0000018b cfe65648 0000018b cfe65a30"
    )
    assert not any(encoded[140:-4])
    assert encoded[-4:].hex() == "87497417"
    assert len(encoded) == 4096
    assert decode_page(encoded) == page
    whole = page._replace(latest_slots_ms=(SLOT_MS,) * MOST_FILES, last=(900, 100, DUE_MS << 2))
    assert decode_page(encode_page(whole)) == whole
    assert encode_page(whole)[4072:4092].hex(" ", 4) == "00000000 00000384 0000062f 3f995cc8 00000064"


def test_files_byte_by_byte() -> None:
    disk, queue = MemoryDisk(), ListedQueue()
    queue.deliver(Key(DUE_MS - 1, -1))
    queue.marked_ms = 0  # of the same second
    files = open_files(disk, queue, clean=True)
    for due_ms, kind in [
        (DUE_MS, MESSAGE),
        (DUE_MS + 3, MESSAGE),
        (DUE_MS, RECALL),
        (DUE_MS + 1000, MESSAGE),
        (DUE_MS, MESSAGE),
    ]:
        queue.add(due_ms, kind)
    follow(files, queue)
    write(files)
    with closing(disk.open(WHEEL_PATH)) as wheel:
        slot = SLOT_MS // 1000
        assert wheel.size_bytes == 32 * TINY.slots
        assert wheel.read(slot % TINY.slots * 32, 32).hex(" ", 4) == (
            "00000000 6553f13d 00000000 00000000 00000000 000000e4 00000003 00000000"
        )
        assert wheel.read((slot + 1) % TINY.slots * 32, 32).hex(" ", 4) == (
            "00000000 6553f13e 00000000 0000009c 00000000 0000009c 00000001 00000000"
        )
    with closing(disk.open(f"{LOG_DIRECTORY}/{0:020d}")) as first:
        whole = first.read(0, 300)
    assert len(whole) == 228
    assert [whole[at + 4 : at + 16].hex(" ", 4) for at in range(0, 208, 52)] == [
        "ffffffff ffffffff 00000001",
        "00000000 00000000 00000001",
        "00000000 00000034 00000005",
        "ffffffff ffffffff 00000001",
    ]
    assert whole[208:].hex(" ", 4) == "00000014 00000000 00000000 cbd43194 00000000"
    with closing(disk.open(f"{LOG_DIRECTORY}/{228:020d}")) as second:
        assert second.read(4, 12).hex(" ", 4) == "00000000 00000068 00000001"
    assert disk.names(LOG_DIRECTORY) == [f"{0:020d}", f"{228:020d}"]


def test_a_leg_is_marked_as_one() -> None:
    class Legs(ListedQueue):
        def origin(self, physical_offset: int, size: int) -> Origin:
            return Origin(0, DUE_MS, True)

    disk, queue = MemoryDisk(), Legs()
    files = open_files(disk, queue, clean=True)
    queue.add(DUE_MS)
    follow(files, queue)
    write(files)
    with closing(disk.open(f"{LOG_DIRECTORY}/{0:020d}")) as segment:
        assert segment.read(12, 4).hex() == "00000003"


def test_what_the_original_wrote_is_made_again() -> None:
    """It rewrites the beginning of the page in place, and knows nothing of the rest."""
    disk, queue = MemoryDisk(), ListedQueue()
    files = open_files(disk, queue, clean=True)
    queue.add(DUE_MS)
    follow(files, queue)
    write(files)
    content = disk.read_bytes(PATH)
    assert content is not None
    disk.replace_bytes(PATH, content[:16] + bytes(16) + content[32:])
    again = open_files(disk, queue, clean=True)
    assert again.times_begun_again == 1
    follow(again, queue)
    assert ask(again) == [(queue.codes[0], 0)]


def test_files_that_were_passed_go() -> None:
    disk, queue = MemoryDisk(), ListedQueue()
    files = open_files(disk, queue, clean=True)
    for number in range(9):
        queue.add(DUE_MS + 1000 * number)
    follow(files, queue)
    write(files)
    assert len(disk.names(LOG_DIRECTORY)) == 3
    queue.deliver(Key(DUE_MS + 4000, 100))
    follow(files, queue)
    write(files)
    assert disk.names(LOG_DIRECTORY) == [f"{228:020d}", f"{456:020d}"]
    queue.low = 8  # of the others, too, the commitlog has nothing any more
    queue.add(DUE_MS + 14_000)
    follow(files, queue)
    write(files)
    assert disk.names(LOG_DIRECTORY) == [f"{456:020d}"]
    assert ask(files) == queue.expected(Key(DUE_MS, 0), 1 << 50, 10, 10)
    assert open_files(disk, queue).times_begun_again == 0


def test_a_timer_of_another_round_waits_for_its_place() -> None:
    disk, queue = MemoryDisk(), ListedQueue()
    queue.deliver(Key(DUE_MS - 10_000, -1))
    files = open_files(disk, queue, clean=True)
    queue.add(DUE_MS)
    queue.add(DUE_MS + 1000 * TINY.slots)
    queue.add(DUE_MS + 1)
    follow(files, queue)
    assert files.applied == 1
    queue.deliver(Key(DUE_MS + 1000, -1))
    follow(files, queue)
    assert files.applied == 3
    assert ask(files, queue.cursor) == [(queue.codes[1], 1)]


@pytest.mark.parametrize("spread", [7919, 1, -1, 0])
def test_millions_in_a_second_are_found_in_portions(spread: int) -> None:
    disk, queue = MemoryDisk(), ListedQueue()
    files = open_files(disk, queue, clean=True)
    for number in range(200):
        queue.add(SLOT_MS + 1 + number * spread % 1000)
    follow(files, queue)
    files._reads._most_keys = 16
    found = ask(files, limit=50)
    assert found == queue.expected(Key(0, 0), 1 << 50, 50, 200)
    assert ask(files) == queue.expected(Key(0, 0), 1 << 50, 1000, 200)
    assert ask(files, until_ms=SLOT_MS + 300) == queue.expected(Key(0, 0), SLOT_MS + 300, 1000, 200)


@pytest.mark.parametrize("spread", [7919, 1, -1, 0])
def test_no_more_keys_of_a_second_are_kept_than_said(spread: int) -> None:
    disk, queue = MemoryDisk(), ListedQueue()
    files = open_files(disk, queue, clean=True)
    for number in range(3000):
        queue.add(SLOT_MS + 1 + number * spread % 1000)
    follow(files, queue)
    slot = files._pending.wheel.slot(SLOT_MS)
    keys = SlotKeys(files._pending.log, files._walk, SLOT_MS, Key(0, 0), 500)
    while keys.gather(slot, 30) == 30:
        assert keys._count == sum(map(len, keys._chunks)) <= 500 < files.applied
    found = keys.take(Key(0, 0), 1 << 50, 3000)
    first = queue.expected(Key(0, 0), 1 << 50, 3000, files.applied)
    assert len(found) >= 200
    assert found == [key_of(*each) for each in first[: len(found)]]
    assert not keys.has_all_before(1 << 50)


def test_what_comes_while_a_question_is_answered_is_in_the_answer() -> None:
    disk, queue = MemoryDisk(), ListedQueue()
    files = open_files(disk, queue, clean=True)
    for number in range(9):
        queue.add(DUE_MS + 1000 * number)
    follow(files, queue)
    question = (Key(0, 0), 1 << 50, 7)
    for _ in range(4):
        assert files.between(*question) is None
    queue.add(DUE_MS + 1)  # behind the first, which was found already
    follow(files, queue)
    assert ask(files, *question) == queue.expected(*question, 10)


def test_a_question_may_begin_behind_all_timers_of_a_second() -> None:
    disk, queue = MemoryDisk(), ListedQueue()
    files = open_files(disk, queue, clean=True)
    queue.add(DUE_MS)
    queue.add(SLOT_MS + 1500)
    follow(files, queue)
    for after in (Key(SLOT_MS, 1 << 62), Key(DUE_MS, 1 << 62), Key(SLOT_MS + 1499, 1 << 62)):
        assert ask(files, after) == queue.expected(after, 1 << 50, 10, 2)


def test_a_cut_of_what_was_delivered_brings_it_back() -> None:
    disk, queue = MemoryDisk(), ListedQueue()
    files = open_files(disk, queue, clean=True)
    queue.add(DUE_MS)
    queue.deliver(Key(DUE_MS, 0))
    queue.add(DUE_MS + 1)
    follow(files, queue)
    queue.add(DUE_MS + 2)
    assert ask(files) == [(queue.codes[1], 1)]
    write(files)
    queue.history.pop()  # the record stood where the log ends now, before any timer that goes
    queue.end_offset = queue.places[1] - 1
    del queue.codes[1:], queue.places[1:]
    files.truncate(queue.end_offset)
    follow(files, queue)
    assert ask(files) == [(queue.codes[0], 0)]


def test_two_records_of_one_entry_are_damage() -> None:
    """They are due at the same time, so the queue alone would not tell them apart."""
    disk, queue = MemoryDisk(), ListedQueue()
    files = open_files(disk, queue, clean=True)
    for _ in range(3):
        queue.add(DUE_MS)
    follow(files, queue)
    write(files)
    with closing(disk.open(f"{LOG_DIRECTORY}/{0:020d}")) as segment:
        segment.write(52 + 44, (bytes(8),))
    again = open_files(disk, queue)
    for _ in range(2):
        follow(again, queue)
        found = ask(again)
    assert again.times_begun_again == 1
    assert found == queue.expected(Key(0, 0), 1 << 50, 10, 3)

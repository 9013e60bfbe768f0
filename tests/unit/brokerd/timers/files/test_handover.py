"""What the timer files have for a broker of the original that opens them next, and for nobody else."""

from __future__ import annotations

import struct
from contextlib import closing

from brokerd.timers.codes import RECALL, SLOT_MS, Key
from brokerd.timers.done import Done
from brokerd.timers.files.layout import LOG_DIRECTORY, RECORD_BYTES, WHEEL_PATH, TimerRecord, decode_record
from brokerd.timers.files.page import PATH
from tests.support.disks import MemoryDisk
from tests.unit.brokerd.timers.files.queue_model import TINY, ListedQueue, ask, follow, open_files, write

BEGIN_MS = 1_700_000_061_000  # of a second


def records(disk: MemoryDisk) -> list[TimerRecord]:
    """Those of the first file."""
    with closing(disk.open(f"{LOG_DIRECTORY}/{0:020d}")) as segment:
        content = segment.read(0, TINY.file_records * RECORD_BYTES)
    found = (decode_record(content[at : at + RECORD_BYTES]) for at in range(0, len(content), RECORD_BYTES))
    return [each for each in found if each is not None]


def slots(disk: MemoryDisk) -> dict[int, tuple[int, int, int]]:
    """By time: first and last position, and the count."""
    with closing(disk.open(WHEEL_PATH)) as segment:
        found = [struct.unpack(">qqqii", segment.read(at * 32, 32)) for at in range(TINY.slots)]
    return {time * SLOT_MS: (first, last, count) for time, first, last, count, _ in found if time}


def read_ms(disk: MemoryDisk) -> int:
    """From where the original delivers."""
    page = disk.read_bytes(PATH)
    assert page is not None
    return int(struct.unpack(">q", page[:8])[0])


def test_a_marker_is_in_the_slot_of_what_it_takes_back_too() -> None:
    disk, queue = MemoryDisk(), ListedQueue()
    queue.deliver(Key(BEGIN_MS, 1 << 40))
    files = open_files(disk, queue, clean=True)
    queue.add(BEGIN_MS + 2500)
    queue.add(BEGIN_MS + 1, RECALL)  # it has its effect at once
    follow(files, queue)
    write(files)
    assert [(each.magic, each.slot_ms, each.queue_offset) for each in records(disk)] == [
        (1, BEGIN_MS + 2000, 0),
        (1 | 4, BEGIN_MS, 1),
        (1 | 4 | 8, BEGIN_MS + 2000, 1),
    ]
    assert slots(disk)[BEGIN_MS + 2000] == (0, 2 * RECORD_BYTES, 1)
    assert ask(files) == queue.expected(Key(0, 0), 1 << 50, 9, 2)
    again = open_files(disk, queue, clean=True)
    follow(again, queue)
    assert ask(again) == queue.expected(Key(0, 0), 1 << 50, 9, 2)
    assert again.times_begun_again == 0


def test_a_marker_that_had_its_effect_before_the_files_came_to_it_is_there_for_the_original() -> None:
    disk, queue = MemoryDisk(), ListedQueue()
    files = open_files(disk, queue, clean=True)
    queue.add(BEGIN_MS + 2500)
    queue.add(BEGIN_MS + 1, RECALL)
    queue.deliver(Key(BEGIN_MS + 1, 1))
    follow(files, queue)
    write(files)
    assert [(each.magic, each.slot_ms) for each in records(disk)] == [(1, BEGIN_MS + 2000), (13, BEGIN_MS + 2000)]
    assert files.held_queue_offset(Done(queue.cursor)) == 0
    queue.deliver(Key(BEGIN_MS + 2500, 0))
    follow(files, queue)
    assert files.held_queue_offset(Done(queue.cursor)) == 2  # the marker needs no log


def test_what_was_delivered_by_a_part_of_the_log_that_was_cut_needs_its_file_again() -> None:
    """What says so was appended and not confirmed, so these files never followed it; they were asked with it, though."""
    disk, queue = MemoryDisk(), ListedQueue()
    files = open_files(disk, queue, clean=True)
    for number in range(3):
        queue.add(BEGIN_MS + 1000 * number)
    follow(files, queue)
    before = Done(queue.cursor)
    assert files.held_queue_offset(before) == 0
    ahead = before.passed(Key(BEGIN_MS + 10, 9), after=Key(BEGIN_MS - 10, 9))
    assert files.held_queue_offset(ahead) == 1
    assert files.held_queue_offset(before._replace(moved=2)) == 2
    files.truncated(3)
    assert files.held_queue_offset(before) == 0


def test_a_marker_that_is_done_with_since_a_clock_went_back_is_there_for_the_original() -> None:
    disk, queue = MemoryDisk(), ListedQueue()
    queue.marked_ms = 0
    queue.add(BEGIN_MS + 1, RECALL)
    queue.deliver(Key(BEGIN_MS + 500, 0))
    queue.set_back(Key(BEGIN_MS - 90_000, -1))
    files = open_files(disk, queue, clean=True)
    follow(files, queue)
    write(files)
    assert [(each.magic, each.slot_ms) for each in records(disk)] == [(1 | 4 | 8, BEGIN_MS)]
    assert ask(files, queue.cursor) == []


def test_a_marker_for_what_is_far_ahead_is_appended_again_by_the_original() -> None:
    disk, queue = MemoryDisk(), ListedQueue()
    queue.deliver(Key(BEGIN_MS, 1 << 40))
    queue.marked_ms = 10 * 86_400_000
    files = open_files(disk, queue, clean=True)
    queue.add(BEGIN_MS + 1, RECALL)
    follow(files, queue)
    write(files)
    assert [(each.magic, each.slot_ms) for each in records(disk)] == [
        (5, BEGIN_MS),
        (1 | 2 | 4 | 8, BEGIN_MS + 7 * 86_400_000 - SLOT_MS),
    ]


def test_a_marker_for_what_has_passed_is_not_there_twice() -> None:
    disk, queue = MemoryDisk(), ListedQueue()
    queue.marked_ms = -5000
    queue.deliver(Key(BEGIN_MS, 1 << 40))
    files = open_files(disk, queue, clean=True)
    queue.add(BEGIN_MS + 1, RECALL)
    follow(files, queue)
    write(files)
    assert [each.magic for each in records(disk)] == [5]


def test_the_last_record_says_how_far_the_queue_was_followed() -> None:
    """From there the original goes on, so what we delivered behind it would come again."""
    disk, queue = MemoryDisk(), ListedQueue()
    files = open_files(disk, queue, clean=True)
    queue.add(BEGIN_MS + 9000)
    queue.add(BEGIN_MS + 10)
    queue.deliver(Key(BEGIN_MS + 10, 1))
    follow(files, queue)
    write(files)
    far, last = records(disk)
    assert (far.queue_offset, far.magic) == (0, 1)
    assert (last.queue_offset, last.physical_offset, last.magic) == (1, queue.places[1], 1 | 8)
    assert last.slot_ms < BEGIN_MS  # which has passed
    assert last.slot_ms not in slots(disk)
    again = open_files(disk, queue, clean=True)
    queue.add(BEGIN_MS + 8000)
    follow(again, queue)
    assert again.times_begun_again == 0
    assert ask(again) == queue.expected(queue.cursor, 1 << 50, 9, 3)
    write(again)
    assert len(records(disk)) == 3  # the last one is that of the last entry already
    queue.cut(2)
    again.truncate(queue.end_offset)
    assert again.times_begun_again == 0
    assert ask(again) == queue.expected(queue.cursor, 1 << 50, 9, 2)


def test_a_clean_stop_leaves_it_so_though_a_checkpoint_came_before() -> None:
    disk, queue = MemoryDisk(), ListedQueue()
    files = open_files(disk, queue, clean=True)
    queue.add(BEGIN_MS + 9000)
    queue.add(BEGIN_MS + 10)
    queue.deliver(Key(BEGIN_MS + 10, 1))
    follow(files, queue)
    for _ in range(20):
        if (written := files.begin_write(closing=False)) is not None:
            written.run()
            files.finish_write(written)
    assert (len(records(disk)), read_ms(disk)) == (1, BEGIN_MS)
    write(files)
    assert (len(records(disk)), read_ms(disk)) == (2, BEGIN_MS + SLOT_MS)


def test_the_original_delivers_from_the_first_second_in_which_something_waits() -> None:
    disk, queue = MemoryDisk(), ListedQueue()
    files = open_files(disk, queue, clean=True)
    for ahead_ms in (100, 200, 1500):
        queue.add(BEGIN_MS + ahead_ms)
    follow(files, queue)
    for cursor_ms, expected_ms in ((100, BEGIN_MS), (200, BEGIN_MS + SLOT_MS), (1500, BEGIN_MS + 2 * SLOT_MS)):
        queue.deliver(Key(BEGIN_MS + cursor_ms, 9))
        follow(files, queue)
        write(files)
        assert read_ms(disk) == expected_ms

"""Timers of a directory that RocketMQ wrote: what it delivered does not come again, and all else does, once."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

import pytest

from brokerd.timers import takeover
from brokerd.timers.codes import (
    DELETE_KEY,
    DEQUEUE_MS,
    DUE_MS,
    LEG_MS,
    MESSAGE,
    OUT_MS,
    RECALL,
    ROLL_TIMES,
    SLOT_MS,
    Key,
    encode_code,
    slot_of,
)
from brokerd.timers.done import Done, Fence
from brokerd.timers.files.layout import LOG_DIRECTORY, MAGIC, MAGIC_ROLL, RECORD, RECORD_BYTES
from brokerd.timers.files.original import LEFT_PATH, LeftNote, LeftTimers, note_left, read_left
from brokerd.timers.files.page import PATH, Page, encode_page
from brokerd.timers.settings import TimerSettings
from brokerd.timers.takeover import Survey
from remoting.errors import CorruptedFile, StorageError
from remoting.names import TIMER_TOPIC
from remoting.record.codec import decode_record
from tests.support.disks import MemoryDisk
from tests.support.memory_log import MemoryRecordLog, draft
from tests.support.turns import Turns
from tests.unit.brokerd.timers.files.queue_model import TINY
from tests.unit.brokerd.timers.world import TOPIC, Node

READ_MS = 1_700_000_100_000


def checkpoint(read_ms: int = READ_MS, queue_offset: int = 3) -> bytes:
    return struct.pack(">qqqqqqq", read_ms, 520, queue_offset, queue_offset + 1, 0, 7, 7).ljust(4096, b"\0")


def timer_log(records: Sequence[tuple[int, int, int]]) -> bytes:
    """Records of (magic, slot, offset in the commitlog), as RocketMQ writes them."""
    return b"".join(
        RECORD.pack(RECORD_BYTES, -1, magic, slot_ms - 9000, 9000, offset, 300, 1, 0)
        for magic, slot_ms, offset in records
    )


def left_directory(records: Sequence[tuple[int, int, int]], page: bytes | None = None) -> MemoryDisk:
    disk = MemoryDisk()
    disk.replace_bytes(PATH, page if page is not None else checkpoint())
    content = timer_log(records)
    segment = disk.open(f"{LOG_DIRECTORY}/{0:020d}", create=True, size_bytes=len(content) + 300)
    segment.write(0, (content,))
    return disk


def test_the_files_say_how_far_it_was_and_what_it_appended_again() -> None:
    disk = left_directory(
        [
            (MAGIC, READ_MS - 5000, 10),  # delivered
            (MAGIC | MAGIC_ROLL, READ_MS - 1000, 40),
            (MAGIC | MAGIC_ROLL, READ_MS - 9000, 20),
            (MAGIC | MAGIC_ROLL, READ_MS, 30),  # not yet
        ]
    )
    assert read_left(disk) == LeftTimers(READ_MS, 3, 0, (20, 40))


def test_our_own_page_leaves_nothing_and_one_that_was_written_into_says_where_ours_ended() -> None:
    page = encode_page(Page(900, 5, 104, Key(READ_MS, 1), 880, 2, TINY, 0, (READ_MS,)))
    disk = left_directory([], page)
    assert read_left(disk) is None
    disk.replace_bytes(PATH, checkpoint()[:56] + page[56:])
    assert read_left(disk) == LeftTimers(READ_MS, 3, 900)
    disk.replace_bytes(PATH, bytes(4096))
    assert read_left(disk) is None


def test_what_was_noted_stays_until_it_is_taken_over() -> None:
    disk = left_directory([(MAGIC | MAGIC_ROLL, READ_MS - 1000, 40)])
    note_left(disk)
    disk.remove(PATH)
    note_left(disk)  # a start in between, which finds nothing
    note = LeftNote(disk)
    assert note.read(777) == LeftTimers(READ_MS, 3, 0, (40,), 777)
    assert LeftNote(disk).read(999) == LeftTimers(READ_MS, 3, 0, (40,), 777)
    note.remove()
    assert note.read(1) is None
    disk.replace_bytes(LEFT_PATH, b"{}")
    with pytest.raises(CorruptedFile, match="takeover-timers cannot be read"):
        note.read(1)


def test_a_survey_goes_by_slots_places_and_what_was_appended_again() -> None:
    left = LeftTimers(READ_MS, 4, 0, (100, 300))
    survey = Survey(left, 1, lambda *_: False)
    survey.take(
        [
            (100, 90, encode_code(READ_MS + 5000, MESSAGE)),  # a later record has it
            (200, 90, encode_code(READ_MS, MESSAGE)),  # in the last slot that was delivered
            (300, 90, encode_code(READ_MS - 8000, MESSAGE)),
        ]
    )
    survey.take(
        [
            (400, 90, encode_code(READ_MS - 1, MESSAGE)),  # was in no slot yet
            (500, 90, encode_code(READ_MS - 1000, MESSAGE)),
            (600, 90, encode_code(READ_MS - 1000, RECALL)),
            (700, 90, encode_code(READ_MS + 1, MESSAGE)),
        ]
    )
    begin = survey.begin(0)
    assert (begin.to, begin.taken, list(begin.offsets)) == ((READ_MS, 8), 6, [5, 4])
    assert survey.superseded == [(1, READ_MS + 5000)]


def test_what_we_delivered_by_a_clock_that_was_ahead_is_neither_late_nor_recalled() -> None:
    fences = (Fence(2, Key(READ_MS + 9000, 0)),)
    survey = Survey(LeftTimers(READ_MS, 0, 0, (100,)), 0, lambda *_: False, Done(fences=fences))
    survey.take(
        [
            (100, 90, encode_code(READ_MS + 9000, MESSAGE)),
            (200, 90, encode_code(READ_MS - 1000, MESSAGE)),
            (300, 90, encode_code(READ_MS - 1000, MESSAGE)),
            (400, 90, encode_code(READ_MS + 1000, MESSAGE)),
        ]
    )
    begin = survey.begin(0)
    assert (begin.to, begin.taken, list(begin.offsets)) == ((READ_MS, 4), 3, [2])
    assert survey.superseded == []


def test_a_leg_of_ours_that_it_never_went_by_is_not_over() -> None:
    looked: list[int] = []

    def is_unfinished(physical_offset: int, _size: int) -> bool:
        looked.append(physical_offset)
        return physical_offset == 400

    survey = Survey(LeftTimers(READ_MS, 9, 300, (500,)), 0, is_unfinished)
    survey.take([(number, 90, encode_code(READ_MS - 1000, MESSAGE)) for number in (200, 300, 400, 500)])
    assert list(survey.begin(0).offsets) == [2]
    assert looked == [300, 400]


def test_more_than_can_be_announced_comes_from_there_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "MOST_LATE", 2)
    left = LeftTimers(READ_MS, 0, 0)
    units = [(number, 90, encode_code(READ_MS - 100 + number, MESSAGE)) for number in range(5)]
    survey = Survey(left, 0, lambda *_: False)
    survey.take(units)
    narrower = survey.narrower()
    assert narrower == left._replace(read_ms=READ_MS - 99)
    again = Survey(narrower, 0, lambda *_: False)
    again.take(units)
    assert again.narrower() is None
    assert list(again.begin(0).offsets) == [0, 1]


class Directory:
    """A log with timers of RocketMQ, and a note of how far these were delivered."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.log = MemoryRecordLog(self.turns.wall_ms)
        self.disk = MemoryDisk()
        self.now_ms = self.turns.wall_ms()
        self.read_ms = self.now_ms // SLOT_MS * SLOT_MS

    def put(self, key: str, ahead_ms: int, **more: str) -> int:
        """As RocketMQ stores it; its offset in the commitlog."""
        properties = {"UNIQ_KEY": key, "REAL_TOPIC": TOPIC, "REAL_QID": "1"}
        properties |= {OUT_MS: str(slot_of(self.read_ms + ahead_ms))} | more
        self.log.append_placed([draft(TIMER_TOPIC, key.encode(), 0, properties=properties)])
        return self.log.positions[-2] if len(self.log.positions) > 1 else 0

    def note(self, queue_offset: int, rolled: Sequence[int] = ()) -> None:
        page = checkpoint(self.read_ms, queue_offset)
        disk = left_directory([(MAGIC | MAGIC_ROLL, self.read_ms - 1000, each) for each in rolled], page)
        note_left(disk)
        content = disk.read_bytes(LEFT_PATH)
        assert content is not None
        self.disk.replace_bytes(LEFT_PATH, content)

    def open(self, log: MemoryRecordLog | None = None) -> Node:
        return Node(log or self.log, self.turns, random.Random(2), TimerSettings(), left=LeftNote(self.disk))


def delivered(log: MemoryRecordLog) -> list[str]:
    return [decode_record(each).body.decode() for each in log.bodies(TOPIC, 1)]


def test_the_first_master_delivers_what_is_left_and_nothing_else() -> None:
    directory = Directory()
    directory.put("delivered", -5000)
    rolled = directory.put("far", 9000)
    directory.put("also delivered", -1000)
    directory.put("far", 9000, **{ROLL_TIMES: "1", DEQUEUE_MS: "5"})
    directory.put("late", -2000)
    directory.put("named", 3000)
    directory.put("marker", 3000, **{DELETE_KEY: f"{TOPIC}+named"})
    directory.put("soon", 3000)
    directory.note(4, [rolled])
    node = directory.open()
    node.lead()
    directory.turns.run(10)
    assert delivered(node.log) == ["late"]
    assert node.service.state().waiting == 5
    assert directory.disk.read_bytes(LEFT_PATH) is None
    directory.turns.run(20_000)
    assert delivered(node.log) == ["late", "soon", "far"]
    assert node.service.state().waiting == 0


def test_what_rocketmq_took_for_a_time_that_we_had_passed_is_not_lost() -> None:
    """Its clock was behind ours: what it was sent waits for times up to which our timers were delivered."""
    directory = Directory()
    ours = Node(directory.log, directory.turns, random.Random(2), TimerSettings())
    ours.lead()
    ours.put("ours", directory.now_ms + 5000)
    ours.put("ours, not due", directory.now_ms + 30_000)
    directory.turns.run(6000)
    assert delivered(ours.log) == ["ours"]
    ours.service.step_down()
    ours.log.listeners.clear()
    directory.put("delivered there", -3000)
    directory.put("late", -2000)
    directory.put("theirs", 2000)
    directory.put("theirs, not due", 20_000)
    directory.note(3)
    directory.turns.set_wall_clock(-4500)
    node = directory.open(ours.log.copy())
    node.lead()
    directory.turns.run(10)
    assert delivered(node.log) == ["ours", "late"], "it is not too early either"
    assert node.service.state().waiting == 3
    directory.turns.run(3000)
    assert delivered(node.log) == ["ours", "late", "theirs"]
    directory.turns.run(60_000)
    assert delivered(node.log) == ["ours", "late", "theirs", "theirs, not due", "ours, not due"]
    assert node.service.state().waiting == 0
    again = Node(node.log.copy(), directory.turns, random.Random(2), TimerSettings(), left=LeftNote(directory.disk))
    again.lead()
    directory.turns.run(60_000)
    assert delivered(again.log) == delivered(node.log)


def test_it_is_done_once_whatever_ends_between() -> None:
    """The record is in the log, and the note still there: it is not acknowledged, or another one recorded it."""
    directory = Directory()
    for name in ("delivered", "late"):
        directory.put(name, -2000)
    directory.note(1)
    first = directory.open()
    first.log.acknowledges = False
    first.lead()
    directory.turns.run(50)
    assert delivered(first.log) == ["late"]
    assert directory.disk.read_bytes(LEFT_PATH) is not None
    again = directory.open(first.log.copy())
    again.lead()
    directory.turns.run(5000)
    assert delivered(again.log) == ["late"]
    assert directory.disk.read_bytes(LEFT_PATH) is None


def test_a_log_that_takes_nothing_yet_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = Directory()
    directory.put("late", -2000)
    directory.note(0)
    node = directory.open()
    node.log.refusal = StorageError("the disk is full")
    node.lead()
    directory.turns.run(500)
    assert delivered(node.log) == []
    node.log.refusal = None
    directory.turns.run(500)
    assert delivered(node.log) == ["late"]


def test_who_is_not_the_master_any_more_records_nothing() -> None:
    directory = Directory()
    directory.put("late", -2000)
    directory.note(0)
    node = directory.open()
    node.lead()
    node.service.step_down()
    end = node.log.end_offset
    directory.turns.run(500)
    assert node.log.end_offset == end
    assert directory.disk.read_bytes(LEFT_PATH) is not None


def test_a_leg_of_ours_that_ends_there_is_over() -> None:
    """RocketMQ keeps our properties when it appends a timer again."""
    directory = Directory()
    due_ms = directory.now_ms + 9000
    directory.put("far", 9000, **{DUE_MS: str(due_ms), LEG_MS: str(directory.now_ms - 9000), DEQUEUE_MS: "5"})
    directory.note(1)
    node = directory.open()
    node.lead()
    directory.turns.run(8990)
    assert delivered(node.log) == []
    directory.turns.run(20)
    assert delivered(node.log) == ["far"]

"""What a queue has for who reads it himself: the same units as all others read, however they are kept."""

from __future__ import annotations

from array import array
from pathlib import Path
from random import Random

import pytest

from brokerd.processors.pulling.laid_out import AnswerLayout, Wanted, laid_out
from brokerd.processors.pulling.terms import MAX_BYTES
from brokerd.store.queues import consume_queue
from brokerd.store.queues.consume_queue import ConsumeQueue, DamagedUnits, QueueFiles
from brokerd.store.queues.unit_checks import BLOCK_UNITS
from brokerd.store.unit import UNIT, UNIT_BYTES
from remoting.disk import LocalDisk
from remoting.errors import CorruptedFile
from remoting.frame import Command, decode_frames
from remoting.java_hash import java_hash
from tests.support.disks import FaultyDisk, MemoryDisk
from tests.support.native_library import native_library
from tests.unit.brokerd.store.stores import draft, open_store, put

STRETCH = 8 * BLOCK_UNITS
FILE_UNITS = 2 * STRETCH + 300


def units_from(first: int, count: int, step: int = 100) -> bytes:
    return b"".join(UNIT.pack(number * step, 90, number) for number in range(first, first + count))


class Reads:
    """Counts what is read of a disk."""

    def __init__(self, files: QueueFiles, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        read = files.read

        def counted(directory: str, first: int, count: int) -> bytes:
            self.count += 1
            return read(directory, first, count)

        monkeypatch.setattr(files, "read", counted)


def written(count: int, monkeypatch: pytest.MonkeyPatch) -> tuple[FaultyDisk, QueueFiles, ConsumeQueue, Reads]:
    """A queue whose units are in files, but for the last 10."""
    disk = FaultyDisk(Random(1))
    files = QueueFiles(disk, FILE_UNITS, 8)
    queue = ConsumeQueue("T", 0, files, 0)
    queue.tail += units_from(0, count)
    queue.max_offset = count
    files.write(queue.directory, 0, bytes(queue.tail[: (count - 10) * UNIT_BYTES]))
    queue.written(count - 10, 10)
    assert queue.tail_start == count - 10
    return disk, files, queue, Reads(files, monkeypatch)


def test_units_are_the_same_and_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    count = FILE_UNITS + 3000
    _, _, queue, reads = written(count, monkeypatch)
    for first in range(0, count, 32):
        assert queue.read_run(first, 32) == units_from(first, min(32, count - first))
    whole_stretches = 2 + 2
    assert reads.count < whole_stretches + 2 * 300 / 32 + 3000 / 32, "others are read as before"
    before = reads.count
    for first in range(0, 2 * STRETCH - 32, 32):
        queue.read_run(first, 32)
    assert reads.count == before
    for first, units in ((STRETCH - 5, 800), (FILE_UNITS - 5, 20), (count - 15, 32), (0, count)):
        assert queue.read_run(first, units) == units_from(first, min(units, count - first))


def test_what_is_written_or_cut_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    _, files, queue, _ = written(3000, monkeypatch)
    assert queue.read_run(5, 1) == units_from(5, 1)
    files.write(queue.directory, 5, units_from(7, 1))  # as a repair does
    assert queue.read_run(5, 1) == units_from(7, 1), "nothing is known of its block any more"
    files.write(queue.directory, 0, units_from(0, BLOCK_UNITS))
    files.cover(queue.directory, 0, units_from(0, BLOCK_UNITS))
    assert queue.read_run(5, 1) == units_from(5, 1)
    queue.cut(6)
    assert queue.read_run(5, 32) == units_from(5, 1)
    assert queue.read_run(6, 32) == b""
    files.write(queue.directory, 6, units_from(6, 3000, 50))
    queue.adopt(0, 3006)
    assert queue.read_run(5, 2) == units_from(5, 1) + units_from(6, 1, 50)


def test_a_write_between_makes_what_was_read_before_it_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """A helper thread writes while the loop reads."""
    _, files, queue, _ = written(3000, monkeypatch)
    read = files.read
    block = units_from(0, BLOCK_UNITS, 7)

    def slowly(directory: str, first: int, count: int) -> bytes:
        found = read(directory, first, count)
        monkeypatch.setattr(files, "read", read)
        files.write(directory, 0, block)
        files.cover(directory, 0, block)
        return found

    monkeypatch.setattr(files, "read", slowly)
    assert queue.read_run(0, 1) == units_from(0, 1), "as it was"
    assert queue.read_run(0, 1) == block[:UNIT_BYTES]


def test_damage_is_told_and_nothing_of_it_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, files, queue, _ = written(3000, monkeypatch)
    disk.flip_bit(files.path(queue.directory, 0), 200 * UNIT_BYTES, 3)
    assert queue.read_run(5, 100) == units_from(5, 100), "its block is as it was"
    for _ in range(2):
        with pytest.raises(DamagedUnits):
            queue.read_run(190, 32)
    files.write(queue.directory, 200, units_from(200, 1))
    assert queue.read_run(190, 32) == units_from(190, 32)


def test_stretches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume_queue, "_KNOWN_STRETCHES", 2)
    _, files, queue, _ = written(6 * STRETCH, monkeypatch)
    for first in (0, STRETCH, FILE_UNITS, FILE_UNITS + STRETCH, 0):
        assert queue.read_run(first, 32) == units_from(first, 32)
        assert len(files._stretches) <= 2


@pytest.mark.parametrize("where", ["memory", "local"])
def test_answers_are_made_of_what_all_others_read(where: str, tmp_path: Path) -> None:
    disk = MemoryDisk() if where == "memory" else LocalDisk(tmp_path / "data")
    store, rng = open_store(disk), Random(3)
    for number in range(120):
        body = b"%d" % number * rng.choice((1, 30))
        put(store, draft(body, topic=rng.choice(("TopicA", "TopicB")), tag=rng.choice("xyz")))
    layout = AnswerLayout(native_library())
    made = shorter = 0
    for topic in ("TopicA", "TopicB", "TopicC"):
        for offset in range(-1, 70):
            for codes in (None, [java_hash("x")], sorted(map(java_hash, "yz")), [5]):
                for most, most_bytes in ((32, MAX_BYTES), (4, MAX_BYTES), (32, 700), (1, 1)):
                    wanted = Wanted(offset, most, most_bytes, 5, 0, 0, 0, 0, 0)
                    most_units = most if codes is None else 800
                    window = store.window(topic, 0, offset, most_units)
                    expected = store.read_joined(topic, 0, offset, most, most_bytes, codes)
                    if window is None:
                        continue
                    again = store.window(topic, 0, offset, most_units)
                    assert again is not None
                    file_end = window.log_begin + len(window.log)
                    found = layout.lay_out(window, wanted, None if codes is None else array("q", codes))
                    assert found == laid_out(again, wanted, codes)
                    if found is None:
                        continue
                    made += 1
                    told, of_all = (found.messages, found.given.next_offset), (expected.messages, expected.next_offset)
                    if told != of_all:
                        shorter += 1
                        assert told < of_all
                        [(place, _, _)] = store.read_units(topic, 0, found.given.next_offset, 1)
                        assert place >= file_end, "it ends where its file of the log does"
                    assert found.given.body_bytes == len(expected.body) or told != of_all
                    answers: list[Command] = []
                    decode_frames(found.frame, answers)
                    assert bytes(answers[0].body) == bytes(expected.body)[: found.given.body_bytes]
    assert made > 500
    assert shorter > 10
    store.close()


def test_a_window_of_damaged_units_is_none() -> None:
    disk = FaultyDisk(Random(1))
    store = open_store(disk)
    put(store, *(draft(b"x") for _ in range(20)))
    store.close()
    disk.flip_bit("consumequeue/TopicA/0/" + "0" * 20, 3 * UNIT_BYTES, 3)
    store = open_store(disk)
    suspicions: list[object] = []
    store.damage_listeners.append(suspicions.append)
    queue = store.queues.table["TopicA", 0]
    if queue.tail_start == 0:
        queue.rest()
    with pytest.raises(CorruptedFile):
        store.window("TopicA", 0, 0, 32)
    assert suspicions

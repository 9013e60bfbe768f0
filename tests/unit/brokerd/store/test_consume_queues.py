from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import takewhile
from random import Random

import pytest

from brokerd.store.log.commitlog import CommitLog
from brokerd.store.log.derive import Entry
from brokerd.store.queues import consume_queues
from brokerd.store.queues.consume_queues import ConsumeQueues, is_directory_name
from brokerd.store.queues.queue_offsets import QueueKey
from brokerd.store.settings import StoreSettings
from brokerd.store.unit import BLANK_UNIT, UNIT, UNIT_BYTES, Unit
from remoting.errors import StorageError
from tests.support.disks import FaultyDisk, MemoryDisk
from tests.unit.brokerd.store.stores import SETTINGS, dispatch_all, draft, open_store, put, sync

FILE_UNITS = SETTINGS.queue_file_units


def entry(
    queue_offset: int, *, topic: str = "T", queue_id: int = 0, physical: int | None = None, code: int = 7
) -> Entry:
    physical = 1000 + queue_offset * 100 if physical is None else physical
    return (topic, queue_id, queue_offset, physical, 100, code, 1, 1)


def apply(queues: ConsumeQueues, *entries: Entry) -> dict[QueueKey, list[int]]:
    arrivals: dict[QueueKey, list[int]] = {}
    queues.apply(entries, arrivals)
    return arrivals


def write(queues: ConsumeQueues) -> None:
    job = queues.begin_write()
    job.run()
    queues.finish_write(job)


def units(queues: ConsumeQueues, topic: str = "T", queue_id: int = 0) -> list[Unit]:
    queue = queues.table[(topic, queue_id)]
    return list(queue.units(queue.first_offset, queue.max_offset))


def unit(queue_offset: int) -> Unit:
    return (1000 + queue_offset * 100, 100, 7)


def test_the_golden_unit() -> None:
    # Physical offset 4096, 135 bytes, tags code of `tagA`.
    assert UNIT.pack(4096, 135, 3552231).hex() == "00000000000010000000008700000000003633e7"


def test_units_are_read_from_memory_from_files_and_across_both() -> None:
    queues = ConsumeQueues(MemoryDisk(), SETTINGS)
    for n in range(50):
        apply(queues, entry(n))
        if n in (10, 33):
            write(queues)
    write(queues)
    apply(queues, *(entry(n) for n in range(50, 60)))
    queue = queues.table[("T", 0)]
    queue.written(50, 20)  # keeps 20 units in memory
    assert queue.tail_start == 40
    assert units(queues) == [unit(n) for n in range(60)]
    assert list(queue.units(38, 4)) == [unit(n) for n in range(38, 42)]
    assert list(queue.units(58, 100)) == [unit(58), unit(59)]
    assert list(queue.units(60, 1)) == []


@pytest.mark.parametrize(
    "offsets",
    [
        (),
        range(60),
        range(0, 60, 3),
        (3, 1, 2, 59, 0, 0, 40, 39, 38),
        (5, 9, 10, 38, 42, 49, 50),
        (9, 10, 60, 11),
        (58, 59, 60, 61),
        (57, 59, 62),
        (60,),
        (-1, 3),
    ],
)
def test_units_at_any_offsets_are_those_up_to_the_first_that_is_not_there(offsets: Sequence[int]) -> None:
    queues = ConsumeQueues(MemoryDisk(), SETTINGS)
    for n in range(50):
        apply(queues, entry(n))
    write(queues)
    apply(queues, *(entry(n) for n in range(50, 60)))
    queue = queues.table[("T", 0)]
    queue.written(50, 20)
    assert queue.units_at(offsets) == [unit(n) for n in takewhile(range(60).__contains__, offsets)]


def test_files_have_the_originals_names_and_sizes() -> None:
    disk = MemoryDisk()
    queues = ConsumeQueues(disk, SETTINGS)
    apply(queues, *(entry(n) for n in range(40)))
    write(queues)
    assert disk.names("consumequeue/T/0") == [f"{n * FILE_UNITS * 20:020d}" for n in range(3)]
    assert {file.seen.size for path, file in disk.files.items() if path.startswith("consume")} == {FILE_UNITS * 20}
    content = disk.read_bytes("consumequeue/T/0/" + f"{FILE_UNITS * 20:020d}") or b""
    assert content[20:40] == UNIT.pack(*unit(FILE_UNITS + 1))


@pytest.mark.parametrize(("count", "kept"), [(1, 1024), (1024, 256)])
def test_many_queues_keep_fewer_units_in_memory(count: int, kept: int) -> None:
    """Behind a checkpoint each keeps its newest units, and all together no more than so many."""
    queues = ConsumeQueues(MemoryDisk(), StoreSettings(queue_file_units=3000))
    for first in (0, 1100):
        for n in range(count):
            apply(queues, ("T", n, first, 10_000_000 * n + 100 * first, 100, n, 0, 1100))
        write(queues)
    queue = queues.table[("T", count - 1)]
    assert len(queue.tail) // UNIT_BYTES == kept
    assert queue.read(2000 - kept, 1) == UNIT.pack(10_000_000 * (count - 1) + 100 * (2000 - kept), 100, count - 1)
    queues.close()


def test_what_is_skipped_or_refused_is_no_arrival() -> None:
    queues = ConsumeQueues(MemoryDisk(), SETTINGS)
    assert apply(queues, entry(0), entry(0, queue_id=1)) == {("T", 0): [7], ("T", 1): [7]}
    assert apply(queues, entry(0), entry(0, queue_id=-1), entry(1, queue_id=1, code=8)) == {("T", 1): [8]}
    assert apply(queues, entry(1, queue_id=1, code=8), entry(2, queue_id=1, code=9)) == {("T", 1): [9]}
    queues.close()


def test_arrivals_name_each_queue_once_with_all_its_codes() -> None:
    queues = ConsumeQueues(MemoryDisk(), SETTINGS)
    found = apply(queues, entry(0, code=1), entry(0, topic="U", code=5), entry(1, code=2))
    assert found == {("T", 0): [1, 2], ("U", 0): [5]}


def test_an_idle_queue_holds_nothing_in_memory() -> None:
    queues = ConsumeQueues(MemoryDisk(), SETTINGS)
    apply(queues, *(entry(n) for n in range(20)))
    write(queues)
    assert queues.buffered_units == 0
    assert len(queues.table[("T", 0)].tail) == 20 * 20  # warm: its consumer is likely to be at its end
    write(queues)
    assert len(queues.table[("T", 0)].tail) == 0
    assert units(queues) == [unit(n) for n in range(20)]
    apply(queues, entry(20))
    assert units(queues) == [unit(n) for n in range(21)]


def test_few_files_are_open_however_many_queues_are_read() -> None:
    disk = MemoryDisk()
    queues = ConsumeQueues(disk, SETTINGS)
    for queue_id in range(20):
        apply(queues, entry(0, queue_id=queue_id))
    write(queues)
    write(queues)
    for queue_id in range(20):
        assert units(queues, queue_id=queue_id) == [unit(0)]
    assert len(queues._files._handles) == SETTINGS.open_queue_files


# -- entries that contradict a queue -------------------------------------------------------------------------------------------


def run(queue_offset: int, count: int) -> Entry:
    """One entry for messages that lie one behind the other."""
    return (*entry(queue_offset)[:-1], count)


@pytest.mark.parametrize("there", [[], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5, 6, 7], [0, 1]])
def test_an_entry_of_several_messages_is_as_good_as_one_for_each(there: list[int]) -> None:
    together, apart = ConsumeQueues(MemoryDisk(), SETTINGS), ConsumeQueues(MemoryDisk(), SETTINGS)
    for queues in (together, apart):
        apply(queues, *map(entry, there))
    arrived = apply(together, run(4, 3), entry(7), run(0, 2), entry(0, queue_id=1))
    expected = apply(apart, *map(entry, [4, 5, 6, 7, 0, 1]), entry(0, queue_id=1))
    assert arrived == expected
    assert units(together) == units(apart)
    assert together.buffered_units == apart.buffered_units
    assert together.max_offsets() == apart.max_offsets()
    assert together.table[("T", 0)].last_physical == apart.table[("T", 0)].last_physical


def test_an_entry_that_is_there_already_is_skipped() -> None:
    queues = ConsumeQueues(MemoryDisk(), SETTINGS)
    apply(queues, entry(0), entry(1))
    assert apply(queues, entry(0), entry(1), entry(2)) == {("T", 0): [7]}
    assert units(queues) == [unit(0), unit(1), unit(2)]


def test_a_queue_may_begin_at_any_offset() -> None:
    disk = MemoryDisk()
    queues = ConsumeQueues(disk, SETTINGS)
    apply(queues, entry(21), entry(22))
    queue = queues.table[("T", 0)]
    assert (queue.min_offset(0), queue.max_offset) == (21, 23)
    write(queues)
    # As in the original: blank units before it, in the file where it would be.
    content = disk.read_bytes("consumequeue/T/0/" + f"{FILE_UNITS * 20:020d}") or b""
    assert content[: 5 * 20] == BLANK_UNIT * 5
    assert content[5 * 20 : 6 * 20] == UNIT.pack(*unit(21))


def test_a_gap_is_filled_with_blanks_so_that_units_keep_their_places(caplog: pytest.LogCaptureFixture) -> None:
    queues = ConsumeQueues(MemoryDisk(), SETTINGS)
    with caplog.at_level(logging.ERROR):
        apply(queues, entry(0), entry(3))
    assert "lacks 2 messages before queue offset 3" in caplog.text
    assert queues.table[("T", 0)].max_offset == 4
    assert units(queues)[3] == unit(3)
    assert units(queues)[1:3] == [(0, 0x7FFFFFFF, 0)] * 2


def test_a_queue_without_a_message_in_the_log_begins_behind_a_gap() -> None:
    queues = ConsumeQueues(MemoryDisk(), SETTINGS)
    apply(queues, *(entry(n) for n in range(3)))
    queue = queues.table[("T", 0)]
    assert queue.min_offset(1500) == 3, "the log begins later now"
    apply(queues, entry(5))
    assert (queue.min_offset(1500), queue.max_offset) == (5, 6)
    apply(queues, entry(9))
    assert queue.min_offset(1500) == 5, "what is in front of the next gap is there"


def test_queues_begin_where_the_log_has_their_first_message() -> None:
    queues = ConsumeQueues(MemoryDisk(), SETTINGS)
    apply(queues, entry(0), entry(1), entry(0, queue_id=1), entry(7, queue_id=2, physical=3000))
    queues.begin_later([entry(5), entry(6), entry(4, topic="U"), entry(0, topic="V"), entry(9, queue_id=2)], 1500)
    ends = {key: (queue.min_offset(1500), queue.max_offset) for key, queue in queues.table.items()}
    assert ends == {("T", 0): (5, 5), ("T", 1): (1, 1), ("T", 2): (7, 8), ("U", 0): (4, 4)}


def test_after_a_gap_larger_than_a_file_the_queue_begins_again(caplog: pytest.LogCaptureFixture) -> None:
    queues = ConsumeQueues(MemoryDisk(), SETTINGS)
    apply(queues, *(entry(n) for n in range(20)))
    write(queues)
    apply(queues, entry(1_000_000_000), entry(1_000_000_001))
    queue = queues.table[("T", 0)]
    assert (queue.min_offset(0), queue.max_offset) == (1_000_000_000, 1_000_000_002)
    assert queue.unit(1_000_000_001) == unit(1_000_000_001)
    assert "lacks" in caplog.text


def test_units_that_the_log_no_longer_bears_out_are_replaced() -> None:
    queues = ConsumeQueues(MemoryDisk(), SETTINGS)
    apply(queues, *(entry(n) for n in range(20)))
    write(queues)
    apply(queues, entry(18, physical=2750))
    assert units(queues) == [*(unit(n) for n in range(18)), (2750, 100, 7)]


def test_number_0_behind_other_messages_starts_the_queue_again() -> None:
    queues = ConsumeQueues(MemoryDisk(), SETTINGS)
    apply(queues, *(entry(n) for n in range(20)))
    write(queues)
    apply(queues, entry(0, physical=9000), entry(1, physical=9100))
    assert units(queues) == [(9000, 100, 7), (9100, 100, 7)]
    write(queues)
    write(queues)
    assert units(queues) == [(9000, 100, 7), (9100, 100, 7)]


def test_of_two_messages_with_one_number_the_first_stays(caplog: pytest.LogCaptureFixture) -> None:
    queues = ConsumeQueues(MemoryDisk(), SETTINGS)
    apply(queues, entry(0), entry(1), entry(1, physical=9000), entry(2, physical=9100))
    assert units(queues) == [unit(0), unit(1), (9100, 100, 7)]
    assert "two messages of queue offset 1" in caplog.text


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "a\0b", "x" * 256])
def test_a_topic_that_can_be_no_directory_gets_no_queue(topic: str) -> None:
    queues = ConsumeQueues(MemoryDisk(), SETTINGS)
    assert apply(queues, entry(0, topic=topic), entry(0)) == {("T", 0): [7]}
    assert queues.refused_entries == 1
    assert not is_directory_name(topic)


def test_a_negative_queue_gets_none_either() -> None:
    queues = ConsumeQueues(MemoryDisk(), SETTINGS)
    assert apply(queues, entry(0, queue_id=-1), entry(-5, queue_id=3)) == {}


# -- cutting, deleting, expiring -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", [0, 10, 40])
@pytest.mark.parametrize("keep", [0, 5, 16, 39, 40])
def test_truncating_drops_the_units_behind(written: int, keep: int) -> None:
    disk = MemoryDisk()
    queues = ConsumeQueues(disk, SETTINGS)
    apply(queues, *(entry(n) for n in range(written)))
    write(queues)
    write(queues)
    apply(queues, *(entry(n) for n in range(written, 40)))
    queues.truncate(unit(keep)[0])
    assert units(queues) == [unit(n) for n in range(keep)]
    on_disk = b"".join(disk.read_bytes(f"consumequeue/T/0/{name}") or b"" for name in disk.names("consumequeue/T/0"))
    assert not any(on_disk[keep * 20 :])
    apply(queues, *(entry(n) for n in range(keep, 45)))
    write(queues)
    write(queues)
    assert units(queues) == [unit(n) for n in range(45)]


def test_a_cut_while_a_write_waits_is_not_undone_by_it() -> None:
    disk = MemoryDisk()
    queues = ConsumeQueues(disk, SETTINGS)
    apply(queues, *(entry(n) for n in range(20)))
    job = queues.begin_write()
    queues.truncate(unit(5)[0])
    job.run()
    queues.finish_write(job)
    assert not disk.exists("consumequeue/T/0")
    apply(queues, entry(5, physical=1550))
    write(queues)
    write(queues)
    assert units(queues) == [*(unit(n) for n in range(5)), (1550, 100, 7)]


def test_a_deleted_topic_loses_its_queues_and_a_waiting_write_does_not_bring_them_back() -> None:
    disk = MemoryDisk()
    queues = ConsumeQueues(disk, SETTINGS)
    apply(queues, entry(0), entry(0, queue_id=1), entry(0, topic="T2"))
    write(queues)
    apply(queues, entry(1))
    job = queues.begin_write()
    assert sorted(queues.delete("T", 1 << 60)) == [("T", 0), ("T", 1)]
    job.run()
    queues.finish_write(job)
    write(queues)
    assert disk.names("consumequeue") == ["T2"]
    assert list(queues.table) == [("T2", 0)]


def test_what_begins_again_between_slices_of_a_write_is_in_it_or_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume_queues, "_SLICE_QUEUES", 1)
    disk = MemoryDisk()
    queues = ConsumeQueues(disk, SETTINGS)
    apply(queues, *(entry(0, queue_id=queue_id) for queue_id in range(4)))
    write(queues)
    apply(queues, *(entry(1, queue_id=queue_id) for queue_id in range(4)))
    job = queues.begin_write_in_slices()
    assert queues.take_slice(job)
    queues.empty({("T", queue_id): 7 for queue_id in (0, 3)}, 1 << 40)
    queues.delete("T", 1)
    apply(queues, *(entry(7, queue_id=queue_id) for queue_id in (0, 3)))
    while queues.take_slice(job):
        pass
    job.run()
    queues.finish_write(job)
    write(queues)
    for queue_id, first in enumerate((7, 0, 0, 7)):
        queue = queues.table["T", queue_id]
        assert queue.written_offset == queue.max_offset
        written = queue.read_written(first, queue.max_offset - first)
        assert list(UNIT.iter_unpack(written)) == units(queues, queue_id=queue_id)


def test_a_write_that_never_ran_leaves_all_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the files of what is gone."""
    monkeypatch.setattr(consume_queues, "_SLICE_QUEUES", 1)
    disk = MemoryDisk()
    queues = ConsumeQueues(disk, SETTINGS)
    apply(queues, *(entry(0, topic=topic) for topic in ("T", "T2", "T3")))
    write(queues)
    apply(queues, *(entry(1, topic=topic) for topic in ("T", "T2", "T3")))
    queues.delete("T", 1 << 40)
    whole = queues.begin_write()
    queues.abandon_write(whole)
    part = queues.begin_write_in_slices()
    queues.take_slice(part)
    queues.abandon_write(part)
    write(queues)
    assert disk.names("consumequeue") == ["T2", "T3"]
    assert [queue.written_offset for queue in queues.table.values()] == [2, 2]


def test_a_queue_with_messages_behind_the_deletion_belongs_to_the_new_topic() -> None:
    disk = MemoryDisk()
    queues = ConsumeQueues(disk, SETTINGS)
    apply(queues, entry(0), entry(0, queue_id=1))
    write(queues)
    apply(queues, entry(0, physical=9000))
    assert queues.delete("T", 5000) == [("T", 1)]
    write(queues)
    assert disk.names("consumequeue/T") == ["0"]
    assert units(queues) == [(9000, 100, 7)]


def test_a_topic_made_again_keeps_its_new_units() -> None:
    queues = ConsumeQueues(MemoryDisk(), SETTINGS)
    apply(queues, *(entry(n) for n in range(5)))
    write(queues)
    queues.delete("T", 1 << 60)
    apply(queues, entry(0, physical=9000))
    write(queues)
    write(queues)
    assert units(queues) == [(9000, 100, 7)]


def test_the_first_unit_follows_the_begin_of_the_log() -> None:
    queues = ConsumeQueues(MemoryDisk(), SETTINGS)
    apply(queues, *(entry(n) for n in range(40)))
    queue = queues.table[("T", 0)]
    assert [queue.min_offset(begin) for begin in (0, 1000, 1001, 2000, 4900, 4901, 9000)] == [0, 0, 1, 10, 39, 40, 40]
    assert queue.max_offset == 40


def test_files_whose_messages_are_gone_go_but_never_the_last() -> None:
    disk = MemoryDisk()
    queues = ConsumeQueues(disk, SETTINGS)
    apply(queues, *(entry(n) for n in range(40)))
    write(queues)
    assert queues.forget_expired(unit(15)[0]) == []
    paths = queues.forget_expired(unit(33)[0])
    names = [f"T/0/{n * FILE_UNITS * 20:020d}" for n in range(2)]
    assert paths == [f"{place}/{name}" for name in names for place in ("queueChecks", "consumequeue")]
    for path in paths:
        disk.remove(path)
    queue = queues.table[("T", 0)]
    assert (queue.min_offset(unit(33)[0]), queue.first_offset) == (33, 32)
    assert queues.forget_expired(1_000_000) == []
    assert queue.min_offset(1_000_000) == queue.max_offset == 40
    apply(queues, entry(40, physical=1_000_000))
    assert list(queue.units(queue.min_offset(1_000_000), 10)) == [(1_000_000, 100, 7)]


def test_a_failed_write_is_made_again_by_the_next() -> None:
    disk = FaultyDisk(Random(1))
    queues = ConsumeQueues(disk, SETTINGS)
    apply(queues, entry(0), entry(0, topic="U"))
    job = queues.begin_write()
    disk.fail_write_at(1)
    with pytest.raises(StorageError):
        job.run()
    queues.abandon_write(job)
    apply(queues, entry(1))
    write(queues)
    write(queues)
    disk.crash()
    assert (disk.read_bytes("consumequeue/T/0/" + "0" * 20) or b"")[:40] == UNIT.pack(*unit(0)) + UNIT.pack(*unit(1))
    assert (disk.read_bytes("consumequeue/U/0/" + "0" * 20) or b"")[:20] == UNIT.pack(*unit(0))


# -- finding them at start -----------------------------------------------------------------------------------------------------


def recovered(disk: MemoryDisk, trusted: int | None = None, *, clean: bool = False) -> tuple[ConsumeQueues, bool]:
    commitlog = CommitLog(disk, SETTINGS)
    queues = ConsumeQueues(disk, SETTINGS)
    return queues, queues.recover(commitlog, commitlog.end_offset if trusted is None else trusted, {}, clean=clean)


def stored(count: int) -> tuple[MemoryDisk, list[Unit]]:
    """A disk with the log and the written queue of that many messages."""
    disk = MemoryDisk()
    store = open_store(disk)
    put(store, *(draft(bytes([65 + n % 26]) * 50) for n in range(count)))
    sync(store)
    store.checkpoint()
    found = list(store.queues.table[("TopicA", 0)].units(0, count))
    return disk, found


def test_the_units_before_the_trusted_offset_are_taken_over() -> None:
    disk, expected = stored(40)
    for count in (40, 39, 17, 16, 1):
        trusted = expected[count - 1][0] + expected[count - 1][1]
        queues, fits = recovered(disk, trusted, clean=True)
        assert fits
        assert units(queues, "TopicA") == expected[:count]


def test_a_queue_without_a_trusted_unit_is_made_again() -> None:
    disk, _ = stored(5)
    queues, fits = recovered(disk, 10)
    assert fits
    assert queues.table == {}
    assert not disk.exists("consumequeue/TopicA/0")


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("place", [2, 7, 9, 11])
def test_a_last_unit_with_one_wrong_bit_is_rot_also_when_its_check_is_gone(count: int, place: int) -> None:
    """It is not what a crash left: the log has its message, and the next one would get its number."""
    disk, _ = stored(count)
    disk.remove("queueChecks")
    segment = disk.open("consumequeue/TopicA/0/" + "0" * 20)
    at = (count - 1) * 20 + place
    segment.write(at, [bytes([segment.read(at, 1)[0] ^ 4])])
    _, fits = recovered(disk)
    assert not fits


def test_leftovers_behind_the_known_units_are_not_believed_and_blanked_out() -> None:
    disk, expected = stored(20)
    trusted = expected[9][0] + expected[9][1]
    # A unit of another queue's message, of no message at all, and one that is simply behind.
    segment = disk.open("consumequeue/TopicA/0/" + "0" * 20)
    segment.write(10 * 20, [UNIT.pack(*expected[2]), UNIT.pack(123, 100, 0)])
    disk.remove("queueChecks")  # what a crash leaves was never covered
    queues, fits = recovered(disk, trusted)
    assert fits
    assert units(queues, "TopicA") == expected[:10]
    assert disk.names("consumequeue/TopicA/0") == ["0" * 20]
    assert not any(segment.read(10 * 20, 10_000))


def test_old_units_are_not_believed_even_when_they_point_before_the_trusted_offset() -> None:
    disk, expected = stored(12)
    segment = disk.open("consumequeue/TopicA/0/" + "0" * 20)
    segment.write(12 * 20, [UNIT.pack(*expected[3]), UNIT.pack(*expected[4])])
    queues, fits = recovered(disk, clean=True)
    assert fits
    assert units(queues, "TopicA") == expected


@pytest.mark.parametrize(
    "damage",
    [
        lambda disk: disk.remove(f"consumequeue/TopicA/0/{FILE_UNITS * 20:020d}"),
        lambda disk: disk.open("consumequeue/TopicA/0/notes", create=True),
        lambda disk: disk.open(f"consumequeue/TopicA/0/{FILE_UNITS * 20 * 3 + 20:020d}", create=True),
        lambda disk: disk.open(f"consumequeue/TopicA/0/{0:020d}").truncate(10_000),
        lambda disk: disk.open("consumequeue/TopicA/strange/" + "0" * 20, create=True),
    ],
)
def test_files_that_do_not_fit_together_are_reported(damage: object) -> None:
    disk, _ = stored(40)
    damage(disk)  # type: ignore[operator]
    assert not recovered(disk)[1]
    # The store then makes all queues again.
    store = open_store(disk)
    dispatch_all(store)
    assert store.max_offset("TopicA", 0) == 40


def test_a_short_file_is_completed() -> None:
    disk, expected = stored(10)
    disk.open("consumequeue/TopicA/0/" + "0" * 20).truncate(10 * 20)
    queues, fits = recovered(disk)
    assert fits
    assert units(queues, "TopicA") == expected
    assert disk.open("consumequeue/TopicA/0/" + "0" * 20).size_bytes == FILE_UNITS * 20


def test_other_file_sizes_make_all_queues_again() -> None:
    disk, _ = stored(40)
    for file_units in (10 * FILE_UNITS, FILE_UNITS):
        settings = StoreSettings(segment_size_bytes=SETTINGS.segment_size_bytes, queue_file_units=file_units)
        store = open_store(disk, settings=settings)
        dispatch_all(store)
        assert store.max_offset("TopicA", 0) == 40
        store.close()


def test_offset_zero_later_in_the_log_starts_a_queue_again_whose_own_begin_is_not_known() -> None:
    """A start derives from the middle of a deleted topic's messages, whose files are gone, and goes on into the next one's."""
    queues = ConsumeQueues(MemoryDisk(), SETTINGS)
    apply(queues, entry(1, physical=2000), entry(2, physical=2100))
    assert apply(queues, entry(0, physical=3000), entry(1, physical=3100)) == {("T", 0): [7, 7]}
    assert units(queues) == [(3000, 100, 7), (3100, 100, 7)]
    assert queues.table[("T", 0)].first_offset == 0


class Held:
    """The lock of a write that lasts as long as a disk stands still."""

    def __enter__(self) -> None:
        raise AssertionError("the event loop waits for the disk")

    def __exit__(self, *_: object) -> None: ...


def test_who_has_nothing_to_empty_or_to_delete_waits_for_no_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step-down reads the tables again, and tells which queues are empty, and whose topics were deleted."""
    queues = ConsumeQueues(MemoryDisk(), SETTINGS)
    apply(queues, *(entry(n) for n in range(3)))
    queues.empty({("E", 1): 7}, 1 << 40)
    monkeypatch.setattr(queues, "_write_lock", Held())
    queues.empty({}, 0)
    queues.empty({("E", 1): 7}, 1 << 40)
    assert queues.delete("U", 1 << 40) == []
    assert queues.delete("T", 0) == []
    with pytest.raises(AssertionError, match="waits for the disk"):
        queues.empty({("T", 0): 7}, 1 << 40)

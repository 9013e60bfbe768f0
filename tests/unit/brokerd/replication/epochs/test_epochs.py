"""The epoch list, its file format, and what two logs have in common (rows of the table of truncation cases)."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.replication.epochs.epoch_file import EPOCH_FILE, MASTER_EPOCH_FILE, EpochFile
from brokerd.replication.epochs.epoch_list import EpochEntry, EpochList, decode_epochs, encode_epochs
from remoting.errors import CorruptedFile
from tests.support.disks import MemoryDisk


def epochs(text: str) -> EpochList:
    """`1@100 2@300` as a list."""
    return EpochList(EpochEntry(*map(int, item.split("@"))) for item in text.split())


def text(each: EpochList) -> str:
    return " ".join(f"{entry.epoch}@{entry.start_offset}" for entry in each.entries)


@pytest.mark.parametrize(
    ("local", "local_end", "master", "master_end", "expected"),
    [
        pytest.param("1@100 2@300 3@500", 700, "1@100 2@300 3@450", 600, 450, id="1-starts-differ"),
        pytest.param("1@100 2@300 3@500", 700, "1@100 2@300 3@500", 600, 600, id="2-shorter-master"),
        pytest.param("1@100 2@300 3@500", 700, "1@200 2@500", 900, None, id="3-nothing-common"),
        pytest.param("1@100 2@300 3@500 4@800", 900, "1@100 2@300 3@500", 700, 700, id="4-was-master"),
        pytest.param("1@0 2@1000", 1400, "1@0 3@1000", 1200, 1000, id="5-same-start-other-epoch"),
        pytest.param("1@0", 900, "1@0 2@1000", 2000, 900, id="6-merely-behind"),
        pytest.param("1@0", 1200, "1@0 2@1000", 2000, 1000, id="7-ahead-inside-an-epoch"),
        pytest.param("1@0 5@4000", 9000, "1@0 5@4000 6@9000", 9500, 9000, id="9-new-epoch-per-life"),
        pytest.param("1@0 9@400 10@600", 900, "1@0 12@800", 1000, 400, id="10-every-epoch-recorded"),
    ],
)
def test_common_end(local: str, local_end: int, master: str, master_end: int, expected: int | None) -> None:
    assert epochs(local).common_end(local_end, epochs(master).entries, master_end) == expected


def test_row_8_an_epoch_without_bytes_makes_room_for_the_next_one_at_its_start() -> None:
    master = epochs("1@0 2@1000")
    master.begin(3, 1000)  # epoch 2 got no byte on this replica
    assert text(master) == "1@0 3@1000"
    other = epochs("1@0 2@1000")  # here it did
    assert other.common_end(1400, master.entries, 1200) == 1000


def test_begin_replaces_whatever_starts_there_or_later() -> None:
    each = epochs("1@0 2@100 3@200")
    each.begin(7, 100)
    assert text(each) == "1@0 7@100"
    with pytest.raises(AssertionError):
        each.begin(7, 300)  # an epoch that has bytes cannot begin again elsewhere


def test_cut_find_and_forget() -> None:
    each = epochs("1@0 2@100 3@200")
    assert each.find(99) == ((1, 0), 100)
    assert each.find(100) == ((2, 100), 200)
    assert each.find(10**9) == ((3, 200), None)
    assert each.forget_before(150)
    assert text(each) == "2@100 3@200"
    assert each.find(50) is None
    assert not each.forget_before(199)
    assert each.forget_before(10**6)
    assert text(each) == "3@200", "the entry that covers the rest stays"
    assert not each.cut(201)
    assert each.cut(200)
    assert each.last is None
    assert each.last_epoch == -1


def test_a_start_beyond_the_log_is_dropped_but_one_at_its_end_stays() -> None:
    each = epochs("1@0 2@100")
    assert not each.drop_beyond(100)
    assert each.drop_beyond(99)
    assert text(each) == "1@0"


def test_cover_gives_bytes_without_an_epoch_number_0() -> None:
    each = EpochList()
    each.cover(64)
    assert text(each) == "0@64"
    later = epochs("3@100")
    later.cover(0)
    assert text(later) == "0@0 3@100"
    later.cover(0)
    assert text(later) == "0@0 3@100"


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 50)), max_size=20), st.integers(0, 1200))
def test_lists_stay_increasing_under_any_begin_and_cut(steps: list[tuple[int, int]], offset: int) -> None:
    each, epoch, end = EpochList(), 0, 0
    for epoch_step, bytes_step in steps:
        epoch += epoch_step
        each.begin(epoch, end)
        end += bytes_step - 1
    EpochList(each.entries)  # asserts the order
    each.cut(offset)
    EpochList(each.entries)
    assert all(entry.start_offset < offset for entry in each.entries)


def test_the_file_has_the_original_format() -> None:
    entries = [EpochEntry(7, 7000), EpochEntry(8, 8000)]
    lines = b"7-7000\n8-8000\n"
    content = b"2\n%d\n%s" % (zlib.crc32(lines) & 0x7FFFFFFF, lines)
    assert encode_epochs(entries) == content
    assert decode_epochs(content, "x") == entries
    assert decode_epochs(b"2\n0\n" + lines, "x") == entries, "a checksum of 0 is not checked"
    assert decode_epochs(encode_epochs([]), "x") == []


@pytest.mark.parametrize(
    "content",
    [
        b"2\n1\n7-7000\n8-8000\n",
        b"3\n0\n7-7000\n8-8000\n",
        b"2\n0\n8-8000\n7-7000\n",
        b"2\n0\n7-8000\n8-8000\n",
        b"1\n0\n7--5\n",
        b"1\n0\n7\n",
        b"\xff\xfe",
        b"x",
    ],
)
def test_a_damaged_file_is_refused(content: bytes) -> None:
    with pytest.raises(CorruptedFile):
        decode_epochs(content, "x")


def test_epoch_file_keeps_the_list_and_the_highest_epoch() -> None:
    disk = MemoryDisk()
    file = EpochFile(disk)
    loaded, highest = file.load()
    assert (loaded.entries, highest) == ((), 0)
    file.save_master_epoch(9)
    file.save_entries((EpochEntry(7, 0), EpochEntry(8, 10)))
    loaded, highest = EpochFile(disk).load()
    assert text(loaded) == "7@0 8@10"
    assert highest == 9
    file.save_entries(())
    assert EpochFile(disk).load()[0].entries == (), "emptying the list survives a restart"
    disk.replace_bytes(MASTER_EPOCH_FILE, b"9 1\n")
    with pytest.raises(CorruptedFile):
        file.load()


def test_the_highest_epoch_is_at_least_the_newest_of_the_list() -> None:
    disk = MemoryDisk()
    EpochFile(disk).save_entries((EpochEntry(12, 0),))
    assert EpochFile(disk).load()[1] == 12


def test_a_backup_of_the_original_is_used_once_and_then_removed() -> None:
    disk = MemoryDisk()
    backup = EPOCH_FILE + ".bak"
    disk.replace_bytes(backup, encode_epochs([EpochEntry(3, 0)]))
    disk.replace_bytes(EPOCH_FILE, b"2\n5\ntorn")
    file = EpochFile(disk)
    assert text(file.load()[0]) == "3@0"
    file.save_entries((EpochEntry(4, 0),))
    assert not disk.exists(backup)
    disk.replace_bytes(EPOCH_FILE, b"2\n5\ntorn")
    with pytest.raises(CorruptedFile):
        file.load()

"""Keys put into the index's last file by the library, against Python."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.store.index import index_file
from brokerd.store.index.index_file import IndexFile, items_agree
from brokerd.store.index.layout import DIRECTORY, ITEM, Header, IndexShape
from brokerd.store.index.native_items import NativeItems
from brokerd.store.index.postings import WalkMemory, derive_postings
from brokerd.store.store import MessageStore
from remoting.disk import LocalDisk
from remoting.record.layout import SYS_TRANSACTION_ROLLBACK
from remoting.record.properties import encode_properties
from tests.support.disks import MemoryDisk
from tests.support.native_library import native_library
from tests.support.page_end import PageEnd
from tests.unit.brokerd.store.index.finding import catch_up
from tests.unit.brokerd.store.index.test_postings import FILE_BYTES, alike, encode_all, records
from tests.unit.brokerd.store.stores import SETTINGS, Clock, dispatch_all, draft, open_store, put

SHAPE = IndexShape(5000, 1 << 20)
BEGIN_MS = 1_700_000_000_000
LAST_MS = (1 << 63) - 1
ENTERED = Header(BEGIN_MS, BEGIN_MS, 7, 7, 1, 2)  # one that has an item
INDEXED = replace(SETTINGS, segment_size_bytes=1 << 16, index_slots=3000, index_items=500)


def new_file(header: Header = ENTERED, shape: IndexShape = SHAPE) -> IndexFile:
    return IndexFile(MemoryDisk(), "1" * 17, shape, header, on_disk=False)


def state(file: IndexFile) -> tuple[object, ...]:
    slots = bytes(file._slots or b"")
    return file.header, bytes(file._tail), slots.rstrip(b"\0"), sorted(file._gather_dirty())


@given(records, st.integers(0, 3).map(lambda n: BEGIN_MS + (n - 2) * 10**12), st.data())
def test_a_file_is_the_same_whoever_puts_keys_into_it(
    fields: list[dict[str, object]], begin_ms: int, data: st.DataObject
) -> None:
    log = b"".join(encode_all(fields))
    header = ENTERED._replace(begin_timestamp_ms=max(0, begin_ms))
    wanted, found, in_c = new_file(header), new_file(header), NativeItems(native_library())
    end = found.put_in_c(in_c, log, len(log), 0, FILE_BYTES)
    while end < len(log):  # a record that is the twin's, and what is behind it
        part = derive_postings(log[end:], end, FILE_BYTES, WalkMemory())
        assert found.put(part, 0) == len(part.hashes)
        end = part.end_offset
    wanted.put(derive_postings(log, 0, FILE_BYTES, WalkMemory()), 0)
    assert state(found)[:2] == state(wanted)[:2]
    if wanted._slots is not None:
        assert state(found) == state(wanted)


@pytest.mark.parametrize("begin_ms", [BEGIN_MS, 1, 0, -1, LAST_MS, -LAST_MS - 1])
def test_any_time_is_put_into_an_item_as_the_twin_does(begin_ms: int) -> None:
    """Also times that no clock shows, whose difference is no number of 64 bits."""
    times = (LAST_MS, -LAST_MS - 1, -1, 0, BEGIN_MS, BEGIN_MS + (1 << 42))
    log = b"".join(encode_all([alike(n, store_timestamp_ms=time_ms) for n, time_ms in enumerate(times)]))
    header = ENTERED._replace(begin_timestamp_ms=begin_ms)
    wanted, found = new_file(header), new_file(header)
    assert found.put_in_c(NativeItems(native_library()), log, len(log), 0, FILE_BYTES) == len(log)
    wanted.put(derive_postings(log, 0, FILE_BYTES, WalkMemory()), 0)
    assert state(found) == state(wanted)


def test_what_is_ordinary_is_not_left_to_the_twin() -> None:
    log = b"".join(encode_all([alike(n, sealed=n % 2 > 0) for n in range(500)]))
    file, in_c = new_file(), NativeItems(native_library())
    assert file.put_in_c(in_c, log, len(log), 0, 1 << 30) == len(log)
    assert file.header.next_item == 502


@pytest.mark.parametrize("items", [3, 9, 10, 11])
def test_a_record_whose_keys_have_no_room_is_left(items: int) -> None:
    """A file that has room for some of them gets these from the twin."""
    encoded = encode_all([alike(n, properties=b"KEYS\x01a b c d\x02") for n in range(9)])
    log, file, in_c = b"".join(encoded), new_file(shape=IndexShape(5000, items)), NativeItems(native_library())
    whole = (items - 2) // 4
    assert file.put_in_c(in_c, log, len(log), 0, 1 << 30) == sum(map(len, encoded[:whole]))
    assert file.header.next_item == 2 + 4 * whole


def test_a_record_with_very_many_keys_is_left() -> None:
    words = b" ".join(b"%x" % each for each in range(65))
    log = b"".join(encode_all([alike(1, properties=b"KEYS\x01" + words + b"\x02")]))
    file, in_c = new_file(), NativeItems(native_library())
    assert file.put_in_c(in_c, log, len(log), 0, 1 << 30) == 0
    assert state(file)[:2] == (ENTERED, b"")


def test_nothing_behind_the_records_is_looked_at() -> None:
    """They end where a page ends behind which nothing may be read: who does ends the process."""
    log, page, rng = b"".join(encode_all([alike(n, sealed=n % 2 > 0) for n in range(9)])), PageEnd(), Random(3)
    in_c = NativeItems(native_library())
    for _ in range(2000):
        changed = bytearray(log)
        for _ in range(rng.choice((0, 1, 4))):
            changed[rng.randrange(len(log))] = rng.randrange(256)
        data = bytes(changed[: rng.randrange(1, len(log))])
        assert 0 <= new_file().put_in_c(in_c, page.put(data), len(data), 0, 1 << 16) <= len(data)


def fill(store: MessageStore, clock: Clock) -> None:
    """Messages with no key, one and several, of all kinds that the library takes and leaves."""
    rng = Random(5)
    for number in range(900):
        clock.now_ms += rng.choice((0, 1, 700))
        keys = rng.choice(("", "a", "a b", "schlüssel", " ".join(f"{n:x}" for n in range(70))))
        properties = encode_properties({"KEYS": keys, "UNIQ_KEY": f"ID{number:08d}" if rng.random() < 0.9 else ""})
        flag = SYS_TRANSACTION_ROLLBACK if rng.random() < 0.1 else 0
        put(store, draft(b"b" * rng.randrange(1, 900), properties=properties, sys_flag=flag), visible=False)
        if rng.random() < 0.05:
            dispatch_all(store)
            catch_up(store)
    dispatch_all(store)
    catch_up(store)


def test_files_are_the_same_also_of_a_log_that_is_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several files of the log, and of the index; with checkpoints in between that write what changed since the last one."""
    native_library()
    taken: list[Any] = []
    put_in_c = IndexFile.put_in_c

    def noted(self: IndexFile, in_c: NativeItems, data: bytes | int, *rest: Any) -> int:
        taken.append((type(data), end := put_in_c(self, in_c, data, *rest)))
        return end

    monkeypatch.setattr(IndexFile, "put_in_c", noted)
    found = []
    for name in ("python", "c"):
        disk, clock = LocalDisk(tmp_path / name), Clock()
        store = open_store(disk, clock, INDEXED, library=native_library() if name == "c" else None)
        for _ in range(3):
            fill(store, clock)
            store.checkpoint(closing=True)
        assert store.commitlog.min_offset == 0
        assert store.commitlog.end_offset > 10 * INDEXED.segment_size_bytes
        store.close()
        found.append([(path.name, path.read_bytes()) for path in sorted((tmp_path / name / DIRECTORY).iterdir())])
        disk.close()
    assert len(found[0]) > 3
    assert found[1] == found[0]
    assert {kind for kind, end in taken if end} == {int}, "what this process has written is mapped"


def test_the_check_at_load_finds_a_library_that_does_it_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    library = native_library()
    assert items_agree(library)
    take = NativeItems.put

    def other(self: NativeItems, *given: Any) -> tuple[Header, memoryview, int]:
        header, items, end = take(self, *given)
        items[ITEM.size - 1] ^= 1
        return header, items, end

    monkeypatch.setattr(NativeItems, "put", other)
    assert not items_agree(library)


def test_both_say_how_many_slots_a_page_has() -> None:
    file, in_c = new_file(), NativeItems(native_library())
    log = b"".join(encode_all([alike(n) for n in range(300)]))
    file.put_in_c(in_c, log, len(log), 0, 1 << 30)
    slots = file._slots
    assert slots is not None
    used = {slot >> index_file._PAGE_BITS for slot, number in enumerate(slots) if number}
    assert file._gather_dirty() == used

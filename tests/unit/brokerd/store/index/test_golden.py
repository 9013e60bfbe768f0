"""Index files of the original, byte for byte: derived from its log, and read as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd.store.index.layout import DIRECTORY
from brokerd.store.settings import StoreSettings
from brokerd.store.store import MessageStore
from remoting.disk import Disk
from remoting.record.codec import decode_record
from tests.support.disks import MemoryDisk
from tests.unit.brokerd.store.index.finding import catch_up, find
from tests.unit.brokerd.store.stores import make_store

GOLDEN = Path(__file__).parents[4] / "golden" / "rocketmq-5.3.3"
SETTINGS = StoreSettings(segment_size_bytes=1 << 20, index_slots=50, index_items=24)
KINDS = pytest.mark.parametrize("kind", ["index", "index-crc"])


def originals(kind: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((GOLDEN / kind).iterdir()) if path.name.isdigit()}


def disk_of(kind: str, *, with_index: bool) -> MemoryDisk:
    disk = MemoryDisk()
    put(disk, "commitlog/" + "0" * 20, (GOLDEN / kind / "commitlog").read_bytes(), 1 << 20)
    if with_index:
        for name, content in originals(kind).items():
            put(disk, f"{DIRECTORY}/{name}", content, len(content))
    return disk


def put(disk: Disk, path: str, content: bytes, size: int) -> None:
    segment = disk.open(path, create=True, size_bytes=size)
    segment.write(0, (content,))
    segment.sync()
    segment.close()


def opened(disk: Disk) -> MessageStore:
    store = make_store(disk, settings=SETTINGS)
    store.load()
    store.dispatch(store.commitlog.complete_offset)
    catch_up(store)
    return store


@KINDS
def test_the_index_of_the_originals_log_is_the_originals_index(kind: str) -> None:
    disk = disk_of(kind, with_index=False)
    opened(disk).close()
    names = disk.names(DIRECTORY)
    assert [disk.read_bytes(f"{DIRECTORY}/{name}") for name in names] == list(originals(kind).values())
    assert len(names) == 3


@KINDS
def test_the_originals_files_are_taken_over_and_go_on(kind: str) -> None:
    disk = disk_of(kind, with_index=True)
    store = opened(disk)
    store.close()
    assert {name: disk.read_bytes(f"{DIRECTORY}/{name}") for name in disk.names(DIRECTORY)} == originals(kind)


@KINDS
def test_every_key_of_the_originals_log_is_found(kind: str) -> None:
    store = opened(disk_of(kind, with_index=True))
    keys = 0
    offset = store.commitlog.min_offset
    while (data := store.commitlog.record_at(offset)) is not None:
        record = decode_record(data)
        properties = record.property_map()
        for key in [properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")]:
            if key:
                keys += 1
                assert record.physical_offset in find(store, record.topic, key)
        offset += record.size
    assert keys == 23 + 23 + 5


def test_files_of_another_shape_are_made_again() -> None:
    disk = disk_of("index", with_index=True)
    store = make_store(disk, settings=StoreSettings(segment_size_bytes=1 << 20, index_slots=60, index_items=24))
    store.load()
    store.dispatch(store.commitlog.complete_offset)
    catch_up(store)
    assert find(store, "golden", "shared") == find(opened(disk_of("index", with_index=True)), "golden", "shared")
    assert find(store, "golden", "shared")

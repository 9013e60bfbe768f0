"""A disk without room, in memory and for real: sends are refused with the figures, reads go on, and it ends by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from brokerd.store.housekeeping import Housekeeper
from brokerd.store.log.retention import refusal_text
from brokerd.store.settings import HOUR_MS, RetentionSettings
from brokerd.store.store import MessageStore
from remoting import codes
from remoting.disk import Disk, DiskUsage, LocalDisk
from remoting.errors import RequestError, StorageError
from remoting.settings import Live
from tests.support.disks import FaultyDisk
from tests.support.small_disk import small_disk
from tests.unit.brokerd.store.stores import (
    SETTINGS,
    bodies,
    dispatch_all,
    draft,
    make_store,
    open_store,
    payloads,
    put,
    sync,
)

DEADLINE_S = 60
# Rounds are a day apart, so that what happens sooner is no round's doing.
SETTINGS_OF_A_FULL_DISK = RetentionSettings(interval_ms=24 * HOUR_MS, full_interval_ms=10, enough_free_bytes=0)
TMPFS_BYTES = 1 << 20


@pytest.fixture
def small_file_system(tmp_path: Path) -> Iterator[Path]:
    """A file system of a megabyte."""
    mounted = tmp_path / "small"
    with small_disk(mounted, f"size={TMPFS_BYTES}"):
        yield mounted


def keep_house(store: MessageStore, disk: Disk, failures: list[StorageError], **changes: int) -> Housekeeper:
    settings = replace(SETTINGS_OF_A_FULL_DISK, **changes)
    store.failure_listeners.append(failures.append)
    return Housekeeper(store, disk, SETTINGS, Live(settings), lambda: 0)


async def until(condition: object) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.005)


def fill(store: MessageStore) -> int:
    """Put messages until the store refuses; how many it took."""
    taken = 0
    while store.refusal is None:
        try:
            put(store, *(draft(body) for body in payloads(1, 900, start=taken)))
        except StorageError:
            break
        taken += 1
        assert taken < 10_000, "the disk does not get full"
    return taken


async def test_what_an_append_found_full_is_taken_again_as_soon_as_there_is_room() -> None:
    disk = FaultyDisk(Random(1), capacity_bytes=100_000)
    store = open_store(disk)
    failures: list[StorageError] = []
    housekeeper = keep_house(store, disk, failures, refuse_percent=99, force_percent=99)
    housekeeper.start()
    taken = fill(store)
    assert isinstance(store.refusal, RequestError)
    assert store.refusal.code == codes.SERVICE_NOT_AVAILABLE
    assert bodies(store) == list(payloads(taken, 900))
    disk.capacity_bytes *= 2
    await until(lambda: store.refusal is None)
    put(store, draft(b"again"))
    assert bodies(store)[-1] == b"again"
    assert len(bodies(store)) == taken + 1
    await housekeeper.stop()
    assert failures == []


async def test_a_full_disk_is_looked_at_before_the_next_round_and_gives_up_its_oldest_files() -> None:
    disk = FaultyDisk(Random(1), capacity_bytes=100_000)
    store = open_store(disk)
    housekeeper = keep_house(store, disk, [], force_percent=60, refuse_percent=80)
    housekeeper.start()
    taken = fill(store)
    sync(store)
    await until(lambda: store.refusal is None)
    left = bodies(store)
    assert 0 < len(left) < taken
    assert left == list(payloads(taken, 900))[-len(left) :]
    await housekeeper.stop()


async def test_what_replicas_and_tables_need_stays_on_a_full_disk() -> None:
    disk = FaultyDisk(Random(1), capacity_bytes=100_000)
    store = open_store(disk)
    store.position_holders.append(lambda: 0)
    housekeeper = keep_house(store, disk, [], force_percent=60, refuse_percent=80)
    taken = fill(store)
    sync(store)
    await housekeeper.remove_old_files()
    assert store.commitlog.min_offset == 0
    assert "100 % full" in str(store.refusal)
    assert "retention.refuse_percent is 80" in str(store.refusal)
    store.position_holders.clear()
    while store.refusal is not None:
        await housekeeper.remove_old_files()
    assert len(bodies(store)) < taken
    await housekeeper.stop()


def test_the_reason_says_how_full_and_which_settings_count() -> None:
    text = refusal_text(DiskUsage(1000, 69), RetentionSettings())
    assert "94 % full" in text
    assert "retention.refuse_percent is 90" in text
    assert "retention.force_percent, 85 %" in text


async def test_a_real_file_system_that_is_full(small_file_system: Path) -> None:
    disk = LocalDisk(small_file_system / "data")
    ballast = small_file_system / "ballast"
    ballast.write_bytes(bytes(TMPFS_BYTES // 2))
    store = open_store(disk)
    failures: list[StorageError] = []
    housekeeper = keep_house(store, disk, failures, refuse_percent=99, force_percent=99)
    housekeeper.start()
    taken = fill(store)
    assert bodies(store) == list(payloads(taken, 900))
    assert isinstance(store.refusal, RequestError)
    assert store.refusal.code == codes.SERVICE_NOT_AVAILABLE
    ballast.unlink()
    await until(lambda: store.refusal is None)
    put(store, draft(b"again"))
    sync(store)
    await housekeeper.stop()
    assert failures == []
    store.abandon()  # as a crash would leave it, but for what the system wrote
    disk.close()
    disk = LocalDisk(small_file_system / "data")
    again = make_store(disk)
    again.load()
    dispatch_all(again)
    assert bodies(again) == [*payloads(taken, 900), b"again"]
    again.close()
    disk.close()


async def test_a_crashed_broker_starts_on_a_real_file_system_that_is_full(small_file_system: Path) -> None:
    disk = LocalDisk(small_file_system / "data")
    store = open_store(disk)
    taken = fill(store)
    store.abandon()
    disk.close()
    disk = LocalDisk(small_file_system / "data")
    again = make_store(disk)
    again.load()
    dispatch_all(again)
    assert bodies(again) == list(payloads(taken, 900))
    again.abandon()
    disk.close()


def test_small_files_are_replaced_on_a_real_file_system_that_is_full(small_file_system: Path) -> None:
    """Who gives up the lead must write that down before it copies: without that a full disk would end the process."""
    disk = LocalDisk(small_file_system / "data")
    disk.replace_bytes("masterEpochSeen", b"6 1\n")
    with open(small_file_system / "ballast", "wb", buffering=0) as ballast:
        assert ballast.write(bytes(2 * TMPFS_BYTES)) < TMPFS_BYTES
    for epoch in range(7, 20):
        disk.replace_bytes("masterEpochSeen", b"%d 1\n" % epoch)
    assert disk.read_bytes("masterEpochSeen") == b"19 1\n"
    with pytest.raises(StorageError, match="No space") as refused:
        disk.replace_bytes("config/topics.json", bytes(5000))
    assert refused.value.is_out_of_space
    disk.close()
    disk = LocalDisk(small_file_system / "data")
    assert disk.names("") == ["config", "lock", "masterEpochSeen", "reserve"]
    disk.replace_bytes("masterEpochSeen", b"20 1\n")
    disk.close()

"""What the faulty twin does when told: the faults that the store's tests and the simulator rest on."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from remoting.errors import StorageError
from tests.support.disks import PAGE_BYTES, SECTOR_BYTES, FaultyDisk, PowerLost


def disk_with(seed: int = 1) -> FaultyDisk:
    return FaultyDisk(Random(seed))


def content(disk: FaultyDisk, path: str) -> bytes:
    return disk.read_bytes(path) or b""


def test_synced_bytes_survive_a_power_loss_and_unsynced_ones_may_not() -> None:
    outcomes = set()
    for seed in range(40):
        disk = disk_with(seed)
        segment = disk.open("a", create=True, size_bytes=4)
        segment.write(0, [b"ab"])
        segment.sync()
        segment.write(2, [b"cd"])
        disk.crash()
        assert content(disk, "a")[:2] == b"ab"
        outcomes.add(content(disk, "a")[2:])
    assert outcomes == {b"\0\0", b"cd"}


def test_a_torn_write_keeps_whole_sectors() -> None:
    torn = 0
    for seed in range(60):
        disk = disk_with(seed)
        segment = disk.open("a", create=True, size_bytes=4 * SECTOR_BYTES)
        segment.write(100, [b"x" * (3 * SECTOR_BYTES)])
        disk.crash()
        survived = content(disk, "a")
        pieces = [survived[n : n + SECTOR_BYTES].strip(b"\0") for n in range(0, len(survived), SECTOR_BYTES)]
        assert [len(piece) for piece in pieces] == [
            length if piece else 0 for piece, length in zip(pieces, [412, 512, 512, 100], strict=True)
        ]
        torn += disk.counters.torn and 0 < sum(map(bool, pieces)) < 4
    assert torn > 5


def test_unsynced_writes_fare_independently_of_their_order() -> None:
    later_alone = 0
    for seed in range(60):
        disk = disk_with(seed)
        segment = disk.open("a", create=True, size_bytes=2)
        segment.write(0, [b"1"])
        segment.write(1, [b"2"])
        disk.crash()
        later_alone += content(disk, "a") == b"\0" + b"2"
    assert later_alone > 0


def test_a_change_of_size_is_durable_only_after_sync() -> None:
    sizes = set()
    for seed in range(20):
        disk = disk_with(seed)
        segment = disk.open("a", create=True, size_bytes=8)
        segment.truncate(3)
        disk.crash()
        sizes.add(len(content(disk, "a")))
    assert sizes == {3, 8}


def test_the_death_of_the_process_alone_keeps_every_write() -> None:
    disk = disk_with()
    disk.open("a", create=True).write(0, [b"kept"])
    disk.kill()
    assert content(disk, "a") == b"kept"
    assert disk.counters.kills == 1


def test_segments_from_before_a_crash_are_dead() -> None:
    disk = disk_with()
    segment = disk.open("a", create=True, size_bytes=1)
    disk.crash()
    with pytest.raises(AssertionError, match="before the last crash"):
        segment.read(0, 1)


def test_power_goes_at_the_sync_point_asked_for_and_everything_fails_until_the_crash() -> None:
    synced = set()
    for seed in range(30):
        disk = disk_with(seed)
        segment = disk.open("a", create=True)
        segment.write(0, [b"x"])
        disk.lose_power_at(2)
        segment.sync()
        segment.write(0, [b"y"])
        with pytest.raises(PowerLost):
            segment.sync()
        for action in (lambda s=segment: s.read(0, 1), lambda d=disk: d.names("")):
            with pytest.raises(PowerLost):
                action()
        disk.crash()
        assert disk.counters.power_losses == 1
        synced.add(content(disk, "a"))
    assert synced == {b"x", b"y"}


@pytest.mark.parametrize("operation", ["create", "replace", "remove"])
def test_creating_replacing_and_removing_are_sync_points_and_atomic(operation: str) -> None:
    seen = set()
    for seed in range(30):
        disk = disk_with(seed)
        if operation != "create":
            disk.replace_bytes("a", b"old")
        disk.lose_power_at(1)
        change: Callable[[], object] = {
            "create": lambda d=disk: d.open("a", create=True, size_bytes=2),
            "replace": lambda d=disk: d.replace_bytes("a", b"new"),
            "remove": lambda d=disk: d.remove("a"),
        }[operation]
        with pytest.raises(PowerLost):
            change()
        disk.crash()
        seen.add(disk.read_bytes("a"))
    expected = {"create": {None, b"\0\0"}, "replace": {b"old", b"new"}, "remove": {b"old", None}}
    assert seen == expected[operation]


def test_bytes_of_a_failed_sync_are_readable_but_gone_after_a_power_loss_even_if_synced_again() -> None:
    disk = disk_with()
    segment = disk.open("a", create=True, size_bytes=4)
    segment.write(0, [b"lost"])
    disk.fail_sync_at(1)
    with pytest.raises(StorageError, match="sync a"):
        segment.sync()
    assert segment.read(0, 4) == b"lost"
    segment.sync()
    disk.crash()
    assert content(disk, "a") == bytes(4)
    assert disk.counters.sync_errors == 1


def test_a_failed_write_may_leave_a_part() -> None:
    lengths = set()
    for seed in range(30):
        disk = disk_with(seed)
        segment = disk.open("a", create=True)
        disk.fail_write_at(2)
        segment.write(0, [b"1"])
        with pytest.raises(StorageError, match="write a"):
            segment.write(1, [b"23"])
        segment.write(9, [b"4"])
        lengths.add(segment.read(1, 2).strip(b"\0"))
    assert lengths == {b"", b"2", b"23"}


def test_a_full_disk_takes_what_fits_and_goes_on_when_there_is_room_again() -> None:
    disk = FaultyDisk(Random(1), capacity_bytes=10)
    segment = disk.open("a", create=True, size_bytes=100)
    segment.write(0, [b"12345678"])
    with pytest.raises(StorageError) as caught:
        segment.write(8, [b"abcd"])
    assert isinstance(caught.value.__cause__, OSError)
    assert segment.read(8, 4) == b"ab\0\0"
    segment.write(0, [b"over"])
    disk.capacity_bytes = 20
    segment.write(8, [b"abcd"])
    assert disk.counters.no_space_errors == 1
    assert disk.usage().free_bytes == 8


def test_a_flipped_bit_stays_flipped() -> None:
    disk = disk_with()
    disk.replace_bytes("a", b"\x01\x01")
    disk.flip_bit("a", 1, 7)
    assert content(disk, "a") == b"\x01\x81"
    disk.crash()
    assert content(disk, "a") == b"\x01\x81"
    assert disk.counters.bit_flips == 1


def test_a_bad_page_is_neither_read_nor_changed_in_part_until_it_is_written_whole() -> None:
    disk = disk_with()
    segment = disk.open("a", create=True, size_bytes=3 * PAGE_BYTES)
    segment.write(0, [b"x" * 3 * PAGE_BYTES])
    disk.spoil_page("a", PAGE_BYTES + 5)
    assert segment.read(0, PAGE_BYTES) == b"x" * PAGE_BYTES
    for act in (
        lambda: segment.read(PAGE_BYTES - 1, 2),
        lambda: segment.read(2 * PAGE_BYTES - 1, 1),
        lambda: segment.write(PAGE_BYTES, [b"y" * (PAGE_BYTES - 1)]),
        lambda: segment.write(PAGE_BYTES + 1, [b"y" * PAGE_BYTES]),
    ):
        with pytest.raises(StorageError, match="Input/output error"):
            act()
    segment.write(PAGE_BYTES - 1, [b"y" * (PAGE_BYTES + 2)])
    assert segment.read(0, 3 * PAGE_BYTES) == b"x" * (PAGE_BYTES - 1) + b"y" * (PAGE_BYTES + 2) + b"x" * (
        PAGE_BYTES - 1
    )


def test_one_seed_is_one_story() -> None:
    def story(seed: int) -> tuple[bytes, object]:
        disk = disk_with(seed)
        segment = disk.open("a", create=True, size_bytes=SECTOR_BYTES * 8)
        for n in range(20):
            segment.write(n * 200, [bytes([n]) * 199])
        disk.crash()
        return content(disk, "a"), disk.counters

    assert story(7) == story(7)
    assert story(7) != story(8)

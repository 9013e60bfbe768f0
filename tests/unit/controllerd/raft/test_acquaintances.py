"""Who was met, and in which life: kept across starts, and no harm when it is damaged."""

from __future__ import annotations

from random import Random

import pytest

from controllerd.raft.acquaintances import PATH, Acquaintances
from tests.support.disks import FaultyDisk, MemoryDisk

MEMBERS = {"n0", "n1", "n2"}


def test_it_outlives_the_process_and_forgets_who_left() -> None:
    disk = MemoryDisk()
    for node, life in (("n0", "a"), ("n1", "b"), ("n0", "c")):
        Acquaintances(disk).note(node, life, MEMBERS)
    found = Acquaintances(disk)
    assert [found.life(node) for node in ("n0", "n1", "n2")] == ["c", "b", None]
    found.note("n2", "d", {"n1", "n2"})
    assert [Acquaintances(disk).life(node) for node in ("n0", "n1", "n2")] == [None, "b", "d"]


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"1", b'{"met":[],"check":0}'])
def test_what_cannot_be_read_is_not_known(damage: bytes) -> None:
    disk = MemoryDisk()
    disk.replace_bytes(PATH, damage)
    assert Acquaintances(disk).life("n0") is None


def test_no_flipped_bit_makes_another_life_of_it() -> None:
    disk = MemoryDisk()
    Acquaintances(disk).note("n0", "abcd", MEMBERS)
    content = disk.read_bytes(PATH) or b""
    for bit in range(8 * len(content)):
        rotten = bytearray(content)
        rotten[bit // 8] ^= 1 << bit % 8
        disk.replace_bytes(PATH, bytes(rotten))
        assert Acquaintances(disk).life("n0") in (None, "abcd")


def test_a_full_disk_keeps_nobody_out() -> None:
    disk = FaultyDisk(Random(1), capacity_bytes=1)
    found = Acquaintances(disk)
    found.note("n0", "a", MEMBERS)
    assert found.life("n0") == "a"
    assert Acquaintances(disk).life("n0") is None

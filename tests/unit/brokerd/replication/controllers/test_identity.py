"""The first registration: a failure at every point leaves a start that goes on where it was."""

from __future__ import annotations

import pytest

from brokerd.replication.controllers.identity import (
    IDENTITY_FILE,
    INCARNATION_FILE,
    LIVES_FILE,
    TEMPORARY_FILE,
    Choice,
    IdentityFiles,
    Lives,
    Registration,
    Step,
    next_incarnation,
)
from remoting.errors import CorruptedFile, SettingsError
from remoting.sealed_text import seal
from tests.support.disks import MemoryDisk


def registration(disk: MemoryDisk, now_ms: int = 1000) -> Registration:
    return Registration(IdentityFiles(disk, "c", "b"), "127.0.0.1:1", now_ms)


def test_the_files_begin_as_the_original_s_do() -> None:
    disk = MemoryDisk()
    first = registration(disk)
    assert first.step is Step.UNKNOWN
    first.next_id(2)
    assert disk.read_bytes(TEMPORARY_FILE) == seal("c#b#2#127.0.0.1:1;1000", "#")
    first.applied()
    assert disk.read_bytes(IDENTITY_FILE) == seal("c#b#2", "#")
    assert not disk.exists(TEMPORARY_FILE)
    first.registered()
    assert (first.step, first.broker_id) == (Step.REGISTERED, 2)


def test_an_interrupted_application_is_repeated_with_the_same_id_and_code() -> None:
    disk = MemoryDisk()
    registration(disk).next_id(2)
    again = registration(disk, now_ms=9999)
    assert again.step is Step.CHOSEN
    assert again.choice is not None
    assert (again.choice.broker_id, again.choice.check_code) == (2, "127.0.0.1:1;1000")
    again.applied()
    assert registration(disk).broker_id == 2


def test_a_taken_id_leads_to_another_one() -> None:
    disk = MemoryDisk()
    each = registration(disk)
    each.next_id(2)
    each.taken()
    assert each.step is Step.UNKNOWN
    assert not disk.exists(TEMPORARY_FILE)
    each.next_id(3)
    each.applied()
    assert each.broker_id == 3


def test_a_crash_between_the_two_files_leaves_the_id() -> None:
    disk = MemoryDisk()
    each = registration(disk)
    each.next_id(2)
    disk.replace_bytes(IDENTITY_FILE, b"c#b#2")  # and the other one was not removed
    assert registration(disk).broker_id == 2
    assert registration(disk).step is Step.KNOWN


def test_controllers_that_forgot_everything_are_told_the_old_id() -> None:
    disk = MemoryDisk()
    disk.replace_bytes(IDENTITY_FILE, b"c#b#2")
    each = registration(disk)
    each.forgotten()
    assert each.step is Step.CHOSEN
    assert each.choice is not None
    assert each.choice.broker_id == 2
    each.taken()
    assert (each.step, each.broker_id) == (Step.KNOWN, 2), "a broker never changes its id"
    each.forgotten()
    each.applied()
    assert each.step is Step.KNOWN
    each.registered()
    each.unregistered()
    assert each.step is Step.KNOWN


@pytest.mark.parametrize("content", [b"other#b#2", b"c#other#2"])
def test_a_directory_of_another_broker_is_refused(content: bytes) -> None:
    disk = MemoryDisk()
    disk.replace_bytes(IDENTITY_FILE, content)
    with pytest.raises(SettingsError, match="belongs to broker"):
        registration(disk)


@pytest.mark.parametrize("content", [b"c#b", b"c#b#0", b"c#b#x", b""])
def test_damaged_files_are_refused(content: bytes) -> None:
    disk = MemoryDisk()
    disk.replace_bytes(IDENTITY_FILE, content)
    with pytest.raises(CorruptedFile):
        registration(disk)


@pytest.mark.parametrize("name", ["", "a#b", "a\nb"])
def test_names_that_would_break_the_file_are_refused(name: str) -> None:
    with pytest.raises(SettingsError):
        IdentityFiles(MemoryDisk(), "c", name)


def test_incarnations_grow_whatever_the_clock_does() -> None:
    disk = MemoryDisk()
    found = [next_incarnation(disk) for _ in range(3)]
    assert [each >> 31 for each in found] == [1, 2, 3]
    assert sorted(found) == found
    assert found[-1] < 1 << 63
    disk.replace_bytes("incarnation", b"garbage")
    with pytest.raises(CorruptedFile):
        next_incarnation(disk)


def test_two_copies_of_a_directory_have_different_incarnations() -> None:
    """They have the same count, so it must not be the count alone that tells them apart."""
    first = MemoryDisk()
    next_incarnation(first)
    copy = MemoryDisk()
    copy.replace_bytes(INCARNATION_FILE, first.read_bytes(INCARNATION_FILE) or b"")
    assert next_incarnation(first) != next_incarnation(copy)
    assert next_incarnation(first, lambda bits: (1 << bits) - 1) > next_incarnation(copy, lambda bits: 0)


def test_a_directory_knows_its_lives_since_one_of_them_was_registered() -> None:
    disk = MemoryDisk()
    assert [Lives(disk, life).all for life in (11, 12)] == [(11,), (11, 12)]
    copy = MemoryDisk()
    copy.replace_bytes(LIVES_FILE, disk.read_bytes(LIVES_FILE) or b"")
    third = Lives(disk, 13)
    assert third.all == (11, 12, 13)
    for _ in range(2):
        third.registered()
    assert third.all == (11, 12, 13), "what it says of itself stays"
    assert Lives(disk, 14).all == (13, 14)
    assert Lives(copy, 23).all == (11, 12, 23), "of the third one it has not heard"


def test_a_directory_keeps_the_last_lives_that_were_registered_however_many_begin_in_vain() -> None:
    disk = MemoryDisk()
    for life in range(1, 13):
        Lives(disk, life).registered()
    told = [Lives(disk, life).all for life in range(20, 60)]
    assert max(map(len, told)) == 16
    assert told[-1] == (*range(5, 13), *range(52, 60))
    assert all(life in all_of_them for life, all_of_them in zip(range(20, 60), told, strict=True))


@pytest.mark.parametrize(
    "content",
    [b"", b"x", b"1 2", b"1 - 2 - 3", b"1 - -2", b"- x", seal("-" + " 7" * 9, " "), seal("- " + "7" * 21, " ")],
)
def test_lives_that_cannot_be_understood_are_refused(content: bytes) -> None:
    disk = MemoryDisk()
    disk.replace_bytes(LIVES_FILE, content)
    with pytest.raises(CorruptedFile, match="lives is damaged"):
        Lives(disk, 1)


def test_files_of_before_are_read_and_get_a_checksum() -> None:
    disk = MemoryDisk()
    disk.replace_bytes(IDENTITY_FILE, b"c#b#2")
    disk.replace_bytes(INCARNATION_FILE, b"7\n")
    assert registration(disk).broker_id == 2
    assert disk.read_bytes(IDENTITY_FILE) == seal("c#b#2", "#")
    assert next_incarnation(disk) >> 31 == 8
    assert disk.read_bytes(INCARNATION_FILE) == seal("8", " ")
    assert registration(disk).broker_id == 2
    chosen = MemoryDisk()
    chosen.replace_bytes(TEMPORARY_FILE, b"c#b#3#127.0.0.1:1;1000")
    assert registration(chosen).choice == Choice(3, "127.0.0.1:1;1000")


def test_no_flipped_bit_makes_another_valid_file() -> None:
    disk = MemoryDisk()
    each = registration(disk)
    each.next_id(12)
    temporary = disk.read_bytes(TEMPORARY_FILE) or b""
    each.applied()
    identity = disk.read_bytes(IDENTITY_FILE) or b""
    next_incarnation(disk)
    incarnation = disk.read_bytes(INCARNATION_FILE) or b""
    for life in (3, 9 << 31):
        Lives(disk, life)
    lives = disk.read_bytes(LIVES_FILE) or b""

    def read_of(path: str, content: bytes) -> object:
        """What the file says; None when it is refused."""
        damaged = MemoryDisk()
        damaged.replace_bytes(path, content)
        try:
            if path == INCARNATION_FILE:
                return next_incarnation(damaged, lambda bits: 0)
            if path == LIVES_FILE:
                return Lives(damaged, 1).all
            return IdentityFiles(damaged, "c", "b").load()
        except (CorruptedFile, SettingsError):
            return None

    for path, content in (
        (IDENTITY_FILE, identity),
        (TEMPORARY_FILE, temporary),
        (INCARNATION_FILE, incarnation),
        (LIVES_FILE, lives),
    ):
        right = read_of(path, content)
        assert right is not None
        for position in range(8 * len(content)):
            flipped = bytearray(content)
            flipped[position // 8] ^= 1 << position % 8
            assert read_of(path, bytes(flipped)) in (right, None), (path, bytes(flipped))

"""What a disk changes of the small files while a broker runs."""

from __future__ import annotations

from random import Random

import pytest

from brokerd.replication.controllers.identity import INCARNATION_FILE, next_incarnation
from brokerd.replication.epochs.epoch_file import EPOCH_FILE, MASTER_EPOCH_FILE, EpochFile
from brokerd.replication.epochs.epoch_list import EpochEntry
from brokerd.replication.kept_files import KeptFiles
from tests.support.disks import FaultyDisk


@pytest.mark.parametrize("path", [EPOCH_FILE, MASTER_EPOCH_FILE, INCARNATION_FILE])
def test_a_flip_under_a_running_broker_does_not_keep_its_next_start_from_its_epochs(path: str) -> None:
    disk = FaultyDisk(Random(1))
    kept = KeptFiles(disk)
    epochs = EpochFile(kept)
    epochs.load()
    epochs.save_entries((EpochEntry(3, 0), EpochEntry(4, 1000)))
    epochs.save_master_epoch(4)
    next_incarnation(kept)
    assert kept.mend() == 0
    sound = disk.read_bytes(path)
    for position in range(len(sound or b"")):
        disk.flip_bit(path, position, 1)
        assert kept.read_bytes(path) == sound, "this process goes by what it knows"
        assert kept.mend() == 1
        assert disk.read_bytes(path) == sound
    disk.remove(path)
    assert kept.mend() == 1
    disk.crash()
    found, seen = EpochFile(disk).load()
    assert (found.entries, seen) == ((EpochEntry(3, 0), EpochEntry(4, 1000)), 4)


def test_what_was_removed_stays_away_and_a_full_disk_is_waited_out() -> None:
    disk = FaultyDisk(Random(1), capacity_bytes=100)
    kept = KeptFiles(disk)
    kept.replace_bytes("a", b"1234")
    kept.replace_bytes("b", b"1234")
    kept.remove("b")
    disk.flip_bit("a", 0, 0)
    disk.capacity_bytes = 0
    assert kept.mend() == 0
    disk.capacity_bytes = 100
    assert kept.mend() == 1
    assert disk.read_bytes("a") == b"1234"
    assert disk.read_bytes("b") is None

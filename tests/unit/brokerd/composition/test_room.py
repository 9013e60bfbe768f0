"""What heartbeats say of a disk that becomes full: once, again and again, and for good."""

from __future__ import annotations

from random import Random

import pytest

from brokerd.composition.room import RoomReport
from remoting.errors import StorageError
from tests.support.disks import FaultyDisk
from tests.unit.brokerd.store.stores import draft, make_store, open_store, put


class Clock:
    now_ms = 0


def test_a_disk_that_has_room_again_has_room() -> None:
    store, clock = open_store(FaultyDisk(Random(1))), Clock()
    report = RoomReport(store, lambda: clock.now_ms)
    assert report.has_room()
    store.set_full(True)
    assert not report.has_room()
    clock.now_ms += 60_000
    assert not report.has_room()
    store.set_full(False)
    assert report.has_room(), "retention removed what was old"


def test_one_that_refuses_again_and_again_has_none_until_it_does_not_for_a_while() -> None:
    """A quota refuses what the file system says it has room for: each look takes the refusal back, the next append brings it."""
    store, clock = open_store(FaultyDisk(Random(1))), Clock()
    report = RoomReport(store, lambda: clock.now_ms)
    for _ in range(3):
        clock.now_ms += 300
        store.set_full(True)
        store.set_full(False)
    assert not report.has_room()
    clock.now_ms += 9_999
    assert not report.has_room()
    clock.now_ms += 1
    assert report.has_room()
    for _ in range(2):
        store.set_full(True)
        store.set_full(False)
    assert not report.has_room()
    put(store, draft(b"x"))
    assert report.has_room(), "it has just taken a message"


def test_a_replica_whose_log_cannot_follow_has_no_room() -> None:
    master = open_store(FaultyDisk(Random(1)))
    replica = make_store(FaultyDisk(Random(1), capacity_bytes=2000))
    replica.load()
    report = RoomReport(replica, lambda: 0)
    put(master, *(draft(b"x" * 900) for _ in range(3)))
    with pytest.raises(StorageError):
        replica.append_replicated(0, master.commitlog.read(0, 1 << 20))
    assert not report.has_room()

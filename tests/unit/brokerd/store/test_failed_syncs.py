"""Syncs of the log that fail for somebody beside the flusher: the system tells of what it lost once, to whoever syncs first."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from brokerd.store.store import MessageStore
from remoting.errors import StorageError
from tests.support.disks import FaultyDisk, MemorySegment
from tests.unit.brokerd.store.stores import draft, open_store, put, sync


def _repair(store: MessageStore, disk: FaultyDisk) -> None:
    """The scrubber writes a record again, in the file that the next messages go to."""
    store.commitlog.rewrite(0, store.commitlog.read(0, 50), store.commitlog.generation)


def _fill_disk(store: MessageStore, disk: FaultyDisk) -> None:
    """A part of a record is written, and has to be zeroed, durably."""
    disk.capacity_bytes = disk.used_bytes + 100
    put(store, draft(bytes(500)))


def _cut(store: MessageStore, disk: FaultyDisk) -> None:
    boundary = store.commitlog.end_offset
    put(store, draft(b"is cut"))
    store.commitlog.truncate(boundary)


@pytest.mark.parametrize("act", [_repair, _fill_disk, _cut])
def test_what_the_sync_of_somebody_else_lost_is_never_durable(
    act: Callable[[MessageStore, FaultyDisk], None],
) -> None:
    """The flusher's next sync of the same file succeeds."""
    disk = FaultyDisk(Random(1))
    store = open_store(disk)
    reported: list[StorageError] = []
    store.failure_listeners.append(reported.append)
    put(store, draft(b"is durable"))
    sync(store)
    put(store, draft(b"waits for a sync"))
    flushed = store.commitlog.flushed_offset
    disk.fail_sync_at(1)
    with pytest.raises(StorageError, match="cannot sync") as caught:
        act(store, disk)
    assert disk.counters.sync_errors == 1
    assert not caught.value.is_out_of_space, "it does not pass when there is room again"
    with pytest.raises(StorageError, match="cannot sync"):
        sync(store)
    assert store.commitlog.flushed_offset == flushed
    if act is _fill_disk:
        assert len(reported) == 1


@pytest.mark.parametrize("act", [_repair, _fill_disk, _cut])
def test_whoever_syncs_the_log_lets_nobody_else_do_so_meanwhile(
    act: Callable[[MessageStore, FaultyDisk], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two who do at once, one could be told of what was lost, and the other one that all is well."""
    disk = FaultyDisk(Random(1))
    store = open_store(disk)
    put(store, draft(b"waits for a sync"))
    syncs, sync_file = list[bool](), MemorySegment.sync

    def watched(self: MemorySegment) -> None:
        if self.path.startswith("commitlog/"):
            syncs.append(store.commitlog.turns.contents.locked())
        sync_file(self)

    monkeypatch.setattr(MemorySegment, "sync", watched)
    with suppress(StorageError):
        act(store, disk)
    assert syncs == [True]

"""A start after a clean end opens no file of a queue, and notices when somebody removed some."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.store.queues import queue_ends
from brokerd.store.queues.consume_queue import DIRECTORY
from brokerd.store.queues.queue_ends import QueueEnd, QueueEnds
from remoting.disk import FileSegment
from tests.support.disks import MemoryDisk
from tests.unit.brokerd.store.stores import (
    bodies,
    dispatch_all,
    draft,
    make_store,
    open_store,
    payloads,
    put,
    queue_contents,
    sync,
)

TOPICS, QUEUES = 40, 5
NUMBERS = st.integers(-1, (1 << 63) - 1)
ENDS = st.builds(QueueEnd, st.text(min_size=1, max_size=50), st.integers(0, 9999), NUMBERS, NUMBERS, NUMBERS)


class CountingDisk(MemoryDisk):
    """Counts the files of queues that are opened."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = 0

    def open(self, path: str, *, create: bool = False, size_bytes: int = 0) -> FileSegment:  # type: ignore[override]
        self.opened += path.startswith(f"{DIRECTORY}/")
        return super().open(path, create=create, size_bytes=size_bytes)


def stopped(disk: MemoryDisk) -> dict[tuple[str, int], tuple[int, list[tuple[int, int, int]]]]:
    """A store with many queues that ended cleanly; what was in them."""
    store = open_store(disk)
    for number in range(3):
        for topic in range(TOPICS):
            put(store, *(draft(b"%d" % number, topic=f"T{topic}", queue_id=queue_id) for queue_id in range(QUEUES)))
    put(store, *(draft(body, topic="Long") for body in payloads(50)))
    contents = queue_contents(store)
    store.close()
    return contents


@given(st.integers(0, 1 << 60), st.integers(1, 1000), st.lists(ENDS, max_size=5))
def test_what_is_written_is_read_again(offset: int, units: int, ends: list[QueueEnd]) -> None:
    content = queue_ends.encode(offset, units, ends)
    assert queue_ends.decode(content) == QueueEnds(offset, units, tuple(ends))
    for place in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[place] ^= 1
        assert queue_ends.decode(bytes(damaged)) is None
        assert queue_ends.decode(content[:place]) is None


def test_a_start_after_a_clean_end_opens_no_queue() -> None:
    disk = CountingDisk()
    contents = stopped(disk)
    disk.opened = 0
    store = open_store(disk)
    assert disk.opened == 0
    assert len(store.queues.table) == TOPICS * QUEUES + 1
    assert store.max_offset("T7", 3) == 3
    assert disk.opened == 0
    assert bodies(store, "T7", 3) == [b"0", b"1", b"2"]
    assert disk.opened == 1, "the one that is read"
    assert queue_contents(store) == contents


def test_idle_queues_cost_a_checkpoint_nothing() -> None:
    disk = CountingDisk()
    stopped(disk)
    store = open_store(disk)
    disk.opened = 0
    put(store, draft(topic="T7"))
    store.checkpoint()
    assert disk.opened == 1


def test_a_crash_is_recovered_from_as_ever() -> None:
    disk = CountingDisk()
    stopped(disk)
    store = open_store(disk)
    put(store, *(draft(b"%d" % number, topic="T7", queue_id=3) for number in range(3, 40)))
    put(store, draft(b"new", topic="New"))
    sync(store)
    contents = queue_contents(store)
    store.abandon()
    again = make_store(disk)
    again.load()
    dispatch_all(again)
    assert queue_contents(again) == contents
    again.close()
    disk.opened = 0
    assert open_store(disk).max_offset("T7", 3) == 40
    assert disk.opened == 0


@pytest.mark.parametrize("removed", ["T7/3/00000000000000000000", "T7/3", "T7", "Long/0/00000000000000000320"])
@pytest.mark.parametrize("cleanly", [True, False])
def test_queues_that_somebody_removed_are_made_again(removed: str, *, cleanly: bool) -> None:
    disk = MemoryDisk()
    contents = stopped(disk)
    if not cleanly:
        open_store(disk).abandon()
    disk.remove(f"{DIRECTORY}/{removed}")
    store = open_store(disk)
    dispatch_all(store)
    assert queue_contents(store) == contents
    store.close()
    assert queue_contents(open_store(disk)) == contents


def test_deleted_queues_are_not_missed() -> None:
    disk = MemoryDisk()
    contents = stopped(disk)
    store = open_store(disk)
    store.queues.delete("T7", store.commitlog.end_offset)
    store.checkpoint()
    assert not disk.exists(queue_ends.PATH)
    store.abandon()
    again = make_store(disk)
    again.load()
    assert queue_contents(again) == {key: queue for key, queue in contents.items() if key[0] != "T7"}


def test_a_queue_that_appeared_by_hand_is_looked_at() -> None:
    disk = MemoryDisk()
    contents = stopped(disk)
    disk.replace_bytes(f"{DIRECTORY}/Strange/0/{0:020d}", b"\x01" * 320)
    store = open_store(disk)
    dispatch_all(store)
    assert queue_contents(store) == contents

from __future__ import annotations

from random import Random

import pytest

from brokerd.store.log.derive import Entry
from brokerd.store.queues.queue_offsets import QueueOffsets
from remoting.errors import CorruptedFile
from tests.support.disks import FaultyDisk, MemoryDisk
from tests.unit.brokerd.store.stores import dispatch_all, draft, log_bytes, make_store, open_store, put, sync


def entry(topic: str, queue_id: int, queue_offset: int) -> Entry:
    return (topic, queue_id, queue_offset, 0, 100, 0, 0, 1)


def test_a_queue_that_is_not_known_begins_at_0() -> None:
    assert QueueOffsets().next("T", 0) == 0


def test_the_numbers_of_the_undispatched_tail_are_taken() -> None:
    offsets = QueueOffsets()
    offsets.rebuild({("T", 0): 5, ("U", 1): 2})
    offsets.take([entry("T", 0, 5), entry("T", 0, 6), entry("N", 3, 0)])
    assert offsets.table == {("T", 0): 7, ("U", 1): 2, ("N", 3): 1}


def test_a_number_is_never_given_twice_when_the_log_holds_it_out_of_order() -> None:
    offsets = QueueOffsets()
    offsets.take([entry("T", 0, 9), entry("T", 0, 4)])
    assert offsets.next("T", 0) == 10


def test_number_0_starts_a_queue_again() -> None:
    offsets = QueueOffsets()
    offsets.take([entry("T", 0, 9), entry("T", 0, 0), entry("T", 0, 1)])
    assert offsets.next("T", 0) == 2


def test_a_deleted_topic_begins_at_0_and_its_neighbours_stay() -> None:
    offsets = QueueOffsets()
    offsets.advance({("T", 0): 5, ("T", 1): 6, ("T1", 0): 7})
    offsets.forget("T")
    assert offsets.table == {("T1", 0): 7}


def test_an_entry_of_several_messages_takes_a_number_for_each() -> None:
    offsets = QueueOffsets()
    offsets.take([(*entry("T", 0, 0)[:-1], 3), (*entry("T", 0, 3)[:-1], 2)])
    assert offsets.next("T", 0) == 5


@pytest.mark.parametrize("place", [1, 5, 12, 25, 30, 100])
def test_nobody_numbers_messages_by_records_that_rotted_before_they_were_dispatched(place: int) -> None:
    """A replica is elected, and a record that is not confirmed yet has rotted: what is behind it has numbers, too."""
    disk = FaultyDisk(Random(1))
    store = open_store(disk)
    results = put(store, *(draft(b"message-%d" % n, queue_id=n % 2) for n in range(6)), visible=False)
    sync(store)
    store.set_appendable(False)
    disk.flip_bit(f"commitlog/{0:020d}", results[2].physical_offset + place, 0)
    with pytest.raises(CorruptedFile) as found:
        store.set_appendable(True)
    assert found.value.damage is not None
    assert found.value.damage.offset == results[2].physical_offset
    assert store.refusal is not None, "it is no master that takes messages"


@pytest.mark.parametrize("place", [1, 3, 12, 25, -30, -5])
def test_no_unit_is_made_of_a_record_that_rots_before_it_is_dispatched(place: int) -> None:
    """A wrong tag in a unit would deny the message to who asks for its tag, a wrong size would stop dispatch without a word."""
    master = open_store(MemoryDisk())
    results = put(master, *(draft(b"message-%d" % n, tag="a") for n in range(4)), visible=False)
    disk = FaultyDisk(Random(1))
    store = make_store(disk)
    store.load()
    store.append_replicated(0, log_bytes(master))
    sync(store)
    last = results[-1].physical_offset, results[-1].end_offset
    disk.flip_bit(f"commitlog/{0:020d}", last[0] + place if place > 0 else last[1] + place, 0)
    with pytest.raises(CorruptedFile) as found:
        dispatch_all(store)
    assert found.value.damage is not None
    assert found.value.damage.offset == store.dispatch_offset == last[0]
    assert store.max_offset("TopicA", 0) == 3

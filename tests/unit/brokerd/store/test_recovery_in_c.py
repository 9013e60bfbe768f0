"""A start that walks the log in C finds what one in Python finds, and refuses with the same words."""

from __future__ import annotations

from random import Random

import pytest

from brokerd.native.library import Library
from brokerd.store.queues.consume_queue import DIRECTORY
from remoting.errors import CorruptedFile
from remoting.record.properties import encode_properties
from tests.support.disks import FaultyDisk
from tests.support.native_library import native_library
from tests.unit.brokerd.store.stores import (
    SEGMENT_BYTES,
    dispatch_all,
    draft,
    log_bytes,
    make_store,
    open_store,
    put,
    queue_contents,
    sync,
)

MESSAGES = 60


def killed(rng: Random) -> FaultyDisk:
    """A disk after the death of a process, whose log was damaged then: torn, flipped, or without its queues or its checkpoint."""
    disk = FaultyDisk(Random(3))
    store = open_store(disk)
    for _ in range(MESSAGES):
        topic = rng.choice(("TopicA", "B", "%RETRY%" + "g" * 200))
        properties = encode_properties({"TAGS": rng.choice(("", "red", "blue"))})
        each = draft(rng.randbytes(rng.randrange(200)), topic=topic, queue_id=rng.randrange(3), properties=properties)
        put(store, each, visible=rng.random() < 0.9)
        if rng.random() < 0.05:
            sync(store)
        if rng.random() < 0.05:
            store.checkpoint()
    end = len(log_bytes(store))
    disk.kill()
    last = (end - 1) // SEGMENT_BYTES * SEGMENT_BYTES
    at = rng.randrange(end - last)
    match rng.randrange(4):
        case 0:
            segment = disk.open(f"commitlog/{last:020d}")
            segment.truncate(at)
            segment.truncate(SEGMENT_BYTES)
        case 1:
            segment = disk.open(f"commitlog/{last:020d}")
            segment.write(at, [bytes((segment.read(at, 1)[0] ^ 1 << rng.randrange(8),))])
        case 2:
            disk.remove(DIRECTORY)
        case _:
            disk.remove("checkpoint")
    return disk


def outcome(seed: int, library: Library | None) -> object:
    store = make_store(killed(Random(seed)), library=library)
    try:
        store.load()
    except CorruptedFile as error:
        return str(error)
    positions = store.durable.positions, store.confirm_offset, store.dispatch_offset, store.last_timestamp_ms
    store.set_appendable(True)
    numbers = dict(store.queue_offsets.table)
    dispatch_all(store)
    return positions, numbers, log_bytes(store), queue_contents(store), store.suspicion


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_both_starts_end_alike(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brokerd.store.log.derive._MANY_BYTES", 0)
    library = native_library()
    outcomes = [(outcome(seed, library), outcome(seed, None)) for seed in range(first, first + 10)]
    assert all(found == wanted for found, wanted in outcomes)
    assert {type(wanted) for _, wanted in outcomes} == {str, tuple}

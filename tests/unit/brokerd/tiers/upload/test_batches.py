"""Batches are the messages of a queue as the log has them, whatever their lengths, and need no more memory than they may."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from brokerd.store.store_reads import Run
from brokerd.store.unit import BLANK_SIZE, UNIT
from brokerd.tiers.index.keys import PlainKeys
from brokerd.tiers.upload.batches import Batch, Builder, Source
from brokerd.tiers.upload.buffers import KEPT_BYTES, Buffers
from remoting.checksum import crc32
from remoting.record.codec import encode_record
from remoting.tier.contents import Queue

QUEUE = Queue("Topic", 3)
PORTION_BYTES = 1 << 20  # that a turn of the loop copies


class Stored:
    """A queue of records, None where a unit is blank; each is behind some bytes of others."""

    def __init__(self, records: Sequence[bytes | None], *, has_threads: bool = False) -> None:
        self.records = records
        self.has_threads = has_threads
        self.asked = 0

    def run_aside(
        self, topic: str, queue_id: int, queue_offset: int, max_count: int
    ) -> Callable[[memoryview, int], Run] | None:
        """Copies whole messages, and decides nothing."""
        if not self.has_threads:
            return None

        def run(into: memoryview, place: int) -> Run:
            first = self.records[queue_offset]
            if first is None or len(first) > len(into):
                return Run(b"", b"")
            return self.read_run(topic, queue_id, queue_offset, max_count, into, place)

        return run

    def read_run(
        self, topic: str, queue_id: int, queue_offset: int, max_count: int, into: memoryview, place: int
    ) -> Run:
        assert (topic, queue_id) == QUEUE
        self.asked += 1
        units, entries, used = b"", b"", 0
        for number, record in enumerate(self.records[queue_offset : queue_offset + max_count], queue_offset):
            size = BLANK_SIZE if record is None else len(record)
            if used + size > len(into):
                return Run(units or UNIT.pack(number * 10_000_000, size, number), entries)
            assert record is not None
            into[used : used + size] = record
            units += UNIT.pack(number * 10_000_000, size, number)
            entries += UNIT.pack(place + used, size, number)
            used += size
        return Run(units, entries)


def record(number: int, body_bytes: int) -> bytes:
    return encode_record(
        topic=b"Topic",
        queue_id=3,
        queue_offset=number,
        physical_offset=number,
        body=bytes((number % 256,)) * body_bytes,
        properties=b"",
        born_timestamp_ms=1,
        born_host=bytes(8),
        store_timestamp_ms=1000 + number,
        store_host=bytes(8),
    )


def built(stored: Stored, first: int, max_bytes: int, buffers: Buffers | None = None) -> Batch | None:
    builder = Builder(
        Source(stored, PlainKeys()),
        buffers or Buffers(KEPT_BYTES),
        QUEUE,
        range(first, len(stored.records)),
        500,
        max_bytes,
    )
    finish(builder)
    return builder.batch()


def finish(builder: Builder) -> None:
    """By helper threads, where there are any."""
    while True:
        aside = builder.aside()
        if not (builder.took(aside()) if aside is not None else builder.step()):
            break


def check(batch: Batch, records: Sequence[bytes]) -> None:
    """That it is these."""
    content = b"".join(records)
    assert bytes(batch.messages) == content
    assert batch.message_bytes == len(content)
    places = [500 + sum(map(len, records[:number])) for number in range(len(records))]
    entries = list(UNIT.iter_unpack(b"".join(batch.entries)))
    assert entries == [
        (place, len(each), batch.first + number)
        for number, (place, each) in enumerate(zip(places, records, strict=True))
    ]
    assert (batch.crc, batch.entries_crc) == (crc32(content), crc32(b"".join(batch.entries)))
    assert (batch.first_ms, batch.last_ms) == (1000 + batch.first, 1000 + batch.end - 1)
    assert batch.log_end == (batch.end - 1) * 10_000_000 + len(records[-1])
    assert batch.end - batch.first == len(records)


@pytest.mark.parametrize("has_threads", [False, True])
@pytest.mark.parametrize(
    "body_bytes", [0, 1000, PORTION_BYTES // 2, PORTION_BYTES - 1000, PORTION_BYTES, 3 * PORTION_BYTES]
)
def test_a_batch_is_as_many_messages_as_it_may_have(body_bytes: int, has_threads: bool) -> None:
    records = [record(number, body_bytes) for number in range(7)]
    size = len(records[0])
    batch = built(Stored(records, has_threads=has_threads), 1, 4 * size + size // 2)
    assert batch is not None
    check(batch, records[1:5])


@pytest.mark.parametrize("has_threads", [False, True])
def test_messages_of_all_lengths_follow_each_other(has_threads: bool) -> None:
    records = [record(number, number * 79_193 % 3_000_000) for number in range(40)]
    batch = built(Stored(records, has_threads=has_threads), 0, 100_000_000)
    assert batch is not None
    check(batch, records)
    assert len(batch.buffer) == 100_000_000


@pytest.mark.parametrize("has_threads", [False, True])
def test_a_message_that_is_longer_than_a_batch_is_one(has_threads: bool) -> None:
    records = [record(0, 3 * PORTION_BYTES), record(1, 10)]
    batch = built(Stored(records, has_threads=has_threads), 0, 1024)
    assert batch is not None
    check(batch, records[:1])
    batch = built(Stored(records, has_threads=has_threads), 1, 1024)
    assert batch is not None
    check(batch, records[1:])


@pytest.mark.parametrize("has_threads", [False, True])
def test_a_long_message_behind_others_waits_for_the_next_batch(has_threads: bool) -> None:
    records = [record(0, 10), record(1, 5000)]
    batch = built(Stored(records, has_threads=has_threads), 0, 1024)
    assert batch is not None
    check(batch, records[:1])


@pytest.mark.parametrize("has_threads", [False, True])
def test_blank_units_are_passed_before_a_batch_and_end_one(has_threads: bool) -> None:
    records = [None, None, record(2, 10), record(3, 10), None]
    batch = built(Stored(records, has_threads=has_threads), 0, 1 << 20)
    assert batch is not None
    assert (batch.first, batch.end) == (2, 4)
    builder = Builder(
        Source(Stored([None, None], has_threads=has_threads), PlainKeys()),
        Buffers(KEPT_BYTES),
        QUEUE,
        range(2),
        0,
        1 << 20,
    )
    finish(builder)
    assert builder.batch() is None
    assert builder.passed == 2


def test_a_turn_of_the_loop_copies_no_more_than_it_may() -> None:
    stored = Stored([record(number, 300_000) for number in range(20)])
    builder = Builder(Source(stored, PlainKeys()), Buffers(KEPT_BYTES), QUEUE, range(20), 0, 100_000_000)
    copied = 0
    while builder.step():
        assert builder.bytes - copied <= PORTION_BYTES
        copied = builder.bytes
    assert copied == sum(map(len, stored.records))  # type: ignore[arg-type]


def test_a_buffer_is_used_again_when_it_was_given_back() -> None:
    buffers = Buffers(KEPT_BYTES)
    stored = Stored([record(number, 600_000) for number in range(4)])
    batch = built(stored, 0, 10_000_000, buffers)
    other = built(stored, 0, 10_000_000, buffers)
    assert batch is not None
    assert other is not None
    assert batch.buffer is not other.buffer
    buffers.give_back(batch.buffer)
    again = built(stored, 0, 10_000_000, buffers)
    assert again is not None
    assert again.buffer is batch.buffer
    check(again, [record(number, 600_000) for number in range(4)])
    buffers.give_back(again.buffer)
    assert buffers.take(20_000_000) is not again.buffer, "it is too short"


def test_no_more_memory_than_a_bound_is_kept() -> None:
    size = KEPT_BYTES // 4
    buffers = Buffers(6 * size)
    taken = [buffers.take(size) for _ in range(8)]
    for each in taken:
        buffers.give_back(each)
    assert buffers.free_bytes == 6 * size
    buffers.rest()
    assert sum(buffers.take(size) in taken for _ in range(8)) == 4

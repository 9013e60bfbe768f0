from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from brokerd.store.log.retention import RetentionDecision
from brokerd.store.queues.queue_reads import Boundary, GetStatus, select_units
from brokerd.store.store import MessageStore
from brokerd.store.unit import BLANK_SIZE, UNIT, Unit
from remoting.java_hash import java_hash
from remoting.record.codec import decode_record, decode_records
from tests.support.disks import MemoryDisk
from tests.unit.brokerd.store.stores import SETTINGS, Clock, bodies, draft, open_store, payloads, put, sync


def store_of(count: int, size: int = 100, **fields: object) -> MessageStore:
    store = open_store(MemoryDisk())
    put(store, *(draft(body, **fields) for body in payloads(count, size)))
    return store


def read_bodies(records: list[bytes]) -> list[bytes]:
    return [decode_record(record).body for record in records]


def test_a_queue_that_is_not_there() -> None:
    result = store_of(1).read_messages("TopicB", 0, 5, 10, 1000)
    assert result == (GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0, [])


def test_a_queue_that_never_held_a_message() -> None:
    store = open_store(MemoryDisk())
    put(store, draft(), visible=False)
    store.dispatch(0)
    assert store.read_messages("TopicA", 0, 0, 10, 1000).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    put(store, draft())
    store.queues.table[("TopicA", 0)].restart(0)
    assert store.read_messages("TopicA", 0, 3, 10, 1000)[:4] == (GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)


@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (-1, GetStatus.OFFSET_TOO_SMALL, 0),
        (0, GetStatus.FOUND, 3),
        (8, GetStatus.FOUND, 10),
        (10, GetStatus.OFFSET_OVERFLOW_ONE, 10),
        (11, GetStatus.OFFSET_OVERFLOW_BADLY, 10),
        (1 << 60, GetStatus.OFFSET_OVERFLOW_BADLY, 10),
    ],
)
def test_the_status_of_an_offset(offset: int, status: GetStatus, next_offset: int) -> None:
    result = store_of(10).read_messages("TopicA", 0, offset, 3, 10_000)
    assert (result.status, result.next_offset, result.min_offset, result.max_offset) == (status, next_offset, 0, 10)
    assert len(result.records) == (next_offset - offset if status is GetStatus.FOUND else 0)


def test_below_the_first_message_that_is_still_there() -> None:
    store = store_of(60, 300)
    sync(store)
    for removal in store.apply_retention(RetentionDecision(1, False)):
        removal()
    result = store.read_messages("TopicA", 0, 0, 5, 10_000)
    assert result.status is GetStatus.OFFSET_TOO_SMALL
    assert result.next_offset == result.min_offset == store.min_offset("TopicA", 0) > 0
    assert read_bodies(store.read_messages("TopicA", 0, result.next_offset, 1, 1).records) == [
        payloads(60, 300)[result.next_offset]
    ]


def test_count_and_bytes_bound_a_read_but_the_first_message_always_comes() -> None:
    store = store_of(10)
    size = len(store.read_messages("TopicA", 0, 0, 1, 1).records[0])
    for count, most, expected in (
        (3, 10_000, 3),
        (10, 2 * size, 2),
        (10, 2 * size + 1, 2),
        (10, 1, 1),
        (100, 1 << 30, 10),
    ):
        assert len(store.read_messages("TopicA", 0, 0, count, most).records) == expected


class Units:
    """A consume queue of so many bytes a message, whose reads end where its files do."""

    def __init__(self, sizes: list[int], file_units: int) -> None:
        self.max_offset = len(sizes)
        self._encoded = [UNIT.pack(1000 * offset, size, 7) for offset, size in enumerate(sizes)]
        self._file_units = file_units

    def read_checked(self, first: int, count: int) -> bytes:
        end = min(first + count, self.max_offset, first - first % self._file_units + self._file_units)
        return b"".join(self._encoded[first:end])

    def units(self, first: int, count: int) -> Iterator[Unit]:
        for encoded in self._encoded[first : first + count]:
            yield UNIT.unpack(encoded)

    checked_units = units


@hypothesis_settings(deadline=None)
@given(
    blanks=st.integers(0, 3),
    sizes=st.lists(st.integers(1, 2000), min_size=1, max_size=1500),
    start=st.integers(0, 20),
    count=st.integers(1, 2000),
    most_bytes=st.one_of(st.integers(1, 2_000_000), st.just(1 << 40)),
    file_units=st.sampled_from([7, 600, 10_000]),
)
def test_units_are_chosen_in_bulk_as_they_are_one_by_one(
    blanks: int, sizes: list[int], start: int, count: int, most_bytes: int, file_units: int
) -> None:
    queue: Any = Units([BLANK_SIZE] * blanks + sizes, file_units)
    start %= queue.max_offset
    expected: list[Unit] = []
    room = most_bytes
    for unit in queue.units(start, count):
        if unit[1] != BLANK_SIZE:
            room -= unit[1]
            if room < 0 and expected:
                break
            expected.append(unit)
    units, looked_at, encoded, total = select_units(queue, start, count, most_bytes, None)
    assert (units, total) == (expected, sum(size for _, size, _ in expected))
    assert looked_at == (units[-1][0] // 1000 + 1 if units else min(start + count, queue.max_offset))
    assert encoded == (b"" if start < blanks else b"".join(UNIT.pack(*unit) for unit in units))


def test_a_read_in_bulk_is_the_messages_one_by_one() -> None:
    store = open_store(MemoryDisk(), settings=replace(SETTINGS, segment_size_bytes=1 << 20))
    put(store, *(draft(body) for body in payloads(1300, 20)))
    sync(store)
    store.checkpoint()
    put(store, *(draft(body) for body in payloads(1300, 20)))
    read = store.read_joined("TopicA", 0, 5, 4096, 1 << 20)
    assert (read.messages, read.next_offset) == (2595, 2600)
    assert [record.body for record in decode_records(read.body)] == [*payloads(1300, 20)[5:], *payloads(1300, 20)]
    few = store.read_joined("TopicA", 0, 5, 4096, 100_000)
    assert few.body == read.body[: len(few.body)]
    assert 99_000 < len(few.body) <= 100_000


def test_messages_come_in_order_across_files() -> None:
    store = store_of(100, 200)
    assert len(store.commitlog.segment_starts()) > 3
    assert bodies(store) == list(payloads(100, 200))


def test_a_filter_passes_its_tags_and_says_how_far_it_looked() -> None:
    store = open_store(MemoryDisk())
    put(store, *(draft(body, tag="ab"[n % 2]) for n, body in enumerate(payloads(20))))
    result = store.read_messages("TopicA", 0, 0, 4, 10_000, {java_hash("b")})
    assert read_bodies(result.records) == list(payloads(20))[1:8:2]
    assert result.next_offset == 8
    nothing = store.read_messages("TopicA", 0, 3, 4, 10_000, {java_hash("c")})
    assert (nothing.status, nothing.next_offset, nothing.records) == (GetStatus.NO_MATCHED_MESSAGE, 20, [])


def test_a_filter_that_passes_nothing_looks_at_a_bounded_number() -> None:
    store = open_store(MemoryDisk())
    for _ in range(10):
        put(store, *(draft(b"") for _ in range(100)))
    result = store.read_messages("TopicA", 0, 0, 4, 10_000, {1})
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 800)


def test_only_what_is_confirmed_is_seen() -> None:
    store = open_store(MemoryDisk())
    results = put(store, *(draft(body) for body in payloads(20)), visible=False)
    assert store.read_messages("TopicA", 0, 0, 100, 1 << 20).records == []
    store.dispatch(results[7].end_offset + 5)
    assert bodies(store) == list(payloads(8))
    assert store.max_offset("TopicA", 0) == 8
    assert store.read_physical(results[7].physical_offset) is not None
    assert store.read_physical(results[8].physical_offset) is None
    assert store.read_physical(results[7].physical_offset + 1) is None


def test_records_that_left_the_log_under_the_queue() -> None:
    store = store_of(60, 300)
    sync(store)
    queue = store.queues.table[("TopicA", 0)]
    assert queue.min_offset(0) == 0
    queue._min_checked = 1 << 40  # as if the queue had not noticed yet
    store.commitlog.forget_oldest()
    result = store.read_messages("TopicA", 0, 0, 3, 10_000)
    assert (result.status, result.next_offset, result.records) == (GetStatus.MESSAGE_WAS_REMOVING, 3, [])


# -- by time -------------------------------------------------------------------------------------------------------------------


def timed_store(steps: list[int]) -> tuple[MessageStore, list[int]]:
    """One message per step, each that many milliseconds after the one before; and all store times."""
    clock = Clock(1000)
    store = open_store(MemoryDisk(), clock)
    times = []
    for step in steps:
        clock.now_ms += step
        put(store, draft(bytes(150)))
        times.append(clock.now_ms)
    return store, times


@hypothesis_settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=60), st.integers(995, 1200), st.integers(0, 2))
def test_the_offset_of_a_time_is_the_models(steps: list[int], timestamp: int, expired: int) -> None:
    store, times = timed_store(steps)
    sync(store)
    for removal in store.apply_retention(
        RetentionDecision(min(expired, max(0, len(store.commitlog.segment_starts()) - 1)), False)
    ):
        removal()
    low, high = store.min_offset("TopicA", 0), store.max_offset("TopicA", 0)
    present = range(low, high)
    lower = next((n for n in present if times[n] >= timestamp), high)
    upper = max((n for n in present if times[n] <= timestamp), default=low)
    assert store.offset_by_time("TopicA", 0, timestamp) == lower
    assert store.offset_by_time("TopicA", 0, timestamp, Boundary.UPPER) == upper


def test_the_offset_of_a_time_never_falls_while_time_rises() -> None:
    store, _ = timed_store([3, 0, 0, 5, 1, 0, 9])
    for boundary in Boundary:
        found = [store.offset_by_time("TopicA", 0, timestamp, boundary) for timestamp in range(990, 1030)]
        assert found == sorted(found)


def test_the_offset_of_a_time_in_no_queue_is_0() -> None:
    assert open_store(MemoryDisk()).offset_by_time("T", 3, 1000) == 0


def test_when_a_message_was_stored() -> None:
    store, times = timed_store([1, 1, 1])
    assert [store.store_timestamp("TopicA", 0, n) for n in (-1, 0, 2, 3)] == [-1, times[0], times[2], -1]
    assert store.queue_ids("TopicA") == [0]
    assert store.queue_ids("TopicB") == []

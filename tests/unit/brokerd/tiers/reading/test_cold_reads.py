"""Cold reads: what was fetched is what was stored, or nobody gets it; and the loop does not look at it."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from itertools import accumulate, pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.loop.aside import HelperThreads
from brokerd.loop.cold_line import Clocks
from brokerd.store.cold import ColdMiss
from brokerd.store.log.record_checks import first_astray
from brokerd.store.unit import UNIT
from brokerd.tiers.objects.interface import Read
from brokerd.tiers.reading import cold_reads, fetch_line
from brokerd.tiers.reading.cold_reads import Ahead, ColdReads
from brokerd.tiers.upload.uploader import Loop
from remoting import codes
from remoting.disk import Bytes
from remoting.errors import RequestError
from remoting.record.codec import encode_record
from remoting.tier.contents import Queue
from tests.support.tier_files import TierFiles
from tests.unit.tasks.tier.messages import untidy

QUEUE = Queue("Orders", 0)
MESSAGES = 1300
ENTRY_BYTES = UNIT.size
IN_FLIGHT = 4


@pytest.fixture(params=["by threads", "by requests"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How objects are read."""
    monkeypatch.setattr(Reader, "by_threads", request.param == "by threads")


class Reader:
    """Of a tier with one segment, parts of which may be replaced."""

    by_threads = False

    def __init__(self, records: Sequence[bytes] = ()) -> None:
        self.files = TierFiles()
        self.records = list(records) or [untidy(*QUEUE, number, 1000 + number) for number in range(MESSAGES)]
        self.segment = self.files.commit(QUEUE, 0, self.records)
        self.checked_by: list[str] = []
        self.asked: list[tuple[int, int]] = []  # of messages whose entries were asked for: the first one, and how many
        self.lengths: list[int] = []  # of message bytes that were asked for
        self.tasks: list[asyncio.Task[None]] = []
        self.now_s = 0.0

    def change(self, name: str, at: int, content: bytes) -> None:
        whole = bytearray(self.files.read(name))
        whole[at : at + len(content)] = content
        self.files.put(name, bytes(whole))

    async def get(self, name: str, start: int, length: int) -> bytes:
        read = partial(self.read_range, name, start, length)
        return await HelperThreads(1, "helper").run(read) if self.by_threads else read()

    def read_in_thread(self, work: Callable[[Read], Any]) -> Awaitable[Any] | None:
        return HelperThreads(1, "helper").run(partial(work, self.read_range)) if self.by_threads else None

    def read_range(self, name: str, start: int, length: int) -> bytes:
        if name == self.segment.entries_name(*QUEUE):
            self.asked.append((start // ENTRY_BYTES, length // ENTRY_BYTES))
        else:
            self.lengths.append(length)
        return self.files.read(name)[start : start + length]

    def first_astray(self, content: Bytes, begin: int, entries: Bytes) -> int | None:
        self.checked_by.append(threading.current_thread().name)
        return first_astray(content, begin, entries)

    def cold(self, cache_bytes: int = 1 << 20) -> ColdReads:
        loop = asyncio.get_running_loop()

        def spawn(work: Coroutine[Any, Any, None], _what: str) -> None:
            self.tasks.append(loop.create_task(work))

        aside = HelperThreads(1, "helper").run
        wall_ms = lambda: time.time_ns() // 1_000_000  # noqa: E731
        scheduler: Any = SimpleNamespace(time=lambda: self.now_s, call_soon=loop.call_soon, call_later=loop.call_later)
        around: Any = Loop(scheduler, spawn, asyncio.sleep, wall_ms, aside, Clocks(time.perf_counter, time.thread_time))
        objects: Any = self
        contents = self.files.contents.queues
        return ColdReads(objects, contents.__getitem__, around, cache_bytes, IN_FLIGHT, self.first_astray)

    async def fetched(self) -> None:
        """All that is on its way."""
        while self.tasks:
            await self.tasks.pop()

    async def read(self) -> list[bytes]:
        """All of the first piece."""
        cold = self.cold()
        for _ in range(2):
            found = cold.read(*QUEUE, 0, MESSAGES, MESSAGES, 1 << 30, None)
            await self.fetched()
        return list(found.records)


async def test_what_was_fetched_while_its_segment_grew_is_kept_and_nothing_behind_the_segment_is_read() -> None:
    reader = Reader()
    cold = reader.cold()
    later = [untidy(*QUEUE, number, 1000 + number) for number in range(MESSAGES, MESSAGES + 9)]
    assert cold.read(*QUEUE, 0, MESSAGES, MESSAGES, 1 << 30, None).is_coming
    grew = reader.files.grow(QUEUE, later)
    for name in grew.names(*QUEUE):
        reader.files.put(name, reader.files.read(name) + b"left by an append that failed")
    await reader.fetched()
    asked = len(reader.asked)
    assert list(cold.read(*QUEUE, 0, MESSAGES + 9, MESSAGES, 1 << 30, None).records) == reader.records
    assert len(reader.asked) == asked
    assert (cold.range(*QUEUE), cold.run_end(*QUEUE, 0)) == ((0, MESSAGES + 9), MESSAGES + 9)
    assert cold.read(*QUEUE, MESSAGES, MESSAGES + 99, 99, 1 << 30, None).is_coming
    await reader.fetched()
    assert list(cold.read(*QUEUE, MESSAGES, MESSAGES + 99, 99, 1 << 30, None).records) == later
    assert cold.read(*QUEUE, MESSAGES + 9, MESSAGES + 99, 99, 1 << 30, None).is_missing


async def test_where_threads_read_the_loop_hears_of_a_fetch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reader, "by_threads", True)
    reader, heard = Reader(), hearing(monkeypatch)
    cold = reader.cold()
    assert cold.read(*QUEUE, 0, MESSAGES, MESSAGES, 1 << 30, None).is_coming
    await reader.fetched()
    assert len(reader.lengths) == 1
    assert len(heard) == 1


def hearing(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What the loop hears from threads from now on."""
    heard: list[object] = []
    called = asyncio.BaseEventLoop.call_soon_threadsafe

    def call_soon_threadsafe(self: asyncio.BaseEventLoop, *arguments: Any, **more: Any) -> Any:
        heard.append(arguments)
        return called(self, *arguments, **more)

    monkeypatch.setattr(type(asyncio.get_running_loop()), "call_soon_threadsafe", call_soon_threadsafe)
    return heard


async def test_a_helper_thread_looks_at_all_of_it() -> None:
    reader = Reader()
    assert await reader.read() == reader.records
    assert [name.partition("_")[0] for name in reader.checked_by] == ["helper"]


@pytest.mark.parametrize("number", [0, 511, 512, 1023, 1024, MESSAGES - 1])
async def test_a_message_that_changed_is_given_to_nobody(number: int) -> None:
    reader = Reader()
    at = sum(map(len, reader.records[:number]))
    reader.change(reader.segment.messages_name(*QUEUE), at, b"!")  # of its size
    with pytest.raises(RequestError, match="not what was stored"):
        await reader.read()


@pytest.mark.parametrize("number", [1, 511, 512, 513, 1024, MESSAGES - 1])
async def test_an_entry_that_points_elsewhere_gives_nothing(number: int) -> None:
    reader = Reader()
    place = sum(map(len, reader.records[: number - 1]))
    entry = UNIT.pack(place, len(reader.records[number - 1]), 0)
    reader.change(reader.segment.entries_name(*QUEUE), number * ENTRY_BYTES, entry)
    with pytest.raises(RequestError, match="not what was stored"):
        await reader.read()


async def test_while_the_store_hangs_so_many_wait_and_who_comes_later_is_told_to_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetch_line, "MOST_OF_QUEUE", 5)
    reader = Reader()
    cold = reader.cold()
    begins = range(0, 40 * (IN_FLIGHT + 5), 40)
    for begin in begins:
        assert cold.read(*QUEUE, begin, MESSAGES, 32, 1 << 30, None).is_coming
    for begin in range(begins.stop, MESSAGES):
        with pytest.raises(RequestError, match="try again later") as caught:
            cold.read(*QUEUE, begin, MESSAGES, 32, 1 << 30, None)
        assert caught.value.code == codes.SYSTEM_BUSY
    assert cold.read(*QUEUE, begins[-1], MESSAGES, 32, 1 << 30, None).is_coming, "it stands there already"
    await reader.fetched()
    assert [first for first, _ in reader.asked] == list(begins)
    assert cold.read(*QUEUE, begins.stop, MESSAGES, 32, 1 << 30, None).is_coming
    await reader.fetched()
    found = [cold.read(*QUEUE, begin, MESSAGES, 32, 1 << 30, None).records for begin in (*begins, begins.stop)]
    assert [list(each) for each in found] == [reader.records[begin : begin + 32] for begin in (*begins, begins.stop)]


async def test_what_nobody_waits_for_any_more_when_its_turn_comes_is_not_fetched() -> None:
    reader, told, called = Reader(), list[tuple[str, int]](), list[int]()
    cold = reader.cold()
    cold.listeners.append(lambda *queue: told.append(queue))
    begins = [40 * number for number in range(IN_FLIGHT + 3)]
    for begin in begins:
        assert cold.read(*QUEUE, begin, MESSAGES, 32, 1 << 30, None).is_coming
    with pytest.raises(ColdMiss) as caught:
        cold.record(*QUEUE, begins[-1])
    caught.value.when_fetched(lambda: called.append(begins[-1]))
    reader.now_s = fetch_line.ASKED_S / 2
    assert cold.read(*QUEUE, begins[-2], MESSAGES, 32, 1 << 30, None).is_coming, "somebody is there still"
    reader.now_s = fetch_line.ASKED_S + 1
    await reader.fetched()
    await asyncio.sleep(0)
    assert [first for first, _ in reader.asked] == [*begins[:IN_FLIGHT], begins[-2]]
    assert cold.forsaken == 2
    assert len(told) - (IN_FLIGHT + 1) in (1, 2), "and of those who were forsaken: who waits all the same asks again"
    assert called == [begins[-1]]
    assert cold.read(*QUEUE, begins[-1], MESSAGES, 32, 1 << 30, None).is_coming
    await reader.fetched()
    found = cold.read(*QUEUE, begins[-1], MESSAGES, 32, 1 << 30, None).records
    assert list(found) == reader.records[begins[-1] : begins[-1] + 32]


async def test_of_many_queues_that_are_forsaken_some_are_told_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_reads, "_TOLD_AT_ONCE", 2)
    reader, told = Reader(), list[tuple[str, int]]()
    queues = [Queue("Orders", number) for number in range(9)]
    for queue in queues[1:]:
        reader.files.commit(queue, 0, [untidy(*queue, number, number) for number in range(3)])
    cold = reader.cold()
    for queue in (*[QUEUE] * IN_FLIGHT, *queues[1:]):
        offset = 40 * len(reader.tasks) if queue == QUEUE else 0
        assert cold.read(*queue, offset, MESSAGES, 32, 1 << 30, None).is_coming
    reader.now_s = fetch_line.ASKED_S + 1
    cold.listeners.append(lambda *queue: told.append(queue) if queue != QUEUE else None)
    seen = [0]
    while not all(task.done() for task in reader.tasks) or len(seen) < 100:
        await asyncio.sleep(0)
        seen.append(len(told))
    assert cold.forsaken == 8
    assert max(later - before for before, later in pairwise(seen)) == 2
    assert sorted(told) == queues[1:]


async def test_who_does_not_wait_for_a_message_any_more_is_forgotten() -> None:
    reader, told = Reader(), list[str]()
    cold, kept = reader.cold(), weakref.WeakSet[Callable[[], None]]()

    def ask(who: str) -> Callable[[], None]:
        """Forgets who asked."""
        with pytest.raises(ColdMiss) as caught:
            cold.record(*QUEUE, 7)
        callback = partial(told.append, who)
        kept.add(callback)
        return caught.value.when_fetched(callback)

    stays = ask("stays")
    for number in range(1000):
        ask(f"gone {number}")()
    gc.collect()  # what was raised here knows where
    assert len(kept) == 1
    await reader.fetched()
    await asyncio.sleep(0)
    assert told == ["stays"]
    stays()


async def test_who_reads_on_has_two_pieces_on_their_way() -> None:
    reader = Reader()
    cold = reader.cold()
    assert cold.read(*QUEUE, 0, MESSAGES, 32, 1 << 30, None).is_coming
    await reader.fetched()
    assert reader.asked == [(0, 32)]
    assert len(cold.read(*QUEUE, 0, MESSAGES, 32, 1 << 30, None).records) == 32
    assert len(reader.tasks) == 2, "nothing of them is there yet"
    await reader.fetched()
    assert reader.asked[1:] == [(32, 64), (96, 64)]


async def test_who_only_began_has_one_piece_on_its_way() -> None:
    reader = Reader()
    cold = reader.cold()
    cold.read(*QUEUE, 0, MESSAGES, 32, 1 << 30, None)
    await reader.fetched()
    assert len(cold.read(*QUEUE, 0, MESSAGES, 20, 1 << 30, None).records) == 20
    await reader.fetched()
    assert reader.asked == [(0, 32), (32, 32)]


@pytest.mark.parametrize("cache_bytes", [1 << 20, 100_000, 1])
async def test_what_is_read_ahead_is_neither_missed_nor_repeated(cache_bytes: int) -> None:
    reader = Reader()
    cold, found = reader.cold(cache_bytes), list[bytes]()
    while len(found) < MESSAGES:
        found += cold.read(*QUEUE, len(found), MESSAGES, 50, 1 << 30, None).records
        assert len(reader.tasks) <= IN_FLIGHT
        await reader.fetched()
    assert found == reader.records
    if cache_bytes == 1 << 20:
        assert sum(count for _, count in reader.asked) == MESSAGES, "each was fetched once"


async def test_who_has_a_share_of_the_time_has_one_piece_on_its_way() -> None:
    reader = Reader()
    cold, offset = reader.cold(), 0
    cold.ahead = lambda: Ahead(PART, 1)
    while offset < MESSAGES:
        offset = cold.read(*QUEUE, offset, MESSAGES, 32, 1 << 30, None).next_offset
        assert len(reader.tasks) <= 1
        await reader.fetched()
    assert sum(count for _, count in reader.asked) == MESSAGES, "and nothing is missed"


# ---- in bulk

PART = 2 << 20
LONG_MESSAGES = 5000


def long_records() -> list[bytes]:
    """Of 1 KiB and more, 6 MiB together."""
    return [
        encode_record(
            topic=QUEUE.topic.encode(),
            queue_id=QUEUE.queue_id,
            queue_offset=number,
            physical_offset=0,
            body=bytes(1000 + number % 400),
            properties=b"",
            born_timestamp_ms=1,
            born_host=bytes(8),
            store_timestamp_ms=1,
            store_host=bytes(8),
        )
        for number in range(LONG_MESSAGES)
    ]


@pytest.fixture(scope="module")
def bulk_records() -> list[bytes]:
    return long_records()


async def test_who_begins_to_read_in_bulk_has_what_follows_on_its_way(bulk_records: list[bytes]) -> None:
    reader = Reader(bulk_records)
    cold = reader.cold(64 << 20)
    assert cold.read_joined(*QUEUE, 0, LONG_MESSAGES, 4096, PART).is_coming
    await reader.fetched()
    assert len(reader.asked) == 2, "what the answer has room for, and as much again"
    (first, count), (second, ahead) = reader.asked
    assert (first, second) == (0, count)
    assert PART * 0.8 < sum(map(len, bulk_records[:count])) <= PART
    assert ahead == count
    found = cold.read_joined(*QUEUE, 0, LONG_MESSAGES, 4096, PART)
    assert (found.next_offset, bytes(found.body)) == (count, b"".join(bulk_records[:count])), "an answer is one part"


async def test_in_bulk_each_message_is_read_once_in_parts_of_about_one_size(bulk_records: list[bytes]) -> None:
    reader = Reader(bulk_records)
    cold, found, offset = reader.cold(64 << 20), list[Bytes](), 0
    while offset < LONG_MESSAGES:
        read = cold.read_joined(*QUEUE, offset, LONG_MESSAGES, 4096, PART)
        offset = read.next_offset
        found += [read.body] if read.body else []
        await reader.fetched()
    assert b"".join(found) == b"".join(bulk_records)
    assert sum(reader.lengths) == sum(map(len, bulk_records)), "each was fetched once"
    assert max(reader.lengths) <= PART
    assert len(found) == len(reader.lengths), "an answer has what one request brought"


async def test_what_a_long_window_brings_is_given_out_part_by_part(bulk_records: list[bytes]) -> None:
    reader = Reader(bulk_records)
    cold = reader.cold(64 << 20)
    told: list[int] = []
    cold.listeners.append(lambda *_: told.append(len(cold.cache)))
    for start in (0, 1):  # who goes on like that has a long window
        cold._windows.read(QUEUE, start, start + 1, 2500, was_last=True)
    assert cold.read_joined(*QUEUE, 2, LONG_MESSAGES, 4096, PART).is_coming
    await reader.fetched()
    assert told[:3] == [1, 2, 3]
    whole = sum(map(len, bulk_records[2:]))
    assert len(reader.lengths) == -(-whole // PART)
    assert max(reader.lengths) - min(reader.lengths) < 3000, "they are alike"


async def test_where_threads_read_the_loop_hears_of_each_part_once(
    bulk_records: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reader, "by_threads", True)
    reader, heard = Reader(bulk_records), hearing(monkeypatch)
    cold = reader.cold(64 << 20)
    cold._windows.read(QUEUE, -1, 0, 5000, was_last=True)  # one window has all
    assert cold.read_joined(*QUEUE, 0, LONG_MESSAGES, 4096, PART).is_coming
    await reader.fetched()
    assert len(reader.lengths) > 2
    assert len(heard) == 1 + len(reader.lengths), "and of the entries"


@pytest.mark.parametrize("cache_bytes", [1, 1 << 20, 3 << 20])
async def test_who_has_a_small_cache_comes_to_the_end(bulk_records: list[bytes], cache_bytes: int) -> None:
    reader = Reader(bulk_records)
    cold, offset, vain = reader.cold(cache_bytes), 0, 0
    while offset < LONG_MESSAGES:
        read = cold.read_joined(*QUEUE, offset, LONG_MESSAGES, 4096, PART)
        vain = 0 if read.body else vain + 1
        assert vain < 10, "what is fetched pushes out what was to be read"
        assert bytes(read.body) == b"".join(bulk_records[offset : read.next_offset])
        offset = read.next_offset
        await reader.fetched()


@pytest.mark.parametrize("place", [-1, 0, 1 << 20, 1 << 40])
async def test_parts_whose_entries_are_damaged_are_given_to_nobody(bulk_records: list[bytes], place: int) -> None:
    reader = Reader(bulk_records)
    places = list(accumulate(map(len, bulk_records), initial=0))
    for number in range(1, LONG_MESSAGES - 1):
        entry = UNIT.pack(place if number % 2 else places[number], len(bulk_records[number]), 0)
        reader.change(reader.segment.entries_name(*QUEUE), number * ENTRY_BYTES, entry)
    cold = reader.cold(64 << 20)
    cold._windows.read(QUEUE, -1, 0, 5000, was_last=True)  # one window has all
    assert cold.read_joined(*QUEUE, 0, LONG_MESSAGES, 4096, PART).is_coming
    await reader.fetched()
    with pytest.raises(RequestError, match="not what was stored"):
        cold.read_joined(*QUEUE, 0, LONG_MESSAGES, 4096, PART)
    assert max(reader.lengths, default=0) <= 16 << 20
    assert not len(cold.cache)

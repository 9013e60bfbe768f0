"""What many records of timers say at once is what a look at each of them says, and so timer files and counts are the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import pytest

from brokerd.native.library import Library
from brokerd.store.draft import Draft
from brokerd.store.store import MessageStore
from brokerd.store.unit import UNIT, UNIT_BYTES
from brokerd.timers import said
from brokerd.timers.codes import CODE_RULES, DELETE_KEY, DEQUEUE_MS, DUE_MS, LEG_MS, PLACE, Key, slot_of
from brokerd.timers.counting import Known, TimerCounting
from brokerd.timers.done import ALL, Done, Fence
from brokerd.timers.files.layout import LOG_DIRECTORY, WHEEL_PATH, Shape
from brokerd.timers.files.source import Delivered, StoreSource
from brokerd.timers.files.timer_files import TimerFiles
from brokerd.timers.native_said import NativeSaying, examples, said_agrees
from brokerd.timers.rolling import Wait
from brokerd.timers.rules import added_for
from remoting.names import TIMER_TOPIC
from remoting.record.properties import encode_properties
from tests.support.disks import MemoryDisk
from tests.support.memory_log import HOST, MemoryRecordLog
from tests.support.native_library import native_library
from tests.support.page_end import PageEnd
from tests.unit.brokerd.store.stores import draft, make_store, put
from tests.unit.brokerd.timers.files.queue_model import ask, write

NOW_MS = 1_700_000_000_000
SHAPE = Shape(slots=40, file_bytes=7 * 52 + 20)
TOPICS = ("A", "Orders", "\u00e9t\u00e9", "A-much-longer-name")


def a_timer(rng: Random, now_ms: int = NOW_MS) -> Draft:
    """Mostly as it is sent; some are markers, on a later leg, of another broker, or say odd things."""
    due_ms = now_ms + rng.choice((1, 999, 1000, 5000, rng.randrange(30_000), 40_000, 40_999))
    wait = Wait(due_ms, due_ms - 500 if rng.random() < 0.2 and due_ms > now_ms + 500 else None)
    sent = {"UNIQ_KEY": f"K{rng.randrange(1 << 20)}", "TAGS": "TIMER"}
    waits = added_for(wait, rng.choice(TOPICS), rng.randrange(12))
    odd = rng.choice(
        (
            {},
            {},
            {},
            {},
            {},
            {DELETE_KEY: "A+K"},
            {PLACE: "3"},
            {LEG_MS: str(now_ms + 7)},
            {DUE_MS: "70", LEG_MS: str(now_ms + 700)},
            {DEQUEUE_MS: "5"},
            {"x": "y"},
        )
    )
    properties = {**odd, **sent, **waits} if rng.random() < 0.5 else {**sent, **waits, **odd}
    return draft(topic=TIMER_TOPIC, properties=encode_properties(properties), body=bytes(rng.randrange(40)))


def test_the_check_at_load_finds_a_library_that_says_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    library = native_library()
    assert said_agrees(library)

    def other(*_: object) -> int:
        return 0

    monkeypatch.setattr(Library, "function", lambda *_: other)
    assert not said_agrees(library)


def test_nothing_behind_the_records_is_looked_at() -> None:
    """They end where a page ends behind which nothing may be read: who does ends the process."""
    records, units = examples()
    encoded, source, page = b"".join(UNIT.pack(*each) for each in units), b"".join(records), PageEnd()
    function = native_library().function
    rng = Random(5)
    for _ in range(2000):
        changed = bytearray(source)
        for _ in range(rng.choice((0, 1, 3))):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        damaged = bytes(changed[: rng.randrange(1, len(changed) + 1)])
        saying = NativeSaying(
            native_library(), lambda start, count: encoded[UNIT_BYTES * start :], lambda _u, look: look(b"", 0)
        )
        rows, topics, count = (bytearray(8 * n) for n in (said.ROW * len(units), 2 * said.MOST_TOPICS, 1))
        at = page.put(damaged)
        assert saying(0, 9, 0) == said.NOTHING
        found = called(function, at, len(damaged), encoded, rows, topics, count)
        assert 0 <= found <= len(units)


def called(function: Callable[..., Callable[..., int]], at: int, length: int, units: bytes, *out: bytearray) -> int:
    import ctypes

    number, pointer = ctypes.c_int64, ctypes.c_void_p
    call = function(
        "native_timer_said", number, pointer, number, number, ctypes.c_char_p, number, number, *[pointer] * 3
    )
    places = [ctypes.addressof(ctypes.c_char.from_buffer(each)) for each in out]
    return call(at, length, 0, units, len(units) // UNIT_BYTES, 0, *places)


@pytest.mark.parametrize("seed", range(12))
def test_the_timer_files_are_the_same(seed: int) -> None:
    """Followed in pieces of any size, while the cursor moves and somebody asks, with a wheel that goes round."""
    library, rng = native_library(), Random(seed)
    disks = MemoryDisk(), MemoryDisk()
    stores = [make_store(disk, rules=CODE_RULES) for disk in disks]
    present = Delivered(Done(Key(NOW_MS - 1, -1)), 0)
    sources = [StoreSource(store, lambda: present, each) for store, each in zip(stores, (None, library), strict=True)]
    both = [
        TimerFiles(disk, source, SHAPE, 4, library=each)
        for disk, source, each in zip(disks, sources, (None, library), strict=True)
    ]
    for store in stores:
        store.load()
        store.set_appendable(True)
    now_ms = NOW_MS
    for _ in range(60):
        sent = [a_timer(rng, now_ms) for _ in range(rng.choice((1, 5, 20)))]
        for store in stores:
            put(store, *sent)
        if rng.random() < 0.3:
            now_ms += rng.choice((1, 700, 3000, 20_000))
            done = present.done.passed(Key(now_ms - 1, ALL))
            if rng.random() < 0.2:
                done = done._replace(fences=(Fence(rng.randrange(100), Key(now_ms + 2000, 5)),))
            if rng.random() < 0.2:
                done = done._replace(moved=stores[0].max_offset(TIMER_TOPIC, 0) - 2)
            present = Delivered(done, stores[0].dispatch_offset)
        question = present.done.cursor, now_ms + rng.choice((10, 40_000)), rng.choice((1, 5, 500))
        if rng.random() < 0.5:  # what comes in the meantime belongs to the answer
            for each in both:
                each.between(*question)
        follow(both, stores, 512 * rng.choice((1, 3, 40)))
        assert ask(both[0], *question) == ask(both[1], *question)
        assert both[0].applied == both[1].applied
    for each in both:
        write(each)
    assert both[0].pending_messages == both[1].pending_messages > 0
    assert content_of(disks[0]) == content_of(disks[1])
    assert both[1].times_begun_again == both[0].times_begun_again


def follow(both: Sequence[TimerFiles], stores: Sequence[MessageStore], most_bytes: int) -> None:
    for store, each in zip(stores, both, strict=True):
        while each.take(store.dispatch_offset, most_bytes):
            pass


def content_of(disk: MemoryDisk) -> dict[str, bytes]:
    paths = [WHEEL_PATH, *(f"{LOG_DIRECTORY}/{name}" for name in disk.names(LOG_DIRECTORY))]
    found = {}
    for path in paths:
        segment = disk.open(path)
        found[path] = segment.read(0, segment.size_bytes)
        segment.close()
    return found


@pytest.mark.parametrize("seed", range(8))
def test_what_is_counted_is_the_same(seed: int) -> None:
    rng, log = Random(seed), MemoryRecordLog(lambda: NOW_MS)
    done, places = Done(Key(NOW_MS - 1, -1)), set[int]()
    read_units = partial(log.read_units, TIMER_TOPIC, 0)
    saying = NativeSaying(
        native_library(),
        lambda first, count: b"".join(UNIT.pack(*each) for each in read_units(first, count)),
        lambda _units, look: look(b"".join(log._records.values()), 0),
    )

    def known() -> Known:
        return Known(done, places, {})

    alone, together = TimerCounting(log, known), TimerCounting(log, known, saying)
    for _ in range(80):
        log.append_messages([a_timer(rng)._replace(born_host=HOST) for _ in range(rng.choice((1, 9)))])
        if rng.random() < 0.2:
            places.add(rng.randrange(log.max_offset(TIMER_TOPIC, 0) + 5))
        if rng.random() < 0.1:
            done = done.passed(Key(slot_of(NOW_MS) + rng.randrange(4000), 5))
        if rng.random() < 0.1:
            done = done._replace(moved=max(done.moved, rng.randrange(log.max_offset(TIMER_TOPIC, 0))))
        for counting in (alone, together):
            while counting.take(log.end_offset, 512 * rng.choice((1, 4, 64))):
                pass
            assert counting.uncounted == 0
        shown = [
            [counting.counts.show(topic, NOW_MS) for topic in counting.counts.topics()]
            for counting in (alone, together)
        ]
        assert shown[0] == shown[1]
    assert alone.counts.waiting == together.counts.waiting > 0

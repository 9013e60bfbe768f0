"""Uploads: a queue has one at a time, whatever becomes of what an earlier life of this master began."""

from __future__ import annotations

import gc
import logging
import random
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from brokerd.store.store_reads import Run
from brokerd.store.unit import UNIT
from brokerd.tiers.index.keys import PlainKeys
from brokerd.tiers.objects.interface import ObjectStoreError
from brokerd.tiers.objects.page_memory import large_pages
from brokerd.tiers.settings import TierSettings
from brokerd.tiers.upload import buffers
from brokerd.tiers.upload import uploader as uploader_of
from brokerd.tiers.upload.batches import Source
from brokerd.tiers.upload.buffers import KEPT_BYTES, Buffer
from brokerd.tiers.upload.pending import Pending, Waiting
from brokerd.tiers.upload.uploader import Stored, Uploader
from remoting.errors import CorruptedFile
from remoting.settings import Live
from remoting.tier.contents import Queue
from remoting.tier.segments import Segment
from tests.support.tiers import FaultyObjects, Steps
from tests.support.tiers import Stored as Store
from tests.support.turns import Turns
from tests.unit.tasks.tier.messages import untidy

QUEUE = Queue("Orders", 0)
SETTINGS = TierSettings(url="memory:///", commit_interval_ms=10)


class Reads:
    def read_run(
        self, topic: str, queue_id: int, queue_offset: int, max_count: int, into: memoryview, place: int
    ) -> Run:
        record = untidy(topic, queue_id, queue_offset, 1000)
        into[: len(record)] = record
        return Run(UNIT.pack(queue_offset * 1000, len(record), 0), UNIT.pack(place, len(record), 0))

    def run_aside(
        self, topic: str, queue_id: int, queue_offset: int, max_count: int
    ) -> Callable[[memoryview, int], Run] | None:
        return lambda into, place: self.read_run(topic, queue_id, queue_offset, max_count, into, place)


class Master:
    """A `Target`; nothing of what is stored is committed."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.number = 0
        self.segments: list[Segment] = []

    def base_of(self, queue: Queue) -> int:
        return 0

    def next_number(self) -> int:
        self.number += 1
        return self.number

    def is_of_deleted(self, queue: Queue, log_end: int) -> bool:
        return False

    def growing(self, queue: Queue, first_ms: int) -> Segment | None:
        return None

    def stored(self, queue: Queue, stored: Stored) -> None:
        self.segments.append(stored.segment)

    def passed(self, queue: Queue, queue_offset: int) -> None:
        raise AssertionError("all of it is there")

    def troubled(self, error: ObjectStoreError | None) -> None:
        """A store that fails is what is tried here."""


@pytest.mark.parametrize("fails", [True, False])
def test_what_an_earlier_life_began_lets_nobody_upload_twice(fails: bool) -> None:
    turns = Turns()
    steps, pending, source = Steps(turns), Pending(), Source(Reads(), PlainKeys())
    slow = FaultyObjects(Store(), steps, turns, random.Random(1))
    slow.slow_s, slow.fails_before = 60.0, 1.0 if fails else 0.0
    earlier = Uploader(pending, source, slow, Master(1), steps.loop(), Live(SETTINGS))
    pending.put(QUEUE, Waiting(0, 5, 0, turns.wall_ms()), 10)
    turns.run(100)
    earlier.wake()
    turns.run(100)
    earlier.stop()
    pending.clear()

    pending.put(QUEUE, Waiting(0, 5, 0, turns.wall_ms()), 10)
    slower = FaultyObjects(Store(), steps, turns, random.Random(1))
    slower.slow_s = 10_000.0
    master = Master(2)
    uploader = Uploader(pending, source, slower, master, steps.loop(), Live(replace(SETTINGS)))
    uploader.wake()
    turns.run(1_000_000)
    assert not master.segments, "it is still on its way"
    uploader.wake()
    turns.run(30_000_000)
    assert [(each.first, each.end) for each in master.segments] == [(0, 5)]


class OfDeleted(Master):
    """A queue's messages are of an earlier topic of its name: `stored` comes to nothing, and they still are what waits."""

    def __init__(self, queue: Queue) -> None:
        super().__init__(1)
        self.queue = queue
        self.uploader: Uploader
        self.looks = 0

    def is_of_deleted(self, queue: Queue, log_end: int) -> bool:
        self.looks += 1
        return queue == self.queue

    def stored(self, queue: Queue, stored: Stored) -> None:
        super().stored(queue, stored)
        if queue == self.queue:
            self.uploader.finished(queue)


def test_what_nobody_would_commit_is_not_uploaded_and_looked_at_less_and_less_often(
    caplog: pytest.LogCaptureFixture,
) -> None:
    turns = Turns()
    steps, pending, stored = Steps(turns), Pending(), Store()
    objects = FaultyObjects(stored, steps, turns, random.Random(1))
    objects.slow_s = 1.0
    master = OfDeleted(QUEUE)
    uploader = Uploader(pending, Source(Reads(), PlainKeys()), objects, master, steps.loop(), Live(SETTINGS))
    master.uploader = uploader
    pending.put(QUEUE, Waiting(0, 5, 0, turns.wall_ms()), 10)
    uploader.wake()
    with caplog.at_level(logging.WARNING):
        turns.run(600_000)
    assert (stored.puts, master.segments) == ([], [])
    assert 5 < master.looks < 25, "pauses grow up to a minute"
    word = "nothing can be uploaded of Orders/0 from 0 on: what is there is of an earlier topic of that name"
    assert word in caplog.text

    other = Queue("Orders", 1)
    pending.put(other, Waiting(0, 5, 0, turns.wall_ms()), 10)
    turns.run(120_000)
    assert [(each.first, each.end) for each in master.segments] == [(0, 5)], "others go on"
    pending.put(QUEUE, Waiting(5, 6, 5000, turns.wall_ms()), 10)
    master.queue = other
    turns.run(120_000)
    assert [(each.first, each.end) for each in master.segments[1:]] == [(5, 6)], "and so does it, when it has others"


class NothingThere(Master):
    """Whose local store gives nothing of a queue that has messages; it is looked at again each time, and waits from then on."""

    def __init__(self, pending: Pending, turns: Turns) -> None:
        super().__init__(1)
        self._pending = pending
        self._turns = turns
        self.passes = 0

    def passed(self, queue: Queue, queue_offset: int) -> None:
        self.passes += 1
        self._pending.put(queue, Waiting(0, 5, 0, self._turns.wall_ms()), 10)


class NoReads(Reads):
    def read_run(self, *_: object) -> Run:
        return Run(b"", b"")


def test_a_queue_of_which_nothing_can_be_read_is_tried_less_and_less_often(caplog: pytest.LogCaptureFixture) -> None:
    turns = Turns()
    steps, pending = Steps(turns), Pending()
    objects = FaultyObjects(Store(), steps, turns, random.Random(1))
    master = NothingThere(pending, turns)
    uploader = Uploader(pending, Source(NoReads(), PlainKeys()), objects, master, steps.loop(), Live(SETTINGS))
    pending.put(QUEUE, Waiting(0, 5, 0, turns.wall_ms()), 10)
    uploader.wake()
    with caplog.at_level(logging.WARNING):
        turns.run(600_000)
    assert 5 < master.passes < 25, "pauses grow up to a minute"
    assert "nothing can be uploaded of Orders/0 from 0 on: nothing can be read" in caplog.text


def test_who_uploads_all_the_time_needs_no_new_memory_and_gives_some_back_when_he_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[weakref.ref[Buffer]] = []

    def new_memory(size: int) -> Buffer:
        buffer = large_pages(size)
        made.append(weakref.ref(buffer))
        return buffer

    monkeypatch.setattr(buffers, "large_pages", new_memory)
    turns = Turns()
    steps, pending, master = Steps(turns), Pending(), Master(1)
    objects = FaultyObjects(Store(), steps, turns, random.Random(1))
    objects.slow_s = 1.0
    uploader = Uploader(pending, Source(Reads(), PlainKeys()), objects, master, steps.loop(), Live(SETTINGS))
    at_once = SETTINGS.buffer_bytes // SETTINGS.commit_bytes
    for number in range(5):
        for queue in (Queue("Orders", queue_id) for queue_id in range(at_once)):
            pending.put(queue, Waiting(number, number + 1, 1000 * number, turns.wall_ms()), 10)
        uploader.wake()
        turns.run(5000)
        assert len(master.segments) == at_once
        for segment_of in range(at_once):
            uploader.finished(Queue("Orders", segment_of))
        master.segments.clear()
    assert len(made) == at_once
    turns.run(60_000)
    gc.collect()
    assert sum(len(buffer) for each in made if (buffer := each()) is not None) == KEPT_BYTES


class Listing(Master):
    """Lists whose messages were stored."""

    def __init__(self) -> None:
        super().__init__(1)
        self.queues: list[int] = []

    def stored(self, queue: Queue, stored: Stored) -> None:
        super().stored(queue, stored)
        self.queues.append(queue.queue_id)


@pytest.mark.parametrize("stop_after_ms", [0, 60])
def test_few_long_batches_are_made_at_once_and_short_ones_do_not_wait_for_them(
    monkeypatch: pytest.MonkeyPatch, stop_after_ms: int
) -> None:
    monkeypatch.setattr(uploader_of, "_LONG_MESSAGES", 4)
    turns = Turns()
    steps, pending, master = Steps(turns), Pending(), Listing()
    at_once = most = 0

    async def aside(work: Callable[[], Any]) -> Any:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await steps.pause(0.020)
        at_once -= 1
        return work()

    objects = FaultyObjects(Store(), steps, turns, random.Random(1))
    loop = steps.loop()._replace(aside=aside)
    uploader = Uploader(pending, Source(Reads(), PlainKeys()), objects, master, loop, Live(SETTINGS))
    for queue_id in range(6):
        pending.put(Queue("Orders", queue_id), Waiting(0, 5, 0, turns.wall_ms()), 10)
    pending.put(Queue("Orders", 7), Waiting(0, 1, 0, turns.wall_ms()), 10)
    turns.run(100)
    uploader.wake()
    if stop_after_ms:
        turns.run(stop_after_ms)
        uploader.stop()
        turns.run(10_000)
        assert master.queues == [7], "what was in the line is not begun any more"
        return
    turns.run(10_000)
    assert sorted(master.queues) == [0, 1, 2, 3, 4, 5, 7]
    assert (most, master.queues[0]) == (3, 7)


def test_a_batch_that_cannot_be_made_lets_the_next_one_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploader_of, "_LONG_MESSAGES", 4)
    turns = Turns()
    steps, pending, master = Steps(turns), Pending(), Listing()

    class Damaged(Reads):
        def run_aside(
            self, topic: str, queue_id: int, queue_offset: int, max_count: int
        ) -> Callable[[memoryview, int], Run] | None:
            if queue_id < 4:
                raise CorruptedFile("its units are not what was written")
            return super().run_aside(topic, queue_id, queue_offset, max_count)

    objects = FaultyObjects(Store(), steps, turns, random.Random(1))
    uploader = Uploader(pending, Source(Damaged(), PlainKeys()), objects, master, steps.loop(), Live(SETTINGS))
    for queue_id in range(6):
        pending.put(Queue("Orders", queue_id), Waiting(0, 5, 0, turns.wall_ms()), 10)
    turns.run(100)
    uploader.wake()
    turns.run(1000)
    assert sorted(master.queues) == [4, 5]

"""Uploads: a queue has one at a time, whatever becomes of what an earlier life of this master began."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from brokerd.store.store_reads import Run
from brokerd.store.unit import UNIT
from brokerd.tiers.index.keys import PlainKeys
from brokerd.tiers.objects.interface import ObjectStoreError
from brokerd.tiers.settings import TierSettings
from brokerd.tiers.upload.batches import Source
from brokerd.tiers.upload.pending import Pending, Waiting
from brokerd.tiers.upload.uploader import Uploader
from remoting.settings import Live
from remoting.tier.contents import Queue
from remoting.tier.segments import Segment
from tests.support.tiers import FaultyObjects, Steps, Stored
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

    def stored(self, queue: Queue, segment: Segment, index_items: bytes) -> None:
        self.segments.append(segment)

    def passed(self, queue: Queue, queue_offset: int) -> None:
        raise AssertionError("all of it is there")

    def troubled(self, error: ObjectStoreError | None) -> None:
        """A store that fails is what is tried here."""


@pytest.mark.parametrize("fails", [True, False])
def test_what_an_earlier_life_began_lets_nobody_upload_twice(fails: bool) -> None:
    turns = Turns()
    steps, pending, source = Steps(turns), Pending(), Source(Reads(), PlainKeys())
    slow = FaultyObjects(Stored(), steps, turns, random.Random(1))
    slow.slow_s, slow.fails_before = 60.0, 1.0 if fails else 0.0
    earlier = Uploader(pending, source, slow, Master(1), steps.loop(), Live(SETTINGS))
    pending.put(QUEUE, Waiting(0, 5, 0, turns.wall_ms()), 10)
    turns.run(100)
    earlier.wake()
    turns.run(100)
    earlier.stop()
    pending.clear()

    pending.put(QUEUE, Waiting(0, 5, 0, turns.wall_ms()), 10)
    slower = FaultyObjects(Stored(), steps, turns, random.Random(1))
    slower.slow_s = 10_000.0
    master = Master(2)
    uploader = Uploader(pending, source, slower, master, steps.loop(), Live(replace(SETTINGS)))
    uploader.wake()
    turns.run(1_000_000)
    assert not master.segments, "it is still on its way"
    uploader.wake()
    turns.run(30_000_000)
    assert [(each.first, each.end) for each in master.segments] == [(0, 5)]

"""A queue's last segment grows where the store can append, whatever becomes of single requests; readers notice nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest

from brokerd.replication.roles.effects import Role
from brokerd.store.draft import Draft
from brokerd.store.queues.queue_reads import GetStatus
from brokerd.store.store_reads import Run
from brokerd.store.unit import UNIT
from brokerd.tiers.index.keys import PlainKeys
from brokerd.tiers.objects.interface import PAST_CACHE_BYTES, ObjectStoreError, Refused
from brokerd.tiers.service import TierService
from brokerd.tiers.upkeep import SETTLED_MS, Upkeep
from brokerd.tiers.upload.batches import Batch, Source
from brokerd.tiers.upload.pending import Pending, Waiting
from brokerd.tiers.upload.uploader import Stored, Uploader
from remoting.checksum import crc32
from remoting.disk import Bytes
from remoting.record.codec import decode_record
from remoting.settings import Live
from remoting.tier.contents import Queue, TierContents, committed, grown
from remoting.tier.names import ENTRY_BYTES
from remoting.tier.segments import Segment
from tests.support.tiered_broker import HOST, SETTINGS, TieredBroker
from tests.support.tiers import FaultyObjects, Steps
from tests.support.tiers import Stored as Store
from tests.support.turns import Turns
from tests.unit.tasks.tier.messages import untidy

QUEUE = Queue("T", 0)
STEPS = 60
SEEDS = 25
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


class Model:
    """A master's queue, as a `Target` and its `QueueReads`. What it is told to be stored is committed at once, if it is there."""

    def __init__(self, seed: int, paddings: Sequence[int] = (0, 100, 3000), commit_bytes: int = 4096) -> None:
        self.rng = random.Random(seed)
        self.turns = Turns()
        steps = Steps(self.turns)
        self.store = Store()
        self.objects = FaultyObjects(self.store, steps, self.turns, self.rng, appends=True)
        self.pending = Pending()
        self.contents = TierContents()
        self.records = [untidy(*QUEUE, n, 1000 + n, paddings[n % len(paddings)]) for n in range(12 * STEPS)]
        self.begins = [0, *accumulate(map(len, self.records))]
        self.sent = self.number = self.epoch = self.grew = 0
        self.troubles: list[str] = []
        self.is_stuck = False  # the last segment is about to be merged
        settings = Live(replace(SETTINGS, commit_interval_ms=10, commit_bytes=commit_bytes))
        self.uploader = Uploader(self.pending, Source(self, PlainKeys()), self.objects, self, steps.loop(), settings)

    # ---- QueueReads

    def read_run(
        self, topic: str, queue_id: int, queue_offset: int, max_count: int, into: memoryview, place: int
    ) -> Run:
        units, entries, at = b"", b"", 0
        for offset in range(queue_offset, queue_offset + max_count):
            record = self.records[offset]
            units += UNIT.pack(self.begins[offset], len(record), 0)
            if at + len(record) > len(into):
                break
            into[at : at + len(record)] = record
            entries += UNIT.pack(place + at, len(record), 0)
            at += len(record)
        return Run(units if not entries else units[: len(entries)], entries)

    def run_aside(
        self, topic: str, queue_id: int, queue_offset: int, max_count: int
    ) -> Callable[[memoryview, int], Run] | None:
        return None

    # ---- Target

    @property
    def end(self) -> int:
        segments = self.contents.queues.get(QUEUE)
        return segments.end if segments is not None else 0

    def base_of(self, queue: Queue) -> int:
        segments = self.contents.queues.get(queue)
        return segments.message_end if segments is not None else 0

    def growing(self, queue: Queue, first_ms: int) -> Segment | None:
        segments = self.contents.queues.get(queue)
        return segments.last if segments is not None and not self.is_stuck else None

    def next_number(self) -> int:
        self.number += 1
        return self.number

    def is_of_deleted(self, queue: Queue, log_end: int) -> bool:
        return False

    def stored(self, queue: Queue, stored: Stored) -> None:
        assert self.uploader.is_growing(queue) == (stored.grew_from is not None)
        self.contents.apply((committed if stored.grew_from is None else grown)(queue, stored.segment))
        self.grew += stored.grew_from is not None
        self.check(stored.segment)
        self.look()
        self.uploader.finished(queue)

    def passed(self, queue: Queue, queue_offset: int) -> None:
        raise AssertionError("all of it is there")

    def troubled(self, error: ObjectStoreError | None) -> None:
        """A store that fails is what is tried here."""
        if error is not None:
            self.troubles.append(str(error))

    # ---- what happens, and what is looked at

    def send(self, count: int, for_ms: int) -> None:
        self.sent = min(len(self.records), self.sent + count)
        self.look()
        self.uploader.wake()
        self.turns.run(for_ms)

    def look(self) -> None:
        """See whether something waits."""
        self.pending.remove(QUEUE)
        if self.end < self.sent:
            waiting = Waiting(self.end, self.sent, self.begins[self.end], self.turns.wall_ms())
            self.pending.put(QUEUE, waiting, 5)

    def check(self, segment: Segment) -> None:
        """Its objects have what was sent, by a slow look at all of that."""
        offsets = range(segment.first, segment.end)
        messages = b"".join(self.records[segment.first : segment.end])
        entries = b"".join(UNIT.pack(self.begins[each], len(self.records[each]), 0) for each in offsets)
        there = [self.store.objects.get(name, b"") for name in segment.names(*QUEUE)]
        assert there[0][: segment.stored_bytes] == messages
        assert there[1][: segment.messages * ENTRY_BYTES] == entries
        assert (segment.base, segment.message_bytes) == (self.begins[segment.first], len(messages))
        assert (segment.crc, segment.entries_crc) == (crc32(messages), crc32(entries))
        assert segment.log_end == self.begins[segment.end]
        assert (segment.first_ms, segment.last_ms) == (1000 + segment.first, 999 + segment.end)

    def trouble(self) -> None:
        rates = [self.rng.choice([0, 0, 0, 0.2, 0.6]) for _ in range(3)]
        self.objects.fails_before, self.objects.fails_after, self.objects.fails_within = rates
        self.objects.is_refusing = self.rng.random() < 0.05
        self.objects.slow_s = self.rng.choice([0.001, 0.1, 5.0])
        self.is_stuck = self.rng.random() < 0.1

    def run(self) -> None:
        for _ in range(STEPS):
            self.trouble()
            self.send(self.rng.randint(0, 12), self.rng.choice([20, 200, 2000, 20_000]))
        self.objects.fails_before = self.objects.fails_after = self.objects.fails_within = 0.0
        self.objects.is_refusing = False
        self.turns.run(600_000)
        segments = self.contents.queues[QUEUE]
        assert (segments.first, segments.end, segments.missing) == (0, self.sent, 0)
        for segment in segments:
            self.check(segment)


def test_whatever_becomes_of_requests_what_is_told_is_there_at_its_place() -> None:
    models = [Model(seed) for seed in range(SEEDS)]
    for model in models:
        model.run()
    segments = [each for model in models for each in model.contents.queues[QUEUE]]
    assert sum(model.grew for model in models) > 10 * SEEDS
    assert len(segments) > 5 * SEEDS
    assert sum(model.objects.faults for model in models) > 10 * SEEDS


def test_of_what_failed_something_is_behind_segments() -> None:
    longer = 0
    for seed in range(SEEDS):
        model = Model(seed)
        model.run()
        for segment in model.contents.queues[QUEUE]:
            longer += len(model.store.objects[segment.messages_name(*QUEUE)]) > segment.stored_bytes
    assert longer > SEEDS


async def however_it_ended(self: Uploader, batch: Batch, last: Segment) -> None:
    messages, entries = last.names(*batch.queue)
    with suppress(ObjectStoreError):
        await self._objects.append(messages, last.stored_bytes, [batch.messages])
        await self._objects.append(entries, last.messages * ENTRY_BYTES, batch.entries)


async def messages_alone(self: Uploader, batch: Batch, last: Segment) -> None:
    await self._objects.append(last.messages_name(*batch.queue), last.stored_bytes, [batch.messages])


def as_long_as_contents_say(self: Uploader, batch: Batch) -> Segment | None:
    return self._target.growing(batch.queue, batch.first_ms)


def of_the_batch_alone(self: Batch, last: Segment) -> Segment:
    return _behind(self, last)._replace(crc=self.crc)


_behind = Batch.behind
MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "an append counts as done however it ended": (Uploader, "_append_both", however_it_ended),
    "entries are not appended": (Uploader, "_append_both", messages_alone),
    "who asks the contents appends where nobody knows the end": (Uploader, "_growing_by", as_long_as_contents_say),
    "a checksum begins anew": (Batch, "behind", of_the_batch_alone),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_rule_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTANTS[name])
    for seed in range(SEEDS):
        try:
            Model(seed).run()
        except AssertionError:
            return
    pytest.fail(f"nobody noticed: {name}")


def test_what_is_long_is_put_as_a_whole_and_what_is_short_may_come_behind_it() -> None:
    model = Model(1, (0, 0, 0, 0, PAST_CACHE_BYTES, 0), commit_bytes=4 << 20)
    for count in (2, 2, 1, 1, 1):
        model.send(count, 1000)
    assert [(each.first, each.end) for each in model.contents.queues[QUEUE]] == [(0, 4), (4, 7)]
    assert (len(model.store.puts), model.store.appends) == (4, 6)


def test_a_store_that_cannot_append_is_never_asked_to() -> None:
    model = Model(1)
    model.objects.appends = False
    for _ in range(5):
        model.send(2, 1000)
    assert [(each.first, each.end) for each in model.contents.queues[QUEUE]] == [(n, n + 2) for n in range(0, 10, 2)]


class OneReadOnly(FaultyObjects):
    """What is there may not be written to, and what is new may."""

    async def append(self, name: str, at: int, content: Sequence[Bytes]) -> None:
        raise Refused(f"this process may not write to {name}")


def test_what_a_single_object_refuses_goes_to_another_one_and_nobody_waits() -> None:
    model = Model(1)
    model.send(2, 1000)
    model.objects.__class__ = OneReadOnly
    model.send(2, 1000)
    assert [(each.first, each.end) for each in model.contents.queues[QUEUE]] == [(0, 2), (2, 4)]
    assert model.troubles == []


def test_a_store_that_takes_nothing_at_all_is_told_of_and_tried_later() -> None:
    model = Model(1)
    model.send(2, 1000)
    model.objects.is_refusing = True
    model.send(2, 5000)
    assert model.troubles
    assert set(model.troubles) == {"the bucket is full"}
    model.objects.is_refusing = False
    model.send(0, 60_000)
    assert model.end == model.sent


def test_nothing_is_appended_to_what_an_earlier_life_put() -> None:
    model = Model(1)
    model.send(2, 1000)
    model.uploader.stop()
    model.uploader = Uploader(
        model.pending, Source(model, PlainKeys()), model.objects, model, model.uploader._loop, Live(SETTINGS)
    )
    model.send(2, 2000)
    model.send(2, 2000)
    assert [(each.first, each.end) for each in model.contents.queues[QUEUE]] == [(0, 2), (2, 6)]


# ---- whole brokers


class Story:
    """One that sends, and lets much happen beside that: the same for any store."""

    def __init__(self, *, appends: bool, archive: bool = False, segment_bytes: int = 64 << 10) -> None:
        settings = replace(SETTINGS, segment_bytes=segment_bytes, archive=archive)
        self.broker = TieredBroker(settings, appends=appends)
        self.turns, self.tiers, self.store = self.broker.turns, self.broker.core.tiers, self.broker.core.store
        self.epoch = 1
        self.sent = 0

    def send(self, count: int, topic: str = "T") -> None:
        for _ in range(count):
            self.sent += 1
            body = b"%d " % self.sent + b"x" * (self.sent * 37 % 600)
            draft = Draft(topic, self.sent % 2, body, b"KEYS\x01k\x02", self.turns.wall_ms(), HOST)
            self.broker.core.record_log.append_messages([draft])
        self.turns.run()

    def switch(self) -> None:
        self.broker.replica.become(Role.REPLICA)
        self.turns.run(1000)
        self.epoch += 1
        self.broker.replica.become(Role.MASTER, self.epoch)
        self.turns.run(1000)

    def delete_topic(self) -> None:
        self.broker.core.metadata.delete_topic("U", lambda _: None)
        self.turns.run(100)
        self.broker.put_topic("U")

    def tell(self, seed: int) -> None:
        rng = random.Random(seed)
        self.broker.put_topic("U")
        for _ in range(150):
            match rng.randrange(12):
                case 0:
                    self.broker.objects.slow_s = rng.choice([0.01, 0.01, 20.0])
                case 1:
                    self.turns.run(rng.choice([SETTLED_MS, 2 * MINUTE_MS]))
                case 2:
                    self.broker.remove_files()
                case 3:
                    self.switch()
                case 4 if rng.random() < 0.3:
                    self.delete_topic()
                case _:
                    self.send(rng.randint(1, 6), rng.choice(["T", "T", "U"]))
                    self.turns.run(rng.choice([10, 1500, 5000]))
        self.broker.objects.slow_s = 0.01
        self.turns.run(30 * MINUTE_MS)
        self.broker.remove_files()

    def read_all(self, topic: str, queue_id: int) -> list[tuple[int, bytes]]:
        offset, found = self.store.min_offset(topic, queue_id), list[tuple[int, bytes]]()
        while offset < self.store.max_offset(topic, queue_id):
            result = self.store.read_messages(topic, queue_id, offset, 32, 1 << 20)
            if result.status is GetStatus.BEING_FETCHED:
                self.turns.run(100)
                continue
            found += [(record.queue_offset, record.body) for record in map(decode_record, result.records)]
            offset = result.next_offset
        return found

    def check_names(self) -> None:
        """What the contents name is there."""
        for queue, segments in self.tiers.table.contents.queues.items():
            for segment in segments:
                for name in segment.names(*queue):
                    assert name in self.broker.objects.stored.objects


@pytest.mark.parametrize("archive", [False, True])
def test_readers_see_the_same_from_a_store_that_appends(archive: bool, caplog: pytest.LogCaptureFixture) -> None:
    fewer = grew = 0
    for seed in range(6):
        segment_bytes = 64 << (20 if archive else 10)
        appending, putting = (
            Story(appends=appends, archive=archive, segment_bytes=segment_bytes) for appends in (True, False)
        )
        for story in (appending, putting):
            story.tell(seed)
            story.check_names()
        for queue in (("T", 0), ("T", 1), ("U", 0), ("U", 1)):
            found = appending.read_all(*queue)
            assert found == putting.read_all(*queue)
            assert [offset for offset, _ in found] == list(range(len(found)))
        puts = [len(story.broker.objects.stored.puts) for story in (appending, putting)]
        fewer += puts[0] < puts[1]
        grew += appending.broker.objects.stored.appends
    assert fewer == 6
    assert grew > 100
    assert "is left out" not in caplog.text


def story_with_one_segment() -> Story:
    """Of each queue, which may grow."""
    story = Story(appends=True, segment_bytes=1 << 20)
    for _ in range(4):
        story.send(2)
        story.turns.run(2000)
    assert len(story.tiers.range_of("T", 0)) == 1
    return story


def beside_a_merge(seed: int) -> int:
    """A segment and one that may grow are about to be merged into one, while something is uploaded to a slow store. How many
    merges there were."""
    rng, story = random.Random(seed), story_with_one_segment()
    story.send(90)
    story.turns.run(5000)
    story.switch()
    story.send(60)
    story.turns.run(5000 + SETTLED_MS)
    story.broker.objects.slow_s = 40.0
    upkeep = story.tiers.upkeep
    assert upkeep is not None
    upkeep.grown(QUEUE)
    for _ in range(4):
        story.turns.run(rng.randrange(120_000))
        story.send(2)
    story.broker.objects.slow_s = 0.01
    story.turns.run(20 * MINUTE_MS)
    story.check_names()
    story.broker.remove_files()
    assert [offset for offset, _ in story.read_all("T", 0)] == list(range(story.sent // 2))
    return upkeep.merges


def test_what_grows_is_not_merged_and_what_is_merged_does_not_grow(caplog: pytest.LogCaptureFixture) -> None:
    assert sum(beside_a_merge(seed) for seed in range(20)) > 5
    assert "is left out" not in caplog.text


WITHOUT: dict[str, tuple[Any, str, Any]] = {
    "what grows is merged": (TierService, "is_growing", lambda _self, _queue: False),
    "what is merged grows": (Upkeep, "lets_grow", lambda _self, _queue, _last, _first_ms: True),
}


@pytest.mark.parametrize("name", WITHOUT)
def test_a_merge_beside_an_append_would_be_told(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(*WITHOUT[name])
    with pytest.raises(AssertionError):
        test_what_grows_is_not_merged_and_what_is_merged_does_not_grow(caplog)


@pytest.mark.parametrize("slow_s", [0.01, 30.0, 90.0])
def test_what_grows_does_not_expire(slow_s: float, caplog: pytest.LogCaptureFixture) -> None:
    story = story_with_one_segment()
    story.broker.put_topic("T", tier_reserve_time="1")
    story.turns.run(HOUR_MS - MINUTE_MS)
    story.broker.objects.slow_s = slow_s
    for _ in range(8):
        story.send(2)
        story.turns.run(25_000)
    story.broker.objects.slow_s = 0.01
    story.turns.run(20 * MINUTE_MS)
    story.check_names()
    story.broker.remove_files()
    for queue_id in (0, 1):
        found = [offset for offset, _ in story.read_all("T", queue_id)]
        assert found[-8:] == list(range(story.sent // 2 - 8, story.sent // 2))
    assert "is left out" not in caplog.text


def test_a_topic_of_the_same_name_begins_a_segment_of_its_own() -> None:
    story = Story(appends=True)
    story.broker.put_topic("U")
    for _ in range(2):
        story.send(4, "U")
        story.turns.run(3000)
    before = story.tiers.range_of("U", 0).last
    story.delete_topic()
    story.send(4, "U")
    story.turns.run(3000)
    after = story.tiers.range_of("U", 0).last
    assert (before.first, before.end, after.first, after.end) == (0, 4, 0, 2)
    assert set(before.names("U", 0)).isdisjoint(after.names("U", 0))


def test_what_grows_is_counted_as_messages_and_as_one_segment() -> None:
    story = story_with_one_segment()
    assert (story.tiers.uploaded_segments, story.tiers.uploaded_messages) == (2, 8)
    assert story.tiers.objects is not None
    requests = story.tiers.objects.requests
    assert requests["append"].count == 2 * 2 * 3
    assert requests["append"].bytes > 6 * (ENTRY_BYTES + 100)

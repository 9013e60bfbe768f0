"""A bucket that is lost and made again empty, or from which some objects went: it is said, and what files have goes up again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from brokerd.replication.roles.effects import Role
from brokerd.store.queues.queue_reads import GetStatus
from brokerd.tiers.losses import LOOK_S
from remoting.facts.words import TierCondition
from remoting.record.codec import decode_record
from remoting.tier.contents import Queue
from tests.support.tiered_broker import SETTINGS, TieredBroker

QUEUE = ("T", 0)
MINUTE_MS = 60_000
LOOK_MS = int(LOOK_S * 1000) + 2000
LOST_AFTER_MS = 10 * MINUTE_MS
GIVEN_UP_MS = LOST_AFTER_MS + 2 * MINUTE_MS
SENT = 200


class Story:
    """Of a broker that has old messages in the tier only, and newer ones in both."""

    def __init__(self, lost_after_ms: int = LOST_AFTER_MS) -> None:
        self.broker = TieredBroker(replace(SETTINGS, lost_after_ms=lost_after_ms))
        self.turns = self.broker.turns
        self.objects = self.broker.objects.stored.objects
        for number in range(SENT // 20):
            self.broker.send(20)
            self.turns.run(3000)
            if number == SENT // 40:
                self.broker.remove_files()
        self.tiers, self.store = self.broker.core.tiers, self.broker.core.store
        self.local = self.store.local_min_offset(*QUEUE)
        assert 0 < self.local < SENT - 40, "some are in files"
        assert self.tiers.segments_of(Queue(*QUEUE)).end == SENT, "all are in the tier"

    def empty(self) -> None:
        self.objects.clear()

    def remove(self, which: Callable[[str], bool]) -> int:
        names = [name for name in self.objects if which(name)]
        for name in names:
            del self.objects[name]
        return len(names)

    def in_tier(self) -> set[int]:
        """Offsets whose objects are there."""
        found: set[int] = set()
        for segment in self.tiers.segments_of(Queue(*QUEUE)):
            assert all(name in self.objects for name in segment.names(*QUEUE))
            found |= set(range(segment.first, segment.end))
        return found

    def read_all(self) -> list[int]:
        offset, found = self.store.min_offset(*QUEUE), list[int]()
        while offset < self.store.max_offset(*QUEUE):
            result = self.store.read_messages(*QUEUE, offset, 32, 1 << 20)
            if result.status is GetStatus.BEING_FETCHED:
                self.turns.run(100)
                continue
            found += [decode_record(record).queue_offset for record in result.records]
            assert result.next_offset > offset
            offset = result.next_offset
        return found


@pytest.mark.parametrize("is_switch", [False, True])
def test_an_emptied_bucket_is_said_and_what_files_have_goes_up_again(is_switch: bool) -> None:
    story = Story()
    story.empty()
    if is_switch:
        story.broker.replica.become(Role.REPLICA)
        story.turns.run(1000)
        story.broker.replica.become(Role.MASTER, 7)
    story.turns.run(LOOK_MS)
    assert story.tiers.condition is TierCondition.OPENING
    assert f"does not have what was put there: {SENT} messages" in story.tiers.trouble
    assert "Put them back from a copy, or correct tiers.url" in story.tiers.trouble
    story.broker.send(20)
    story.broker.remove_files()
    assert story.store.local_min_offset(*QUEUE) == story.local, "all files are kept"
    story.turns.run(GIVEN_UP_MS)
    assert (story.tiers.condition, story.tiers.trouble) == (TierCondition.OPEN, "")
    assert story.in_tier() == set(range(story.local, SENT + 20))
    assert story.store.min_offset(*QUEUE) == story.local
    story.broker.remove_files()
    assert story.store.local_min_offset(*QUEUE) > story.local, "files go again"
    assert story.read_all() == list(range(story.local, SENT + 20))


def test_what_is_put_back_meanwhile_is_not_given_up() -> None:
    story = Story()
    before = dict(story.objects)
    story.empty()
    story.turns.run(LOOK_MS)
    assert story.tiers.trouble
    story.objects.update(before)
    story.turns.run(2 * MINUTE_MS)
    assert (story.tiers.condition, story.tiers.trouble) == (TierCondition.OPEN, "")
    story.broker.send(20)
    story.turns.run(3000)
    assert story.in_tier() == set(range(SENT + 20))
    assert story.read_all() == list(range(SENT + 20))


def test_what_went_up_after_the_loss_is_there_once_and_in_order() -> None:
    story = Story(lost_after_ms=0)
    story.empty()
    story.broker.send(20)
    story.turns.run(3000)
    assert story.tiers.is_open, "nobody noticed yet"
    story.turns.run(GIVEN_UP_MS)
    assert story.tiers.is_open
    assert story.in_tier() == set(range(story.local, SENT + 20))
    assert story.read_all() == list(range(story.local, SENT + 20))


def test_one_segment_that_is_missing_costs_no_other_that_files_do_not_have() -> None:
    story = Story(lost_after_ms=0)
    segments = list(story.tiers.segments_of(Queue(*QUEUE)))
    assert segments[2].end <= story.local
    gone = segments[0]
    assert story.remove(lambda name: name in gone.names(*QUEUE)) == 2
    story.turns.run(GIVEN_UP_MS)
    assert (story.tiers.condition, story.tiers.trouble) == (TierCondition.OPEN, "")
    assert story.in_tier() == set(range(gone.end, SENT))
    assert story.store.min_offset(*QUEUE) == gone.end
    assert story.read_all() == list(range(gone.end, SENT))


def test_the_next_master_goes_on_with_what_was_uploaded_again() -> None:
    story = Story(lost_after_ms=0)
    story.empty()
    story.turns.run(GIVEN_UP_MS)
    story.broker.replica.become(Role.REPLICA)
    story.turns.run(1000)
    story.broker.replica.become(Role.MASTER, 9)
    story.turns.run(1000)
    assert story.tiers.is_open
    story.broker.send(20)
    story.turns.run(3000)
    assert story.in_tier() == set(range(story.local, SENT + 20))


def test_a_store_that_does_not_answer_is_no_loss() -> None:
    story = Story(lost_after_ms=0)
    story.broker.objects.is_down = True
    story.turns.run(GIVEN_UP_MS)
    story.broker.objects.is_down = False
    story.turns.run(2 * MINUTE_MS)
    assert story.in_tier() == set(range(SENT))


def test_a_listing_that_is_late_is_no_loss() -> None:
    story = Story(lost_after_ms=0)
    story.broker.objects.unlisted.update(story.objects)
    story.broker.replica.become(Role.REPLICA)
    story.turns.run(1000)
    story.broker.replica.become(Role.MASTER, 7)
    story.turns.run(GIVEN_UP_MS)
    assert story.in_tier() == set(range(SENT))


def test_the_time_begins_anew_while_objects_come_back_or_the_store_is_away() -> None:
    story = Story()
    before = dict(story.objects)
    story.empty()
    story.turns.run(LOOK_MS)
    story.turns.run(LOST_AFTER_MS - 3 * MINUTE_MS)
    some = list(before)[: len(before) // 2]
    story.objects.update({name: before[name] for name in some})
    story.turns.run(6 * MINUTE_MS)
    assert story.tiers.condition is TierCondition.OPENING, "somebody puts them back"
    story.broker.objects.is_down = True
    story.turns.run(GIVEN_UP_MS)
    story.broker.objects.is_down = False
    story.turns.run(6 * MINUTE_MS)
    assert "does not have what was put there" in story.tiers.trouble
    story.objects.update(before)
    story.turns.run(2 * MINUTE_MS)
    assert (story.tiers.condition, story.in_tier()) == (TierCondition.OPEN, set(range(SENT)))


def test_a_store_that_has_an_earlier_state_is_not_written_over() -> None:
    story = Story()
    before = dict(story.objects)
    story.broker.send(20)
    story.turns.run(3000)
    assert story.in_tier() == set(range(SENT + 20))
    story.objects.clear()
    story.objects.update(before)
    story.broker.replica.become(Role.REPLICA)
    story.turns.run(1000)
    story.broker.replica.become(Role.MASTER, 7)
    story.turns.run(LOOK_MS)
    assert story.tiers.condition is TierCondition.OPENING
    assert "does not have what was put there" in story.tiers.trouble
    assert dict(story.objects) == before, "neither the manifest that is there is removed, nor anything written"
    story.turns.run(GIVEN_UP_MS)
    assert (story.tiers.condition, story.in_tier()) == (TierCondition.OPEN, set(range(SENT + 20)))

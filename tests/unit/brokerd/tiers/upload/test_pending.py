"""What waits for its upload: who is due when, in order, whatever comes meanwhile."""

from __future__ import annotations

import random

from brokerd.tiers.upload.pending import Pending, Waiting, many_of
from remoting.tier.contents import Queue
from remoting.tier.segments import QueueSegments, Segment

INTERVAL_MS = 1000
QUEUES = [Queue("T", number) for number in range(5)]


def test_it_is_as_a_slow_look_at_all_of_it_says() -> None:
    rng = random.Random(3)
    pending, wanted, taken = Pending(), dict[Queue, Waiting](), set[Queue]()
    many = dict[Queue, int]()
    dues = 0
    for now_ms in range(20_000):
        queue = rng.choice(QUEUES)
        match rng.choice(["grow", "grow", "grow", "put", "take", "give back", "remove", "clear"]):
            case "grow" if queue in wanted:
                waiting = wanted[queue]
                before = waiting.end - waiting.first >= many[queue]
                wanted[queue] = waiting._replace(end=max(waiting.end, waiting.end + rng.randint(-2, 3)))
                is_full = wanted[queue].end - waiting.first >= many[queue]
                told = pending.grown(tuple(queue), wanted[queue].end)
                assert told == (is_full and not before and queue not in taken)
            case "put":
                first = rng.randrange(100)
                waiting = Waiting(first, first + rng.randint(1, 20), rng.randrange(10_000), now_ms)
                wanted.pop(queue, None)
                wanted[queue] = waiting
                many[queue] = rng.randint(1, 10)
                pending.put(queue, waiting, many[queue])
            case "take":
                found = pending.take(now_ms, INTERVAL_MS, rng.randint(1, 5))
                assert all(isinstance(each, Queue) and each not in taken for each in found)
                for each in found:
                    waiting = wanted[each]
                    assert waiting.end - waiting.first >= many[each] or waiting.since_ms <= now_ms - INTERVAL_MS
                taken.update(found)
                dues += len(found)
            case "give back":
                pending.give_back(queue)
                taken.discard(queue)
            case "remove":
                pending.remove(queue)
                wanted.pop(queue, None)
            case "clear" if rng.random() < 0.05:
                pending.clear()
                wanted.clear()
                taken.clear()
        assert list(pending.queues()) == list(wanted)
        assert [pending.of(each) for each in wanted] == list(wanted.values())
        assert pending.messages == sum(each.end - each.first for each in wanted.values())
        assert pending.held_offset() == min((each.position for each in wanted.values()), default=None)
        assert pending.oldest_ms == min((each.since_ms for each in wanted.values()), default=None)
        assert all((each in pending) == (each in wanted) for each in QUEUES)
    assert dues > 500


def _segment(messages: int, message_bytes: int) -> Segment:
    return Segment(0, messages, 0, message_bytes, message_bytes, 1, 1, message_bytes, 1, 1, 0, 0)


def test_as_many_are_many_as_fill_a_batch() -> None:
    batch_bytes = 1 << 20
    assert many_of(QueueSegments([_segment(1000, 1_000_000)]), batch_bytes) == 1048
    assert many_of(QueueSegments([_segment(1, 300_000)]), batch_bytes) == 3
    assert many_of(QueueSegments([_segment(1, 3_000_000)]), batch_bytes) == 1, "it is a batch of its own"
    assert many_of(QueueSegments([_segment(1000, 1), _segment(1000, 1_000_000)]), batch_bytes) == 1048, (
        "the last counts"
    )


def test_small_messages_wait_for_no_more_than_so_many_others() -> None:
    fewest = many_of(QueueSegments([_segment(100_000, 100_000)]), 1 << 30)
    assert fewest == many_of(QueueSegments([_segment(100_000, 200_000)]), 1 << 30)
    assert 0 < many_of(QueueSegments(), 1 << 30) <= fewest

"""How much is in the tier: counted as it changes, and the same as what one would count."""

from __future__ import annotations

import random

from remoting.tier.contents import Change, Holdings, Queue, TierContents, committed, cut, dropped, expired, merged
from remoting.tier.segments import Segment

QUEUES = [Queue("orders", 0), Queue("orders", 1), Queue("t" * 127, 0)]


def segment(first: int, end: int, base: int, size: int, number: int) -> Segment:
    return Segment(first, end, base, size, size, 1, 2, 1000, 3, number, 0, 0)


def a_change(rng: random.Random, contents: TierContents, number: int) -> Change:
    queue = rng.choice(QUEUES)
    segments = contents.queues.get(queue)
    end, base = (segments.end, segments.message_end) if segments is not None else (0, 0)
    kind = rng.choice(["commit"] * 4 + ["expire", "cut", "drop", "merge"])
    if kind == "merge" and segments is not None and len(segments) > 1:
        low, high = sorted(rng.sample(range(len(segments)), 2))
        part = list(segments)[low : high + 1]
        size = sum(each.message_bytes for each in part)
        return merged(queue, segment(part[0].first, part[-1].end, part[0].base, size, number))
    if kind == "expire" and end:
        return expired(queue, rng.randint(0, end))
    if kind == "cut" and end:
        return cut(queue, rng.randint(0, end))
    if kind == "drop":
        return dropped(queue.topic)
    first = end + rng.choice([0, 0, 5])
    return committed(queue, segment(first, first + rng.randint(1, 9), base, rng.randint(1, 500), number))


def test_the_running_totals_are_what_one_would_count() -> None:
    rng = random.Random(5)
    for _ in range(50):
        contents = TierContents()
        for number in range(60):
            contents.apply(a_change(rng, contents, number))
            rows = [each for segments in contents.queues.values() for each in segments]
            spans = [segments.end - segments.first for segments in contents.queues.values()]
            messages = sum(each.messages for each in rows)
            size = sum(each.stored_bytes + 20 * each.messages for each in rows)
            assert contents.holdings == Holdings(len(rows), messages, size, sum(spans) - messages)
            assert contents.copy().holdings == contents.holdings

"""How much is in the tier: counted as it changes, and the same as what one would count."""

from __future__ import annotations

import random
from typing import Any

import pytest

from remoting.tier.contents import (
    Change,
    Holdings,
    Queue,
    TierContents,
    committed,
    cut,
    dropped,
    expired,
    grown,
    merged,
)
from remoting.tier.segments import Segment

QUEUES = [Queue("orders", 0), Queue("orders", 1), Queue("t" * 127, 0)]


def segment(first: int, end: int, base: int, size: int, number: int) -> Segment:
    return Segment(first, end, base, size, size, 1, 2, 1000, 3, number, 0, 0)


def longer(last: Segment, messages: int, size: int) -> Segment:
    return last._replace(
        end=last.end + messages,
        message_bytes=last.message_bytes + size,
        stored_bytes=last.stored_bytes + size,
        log_end=last.log_end + size,
        crc=last.crc + 1,
    )


def a_change(rng: random.Random, contents: TierContents, number: int) -> Change:
    queue = rng.choice(QUEUES)
    segments = contents.queues.get(queue)
    end, base = (segments.end, segments.message_end) if segments is not None else (0, 0)
    kind = rng.choice(["commit"] * 4 + ["grow"] * 2 + ["expire", "cut", "drop", "merge"])
    if kind == "grow" and segments is not None and len(segments):
        return grown(queue, longer(segments.last, rng.randint(1, 9), rng.randint(1, 500)))
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


def test_what_grows_is_the_same_segment_and_who_has_a_copy_keeps_what_it_was() -> None:
    contents, last = TierContents(), segment(10, 20, 1000, 100, 7)
    contents.apply(committed(QUEUES[0], segment(0, 10, 0, 1000, 6)))
    contents.apply(committed(QUEUES[0], last))
    copy = contents.copy()
    assert contents.apply(grown(QUEUES[0], longer(last, 5, 60))) == [], "its objects are still there"
    assert [(each.first, each.end) for each in contents.queues[QUEUES[0]]] == [(0, 10), (10, 25)]
    assert contents.queues[QUEUES[0]].last.names(*QUEUES[0]) == last.names(*QUEUES[0])
    assert copy.queues[QUEUES[0]].last == last
    contents.apply(committed(QUEUES[0], segment(25, 30, 1160, 50, 8)))
    assert last.is_part_of(longer(last, 5, 60))
    assert not longer(last, 5, 60).is_part_of(last)


@pytest.mark.parametrize(
    "wrong",
    [
        {"first": 11},
        {"base": 1001},
        {"epoch": 4},
        {"number": 8},
        {"form": 1},
        {"first_ms": 0},
        {"last_ms": 1},
        {"log_end": 1000},
        {"end": 20},
        {"message_bytes": 100, "stored_bytes": 100},
        {"stored_bytes": 161},
    ],
    ids=str,
)
def test_what_is_not_the_same_and_longer_did_not_grow(wrong: dict[str, Any]) -> None:
    contents, last = TierContents(), segment(10, 20, 1000, 100, 7)
    contents.apply(committed(QUEUES[0], last))
    rows = list(contents.rows())
    with pytest.raises(ValueError, match="did not grow"):
        contents.apply(grown(QUEUES[0], longer(last, 5, 60)._replace(**wrong)))
    with pytest.raises(ValueError, match="did not grow"):
        contents.apply(grown(QUEUES[1], longer(last, 5, 60)))
    assert list(contents.rows()) == rows

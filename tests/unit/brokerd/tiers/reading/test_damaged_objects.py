"""Objects that are not what was put there, cut at any length or with other bytes: a reader gets what was sent, or is told."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from brokerd.store.queues.queue_reads import GetStatus
from brokerd.tiers.upkeep import SETTLED_MS
from remoting.errors import RequestError
from remoting.record.codec import decode_record
from remoting.tier.contents import Queue
from remoting.tier.segments import Form, Segment
from tests.support.tiered_broker import SETTINGS, TieredBroker

QUEUE = Queue("T", 0)
MOST_CUTS = 700


def cold_broker(form: Form) -> TieredBroker:
    """One whose queue is in the tier only; its first segment is of that form."""
    broker = TieredBroker(replace(SETTINGS, segment_bytes=64 << 10, archive=form is Form.BLOCKS))
    for _ in range(8 if form is Form.BLOCKS else 1):
        broker.send(3)
        broker.turns.run(2000)
    broker.turns.run(SETTLED_MS + 300_000)
    broker.send(150, topic="T", queue_id=1)
    broker.turns.run(5000)
    broker.remove_files()
    assert first_segment(broker).form is form
    return broker


def first_segment(broker: TieredBroker) -> Segment:
    return next(iter(broker.core.tiers.segments_of(QUEUE)))


def read(broker: TieredBroker) -> list[tuple[int, int]] | None:
    """The offsets and lengths of what the first answer gives; None when it is told that it cannot be had."""
    assert broker.core.tiers.cold is not None
    broker.core.tiers.cold.cache.forget(None)
    for _ in range(50):
        try:
            result = broker.core.store.read_messages(*QUEUE, 0, 32, 1 << 20)
        except RequestError:
            broker.turns.run(2000)  # so long an error is kept
            return None
        if result.status is not GetStatus.BEING_FETCHED:
            assert result.status is GetStatus.FOUND
            return [(each.queue_offset, len(each.body)) for each in map(decode_record, result.records)]
        broker.turns.run(100)
    raise AssertionError("it is fetched for ever")


def damaged(content: bytes, rng: random.Random) -> Iterator[bytes]:
    """Shorter ones, and others of the same length."""
    lengths = range(len(content))
    yield from (
        content[:length] for length in (lengths if len(content) < MOST_CUTS else rng.sample(lengths, MOST_CUTS))
    )
    for _ in range(300):
        at, length = rng.randrange(len(content)), rng.choice([1, 2, 4, 20])
        yield (
            content[:at] + rng.choice([rng.randbytes(length), bytes(length), b"\xff" * length]) + content[at + length :]
        )


@pytest.mark.parametrize("form", Form)
def test_a_reader_gets_what_was_sent_or_is_told(form: Form) -> None:
    broker, rng = cold_broker(form), random.Random(3)
    whole = read(broker)
    assert whole is not None
    assert whole[:3] == [(0, 300), (1, 300), (2, 300)]
    objects = broker.objects.stored.objects
    told = 0
    for name in first_segment(broker).names(*QUEUE):
        content = objects[name]
        for other in damaged(content, rng):
            objects[name] = other
            found = read(broker)
            assert found is None or found == whole[: len(found)]
            told += found is None
        objects[name] = content
        assert read(broker) == whole, "it is there again"
    assert told > 500
    broker.turns.run(5000)
    broker.core.close()

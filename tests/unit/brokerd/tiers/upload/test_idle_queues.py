"""Segments of a queue to which nothing comes any more are merged like others."""

from __future__ import annotations

from dataclasses import replace

from brokerd.tiers.upkeep import SETTLED_MS
from brokerd.tiers.upload.merging import FAN
from remoting.tier.contents import Queue
from tests.support.tiered_broker import SETTINGS, TieredBroker

QUEUE = Queue("T", 0)
MINUTE_MS = 60_000


def test_a_queue_that_falls_idle_is_merged_when_its_last_message_is_ten_minutes_old() -> None:
    broker = TieredBroker(replace(SETTINGS, segment_bytes=64 << 10))
    tiers = broker.core.tiers
    for _ in range(2 * FAN):
        broker.send(2)
        broker.turns.run(2000)
    assert len(tiers.segments_of(QUEUE)) == 2 * FAN
    broker.turns.run(SETTLED_MS - 5 * MINUTE_MS)
    assert len(tiers.segments_of(QUEUE)) == 2 * FAN, "they are not settled"
    broker.turns.run(60 * MINUTE_MS)  # one merge of a queue in a minute
    assert len(tiers.segments_of(QUEUE)) < FAN
    upkeep = tiers.upkeep
    assert upkeep is not None
    merges = upkeep.merges
    broker.turns.run(30 * MINUTE_MS)
    assert (upkeep.merges, upkeep._settle_ms) == (merges, {}), "nobody looks at it over and over"

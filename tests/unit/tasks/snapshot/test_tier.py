"""What brokers tell of the tier: in the verdict, per topic, and what of a lag comes from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from remoting.facts.broker_state import BrokerState, ConsumedQueueState
from remoting.facts.snapshot import ClusterSnapshot
from remoting.facts.tier_state import TieredQueueState, TierState
from remoting.facts.words import Health, TierCondition
from tasks.snapshot.build import build
from tasks.snapshot.inputs import Memory
from tests.unit.tasks.snapshot.cluster import NOW_MS, billing, look, state, topic

TIER = TierState(url="s3://bucket/prefix", condition=TierCondition.OPEN)


def seen(master: BrokerState) -> ClusterSnapshot:
    return build(look(states={1: master, 2: state(2), 3: state(3)}), Memory())[0]


def test_a_tier_that_works_is_no_reason() -> None:
    snapshot = seen(state(1, "master", tier=TIER))
    assert snapshot.verdict.status is Health.HEALTHY
    assert snapshot.groups[0].tier == TIER
    assert seen(state(1, "master")).groups[0].tier is None


def test_trouble_is_a_reason_with_its_beginning_and_its_sentence() -> None:
    sentence = "there is no such bucket: create it, or name another one in tiers.url"
    (reason,) = seen(state(1, "master", tier=replace(TIER, trouble=sentence, trouble_since_ms=NOW_MS))).verdict.reasons
    assert (reason.code, reason.severity) == ("tier-trouble", "warning")
    assert reason.text == f"broker-a uploads nothing to its tier since 14:13:20 UTC, and goes on otherwise: {sentence}"


def test_what_went_before_it_was_uploaded_is_a_reason() -> None:
    (reason,) = seen(state(1, "master", tier=replace(TIER, gone_log_bytes=3 << 20))).verdict.reasons
    assert reason.code == "tier-gap"
    assert "removed 3.0 MiB of its log before the tier had them" in reason.text


def tiered(local: int, end: int, *, offset: int | None, low: int = 0, high: int = 100) -> ClusterSnapshot:
    told = topic("orders", high, min_offset=low)
    where = TieredQueueState(local_min_offset=local, end_offset=end, bytes=5000, missing=3)
    policy: dict[str, Any] = {"tier_reserved_hours": 72, "tier_archived": True, "tier_exported": True}
    told = replace(told, tiered=True, **policy, queues=(replace(told.queues[0], tier=where),))
    consumed = billing(ConsumedQueueState(queue_id=0, consumer_offset=offset, in_flight=0))
    return seen(state(1, "master", topics=(told,), groups=(consumed,), tier=TIER))


def test_a_topic_tells_what_of_it_is_where() -> None:
    (found,) = tiered(60, 90, offset=0).topics
    assert (found.tiered, found.tier_reserved_hours, found.tier_bytes, found.missing_messages) == (True, 72, 5000, 3)
    assert (found.tier_archived, found.tier_exported) == (True, True)
    assert found.queues[0].tier is not None
    assert found.queues[0].tier.local_min_offset == 60
    assert found.queues[0].count == 100
    (plain,) = seen(state(1, "master")).topics
    assert (plain.tiered, plain.tier_bytes, plain.missing_messages) == (None, 0, 0)


@pytest.mark.parametrize(
    ("given", "cold"),
    [
        ({"offset": 10}, 50),
        ({"offset": 60}, 0),
        ({"offset": 99}, 0),
        ({"offset": 10, "low": 40}, 20),
        ({"offset": 10, "local": 100, "end": 100}, 90),
        ({"offset": 10, "local": 0}, 0),
        ({"offset": None}, 0),
    ],
)
def test_what_of_a_lag_comes_from_the_tier(given: dict[str, Any], cold: int) -> None:
    (group,) = tiered(**{"local": 60, "end": 90, **given}).consumer_groups
    assert group.topics[0].cold == cold


def test_without_a_tier_nothing_comes_from_it() -> None:
    (group,) = seen(state(1, "master")).consumer_groups
    assert [queue.cold for queue in group.topics[0].queues] == [0, 0]

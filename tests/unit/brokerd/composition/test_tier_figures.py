"""What is told of the tier: waiting, uploaded, gone, in trouble, per queue."""

from __future__ import annotations

import pytest

from brokerd.composition.tier_figures import tier_families, tier_state, tiered_queues
from brokerd.replication.roles.effects import Role
from remoting.facts.tier_state import TieredQueueState, TierState
from remoting.facts.words import TierCondition
from remoting.tier.names import manifest_name
from tests.support.alone import AloneBroker
from tests.support.tiered_broker import HOST, STORE, TieredBroker
from tests.unit.brokerd.composition.test_core import Broker


def state_of(broker: TieredBroker) -> TierState:
    found = tier_state(broker.core.tiers, broker.core.store)
    assert found is not None
    return found


def queue_of(broker: TieredBroker, queue_id: int = 0) -> TieredQueueState | None:
    look = tiered_queues(broker.core.tiers, broker.core.store)
    assert look is not None
    return look("T", queue_id)


def test_without_a_tier_nothing_is_told() -> None:
    core = Broker().core
    assert tier_state(core.tiers, core.store) is None
    assert tiered_queues(core.tiers, core.store) is None
    assert tier_families(core.tiers, core.store) == []


def test_messages_wait_and_then_are_in_the_tier() -> None:
    broker = TieredBroker()
    broker.send(3)
    broker.turns.run(500)
    waiting = state_of(broker)
    assert (waiting.condition, waiting.trouble) == (TierCondition.OPEN, None)
    assert (waiting.waiting_messages, waiting.oldest_waiting_ms, waiting.messages) == (3, 500, 0)
    assert waiting.waiting_log_bytes > 900
    assert queue_of(broker) is None
    broker.turns.run(5000)
    done = state_of(broker)
    assert (done.waiting_messages, done.waiting_log_bytes, done.oldest_waiting_ms) == (0, 0, 0)
    assert (done.segments, done.messages, done.uploaded_segments, done.uploaded_messages) == (1, 3, 1, 3)
    (segment,) = broker.core.tiers.range_of("T", 0)
    assert done.bytes == segment.object_bytes == segment.message_bytes + 60
    assert done.uploaded_bytes > done.bytes  # and manifests
    assert queue_of(broker) == TieredQueueState(local_min_offset=0, end_offset=3, bytes=done.bytes)


def test_trouble_is_told_with_its_beginning_and_its_end() -> None:
    broker = TieredBroker()
    broker.objects.is_refusing = True
    broker.send(2)
    broker.turns.run(10_000)
    troubled = state_of(broker)
    assert troubled.condition is TierCondition.OPEN
    assert troubled.trouble == "the bucket is full"
    assert troubled.trouble_since_ms is not None
    age_ms = broker.turns.wall_ms() - troubled.trouble_since_ms
    assert 5000 < age_ms < 10_000
    assert troubled.failed_requests > 1
    assert troubled.waiting_messages == 2
    broker.objects.is_refusing = False
    broker.turns.run(100_000)
    well = state_of(broker)
    assert (well.trouble, well.trouble_since_ms, well.waiting_messages) == (None, None, 0)


def test_who_is_no_master_has_no_trouble_and_does_not_wait() -> None:
    broker = TieredBroker()
    broker.objects.is_refusing = True
    broker.send(2)
    broker.turns.run(10_000)
    broker.replica.become(Role.REPLICA, 2)
    broker.turns.run(100_000)
    state = state_of(broker)
    assert (state.condition, state.trouble) == (TierCondition.FOLLOWING, None)
    told = {family.name for family in tier_families(broker.core.tiers, broker.core.store)}
    assert "logboom_tier_segments" in told
    assert "logboom_tier_waiting_messages" not in told


def test_a_later_master_is_the_trouble_that_stays() -> None:
    broker = TieredBroker()
    name = manifest_name(9, 0)
    broker.objects.stored.objects[name], broker.objects.stored.times[name] = b"another's", 0
    broker.replica.become(Role.REPLICA, 2)
    broker.replica.become(Role.MASTER, 3)
    broker.turns.run(100_000)
    state = state_of(broker)
    assert state.condition is TierCondition.FENCED
    assert state.trouble is not None
    assert "Give tiers.url another prefix" in state.trouble


def test_what_went_before_it_was_uploaded_is_told_as_soon_as_it_goes() -> None:
    broker = TieredBroker()
    broker.send(10)
    broker.turns.run(5000)
    broker.objects.is_down = True
    broker.send(120)
    broker.remove_files(needs_room=True)
    gone = state_of(broker)
    assert 0 < gone.gone_log_bytes < gone.waiting_log_bytes
    assert gone.missing_messages == 0
    queue = queue_of(broker)
    assert queue is not None
    assert queue.missing == queue.local_min_offset - 10 > 0
    broker.objects.is_down = False
    broker.core.store.set_full(False)
    broker.turns.run(200_000)
    after = state_of(broker)
    assert after.gone_log_bytes == 0
    # a batch that was on its way when its file went came there later
    missing = 130 - after.messages
    assert 0 < missing <= queue.missing
    assert after.missing_messages == missing
    assert queue_of(broker) == TieredQueueState(
        local_min_offset=queue.local_min_offset, end_offset=130, bytes=after.bytes, missing=missing
    )


def test_cold_reads_are_counted() -> None:
    broker = TieredBroker()
    broker.send(100)
    broker.turns.run(20_000)
    broker.remove_files()
    assert broker.core.store.local_min_offset("T", 0) > 4
    for _ in range(2):
        broker.core.store.read_messages("T", 0, 0, 4, 100_000)
        broker.turns.run(1000)
    state = state_of(broker)
    assert (state.cache_misses, state.cache_hits, state.downloaded_messages) == (1, 1, 4)
    assert 0 < state.cache_bytes < state.cache_limit_bytes
    assert state.downloaded_bytes > 1200


def test_who_is_served_from_files_or_sends_counts_beside_the_line_and_cold_reads_do_not() -> None:
    broker = TieredBroker()
    broker.send(100)
    broker.turns.run(20_000)
    broker.remove_files()
    line, counters = broker.core.cold_line, broker.core.counters
    assert line is not None
    assert not line.is_beside_others

    def read(queue_offset: int) -> None:
        found = broker.core.store.read_messages("T", 0, queue_offset, 4, 100_000)
        counters.pulled(("g", "T", 0), len(found.records), 100, 0.1)

    for _ in range(3):
        line.enter("cold", lambda: read(0))
        broker.turns.run(1000)
    assert (counters.out_messages, line.is_beside_others) == (8, False)
    assert line.turns == 3
    read(broker.core.store.local_min_offset("T", 0))
    assert line.is_beside_others
    line.stand("cold", lambda: read(0))
    broker.turns.run(5)
    assert line.turns == 3
    read(broker.core.store.local_min_offset("T", 0))
    broker.turns.run(1)
    assert line.turns == 4, "behind what was served"
    assert line.is_beside_others
    broker.turns.run(200)
    assert not line.is_beside_others
    counters.in_messages += 1
    assert line.is_beside_others
    broker.turns.run(200)
    assert not line.is_beside_others


def test_brokers_that_were_started_without_their_tier_say_what_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    broker = TieredBroker()
    broker.send(3)
    broker.turns.run(5000)
    broker.core.close()
    broker.core.store.close()
    again = AloneBroker(broker.disk, broker.turns, STORE, HOST)
    broker.turns.run()
    again.replica.become(Role.MASTER, 2)
    broker.turns.run(1000)
    assert "has 3 messages in a tier, which cannot be read" in caplog.text

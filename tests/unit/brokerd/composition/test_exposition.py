"""A broker's metrics: readable by Prometheus, complete, and the ones that the page lists."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from brokerd.composition.exposition import Exposition, Sources
from brokerd.composition.tier_figures import tier_families
from brokerd.metadata.start_offsets import InitMode
from brokerd.placement.handovers import Handover
from brokerd.pop.requests import PopOutcome, PopRequest, PopStatus
from brokerd.pop.survey import PopSurvey
from brokerd.proxy.client_figures import (
    BOUNDS_MS,
    CACHED_BYTES,
    CACHED_MESSAGES,
    SEND,
    SPAN_SEND,
    Buckets,
    ClientFigures,
    Labels,
    Running,
)
from brokerd.proxy.figures import GrpcFigures
from brokerd.replication.facts import ReplicaFacts
from brokerd.store.log.retention import RetentionDecision
from brokerd.store.put_status import PutStatus
from remoting.disk import DiskUsage
from remoting.exposition import Histogram
from remoting.facts.broker_state import DamageState, ScrubState
from remoting.facts.lag import Lag, TopicLag
from remoting.guarding.guard import AccessSettings, Guard
from remoting.record.properties import encode_properties
from remoting.transport.watch import UnfinishedSettings, Watch
from tests.support.tiered_broker import TieredBroker
from tests.unit.brokerd.composition.test_core import Broker
from tests.unit.brokerd.replication.group import Group
from tests.unit.brokerd.store.stores import draft

PAGE = (Path(__file__).resolve().parents[4] / "docs/METRICS.md").read_text()
LONG = "g" * 90
LAGS = [TopicLag(LONG, "orders", Lag(7, True)), TopicLag(LONG, "refunds", Lag(None, True))]
SCRUB = ScrubState(
    checked_offset=70,
    rounds=2,
    found=3,
    repaired=1,
    units_repaired=4,
    index_repaired=5,
    unrepaired=(DamageState(start_offset=10, end_offset=40), DamageState(start_offset=50, end_offset=60)),
)
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def grpc_figures(now_ms: int) -> GrpcFigures:
    """Of every metric that clients have, one."""
    clients = ClientFigures(now_ms)
    for metric, bounds_ms in BOUNDS_MS.items():
        counts = [0, 2, *[0] * (len(bounds_ms) - 1)]
        running = Running(Buckets(bounds_ms, counts, 6.0), None)
        group = "" if metric in (SEND, SPAN_SEND) else "g"
        clients.histogram("c1", Labels(metric, "orders", group, "JAVA", "success"), running, now_ms)
    for metric, value in ((CACHED_MESSAGES, 5), (CACHED_BYTES, 500)):
        for client in ("c1", "c2"):
            clients.gauge(client, Labels(metric, "orders", "g", "PYTHON"), value, now_ms)
    clients.refuse(3)
    calls = {"SendMessage": {"OK": 7, "TOPIC_NOT_FOUND": 1}, "Telemetry": {}}
    return GrpcFigures(calls, 4, 2, 1, 5, clients)


def scrape(broker: Broker, state: ReplicaFacts) -> Samples:
    flushes = Histogram((0.001, 0.01))
    flushes.observe(0.005)
    guard = Guard(AccessSettings(), "c", (), lambda: 0)
    usage = DiskUsage(total_bytes=100, free_bytes=40)
    sources = Sources(
        broker.core,
        lambda: state,
        flushes,
        lambda: 3,
        lambda: 2,
        lambda: usage,
        lambda: LAGS,
        lambda: grpc_figures(broker.turns.wall_ms()),
        PopSurvey(broker.core.pop.ledger, broker.core.pop.gate, broker.turns, broker.turns.wall_ms),
        broker.turns.wall_ms,
        lambda: SCRUB,
        guard,
        unfinished=Watch(UnfinishedSettings()).families,
    )
    text = Exposition("c", "broker-a", sources).render().decode()
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation, family.name
        for sample in family.samples:
            labels = dict(sample.labels)
            assert (labels.pop("cluster"), labels.pop("broker")) == ("c", "broker-a")
            assert labels.pop("broker_id")
            key = sample.name, tuple(sorted(labels.items()))
            assert key not in found, f"twice: {key}"
            found[key] = sample.value
    return found


def take_one(broker: Broker) -> None:
    """A group takes the only message, now."""
    broker.send(0)
    outcomes: list[PopOutcome] = []
    broker.core.pop.pop(PopRequest("group", "T", -1, 32, 10_000, 0, init_mode=InitMode.MIN), outcomes.append)
    broker.turns.run()
    assert [outcome.status for outcome in outcomes] == [PopStatus.FOUND]


def a_master_that_misses_one() -> ReplicaFacts:
    group = Group(3)
    group.elect(1)
    group.append(group[1])
    group.settle(5)
    group.crash(group[3])
    group[1].driver.accepted(99, group.now_ms, host="203.0.113.9")
    group[1].driver.received(99, b"an ack, believe me", group.now_ms)
    group.settle(30)
    return group[1].state()


def a_replica() -> ReplicaFacts:
    group = Group(2)
    group.elect(1)
    return group[2].state()


def names(samples: Samples) -> set[str]:
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name, _ in samples}


def test_the_page_lists_what_a_scrape_gives_and_nothing_else() -> None:
    broker = Broker()
    take_one(broker)
    given = names(scrape(broker, replace(a_master_that_misses_one(), weaknesses=["ack_after=append: memory"])))
    given |= names(scrape(broker, a_replica()))
    tiered = TieredBroker().core
    given |= {family.name for family in tier_families(tiered.tiers, tiered.store)}
    given |= {"logboom_sends_unacknowledged_total", "logboom_schedule_late_seconds"}  # absent until there is one
    brokers_part = PAGE.partition("## Brokers")[2].partition("\n## ")[0]
    listed = set(re.findall(r"^\| `(\w+)`", brokers_part, re.MULTILINE))
    assert given == listed


def test_a_master_tells_of_its_quorum_and_who_is_missing() -> None:
    samples = scrape(Broker(), a_master_that_misses_one())
    assert samples["logboom_replication_role", (("role", "master"),)] == 1
    assert samples["logboom_replication_role", (("role", "replica"),)] == 0
    assert samples["logboom_replication_copies", ()] == 2
    assert samples["logboom_replication_wanted_copies", ()] == 3
    assert samples["logboom_replication_downgraded", ()] == 1
    assert samples["logboom_replication_refused_total", (("peer", "203.0.113.9"),)] == 1
    (missing,) = [key for key in samples if key[0] == "logboom_replication_missing_seconds"]
    assert dict(missing[1]) == {"member": "3", "reason": "it is not connected", "stalls": "false"}
    assert samples[missing] > 0.5
    gap = samples["logboom_replication_ack_gap_bytes", (("learner", "false"), ("member", "2"))]
    assert gap == 0
    assert samples["logboom_flush_duration_seconds_bucket", (("le", "0.01"),)] == 1
    assert samples["logboom_flush_duration_seconds_sum", ()] == 0.005


def test_a_replica_has_no_quorum_instead_of_an_empty_one() -> None:
    samples = scrape(Broker(), a_replica())
    assert samples["logboom_replication_following", ()] == 1
    assert not [name for name in names(samples) if "copies" in name and name != "logboom_replication_copies_total"]


def test_traffic_and_refusals_are_counted_by_reason() -> None:
    broker = Broker()
    broker.send(0)
    outcomes: list[Any] = []
    broker.core.sender.send([draft(topic="nothing")], outcomes.extend)
    broker.replica.is_master = False
    broker.core.sender.send([draft(topic="T"), draft(topic="T")], outcomes.extend)
    assert [outcome.status for outcome in outcomes][-1] is PutStatus.SERVICE_NOT_AVAILABLE
    state = replace(a_replica(), unacknowledged={"FLUSH_SLAVE_TIMEOUT": 4})
    samples = scrape(broker, state)
    assert samples["logboom_messages_in_total", ()] == 1
    assert samples["logboom_sends_refused_total", (("reason", "rule"),)] == 1
    assert samples["logboom_sends_refused_total", (("reason", "not_master"),)] == 2
    assert samples["logboom_sends_refused_total", (("reason", "too_few_replicas"),)] == 0
    assert samples["logboom_sends_unacknowledged_total", (("status", "FLUSH_SLAVE_TIMEOUT"),)] == 4
    assert samples["logboom_log_end_offset_bytes", ()] == broker.core.store.commitlog.end_offset > 0
    assert samples["logboom_store_disk_free_bytes", ()] == 40


def test_a_clock_that_retention_does_not_believe_is_told() -> None:
    broker = Broker()
    assert scrape(broker, a_replica())["logboom_retention_in_doubt", ()] == 0
    broker.core.store.apply_retention(RetentionDecision(0, False), doubt="it is earlier")
    assert scrape(broker, a_replica())["logboom_retention_in_doubt", ()] == 1


def test_delayed_messages_are_counted_by_level() -> None:
    broker = Broker()
    for level in (1, 2, 2):
        message = draft(topic="T")._replace(properties=encode_properties({"UNIQ_KEY": "U", "DELAY": str(level)}))
        broker.core.sender.send([message], lambda _: None)
    broker.turns.run(1100)
    samples = scrape(broker, a_replica())
    waiting = {key[1][0][1]: value for key, value in samples.items() if key[0] == "logboom_schedule_waiting"}
    assert {level: count for level, count in waiting.items() if count} == {"2": 2}
    assert len(waiting) == 18
    late = {key[1][0][1]: value for key, value in samples.items() if key[0] == "logboom_schedule_late_seconds"}
    assert list(late) == ["1"]
    assert 0 <= late["1"] <= 0.002
    assert samples["logboom_schedule_delivered_total", ()] == 1
    assert samples["logboom_retry_dead_lettered_total", ()] == 0


def test_a_master_tells_the_lag_of_each_group_and_when_a_part_is_missing() -> None:
    samples = scrape(Broker(), a_master_that_misses_one())
    orders, refunds = ((("group", LONG), ("topic", name)) for name in ("orders", "refunds"))
    assert samples["logboom_consumer_lag_messages", orders] == 7
    assert samples["logboom_consumer_lag_at_least", orders] == 1
    assert ("logboom_consumer_lag_messages", refunds) not in samples
    assert samples["logboom_consumer_lag_at_least", refunds] == 1
    assert not [name for name in names(scrape(Broker(), a_replica())) if "consumer_lag" in name]


def test_calls_over_grpc_are_counted_by_method_and_code() -> None:
    samples = scrape(Broker(), a_replica())
    assert samples["logboom_grpc_calls_total", (("code", "OK"), ("method", "SendMessage"))] == 7
    assert samples["logboom_grpc_calls_total", (("code", "TOPIC_NOT_FOUND"), ("method", "SendMessage"))] == 1
    assert samples["logboom_grpc_connections", ()] == 4
    assert samples["logboom_grpc_telemetry_streams", ()] == 2
    assert samples["logboom_grpc_pulls_held", ()] == 1
    assert samples["logboom_grpc_sends_held", ()] == 5


def test_what_clients_measured_is_told_by_topic_group_and_language() -> None:
    samples = scrape(Broker(), a_replica())
    sends = (("language", "JAVA"), ("status", "success"), ("topic", "orders"))
    assert samples["logboom_client_send_seconds_count", sends] == 2
    assert samples["logboom_client_send_seconds_sum", sends] == 0.006
    assert samples["logboom_client_send_seconds_bucket", (("language", "JAVA"), ("le", "0.001"), *sends[1:])] == 0
    assert samples["logboom_client_send_seconds_bucket", (("language", "JAVA"), ("le", "0.005"), *sends[1:])] == 2
    consumer = (("group", "g"), ("language", "PYTHON"), ("topic", "orders"))
    assert samples["logboom_client_cached_messages", consumer] == 10
    assert samples["logboom_client_cached_bytes", consumer] == 1000
    assert samples["logboom_client_figures_refused_total", ()] == 3


def test_a_master_tells_what_each_group_holds() -> None:
    broker = Broker()
    take_one(broker)
    broker.turns.run(4000)
    master = a_master_that_misses_one()
    samples = scrape(broker, master)
    assert samples["logboom_pop_group_in_flight", (("group", "group"),)] == 1
    assert samples["logboom_pop_group_oldest_seconds", (("group", "group"),)] == 4.0
    assert samples["logboom_pop_group_blocked_queues", (("group", "group"),)] == 0
    assert samples["logboom_pop_group_waiting_message_groups", (("group", "group"),)] == 0
    assert samples["logboom_pop_oldest_seconds", ()] == 4.0
    assert samples["logboom_pop_revive_lag_seconds", ()] == 0
    assert not [name for name in names(scrape(broker, a_replica())) if "pop_group" in name]


def test_a_master_tells_who_waits_at_a_gate_and_for_how_long() -> None:
    broker = Broker()
    broker.send(0)
    master = a_master_that_misses_one()
    samples = scrape(broker, master)
    assert (samples["logboom_pop_gated_groups", ()], samples["logboom_pop_gated_oldest_seconds", ()]) == (0, 0)
    broker.core.placements.handovers.add(Handover("T", 1, {0: 1}, {0: 0}, ("broker-z",)))
    pop = PopRequest("group", "T", -1, 32, 10_000, broker.turns.monotonic_ms() + 60_000, fifo=True)
    broker.core.pop.pop(pop, lambda _: None)
    broker.turns.run(3000)
    samples = scrape(broker, master)
    assert (samples["logboom_pop_gated_groups", ()], samples["logboom_pop_gated_oldest_seconds", ()]) == (1, 3.0)
    assert samples["logboom_pop_group_blocked_queues", (("group", "group"),)] == 1
    assert not [name for name in names(scrape(broker, a_replica())) if "gated" in name]

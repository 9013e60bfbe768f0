"""Tiers with real brokers, which keep next to nothing in their own files: everybody reads on as if they had it all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.errors import RequestError
from remoting.tier.names import Kind
from tests.support.cluster import Cluster, eventually
from tests.support.cold_reading import (
    FILLER,
    SHORT_LIVES,
    Read,
    by_bulk,
    by_grpc,
    by_pull,
    by_remoting_pop,
    make_cold,
    make_topic,
    send_batch,
    send_grpc,
)

pytestmark = pytest.mark.slow

QUEUES = 2
MESSAGES = 150  # of each queue
BODY_BYTES = 2000


class Tiered:
    """The cluster, and the directory that is its tier."""

    def __init__(self, root: Path) -> None:
        self.tier = root / "tier"
        self.cluster = Cluster(
            root / "cluster", controllers=1, broker_settings=[f"tiers.url=file://{self.tier}", *SHORT_LIVES]
        )

    def objects_of(self, topic: str) -> list[Path]:
        """What is in the tier for it."""
        return [path for path in self.tier.glob(f"*/broker-a/{topic}/*/*/*") if path.is_file()]


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiered]:
    tiered = Tiered(tmp_path_factory.mktemp("tiers"))
    with tiered.cluster as cluster:
        cluster.start()
        make_topic(cluster, FILLER, attributes="+message.type=NORMAL,+tier.enable=false")
        yield tiered


@pytest.fixture
def cluster(tiered: Tiered) -> Cluster:
    tiered.cluster.make_whole()
    return tiered.cluster


def bodies(queue_id: int, first: int, count: int = MESSAGES) -> list[bytes]:
    return [f"{queue_id}-{number} ".encode().ljust(BODY_BYTES, b".") for number in range(first, first + count)]


def sent(cluster: Cluster, topic: str, first: int = 0) -> list[Read]:
    """More messages in all queues of the topic; what a reader has to find."""
    expected = []
    for queue_id in range(QUEUES):
        assert send_batch(cluster, topic, queue_id, bodies(queue_id, first)) == first
        expected += [(queue_id, first + number, body) for number, body in enumerate(bodies(queue_id, first))]
    return expected


def cache_misses(cluster: Cluster, address: str) -> int:
    """How often somebody had to wait for the tier."""
    tier = cluster.admin.broker_state(address).tier
    assert tier is not None
    return tier.cache_misses


def test_everybody_reads_what_is_in_the_tier_only(cluster: Cluster) -> None:
    make_topic(cluster, "Remoting", QUEUES)
    make_topic(cluster, "Grpc", QUEUES)
    expected = sent(cluster, "Remoting")
    send_grpc(cluster, "Grpc", [body for _, _, body in expected[:100]])
    make_cold(cluster)
    assert sorted(by_bulk(cluster, "Remoting")) == sorted(expected)
    assert by_pull(cluster, "Remoting", QUEUES) == expected
    assert sorted(by_remoting_pop(cluster, "Remoting", "poppers", len(expected))) == sorted(expected)
    assert sorted(by_grpc(cluster, "Remoting", "receivers", len(expected))) == sorted(expected)
    of_grpc = by_pull(cluster, "Grpc", QUEUES)
    assert sorted(body for _, _, body in of_grpc) == sorted(body for _, _, body in expected[:100])
    assert sorted(by_grpc(cluster, "Grpc", "receivers", 100)) == sorted(of_grpc)


def test_keys_ids_and_times_are_found_in_the_tier(cluster: Cluster) -> None:
    make_topic(cluster, "Found", QUEUES)
    admin = cluster.admin
    for number in range(20):
        admin.send("Found", f"body {number}".encode(), keys=f"all key{number}")
    make_cold(cluster)
    admin.send("Found", b"in a file", keys="all late")
    (found,) = admin.find("Found", "key7")
    assert found.record.body == b"body 7"
    by_id = admin.find("Found", found.record.property_map()["UNIQ_KEY"])
    assert [each.record.body for each in by_id] == [b"body 7"]
    assert len(admin.find("Found", "all")) == 21, "in both"
    assert admin.find("Found", "none") == []
    record = found.record
    at = admin.search_offset("Found", "broker-a", record.queue_id, record.store_timestamp_ms)
    assert at == record.queue_offset
    admin.create_group("Late")
    fields = {"group": "Late", "topic": "Found", "timestamp": str(record.store_timestamp_ms), "isForce": "true"}
    fields |= {"queueId": str(record.queue_id)}
    with SocketConnection(cluster.broker_addresses[cluster.master()], identity=cluster.identity) as master:
        master.call(codes.INVOKE_BROKER_TO_RESET_OFFSET, fields, timeout_ms=10_000)
        asked = {"consumerGroup": "Late", "topic": "Found", "queueId": str(record.queue_id)}
        reset_to = master.call(codes.QUERY_CONSUMER_OFFSET, asked).ext["offset"]
    assert int(reset_to) == record.queue_offset, "a reset by time looks in the tier"


def test_a_master_that_is_killed_takes_nothing_with_it(cluster: Cluster) -> None:
    make_topic(cluster, "Killed", QUEUES)
    expected = sent(cluster, "Killed")
    make_cold(cluster)
    expected += sent(cluster, "Killed", MESSAGES)
    old = cluster.master()
    cluster.brokers[old].kill()
    eventually("another master", lambda: cluster.master() != old)
    assert sorted(by_pull(cluster, "Killed", QUEUES)) == sorted(expected), "from the tier, and then from files"
    expected += sent(cluster, "Killed", 2 * MESSAGES)
    cluster.make_whole()  # files wait for a replica that will copy them
    make_cold(cluster)
    assert sorted(by_pull(cluster, "Killed", QUEUES)) == sorted(expected)
    assert sorted(by_bulk(cluster, "Killed")) == sorted(expected)


def test_who_waits_for_the_tier_when_the_broker_stops_is_answered(cluster: Cluster, tiered: Tiered) -> None:
    make_topic(cluster, "Stops", QUEUES)
    sent(cluster, "Stops")
    make_cold(cluster)
    hanging = [path for path in tiered.objects_of("Stops") if path.parent.name == Kind.ENTRIES.value]
    for path in hanging:
        path.rename(path.with_name("aside"))
        os.mkfifo(path)  # whoever opens it waits for somebody who writes
    address = cluster.broker_addresses[cluster.master()]
    missed = cache_misses(cluster, address)
    wanted = {"consumerGroup": "TOOLS_CONSUMER", "topic": "Stops", "queueOffset": "0", "maxMsgNums": "32"}
    pull = {"sysFlag": "4", "subscription": "*", "commitOffset": "0", "subVersion": "0", "suspendTimeoutMillis": "0"}
    with (
        SocketConnection(address, identity=cluster.identity) as bulk,
        SocketConnection(address, identity=cluster.identity) as pulls,
    ):
        bulk.ask(codes.BULK_READ, wanted | {"queueId": "0", "maxMsgBytes": "100000"})
        pulls.ask(codes.PULL_MESSAGE, wanted | pull | {"queueId": "1"})
        eventually("both wait", lambda: cache_misses(cluster, address) == missed + 2)
        assert cluster.brokers[cluster.master()].terminate() == 0
        with pytest.raises(RequestError) as told:
            bulk.answer()
        assert told.value.code == codes.SYSTEM_BUSY
        assert pulls.answer(accept=(codes.PULL_RETRY_IMMEDIATELY,)).ext["nextBeginOffset"] == "0"
    for path in hanging:
        path.with_name("aside").rename(path)


def test_a_topic_that_was_deleted_is_not_there_again(cluster: Cluster) -> None:
    make_topic(cluster, "Again", QUEUES)
    sent(cluster, "Again")
    make_cold(cluster)
    cluster.admin.delete_topic("Again")
    make_topic(cluster, "Again", QUEUES)
    assert by_pull(cluster, "Again", QUEUES) == []
    expected = [(0, number, body) for number, body in enumerate(bodies(7, 0))]
    assert send_batch(cluster, "Again", 0, bodies(7, 0)) == 0
    make_cold(cluster)
    assert by_pull(cluster, "Again", QUEUES) == expected
    assert by_bulk(cluster, "Again") == expected


def test_a_topic_that_shall_not_be_kept_is_not(cluster: Cluster, tiered: Tiered) -> None:
    make_topic(cluster, "Here", QUEUES, attributes="+message.type=NORMAL,+tier.enable=false")
    make_topic(cluster, "There", QUEUES)
    sent(cluster, "Here")
    expected = sent(cluster, "There")
    make_cold(cluster)
    assert by_pull(cluster, "There", QUEUES) == expected
    assert tiered.objects_of("There")
    assert not tiered.objects_of("Here")
    assert not tiered.objects_of(FILLER)
    ranges = {(each.min_offset, each.max_offset) for each in cluster.admin.queue_offsets("Here")}
    assert ranges == {(MESSAGES, MESSAGES)}, "what expired is gone"


def test_a_topic_is_kept_from_its_first_message_in_files_on(cluster: Cluster, tiered: Tiered) -> None:
    make_topic(cluster, "Later", QUEUES, attributes="+message.type=NORMAL,+tier.enable=false")
    expected = sent(cluster, "Later")
    assert not tiered.objects_of("Later")
    make_topic(cluster, "Later", QUEUES, attributes="+message.type=NORMAL,+tier.enable=true")
    make_cold(cluster)
    assert by_pull(cluster, "Later", QUEUES) == expected
    assert sorted(by_grpc(cluster, "Later", "late", len(expected))) == sorted(expected)


def test_a_dead_store_stops_no_sends(cluster: Cluster, tiered: Tiered) -> None:
    make_topic(cluster, "Dead", QUEUES)
    expected = sent(cluster, "Dead")
    make_cold(cluster)
    away = tiered.tier.with_name("away")
    tiered.tier.rename(away)
    tiered.tier.touch()
    try:
        expected += sent(cluster, "Dead", MESSAGES)
        master = cluster.brokers[cluster.master()]
        eventually("it says why", lambda: "something else is in its place" in master.log_text())
        expected += sent(cluster, "Dead", 2 * MESSAGES)
    finally:
        tiered.tier.unlink()
        away.rename(tiered.tier)
    make_cold(cluster)
    assert sorted(by_pull(cluster, "Dead", QUEUES)) == sorted(expected)
    assert sorted(by_bulk(cluster, "Dead")) == sorted(expected)

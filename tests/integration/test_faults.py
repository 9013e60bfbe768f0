"""Real processes on loopback, killed and frozen under load: nothing acknowledged is lost, nothing is invented.

Each test counts the faults it injected and the sends that succeeded meanwhile, so that it cannot pass without having done both.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from remoting.client.blocking import AdminClient
from tests.support.cluster import Cluster, eventually
from tests.support.documents import document
from tests.support.workload import Producer, check_queue, read_queue

pytestmark = pytest.mark.slow

BROKER_SETTINGS = ["store.segment_size_bytes=8388608"]  # small files: rolls and fillers happen under every fault
QUEUES = 4


def start_producers(cluster: Cluster, topic: str, count: int = 4) -> list[Producer]:
    producers = [Producer(cluster.controller_addresses, topic, f"p{n}", n) for n in range(count)]
    for producer in producers:
        producer.start()
    for producer in producers:
        producer.wait_for(20)
    return producers


def check_everything(cluster: Cluster, topic: str, producers: list[Producer]) -> int:
    """Stop the load, wait until the group is whole, and hold every queue against the histories; returns the acknowledged."""
    histories = [producer.stop() for producer in producers]
    cluster.wait_in_sync(len(cluster.brokers))
    for queue_id, history in enumerate(histories):
        check_queue(read_queue(cluster.admin, topic, queue_id), [history])
    check_replicas_are_equal(cluster)
    return sum(len(history.acknowledged) for history in histories)


def check_replicas_are_equal(cluster: Cluster) -> None:
    """Every replica's log is byte for byte the master's, up to the shorter one, and so is the list of epochs."""
    states = [document(cluster.admin.broker_state(address)) for address in cluster.broker_addresses]
    shortest = min(state["endOffset"] for state in states)
    assert shortest > 0
    logs = [_log_bytes(cluster.data / f"b{n}" / "commitlog", shortest) for n in range(len(states))]
    assert all(log == logs[0] for log in logs), "the replicas' logs differ"
    epochs = [[each for each in state["epochs"] if each["startOffset"] < shortest] for state in states]
    assert all(each == epochs[0] for each in epochs), f"the replicas' epochs differ: {epochs}"


def _log_bytes(directory: Path, length: int) -> bytes:
    content = bytearray()
    for file in sorted(directory.iterdir()):
        content += file.read_bytes()
    return bytes(content[:length])


def test_killing_the_master_loses_nothing(cluster: Cluster, topic: str) -> None:
    producers = start_producers(cluster, topic)
    masters = []
    for _ in range(3):
        master = cluster.master()
        masters.append(master)
        cluster.brokers[master].kill()
        for producer in producers:
            producer.wait_for(50)
        cluster.brokers[master].start()
        cluster.wait_in_sync(3)
        assert cluster.master() != master
    assert len(masters) == 3
    assert check_everything(cluster, topic, producers) > 600
    assert max(producer.history.longest_gap_s for producer in producers) < 5


def test_killing_each_process_in_turn_loses_nothing(cluster: Cluster, topic: str) -> None:
    producers = start_producers(cluster, topic)
    starts = [process.starts for process in cluster.processes]
    for process in cluster.processes:
        process.kill()
        for producer in producers:
            producer.wait_for(30)
        process.start()
        cluster.leader()
        cluster.wait_in_sync(3)
    assert [process.starts for process in cluster.processes] == [before + 1 for before in starts]
    assert check_everything(cluster, topic, producers) > 700


def test_killing_everything_at_once_loses_nothing(cluster: Cluster, topic: str) -> None:
    producers = start_producers(cluster, topic)
    starts = [process.starts for process in cluster.processes]
    for _ in range(2):
        for process in cluster.processes:
            process.kill()
        for process in cluster.processes:
            process.start()
        for producer in producers:
            producer.wait_for(50)
    assert [process.starts for process in cluster.processes] == [before + 2 for before in starts]
    assert check_everything(cluster, topic, producers) > 400


def test_a_frozen_master_is_replaced_and_acknowledges_nothing_after(cluster: Cluster, topic: str) -> None:
    producers = start_producers(cluster, topic)
    master = cluster.master()
    cluster.brokers[master].freeze()
    eventually("another master", lambda: cluster.master() != master or None)
    for producer in producers:
        producer.wait_for(30)
    cluster.brokers[master].thaw()
    cluster.wait_in_sync(3)
    assert cluster.master() != master
    assert check_everything(cluster, topic, producers) > 200


def test_a_dead_replica_stops_sends_only_for_a_moment(cluster: Cluster, topic: str) -> None:
    producers = start_producers(cluster, topic)
    replica = (cluster.master() + 1) % 3
    cluster.brokers[replica].kill()
    for producer in producers:
        producer.wait_for(100)
    assert len(cluster.wait_in_sync(2)["syncStateSet"]) == 2
    cluster.brokers[replica].start()
    assert check_everything(cluster, topic, producers) > 400
    assert max(producer.history.longest_gap_s for producer in producers) < 5


def test_without_controllers_sends_and_reads_go_on(cluster: Cluster, topic: str) -> None:
    address = cluster.broker_addresses[cluster.master()]
    producers = start_producers(cluster, topic)
    for process in cluster.controllers:
        process.kill()
    for producer in producers:
        producer.wait_for(200)
    states = document(AdminClient([]).broker_state(address))
    assert states["role"] == "master"
    stopped_at = time.monotonic()
    assert sum(not process.is_running for process in cluster.controllers) == 3
    for producer in producers:
        producer.wait_for(50)
    for process in cluster.controllers:
        process.start()
    cluster.leader()
    assert time.monotonic() > stopped_at
    assert cluster.broker_addresses[cluster.master()] == address, "the return of the controllers changed the master"
    assert check_everything(cluster, topic, producers) > 1000
    assert all(not producer.history.unknown and not producer.history.refused for producer in producers)


def test_an_elected_replica_takes_over_and_nothing_is_lost(cluster: Cluster, topic: str) -> None:
    producers = start_producers(cluster, topic)
    group = cluster.wait_in_sync(3)
    before = group["masterBrokerId"]
    chosen = next(each for each in group["syncStateSet"] if each != before)
    elected = cluster.admin.elect_master("DefaultCluster", "broker-a", chosen)
    assert int(elected["masterBrokerId"]) == chosen
    assert int(elected["masterEpoch"]) == group["masterEpoch"] + 1
    for producer in producers:
        producer.wait_for(50)
    assert cluster.wait_in_sync(3)["masterBrokerId"] == chosen
    assert check_everything(cluster, topic, producers) > 200

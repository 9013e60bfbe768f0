"""A real disk without a free byte under the master: another broker leads, and the full one copies again when it has room."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.test_faults import start_producers
from tests.support.cluster import Cluster, eventually
from tests.support.documents import document
from tests.support.small_disk import small_disk
from tests.support.workload import call_until, check_queue, read_queue

pytestmark = pytest.mark.slow

TOPIC = "Orders"
DISK_BYTES = 32 << 20
SETTINGS = ["store.segment_size_bytes=65536", "store.index_enabled=false"]
ROOMY = ["retention.refuse_percent=99", "retention.force_percent=99"]
LIMIT_S = 12


WEAK = ["replication.all_ack_in_sync_state_set=false", "replication.in_sync_replicas=1"]


@pytest.fixture(params=[[], WEAK], ids=["all", "weak"])
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The first broker has a small disk of its own. Also where the master acknowledges alone: it hands over whole."""
    with (
        small_disk(tmp_path / "b0", f"size={DISK_BYTES}"),
        Cluster(tmp_path, controllers=1, broker_settings=[*SETTINGS, *ROOMY, *request.param]) as cluster,
    ):
        cluster.start()
        call_until(lambda: cluster.admin.create_topic(TOPIC, queues=4))
        eventually("the topic's route", lambda: bool(cluster.admin.queue_offsets(TOPIC)))
        yield cluster


def broker_id(cluster: Cluster, number: int) -> int:
    return int(document(cluster.admin.broker_state(cluster.broker_addresses[number]))["brokerId"])


def lead(cluster: Cluster, number: int) -> None:
    if cluster.master() != number:
        cluster.admin.elect_master("DefaultCluster", "broker-a", broker_id(cluster, number))
    eventually(f"broker {number} leads", lambda: cluster.master() == number)
    cluster.wait_in_sync(3)


def test_a_master_without_a_free_byte_gives_way_by_itself(cluster: Cluster, tmp_path: Path) -> None:
    lead(cluster, 0)
    producers = start_producers(cluster, TOPIC)
    for producer in producers:
        producer.wait_for(20)
    ballast = tmp_path / "b0" / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        assert file.write(bytes(2 * DISK_BYTES)) < DISK_BYTES
    filled_s = time.monotonic()
    eventually("another master", lambda: cluster.master() != 0)
    for producer in producers:
        producer.wait_for(100)
    assert time.monotonic() - filled_s < LIMIT_S + 5
    assert cluster.brokers[0].is_running, cluster.brokers[0].log_text()
    assert "takes no message" in cluster.controllers[0].log_text()
    assert "handing over to broker" in cluster.brokers[0].log_text()
    ballast.unlink()
    cluster.wait_in_sync(3)
    histories = [producer.stop() for producer in producers]
    for queue_id, history in enumerate(histories):
        check_queue(read_queue(cluster.admin, TOPIC, queue_id), [history])
    assert sum(len(history.acknowledged) for history in histories) > 400
    assert max(history.longest_gap_s for history in histories) < LIMIT_S
    assert [broker.starts for broker in cluster.brokers] == [1, 1, 1]

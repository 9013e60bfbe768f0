"""The master's disk takes writes and ends no sync, while its process goes on speaking: another one leads before it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import diskfault
from tests.chaos.plan import DiskRule
from tests.integration.test_faults import start_producers
from tests.integration.test_full_disk import lead
from tests.support.cluster import Cluster, eventually
from tests.support.documents import document
from tests.support.workload import call_until, check_queue, read_queue

SHIMS_MISSING = diskfault.why_not()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(SHIMS_MISSING is not None, reason=str(SHIMS_MISSING)),
]

TOPIC = "Orders"
STANDS = DiskRule("/", ("sync",), stands=True)


@pytest.fixture
def disks(tmp_path: Path) -> list[diskfault.DiskFault]:
    return [diskfault.DiskFault(tmp_path, f"b{n}") for n in range(3)]


@pytest.fixture
def cluster(tmp_path: Path, disks: list[diskfault.DiskFault]) -> Iterator[Cluster]:
    environments = {n: disk.environment for n, disk in enumerate(disks)}
    with Cluster(tmp_path, controllers=1, broker_environments=environments) as cluster:
        cluster.start()
        call_until(lambda: cluster.admin.create_topic(TOPIC, queues=4))
        eventually("the topic's route", lambda: bool(cluster.admin.queue_offsets(TOPIC)))
        yield cluster
        for disk in disks:
            disk.obey()


def state(cluster: Cluster, number: int) -> dict[str, Any]:
    return document(cluster.admin.broker_state(cluster.broker_addresses[number]))


def trouble(cluster: Cluster, number: int) -> str:
    return str(state(cluster, number).get("lastError") or "")


def test_a_master_whose_disk_ends_no_sync_gives_way(cluster: Cluster, disks: list[diskfault.DiskFault]) -> None:
    lead(cluster, 0)
    producers = start_producers(cluster, TOPIC)
    for producer in producers:
        producer.wait_for(20)
    disks[0].fail(STANDS)
    eventually("another master", lambda: cluster.master() != 0)
    for producer in producers:
        producer.wait_for(100)
    eventually("it steps down without its disk, and answers", lambda: state(cluster, 0)["role"] == "fenced")
    assert "its disk stands still" in trouble(cluster, 0)
    assert "the disk stands still" in cluster.brokers[0].log_text()
    assert "stands still, that of broker" in cluster.controllers[0].log_text()
    assert disks[0].hits > 0
    group = cluster.group()
    assert group is not None
    assert len(group["syncStateSet"]) == 2, "nobody waits for it"
    disks[0].obey()
    cluster.wait_in_sync(3)
    eventually("it says no more that its disk stands", lambda: not trouble(cluster, 0))
    histories = [producer.stop() for producer in producers]
    for queue_id, history in enumerate(histories):
        check_queue(read_queue(cluster.admin, TOPIC, queue_id), [history])
    assert sum(len(history.acknowledged) for history in histories) > 400
    assert [broker.starts for broker in cluster.brokers] == [1, 1, 1]


def test_where_all_disks_stand_the_master_stays_and_says_so(cluster: Cluster, disks: list[diskfault.DiskFault]) -> None:
    master, group = cluster.master(), cluster.group()
    assert group is not None
    producers = start_producers(cluster, TOPIC)
    for producer in producers:
        producer.wait_for(20)
    for disk in disks:
        disk.fail(STANDS)
    eventually("it says that its disk stands", lambda: "its disk stands still" in trouble(cluster, master))
    for disk in disks:
        disk.obey()
    histories = []
    for producer in producers:
        producer.wait_for(50)
        histories.append(producer.stop())
    now = cluster.group()
    assert now is not None
    assert (now["masterEpoch"], cluster.master()) == (group["masterEpoch"], master)
    for queue_id, history in enumerate(histories):
        check_queue(read_queue(cluster.admin, TOPIC, queue_id), [history])

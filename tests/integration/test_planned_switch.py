"""Designated elections of real brokers under load: the mastership goes round the group, and no broker ever cuts its log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.test_faults import check_everything, start_producers
from tests.support.cluster import Cluster, eventually
from tests.support.workload import call_until

pytestmark = pytest.mark.slow

TOPIC = "Orders"
SWITCHES = 6


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, controllers=1) as cluster:
        cluster.start()
        call_until(lambda: cluster.admin.create_topic(TOPIC, queues=4))
        eventually("the topic's route", lambda: bool(cluster.admin.queue_offsets(TOPIC)))
        yield cluster


def test_a_planned_switch_cuts_nothing(cluster: Cluster) -> None:
    producers = start_producers(cluster, TOPIC)
    masters = []
    for _ in range(SWITCHES):
        group = cluster.wait_in_sync(3)
        members = sorted(group["syncStateSet"])
        successor = members[(members.index(group["masterBrokerId"]) + 1) % len(members)]
        elected = cluster.admin.elect_master("DefaultCluster", "broker-a", successor)
        assert int(elected["masterBrokerId"]) == successor
        assert int(elected["masterEpoch"]) > group["masterEpoch"]
        masters.append(successor)
        for producer in producers:
            producer.wait_for(20)
    assert sorted(masters) == [1, 1, 2, 2, 3, 3], "every broker was master twice"
    acknowledged = check_everything(cluster, TOPIC, producers)
    assert acknowledged >= 4 * 20 * SWITCHES
    logs = "".join(broker.log_text() for broker in cluster.brokers)
    assert logs.count("handing over to broker") == SWITCHES
    assert "cutting the log" not in logs
    assert "dropping the whole log" not in logs
    controller = cluster.controllers[0].log_text()
    assert "without a hand-over" not in controller

"""How far a group is, asked of a replica that cannot know: it asks its master, or waits for one, and makes nothing up."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.errors import LogboomError
from tests.support.cluster import Cluster, eventually

pytestmark = pytest.mark.slow

TOPIC, GROUP = "Orders", "readers"
QUEUE = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0"}


def asked(cluster: Cluster, broker: int, code: int) -> str | None:
    """The offset that a broker answers; None when it refuses, or says nothing for as long as clients wait."""
    try:
        with SocketConnection(cluster.broker_addresses[broker], timeout_ms=5000) as connection:
            return connection.call(code, QUEUE).ext["offset"]
    except LogboomError:
        return None


def test_an_empty_copy_without_a_master_invents_no_offset(tmp_path: Path) -> None:
    with Cluster(tmp_path, controllers=1, replicas=2) as cluster:
        cluster.start()
        cluster.admin.create_topic(TOPIC, queues=1)
        cluster.admin.create_group(GROUP)
        for number in range(9):
            cluster.admin.send(TOPIC, b"%d" % number, group="broker-a")
        master = cluster.master()
        replica = 1 - master
        with SocketConnection(cluster.broker_addresses[master]) as connection:
            connection.call(codes.UPDATE_CONSUMER_OFFSET, {**QUEUE, "commitOffset": "7"})
        assert asked(cluster, replica, codes.QUERY_CONSUMER_OFFSET) == "7", "its master says so"
        assert cluster.brokers[replica].terminate() == 0
        eventually("the set is the master alone", lambda: len(cluster.wait_in_sync(1)["syncStateSet"]) == 1)
        cluster.brokers[master].kill()
        shutil.rmtree(tmp_path / f"b{replica}")
        cluster.brokers[replica].start()
        eventually("the empty copy serves", lambda: _serves(cluster, replica))
        assert asked(cluster, replica, codes.QUERY_CONSUMER_OFFSET) is None
        assert asked(cluster, replica, codes.GET_MAX_OFFSET) is None
        cluster.brokers[master].start()
        for code, offset in ((codes.QUERY_CONSUMER_OFFSET, "7"), (codes.GET_MAX_OFFSET, "9")):
            assert eventually("who is asked asks on", lambda code=code: asked(cluster, replica, code)) == offset


def _serves(cluster: Cluster, broker: int) -> bool:
    try:
        with SocketConnection(cluster.broker_addresses[broker]) as connection:
            connection.call(codes.GET_BROKER_CONFIG)
    except LogboomError:
        return False
    return True

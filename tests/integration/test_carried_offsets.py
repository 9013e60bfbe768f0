"""What a reader told of his offset with pulls, one behind the other: it is there behind a stop, and on the next master."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from brokerd.processors.pulling.checks import FLAG_COMMIT, FLAG_SUBSCRIPTION
from remoting import codes
from remoting.client.socket_connection import SocketConnection
from tests.support.cluster import Cluster, eventually
from tests.support.cold_reading import make_topic, send_batch
from tests.support.native_library import native_library
from tests.support.pulls import pull_fields

pytestmark = pytest.mark.slow

TOPIC, GROUP = "Orders", "readers"
MESSAGES = 500
READ = 300
QUEUE = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0"}


def stop_and_start(cluster: Cluster) -> None:
    [broker] = cluster.brokers
    assert broker.terminate() == 0
    broker.start()


def switch(cluster: Cluster) -> None:
    successor = 3 - cluster.wait_in_sync(2)["masterBrokerId"]
    elected = cluster.admin.elect_master("DefaultCluster", "broker-a", successor)
    assert int(elected["masterBrokerId"]) == successor
    # until it has heard of that it says what replicas know, which is less
    address = cluster.broker_addresses[cluster.master()]
    eventually("the successor leads by its own word", lambda: cluster.admin.broker_state(address).role == "master")


def committed(cluster: Cluster) -> int:
    with SocketConnection(cluster.broker_addresses[cluster.master()]) as master:
        return int(master.call(codes.QUERY_CONSUMER_OFFSET, QUEUE).ext["offset"])


@pytest.mark.parametrize(("replicas", "act"), [(1, stop_and_start), (2, switch)], ids=["stop", "switch"])
def test_what_pulls_carried_until_then_is_there(replicas: int, act: Callable[[Cluster], None], tmp_path: Path) -> None:
    native_library()
    with Cluster(tmp_path, controllers=1, replicas=replicas) as cluster:
        cluster.start()
        make_topic(cluster, TOPIC)
        cluster.admin.create_group(GROUP)
        assert send_batch(cluster, TOPIC, 0, [b"%d" % number for number in range(MESSAGES)]) == 0
        cluster.wait_in_sync(replicas)
        eventually("all of it can be read", lambda: cluster.admin.queue_offsets(TOPIC)[0].max_offset == MESSAGES)
        flags = FLAG_SUBSCRIPTION | FLAG_COMMIT
        with SocketConnection(cluster.broker_addresses[cluster.master()]) as reader:
            for offset in range(READ):
                fields = pull_fields(offset, **QUEUE, sysFlag=flags, commitOffset=offset, maxMsgNums=1)
                reader.call(codes.PULL_MESSAGE, {name: str(value) for name, value in fields.items()})
            act(cluster)
        assert eventually("who leads answers", lambda: (committed(cluster),)) == (READ - 1,)

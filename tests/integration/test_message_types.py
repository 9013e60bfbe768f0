"""Messages of every type as the console sends them, to real processes: one queue for a message group, waits, decisions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting import codes
from remoting.client.blocking import AdminClient
from remoting.errors import LogboomError, RequestError
from remoting.message_groups import queue_of_group
from remoting.names import SCHEDULE_TOPIC
from tests.support.cluster import Cluster, eventually
from tests.support.workload import call_until

pytestmark = pytest.mark.slow

TOPIC = "settlements-of-the-second-warehouse-in-the-north-by-day-and-currency_" + "x" * 21
QUEUES = 8
GROUP = "broker-a"


@pytest.fixture
def admin(tmp_path: Path) -> Iterator[AdminClient]:
    """Of a cluster with one broker, whose topic is routed."""
    with Cluster(tmp_path, controllers=1, replicas=1, broker_settings=["store.delay_levels=1s 1h"]) as cluster:
        cluster.start()
        call_until(lambda: cluster.admin.create_topic(TOPIC, queues=QUEUES))
        eventually("the topic's route", lambda: is_routed(cluster.admin))
        yield cluster.admin


def is_routed(admin: AdminClient) -> bool:
    try:
        return bool(admin.queue_offsets(TOPIC))
    except LogboomError:
        return False


def stored(admin: AdminClient) -> list[bytes]:
    """The bodies in the topic, queue by queue."""
    return [record.body for queue_id in range(QUEUES) for record in admin.pull(TOPIC, GROUP, queue_id, 0).records]


def test_each_type_of_message(admin: AdminClient) -> None:
    places = {admin.send(TOPIC, b"%d" % number, message_group="order 7")["queueId"] for number in range(6)}
    assert places == {str(queue_of_group("order 7", QUEUES))}
    eventually("the messages of the group", lambda: stored(admin) == [b"%d" % number for number in range(6)])
    assert admin.pull(TOPIC, GROUP, int(places.pop()), 0).records[0].property_map()["__SHARDINGKEY"] == "order 7"

    waiting = admin.send(TOPIC, b"later", properties={"DELAY": "1"})
    eventually("what was delayed", lambda: b"later" in stored(admin))
    assert [found.record.body for found in admin.find(TOPIC, waiting["transactionId"])] == [b"later"]
    assert admin.pull(SCHEDULE_TOPIC, GROUP, 0, 0).records[0].body == b"later"

    committed, taken_back = (admin.send(TOPIC, body, transaction=True) for body in (b"paid", b"not paid"))
    assert b"paid" not in stored(admin)
    admin.end_transaction(TOPIC, committed, commit=True)
    admin.end_transaction(TOPIC, taken_back, commit=False)
    eventually("what was committed", lambda: b"paid" in stored(admin))
    assert b"not paid" not in stored(admin)
    assert [found.record.body for found in admin.find(TOPIC, committed["transactionId"])] == [b"paid"]
    with pytest.raises(RequestError):
        admin.end_transaction(TOPIC, committed, commit=False)

    with pytest.raises(RequestError, match="broker group elsewhere has no master at the moment") as refused:
        admin.send(TOPIC, b"x", group="elsewhere")
    assert refused.value.code == codes.SERVICE_NOT_AVAILABLE

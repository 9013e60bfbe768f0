"""Designated elections of real brokers under load: the mastership goes round the group, and no broker ever cuts its log."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerd.proxy.protobuf import service
from brokerd.proxy.status import Code
from tests.integration.test_faults import check_everything, start_producers
from tests.support.cluster import Cluster, eventually
from tests.support.workload import call_until
from tests.unit.brokerd.proxy.rawclient import RawClient
from tests.unit.brokerd.proxy.test_methods import sending

pytestmark = pytest.mark.slow

TOPIC = "Orders"
SWITCHES = 6


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    # on a busy machine a switch takes longer than calls wait for a master by default
    with Cluster(tmp_path, controllers=1, broker_settings=["forward.hold_ms=60000"]) as cluster:
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


async def test_grpc_clients_notice_nothing_of_a_planned_switch(cluster: Cluster) -> None:
    """None of their calls is refused, whichever broker they speak to: they wait for the new master."""
    stopped = False

    async def send(address: str) -> Counter[int]:
        client = await RawClient.connect(int(address.rpartition(":")[2]))
        codes: Counter[int] = Counter()
        while not stopped:
            response = await client.call("SendMessage", sending(b"x", topic=TOPIC), service.SendMessageResponse)
            codes[response.status.code] += 1
        await client.close()
        return codes

    senders = [asyncio.ensure_future(send(address)) for address in cluster.grpc_addresses]
    for _ in range(3):
        await asyncio.to_thread(_switch, cluster)
    stopped = True
    found: Counter[int] = sum(await asyncio.gather(*senders), Counter())
    assert set(found) == {Code.OK}, found
    # the controllers hear of a new master a moment later than its clients
    offsets = await asyncio.to_thread(eventually, "the topic's route", lambda: cluster.admin.queue_offsets(TOPIC))
    stored = sum(each.max_offset for each in offsets)
    assert stored == found.total()


def _switch(cluster: Cluster) -> None:
    """Have the next member of the set elected; one that is behind at the moment is refused, and asked for again."""

    def elected() -> bool:
        group = cluster.wait_in_sync(3)
        members = sorted(group["syncStateSet"])
        successor = members[(members.index(group["masterBrokerId"]) + 1) % len(members)]
        return int(cluster.admin.elect_master("DefaultCluster", "broker-a", successor)["masterBrokerId"]) == successor

    eventually("a planned switch", elected)

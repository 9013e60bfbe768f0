"""Order of message groups with the official Python client on real brokers: a group that always fails holds up itself alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest

from remoting import codes
from remoting.transport.client import connect
from tests.support.cluster import Cluster

pytestmark = pytest.mark.slow

PROGRAM = """
producer = Producer(configuration, ("Orders",))
producer.startup()
for n in range(150):
    producer.send(message(b"%d" % n, topic="Orders", message_group=f"customer {n % 50}"))
consumer = SimpleConsumer(configuration, "billing", {"Orders": FilterExpression()}, await_duration=2)
consumer.startup()
got, poisoned = {}, []
deadline = time.monotonic() + 60
while sum(map(len, got.values())) < 147 and time.monotonic() < deadline:
    for one in consumer.receive(8, 60) or ():
        if one.message_group == "customer 7":
            poisoned.append(one.body.decode())
        else:
            got.setdefault(one.message_group, []).append(int(one.body))
            consumer.ack(one)
say(got=got, poisoned=poisoned)
hear()
producer.shutdown()
consumer.shutdown()
"""


async def test_one_of_fifty_message_groups_in_a_queue_always_fails(tmp_path: Path, programs) -> None:
    with Cluster(tmp_path / "cluster", controllers=1) as cluster:
        await asyncio.to_thread(cluster.start)
        await asyncio.to_thread(cluster.admin.create_topic, "Orders", 1, "FIFO")
        await asyncio.to_thread(cluster.admin.create_group, "billing", fifo=True)
        program = await programs(PROGRAM, [cluster.grpc_addresses[await asyncio.to_thread(cluster.master)]])
        told = await program.said()
        assert told["poisoned"][0] == "7"
        expected = {f"customer {n}": [n, n + 50, n + 100] for n in range(50) if n != 7}
        assert told["got"] == expected
        program.tell("stop")
        await program.finished()


async def test_a_group_that_is_there_already_keeps_its_scope(tmp_path: Path) -> None:
    """As tools make them, and releases before: order in each queue, whatever is changed of them since."""
    with Cluster(tmp_path / "cluster", controllers=1) as cluster:
        await asyncio.to_thread(cluster.start)
        connection = await connect(cluster.broker_addresses[await asyncio.to_thread(cluster.master)])
        body = orjson.dumps({"groupName": "made-before", "consumeMessageOrderly": True})
        await connection.call(codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)
        for name in ("made-before", "made-here"):
            await asyncio.to_thread(cluster.admin.create_group, name, fifo=True, retry_max_times=3)
        answer = await connection.call(codes.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}, b"")
        table = orjson.loads(answer.body)["subscriptionGroupTable"]
        scopes = {name: table[name]["attributes"].get("order.scope") for name in ("made-before", "made-here")}
        assert scopes == {"made-before": None, "made-here": "MESSAGE_GROUP"}
        assert table["made-before"]["retryMaxTimes"] == 3
        await asyncio.to_thread(cluster.admin.change_group, "made-before", {"order_scope": "MESSAGE_GROUP"})
        answer = await connection.call(codes.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "made-before"}, b"")
        config = orjson.loads(answer.body)
        assert (config["attributes"]["order.scope"], config["retryMaxTimes"]) == ("MESSAGE_GROUP", 3)
        assert config["consumeMessageOrderly"]
        await asyncio.to_thread(cluster.admin.change_group, "made-before", {"invisible_max_ms": 60_000})
        (settings,) = (await asyncio.to_thread(cluster.admin.group_settings, "made-before")).values()
        assert (settings["order_scope"], settings["invisible_max_ms"]) == ("MESSAGE_GROUP", 60_000)
        assert await asyncio.to_thread(cluster.admin.group_settings, "nobody") == {}
        connection.close()

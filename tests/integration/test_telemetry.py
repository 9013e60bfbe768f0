"""What real brokers say on telemetry streams: a group's new settings reach its consumers, at the master and at a replica."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from tests.support.cluster import Cluster, eventually

pytestmark = pytest.mark.slow

LISTENER = """
import asyncio, json, os
import grpc
from rocketmq.grpc_protocol import definition_pb2, service_pb2, service_pb2_grpc

async def main():
    async with grpc.aio.insecure_channel("ipv4:" + os.environ["ENDPOINTS"]) as channel:
        stub = service_pb2_grpc.MessagingServiceStub(channel)
        stream = stub.Telemetry(metadata=(("x-mq-client-id", os.environ["ENDPOINTS"]),))
        settings = definition_pb2.Settings(client_type=definition_pb2.PUSH_CONSUMER)
        settings.subscription.group.name = "Readers"
        await stream.write(service_pb2.TelemetryCommand(settings=settings))
        while True:
            said = await stream.read()
            told = said.settings
            print(json.dumps([told.backoff_policy.max_attempts, told.subscription.fifo]), flush=True)

asyncio.run(main())
"""


async def test_consumers_hear_of_their_groups_new_settings(tmp_path: Path, programs) -> None:
    with Cluster(tmp_path / "cluster", controllers=1, replicas=2) as cluster:
        await asyncio.to_thread(cluster.start)
        address = cluster.broker_addresses[await asyncio.to_thread(cluster.master)]
        await asyncio.to_thread(eventually, "the group", lambda: _make_group(address, 16, in_order=False))
        listeners = [await programs(LISTENER, [each], prelude="") for each in cluster.grpc_addresses]
        assert [await each.said() for each in listeners] == [[17, False]] * 2
        for retries in (3, 5, 7):  # each is told once, by the broker that the client speaks to
            assert await asyncio.to_thread(_make_group, address, retries, in_order=True)
            assert [await each.said() for each in listeners] == [[retries + 1, True]] * 2


def _make_group(address: str, retries: int, *, in_order: bool) -> bool:
    document = f'{{"groupName":"Readers","retryMaxTimes":{retries},"consumeMessageOrderly":{str(in_order).lower()}}}'
    with SocketConnection(address, timeout_ms=5000) as connection:
        connection.call(codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, document.encode())
    return True

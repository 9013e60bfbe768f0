"""Clients with their defaults at brokers whose ports answer TLS and plaintext, as the appliance's do.

The official Python client is run as it is. Clients of other languages are stood in for by gRPC's own channel with their header
and their way to connect; `make interop` runs the real ones, but for C#, which is stood in for by what speaks as .NET does.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from brokerd.proxy.grpc import SERVICE_PATH
from brokerd.proxy.http2.frames import DATA
from brokerd.proxy.protobuf import definition, service
from brokerd.proxy.status import Code
from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.transport.identity import NOBODY, Identity
from remoting.transport.tls import client_context
from tests.support.certificates import of_the_appliance
from tests.support.cluster import Cluster, eventually
from tests.support.workload import call_until
from tests.unit.brokerd.proxy.dotnetclient import DotnetClient
from tests.unit.brokerd.proxy.test_methods import producer, resource, sending, settings_of
from tests.unit.brokerd.proxy.test_receive_message import receiving

pytestmark = pytest.mark.slow

TOPIC = "a-topic-with-a-name-of-ninety-characters-as-the-programs-of-large-companies-like-them-00001"

PYTHON = """
import os
from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

place = ClientConfiguration(os.environ["ENDPOINTS"], Credentials())
tls = {"tls_enable": True} if os.environ.get("TLS") else {}
producer = Producer(place, (os.environ["TOPIC"],), **tls)
producer.startup()
message = Message()
message.topic, message.body = os.environ["TOPIC"], b"hello"
sent = producer.send(message).message_id
consumer = SimpleConsumer(place, os.environ["GROUP"], {message.topic: FilterExpression()}, await_duration=5, **tls)
consumer.startup()
while True:
    for each in consumer.receive(1, 15):
        consumer.ack(each)
        if each.message_id == sent:
            print("received what was sent", flush=True)
            os._exit(0)
"""


class Running:
    """The cluster, and what its certificate is checked against."""

    def __init__(self, cluster: Cluster, authority: Path) -> None:
        self.cluster = cluster
        self.authority = authority


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("first")
    tls, authority = of_the_appliance(root / "appliance")
    with Cluster(root / "cluster", controllers=1, broker_settings=tls, controller_settings=tls) as cluster:
        cluster.start()
        call_until(lambda: cluster.admin.create_topic(TOPIC, queues=8))
        eventually("the topic's route", lambda: cluster.admin.queue_offsets(TOPIC))
        yield Running(cluster, authority)


@pytest.mark.parametrize("access_point", range(3))
@pytest.mark.parametrize("tls", [False, True])
def test_the_official_python_client(running: Running, tmp_path: Path, tls: bool, access_point: int) -> None:
    environment = {
        **os.environ,
        "ENDPOINTS": running.cluster.grpc_addresses[access_point],
        "TOPIC": TOPIC,
        "GROUP": f"python-{tls}-{access_point}",
        "HOME": str(tmp_path),
        "TLS": "yes" if tls else "",
        "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(running.authority),
    }
    done = subprocess.run(
        [sys.executable, "-c", PYTHON], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert "received what was sent" in done.stdout, done.stderr[-4000:]


def route(channel: grpc.Channel, language: str) -> set[tuple[str, ...]]:
    """The addresses of each different `Endpoints` that a client of this language is told."""
    query = channel.unary_unary(
        SERVICE_PATH + "QueryRoute",
        request_serializer=service.QueryRouteRequest.SerializeToString,
        response_deserializer=service.QueryRouteResponse.FromString,
    )
    request = service.QueryRouteRequest(topic=definition.Resource(name=TOPIC))
    answer = query(request, metadata=(("x-mq-client-id", "one"), ("x-mq-language", language)), timeout=10)
    assert answer.status.code == Code.OK, answer.status
    queues = [queue.broker.endpoints for queue in answer.message_queues]
    return {tuple(f"{each.host}:{each.port}" for each in endpoints.addresses) for endpoints in queues}


def send(channel: grpc.Channel, language: str) -> None:
    call = channel.unary_unary(
        SERVICE_PATH + "SendMessage",
        request_serializer=service.SendMessageRequest.SerializeToString,
        response_deserializer=service.SendMessageResponse.FromString,
    )
    metadata = (("x-mq-client-id", "one"), ("x-mq-language", language))
    answer = call(sending(b"there", topic=TOPIC), metadata=metadata, timeout=10)
    assert answer.status.code == Code.OK, answer.status


def test_a_client_whose_default_is_tls(running: Running) -> None:
    """As Java, Go, C++ and C#: the certificate is good even for one that checks it."""
    addresses = running.cluster.grpc_addresses
    credentials = grpc.ssl_channel_credentials(running.authority.read_bytes())
    for target in (addresses[0], addresses[2], addresses[1].replace("127.0.0.1", "localhost")):
        with grpc.secure_channel(target, credentials) as channel:
            (told,) = route(channel, "JAVA")
            assert set(told) == set(addresses)
            assert told[0] == addresses[running.cluster.master()]


def test_remoting_clients_with_and_without_tls(running: Running) -> None:
    cluster = running.cluster
    checking = Identity(tls=client_context(str(running.authority), check_host=True))
    for address in (*cluster.controller_addresses, *cluster.broker_addresses):
        for identity in (NOBODY, checking):
            with SocketConnection(address, identity=identity) as connection:
                connection.call(
                    codes.GET_BROKER_RUNTIME_INFO if address in cluster.broker_addresses else codes.CLUSTER_VIEW
                )


@pytest.mark.parametrize("language", ["HTTP", "CPP"])
def test_a_client_of_one_address_each_is_told_all_of_them(running: Running, language: str) -> None:
    """As Node.js, and C++ by TLS: it sends to another broker when one fails, and may ask its access point again."""
    cluster = running.cluster
    credentials = grpc.ssl_channel_credentials(running.authority.read_bytes()) if language == "CPP" else None
    master = cluster.master()
    with ExitStack() as stack:
        channels = {
            address: stack.enter_context(
                grpc.secure_channel(address, credentials) if credentials is not None else grpc.insecure_channel(address)
            )
            for address in cluster.grpc_addresses
        }
        stack.callback(cluster.make_whole)
        channel = channels[cluster.grpc_addresses[(master + 1) % 3]]
        assert route(channel, language) == {(address,) for address in cluster.grpc_addresses}
        cluster.brokers[master].kill()
        eventually("another master", lambda: cluster.master() != master)
        expected = cluster.grpc_addresses[cluster.master()]
        eventually("it is in the route where it is alone", lambda: (expected,) in route(channel, language))
        if credentials is None:
            eventually("and first of several", lambda: next(iter(route(channel, "GO")))[0] == expected)
        for address in channels.keys() - {cluster.grpc_addresses[master]}:
            send(channels[address], language)


class CSharp:
    """What the C# client does with what it is told: it takes the first address of a broker, and one telemetry stream to each.

    A telemetry stream that ended is never opened again: after its broker's restart it calls without.
    """

    def __init__(self, access_point: str) -> None:
        self._access_point = access_point
        self._connections: dict[str, DotnetClient] = {}
        self._telling: set[str] = set()

    async def call(self, address: str, method: str, request: Any) -> Any:
        client = await self._connected(address)
        answers, fields = await client.answer(client.start(method, request), getattr(service, f"{method}Response"))
        assert fields["grpc-status"] == "0", fields
        return answers

    async def route(self) -> list[str]:
        """The addresses of the brokers, in their order; each hears of this client once."""
        request = service.QueryRouteRequest(topic=resource(TOPIC))
        (found,) = await self.call(self._access_point, "QueryRoute", request)
        assert found.status.code == Code.OK, found.status
        endpoints = [queue.broker.endpoints for queue in found.message_queues]
        assert all(len(each.addresses) == 1 for each in endpoints)
        addresses = list(dict.fromkeys(f"{each.addresses[0].host}:{each.addresses[0].port}" for each in endpoints))
        for address in addresses:
            if address not in self._telling:
                self._telling.add(address)
                await self._tell(address)
        return addresses

    async def until_routed(self, holds: Callable[[list[str]], bool]) -> None:
        async with asyncio.timeout(60):
            while not holds(await self.route()):
                pass

    async def _connected(self, address: str) -> DotnetClient:
        if address not in self._connections:
            self._connections[address] = await DotnetClient.begin(address)
        return self._connections[address]

    async def _tell(self, address: str) -> None:
        client = await self._connected(address)
        stream_id = client.start("Telemetry", None, **{"grpc-timeout": "99999999S"})
        client.send(stream_id, settings_of(producer(TOPIC)), end=False)
        async with asyncio.timeout(60):
            while (frame := await client.frame()).kind != DATA or frame.stream_id != stream_id:
                pass

    async def send(self, address: str, body: bytes) -> None:
        (sent,) = await self.call(address, "SendMessage", sending(body, topic=TOPIC))
        assert sent.status.code == Code.OK, sent.status

    async def receive_all(self, address: str, group: str, bodies: set[bytes]) -> None:
        """Receive and acknowledge until these have come."""
        async with asyncio.timeout(60):
            while bodies:
                bodies = bodies - await self._receive(address, group)

    async def _receive(self, address: str, group: str) -> set[bytes]:
        request = receiving(TOPIC, group, batch_size=1)
        request.message_queue.id = -1
        request.long_polling_timeout.seconds = 1
        found = set()
        for answer in await self.call(address, "ReceiveMessage", request):
            if answer.HasField("message"):
                system = answer.message.system_properties
                ack = service.AckMessageRequest(group=resource(group), topic=resource(TOPIC))
                ack.entries.add(message_id=system.message_id, receipt_handle=system.receipt_handle)
                (acked,) = await self.call(address, "AckMessage", ack)
                assert acked.status.code == Code.OK, acked.status
                found.add(bytes(answer.message.body))
        return found

    async def lost(self, address: str) -> None:
        await self._connections.pop(address).close()

    async def close(self) -> None:
        for client in self._connections.values():
            await client.close()


async def test_a_client_that_speaks_as_dotnet_does(running: Running) -> None:
    cluster = running.cluster
    master = cluster.master()
    client = CSharp(cluster.grpc_addresses[(master + 1) % 3])
    await client.until_routed(lambda told: set(told) == set(cluster.grpc_addresses))  # the others just began to live
    addresses = await client.route()
    assert addresses[0] == cluster.grpc_addresses[master]
    large = bytes(range(256)) * (3 << 12)  # many times the window of a stream, both ways
    for number, address in enumerate(addresses):
        await client.send(address, large)
        await client.receive_all(address, f"dotnet-{number}", {large})
    try:
        cluster.brokers[master].kill()
        await client.lost(addresses[0])
        eventually("another master", lambda: cluster.master() != master)
        new = cluster.grpc_addresses[cluster.master()]
        await client.until_routed(lambda told: told[0] == new)
        await client.send(new, b"after")
        await client.until_routed(lambda told: addresses[0] not in told)
        late = CSharp(new)  # it reaches every address that it is told, or does not start
        assert set(await late.route()) == set(cluster.grpc_addresses) - {addresses[0]}
        await late.close()
        cluster.brokers[master].start()
        cluster.wait_in_sync(3)
        await client.until_routed(lambda told: addresses[0] in told)
        # it has no telemetry stream there any more
        await client.send(addresses[0], b"through the one that came back")
        request = service.HeartbeatRequest(client_type=definition.ClientType.Value("PRODUCER"))
        (heard,) = await client.call(addresses[0], "Heartbeat", request)
        assert heard.status.code == Code.OK
        await client.receive_all(addresses[0], "dotnet-0", {b"after", b"through the one that came back"})
    finally:
        cluster.make_whole()
        await client.close()

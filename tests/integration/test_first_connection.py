"""Clients with their defaults at brokers whose ports answer TLS and plaintext, as the appliance's do.

The official Python client is run as it is. Clients of other languages are stood in for by gRPC's own channel with their header
and their way to connect; `make interop` runs the real ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from brokerd.proxy.grpc import SERVICE_PATH
from brokerd.proxy.protobuf import definition, service
from brokerd.proxy.status import Code
from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.transport.client import NOBODY, Identity
from remoting.transport.tls import client_context
from tests.support.certificates import of_the_appliance
from tests.support.cluster import Cluster, eventually
from tests.support.workload import call_until

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


def test_a_client_of_one_address_each_is_told_all_of_them(running: Running) -> None:
    """As Node.js: it sends to another broker when one fails, and may ask its access point again."""
    cluster = running.cluster
    master = cluster.master()
    access_point = cluster.grpc_addresses[(master + 1) % 3]
    try:
        with grpc.insecure_channel(access_point) as channel:
            assert route(channel, "HTTP") == {(address,) for address in cluster.grpc_addresses}
            cluster.brokers[master].kill()
            eventually("another master", lambda: cluster.master() != master)
            expected = cluster.grpc_addresses[cluster.master()]
            eventually("the route names it first", lambda: next(iter(route(channel, "GO")))[0] == expected)
            eventually("and where it is alone", lambda: (expected,) in route(channel, "HTTP"))
    finally:
        cluster.make_whole()

"""A cluster that takes nothing but TLS: elections, replication, gRPC and a change of master over it."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.errors import ConnectionLost
from remoting.transport.identity import NOBODY
from remoting.transport.tls import client_context
from tests.support.certificates import Authority
from tests.support.cluster import Cluster, eventually


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certificates")


def make_cluster(root: Path, authority: Authority) -> Cluster:
    shown = authority.sign("node")
    settings = (
        *("tls.mode=enforcing", f"tls.certificate_path={shown.certificate}", f"tls.key_path={shown.key}"),
        *(f"tls.ca_path={authority.ca}", "tls.client_auth=required", "tls.dial=true", "tls.check_host=true"),
        "access.authentication=true",
    )
    tls = client_context(str(authority.ca), str(shown.certificate), str(shown.key), check_host=True)
    return Cluster(root, controllers=3, replicas=2, broker_settings=settings, controller_settings=settings, tls=tls)


def test_everything_goes_on_over_tls(tmp_path: Path, authority: Authority) -> None:
    with make_cluster(tmp_path / "cluster", authority) as cluster:
        cluster.start()
        cluster.admin.create_topic("orders", 2)
        eventually("the topic's route", lambda: cluster.admin.queue_offsets("orders"))
        sent = [cluster.admin.send("orders", f"message {number}".encode()) for number in range(50)]
        ports = [*cluster.controller_addresses, *cluster.broker_addresses, *cluster.grpc_addresses]
        for address in ports:
            assert _speaks_tls(address, authority), address
        for address in (*cluster.controller_addresses, *cluster.broker_addresses):
            with pytest.raises(ConnectionLost), SocketConnection(address, identity=NOBODY) as connection:
                connection.call(codes.CLUSTER_VIEW)
        for address in cluster.grpc_addresses:
            assert _is_closed_for_plaintext(address)
        master = cluster.master()
        cluster.brokers[master].kill()
        eventually("another master", lambda: cluster.master() != master)
        ranges = eventually("the other one serves", lambda: cluster.admin.queue_offsets("orders"))
        assert sum(each.max_offset for each in ranges) == len(sent)
        cluster.brokers[master].start()
        cluster.wait_in_sync(2)


def _speaks_tls(address: str, authority: Authority) -> bool:
    """Whether the certificate of this address is one of the authority's; a client without one of its own is told so later."""
    host, port = address.split(":")
    context = client_context(str(authority.ca), check_host=True)
    context.maximum_version = ssl.TLSVersion.TLSv1_3
    with (
        socket.create_connection((host, int(port)), 5) as plain,
        context.wrap_socket(plain, server_hostname=host) as tls,
    ):
        return tls.version() is not None


def _is_closed_for_plaintext(address: str) -> bool:
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), 5) as plain:
        plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        try:
            return plain.recv(1) == b""
        except ConnectionResetError:
            return True

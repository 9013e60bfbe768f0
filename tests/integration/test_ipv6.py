"""A controller and a broker on the IPv6 loopback, with a client that only knows the name server."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting import codes
from remoting.client.blocking import AdminClient
from remoting.client.socket_connection import SocketConnection
from remoting.errors import LogboomError
from remoting.record.codec import decode_record, decode_records
from remoting.record.hosts import decode_offset_message_id, unpack_host
from remoting.record.properties import encode_properties
from tests.support.cluster import Process, eventually, free_ports
from tests.support.workload import call_until

TOPIC = "Six"


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


pytestmark = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")


class Group:
    """One broker that is a master by its settings, under one controller that is the name server."""

    def __init__(self, directory: Path, host: str) -> None:
        self.name_server, self.address, ha, grpc = (f"{host}:{port}" for port in free_ports(4))
        words = [
            "-m",
            "controllerd",
            "--id",
            "n0",
            "--peers",
            f"n0={self.name_server}",
            "--data",
            str(directory / "n0"),
        ]
        self.processes = [Process("controller", words, directory / "n0.log")]
        words = ["-m", "brokerd", "--listen", self.address, "--ha-listen", ha, "--grpc-listen", grpc]
        words += ["--controllers", self.name_server, "--data", str(directory / "b0")]
        for setting in ("roles=fixed", "broker_id=0", "total_replicas=1"):
            words += ["--set", f"replication.{setting}"]
        self.processes.append(Process("broker", words, directory / "b0.log"))
        self.admin = AdminClient([self.name_server])

    def start(self) -> None:
        for process in self.processes:
            process.start()
        call_until(lambda: self.admin.create_topic(TOPIC, queues=1))
        eventually("the topic's route", self._is_routed)

    def _is_routed(self) -> bool:
        try:
            return bool(self.admin.queue_offsets(TOPIC))
        except LogboomError:
            return False

    def close(self) -> None:
        for process in reversed(self.processes):
            process.close()


@pytest.fixture(params=["[::1]"])
def group(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Group]:
    made = Group(tmp_path, request.param)
    try:
        made.start()
        yield made
    finally:
        made.close()


def test_a_client_sends_finds_and_reads_over_ipv6(group: Group) -> None:
    answer = group.admin.send(TOPIC, b"over six", keys="k1 k2")
    message_id = answer["msgId"]
    assert len(message_id) == 56
    host, port, physical_offset = decode_offset_message_id(message_id)
    assert f"[{host}]:{port}" == group.address

    [record] = group.admin.pull(TOPIC, answer["brokerName"], 0, 0).records
    assert (record.body, record.physical_offset) == (b"over six", physical_offset)
    assert unpack_host(record.born_host)[0] == "::1"
    assert unpack_host(record.store_host) == (host, port)

    with SocketConnection(group.address) as connection:  # the address that the id names
        viewed = decode_record(connection.call(codes.VIEW_MESSAGE_BY_ID, {"offset": str(physical_offset)}).body)
        assert viewed == record
        question = {"topic": TOPIC, "key": "k2", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(1 << 62)}
        assert list(decode_records(connection.call(codes.QUERY_MESSAGE, question).body)) == [record]
        batch = encode_properties({"KEYS": "k3"}).decode()
        fields = {"a": "p", "b": TOPIC, "e": "0", "f": "0", "g": "1", "h": "0", "i": batch, "j": "0"}
        assert connection.call(codes.SEND_MESSAGE_V2, fields, b"fast").ext["msgId"].startswith(message_id[:40])

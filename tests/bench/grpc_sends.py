"""Sends over gRPC: a broker of one replica against a bare grpc.aio server that only parses and answers.

    python -m tests.bench.grpc_sends [--pairs N] [--seconds S] [--only TEXT]

The load is h2load: raw HTTP/2, one real SendMessageRequest of 1 KiB, repeated. The stored count is checked after every run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Final

from brokerd.proxy.protobuf import definition, service
from remoting.client.socket_connection import SocketConnection
from remoting.errors import LogboomError
from tests.bench.h2load import GrpcLoad
from tests.bench.harness import Pairs, Sample, in_pairs, python_server
from tests.bench.sends import BACKGROUND, TOPIC, broker
from tests.support.cluster import Cluster, eventually, free_ports

_STORED_WITHIN_S: Final = 10


def send_request(topic: str, body_bytes: int, due_ms: int = 0) -> bytes:
    """A SendMessage of one message, as the official clients fill it in; with `due_ms` one that is to be delivered then."""
    request = service.SendMessageRequest()
    message = request.messages.add()
    message.topic.name = topic
    message.body = b"x" * body_bytes
    system = message.system_properties
    system.tag = "bench"
    system.message_id = "01AABBCCDDEEFF0123456789ABCDEF0123"
    system.message_type = definition.MessageType.Value("DELAY" if due_ms else "NORMAL")
    if due_ms:
        system.delivery_timestamp.FromMilliseconds(due_ms)
    system.body_encoding = definition.Encoding.Value("IDENTITY")
    system.born_timestamp.seconds = 1_700_000_000
    system.born_host = "127.0.0.1"
    encoded: bytes = request.SerializeToString()
    return encoded


def check_stored(cluster: Cluster, topic: str, acknowledged: int) -> None:
    """Every acknowledged message is in a queue, and no other one."""
    deadline = time.monotonic() + _STORED_WITHIN_S
    while (stored := sum(each.max_offset for each in cluster.admin.queue_offsets(topic))) != acknowledged:
        if stored > acknowledged or time.monotonic() > deadline:
            raise RuntimeError(f"{acknowledged} sends were acknowledged and {stored} messages are stored")
        time.sleep(0.05)


def of_broker(load: GrpcLoad, settings: tuple[str, ...] = ()) -> Callable[[], Sample]:
    """A measurement of a fresh broker."""

    def measure() -> Sample:
        with broker(1, settings) as (cluster, _):
            sample, acknowledged = load(cluster.grpc_addresses[0], cluster.brokers[0].pid)
            check_stored(cluster, TOPIC, acknowledged)
            return sample

    return measure


def of_bare_server(load: GrpcLoad) -> Callable[[], Sample]:
    """A measurement of a fresh bare server."""

    def measure() -> Sample:
        [port] = free_ports(1)
        with python_server("tests.bench.bare_grpc", str(port)) as process:
            eventually("the bare server listens", lambda: listens(f"127.0.0.1:{port}"))
            return load(f"127.0.0.1:{port}", process.pid)[0]

    return measure


def listens(address: str) -> bool:
    try:
        SocketConnection(address).close()
    except LogboomError:
        return False
    return True


def run(pairs: int, seconds: float, only: str = "") -> list[Pairs]:
    """All rows whose name contains `only`."""
    message = send_request(TOPIC, 1024)
    many = GrpcLoad("SendMessage", message, connections=4, streams=16, seconds=seconds)
    single = GrpcLoad("SendMessage", message, connections=1, streams=1, seconds=seconds)
    rows = [
        ("gRPC 4 x 16, fdatasync: broker / bare grpc.aio", of_broker(many), many, 2.0),
        ("gRPC 4 x 16, background: broker / bare grpc.aio", of_broker(many, BACKGROUND), many, 2.0),
        ("gRPC 1 x 1, fdatasync: broker / bare grpc.aio", of_broker(single), single, None),
        ("gRPC 1 x 1, background: broker / bare grpc.aio", of_broker(single, BACKGROUND), single, None),
    ]
    return [in_pairs(name, pairs, a, of_bare_server(load), goal) for name, a, load, goal in rows if only in name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    options = parser.parse_args()
    run(options.pairs, options.seconds, options.only)


if __name__ == "__main__":
    main()

"""All brokers of a group are gone with their disks: another one mounts it, and the official Python client consumes all of it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.errors import RequestError
from tests.support.client_programs import start_program
from tests.support.cluster import Cluster, Process, eventually
from tests.support.ports import free_ports

READERS: Final = "Readers"
_PATIENCE_S: Final = 120.0

# A message is finished before it is counted: what was given out and not acknowledged comes again, and counts once.
_PROGRAM: Final = """
from rocketmq import SimpleConsumer
topics = {name: FilterExpression() for name in os.environ["TOPICS"].split(",")}
consumer = SimpleConsumer(configuration, os.environ["GROUP"], topics, await_duration=2)
consumer.startup()
empty = 0
while empty < 10:
    try:
        received = consumer.receive(32, 120) or ()
    except Exception:  # the object store failed, and so did the read; it is made again, as users do
        received = ()
    empty = 0 if received else empty + 1
    for each in received:
        consumer.ack(each)
        say(body=each.body.hex())
say(body=None)
"""


def begin_group(cluster: Cluster, queues: Sequence[tuple[str, int]]) -> None:
    """The readers have an offset in each queue: the first one. What keeps it is the tier, once the brokers are lost."""
    cluster.admin.create_group(READERS)
    with SocketConnection(cluster.broker_addresses[cluster.master()], identity=cluster.identity) as master:
        for topic, queue_id in queues:
            fields = {"consumerGroup": READERS, "topic": topic, "queueId": str(queue_id), "commitOffset": "0"}
            master.call(codes.UPDATE_CONSUMER_OFFSET, fields, timeout_ms=10_000)


def lose_disks(cluster: Cluster) -> None:
    """Of all brokers, which end at once."""
    for process in cluster.brokers:
        process.kill()
    for number in range(len(cluster.brokers)):
        shutil.rmtree(cluster.data / f"b{number}")


def mount(cluster: Cluster, group: str, settings: Sequence[str]) -> tuple[str, str]:
    """The addresses for remoting and gRPC of who serves the lost group, when it is known as its master."""
    eventually("the controllers forget the lost brokers", lambda: _forget(cluster, group), _PATIENCE_S)
    (port,) = (each + 2 for each in free_ports(1, in_a_row=3))
    ha, grpc = (f"127.0.0.1:{each}" for each in free_ports(2))
    process = Process(
        "mount",
        [
            *("-m", "brokerd", "--name", group, "--mount", "--listen", f"127.0.0.1:{port}", "--ha-listen", ha),
            *("--grpc-listen", grpc, "--controllers", ",".join(cluster.controller_addresses)),
            *("--data", str(cluster.data / "mount"), "--cluster-secret", str(cluster.secret_file)),
            *(word for assignment in settings for word in ("--set", assignment)),
        ],
        cluster.data / "logs" / "mount.log",
    )
    cluster.guests.append(process)
    process.start()
    address = f"127.0.0.1:{port}"
    eventually("the mount is the master", lambda: cluster.admin.masters().get(group) == address, _PATIENCE_S)
    return address, grpc


def _forget(cluster: Cluster, group: str) -> bool:
    cluster.admin.forget_replicas("DefaultCluster", group)
    return True


def refusal_of_a_send(cluster: Cluster, address: str, topic: str) -> str:
    """What a producer is told that does not look at the route."""
    fields = {
        **{"a": "p", "b": topic, "c": "TBW102", "d": "8", "e": "0", "f": "0", "g": "1700000000000"},
        **{"h": "0", "i": "", "j": "0", "k": "false", "m": "false"},
    }
    with SocketConnection(address, identity=cluster.identity) as mounted:
        try:
            mounted.call(codes.SEND_MESSAGE_V2, fields, b"too late", timeout_ms=10_000)
        except RequestError as error:
            return str(error)
    return ""


def consume_all(grpc: str, topics: Sequence[str], home: Path) -> set[bytes]:
    """The bodies of all messages that the official client gets."""
    home.mkdir()
    return asyncio.run(_consume_all(grpc, topics, home))


async def _consume_all(grpc: str, topics: Sequence[str], home: Path) -> set[bytes]:
    code = f'os.environ |= {{"TOPICS": {",".join(topics)!r}, "GROUP": {READERS!r}}}\n{_PROGRAM}'
    program = await start_program(code, [grpc], home)
    found: set[bytes] = set()
    try:
        while (body := (await program.said())["body"]) is not None:
            found.add(bytes.fromhex(body))
    finally:
        await program.kill()
    return found

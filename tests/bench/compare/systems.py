"""The two systems under comparison, started the same way: `Running` is all that a measurement sees of either.

A setup is how a system stands: one broker that flushes in the background or before it acknowledges, three replicas that all
acknowledge, one broker behind its gRPC endpoint. The original gets what its users would give it: a JVM with its full compiler and
the G1 collector, a heap that fits, its name server, for three replicas a controller, for gRPC its proxy.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.errors import LogboomError
from tests.bench.disk import settle_disk
from tests.bench.harness import ROOT
from tests.bench.processes import Memory, cpu_seconds, memory_of
from tests.bench.sends import BACKGROUND
from tests.interop.apache import FAST_JVM, Apache, Broker, CommandFailed, Session, wait_listening
from tests.support.cluster import Cluster, Process, eventually, free_ports

BACKGROUND_FLUSH: Final = "background"
DISK_FLUSH: Final = "fdatasync"
REPLICAS: Final = "three replicas"
GRPC: Final = "gRPC"
GRPC_LOCAL: Final = "gRPC, local proxy"
SETUPS: Final = (BACKGROUND_FLUSH, DISK_FLUSH, REPLICAS, GRPC, GRPC_LOCAL)
WITH_PROXY: Final = frozenset({GRPC, GRPC_LOCAL})

QUEUES: Final = 8
_REPLICA_COUNT: Final = 3
_SETTLE_S: Final = 30.0
_LOOK_S: Final = 0.5
_IDLE: Final = 0.15  # processor time of an idle system, with its timers
_REJOIN_S: Final = 300  # the original takes its time on a busy machine
_REPLICA_HEAP: Final = ("-Xms2g", "-Xmx2g")
_HEAP: Final = ("-Xms4g", "-Xmx4g")
_PROXY_HEAP: Final = ("-Xms1g", "-Xmx1g")
# What the small harness of the tests sets for the sake of small files goes back to the original's own values.
_OWN_VALUES: Final[Mapping[str, object]] = {
    "mappedFileSizeConsumeQueue": 300_000 * 20,
    "maxHashSlotNum": 5_000_000,
    "maxIndexNum": 20_000_000,
    "timerWheelEnable": True,
}


@dataclass
class Running:
    """A system that takes messages. `brokers` are the processes whose CPU time and memory count, a proxy among them."""

    name: str
    name_server: str
    addresses: Sequence[str]  # of the brokers, by their place in `brokers`
    brokers: Sequence[Process]
    wait_whole: Callable[[], int]  # until every broker is in sync; gives the master's place
    grpc_address: str = ""
    topics: int = 0

    def __post_init__(self) -> None:
        self.master = self.wait_whole()

    @property
    def address(self) -> str:
        """The master's."""
        return self.addresses[self.master]

    def cpu_seconds(self) -> float:
        return sum(cpu_seconds(each.pid) for each in self.brokers)

    def settle(self) -> None:
        """Wait until what was put off is done: each piece of work begins with an idle system, and pays for all that it caused."""
        deadline_s = time.monotonic() + _SETTLE_S
        while time.monotonic() < deadline_s:
            before_s = self.cpu_seconds()
            time.sleep(_LOOK_S)
            if self.cpu_seconds() - before_s < _IDLE * _LOOK_S:
                return

    def memory(self) -> Memory:
        """Of the master, and of the proxy where there is one."""
        counted = [self.brokers[self.master], *self.brokers[len(self.addresses) :]]
        found = [memory_of(each.pid) for each in counted]
        return Memory(*(sum(getattr(each, name) for each in found) for name in Memory.__dataclass_fields__))

    def new_topic(self, queues: int = QUEUES) -> str:
        """Make a topic and wait until clients would find it."""
        self.topics += 1
        topic = f"Bench{self.topics}"
        with SocketConnection(self.address) as connection:
            connection.call(
                codes.UPDATE_AND_CREATE_TOPIC,
                {
                    **{"topic": topic, "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0"},
                    **{"readQueueNums": str(queues), "writeQueueNums": str(queues), "perm": "6", "order": "false"},
                },
            )
        eventually(f"the route of {topic}", lambda: self._is_routed(topic), 60)
        return topic

    def stored(self, topic: str, queues: int = QUEUES) -> int:
        """Messages in the topic's queues."""
        with SocketConnection(self.address) as connection:
            return sum(
                int(connection.call(codes.GET_MAX_OFFSET, {"topic": topic, "queueId": str(queue_id)}).ext["offset"])
                for queue_id in range(queues)
            )

    def _is_routed(self, topic: str) -> bool:
        with SocketConnection(self.name_server) as connection:
            accepted = (codes.SUCCESS, codes.TOPIC_NOT_EXIST)
            answer = connection.call(codes.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}, accept=accepted)
            return answer.code == codes.SUCCESS and self.address.encode() in bytes(answer.body)


@contextmanager
def ours(setup: str) -> Iterator[Running]:
    """This system."""
    settings = () if setup == DISK_FLUSH else BACKGROUND
    replicas = _REPLICA_COUNT if setup == REPLICAS else 1
    with (
        _directory() as directory,
        Cluster(directory, controllers=1, replicas=replicas, broker_settings=settings) as cluster,
    ):

        def wait_whole() -> int:
            cluster.wait_in_sync(replicas, timeout_s=60)
            return cluster.master()

        cluster.start()
        yield Running(
            "Logboom",
            cluster.controller_addresses[0],
            cluster.broker_addresses,
            cluster.brokers,
            wait_whole,
            cluster.grpc_addresses[0],
        )


@contextmanager
def nothing(setup: str) -> Iterator[Running]:
    """A broker that costs as little as one can, to see what a load, and with fdatasync the disk, leaves one to gain."""
    with _directory() as directory:
        program, [port] = directory / "nothing", free_ports(1)
        subprocess.run(["cc", "-O2", "-o", program, ROOT / "tests/bench/nothing.c"], check=True)
        synced = ["0", "0", str(directory / "synced")] if setup == DISK_FLUSH else []
        process = Process("nothing", [str(port), "1024", *synced], directory / "nothing.log", program=str(program))
        process.start()
        try:
            wait_listening(process, port)
            address = f"127.0.0.1:{port}"
            yield Running("nothing", address, [address], [process], lambda: 0)
        finally:
            process.kill()


def original(apache: Apache) -> Callable[[str], AbstractContextManager[Running]]:
    """Apache RocketMQ, by setup."""

    @contextmanager
    def start(setup: str) -> Iterator[Running]:
        with _directory() as directory, apache.session(directory, FAST_JVM) as session:
            yield _START.get(setup, _single)(session, setup)

    return start


def _single(session: Session, setup: str, proxy: Path | None = None) -> Running:
    name_server = session.name_server()
    flush = "SYNC_FLUSH" if setup == DISK_FLUSH else "ASYNC_FLUSH"
    broker = session.broker(
        "broker-a",
        name_server.address,
        heap=_HEAP,
        properties={"flushDiskType": flush, "brokerRole": "ASYNC_MASTER", **_OWN_VALUES},
        proxy=proxy,
    )
    running = Running("Apache RocketMQ", name_server.address, [broker.address], [broker.process], lambda: 0)
    eventually("the broker takes messages", lambda: _takes_messages(running), 60)
    return running


def _takes_messages(running: Running) -> bool:
    try:
        running.new_topic()
    except LogboomError:
        return False
    return True


def _replicated(session: Session, _setup: str) -> Running:
    name_server = session.name_server(with_controller=True)
    properties = {"allAckInSyncStateSet": "true", "flushDiskType": "ASYNC_FLUSH", **_OWN_VALUES}
    brokers = [
        session.broker(
            "broker-a",
            name_server.address,
            controllers=name_server.controller,
            heap=_REPLICA_HEAP,
            properties=properties,
        )
        for _ in range(_REPLICA_COUNT)
    ]
    return Running(
        "Apache RocketMQ",
        name_server.address,
        [each.address for each in brokers],
        [each.process for each in brokers],
        lambda: _wait_in_sync(session, name_server.controller, brokers),
    )


def _wait_in_sync(session: Session, controller: str, brokers: Sequence[Broker]) -> int:
    """Wait until all brokers of the original's group are in the sync-state set; the index of their master."""

    def master() -> tuple[int] | None:
        try:
            state = session.mqadmin("getSyncStateSet", "-a", controller, "-b", brokers[0].name)
        except (
            CommandFailed
        ) as error:  # it gives up after three seconds, which the original may need right after a fault
            reason = next((line for line in str(error).splitlines() if "Exception: " in line), str(error))
            print(f"    the original's controller does not say who is in sync: {reason.strip()}", flush=True)
            return None
        if state.count("InSyncReplica:") - state.count("NotInSyncReplica:") < len(brokers):
            return None
        found = [number for number, each in enumerate(brokers) if f"#MasterAddr\t{each.address}" in state]
        return (found[0],) if found else None

    return eventually("the original's replicas are in sync", master, _REJOIN_S)[0]


def _behind_proxy(session: Session, setup: str) -> Running:
    running = _single(session, setup)
    port = free_ports(1)[0]
    file = _proxy_file(session, port, {"proxyMode": "CLUSTER", "namesrvAddr": running.name_server})
    proxy = session.start_java("proxy", "org.apache.rocketmq.proxy.ProxyStartup", ("-pc", str(file)), _PROXY_HEAP)
    running.brokers = [*running.brokers, proxy]
    return _with_grpc(running, port)


def _inside_proxy(session: Session, setup: str) -> Running:
    port = free_ports(1)[0]
    return _with_grpc(_single(session, setup, _proxy_file(session, port, {"proxyMode": "LOCAL"})), port)


def _proxy_file(session: Session, grpc_port: int, more: Mapping[str, str]) -> Path:
    settings = {
        "rocketMQClusterName": "DefaultCluster",
        "grpcServerPort": grpc_port,
        "remotingListenPort": free_ports(1)[0],
    }
    file = session.directory / "rmq-proxy.json"
    file.write_text(json.dumps(settings | dict(more)))
    return file


def _with_grpc(running: Running, port: int) -> Running:
    wait_listening(running.brokers[-1], port)
    running.grpc_address = f"127.0.0.1:{port}"
    return running


_START: Final[Mapping[str, Callable[[Session, str], Running]]] = {
    REPLICAS: _replicated,
    GRPC: _behind_proxy,
    GRPC_LOCAL: _inside_proxy,
}


@contextmanager
def _directory() -> Iterator[Path]:
    """A new one, on a disk that is done with what the other system left behind."""
    path = Path(tempfile.mkdtemp(prefix="bench"))
    try:
        print(f"    the disk syncs a page in {settle_disk(path):.1f} ms", flush=True)
        yield path
    finally:
        shutil.rmtree(path)

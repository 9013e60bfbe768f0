"""What clients are run against: an appliance of ours, or the original, which shows checks that are wrong themselves."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final, Protocol

import orjson

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.errors import LogboomError
from tests.interop.apache import Apache, Broker, NameServer, Session
from tests.support.certificates import of_the_appliance
from tests.support.cluster import Cluster, Process, eventually

# The original asks after half messages every half minute by default; waiting for that shows nothing more.
_ORIGINAL: Final = {
    "timerWheelEnable": "true",
    "recallMessageEnable": "true",
    "enablePropertyFilter": "true",
    "transactionTimeOut": 2000,
    "transactionCheckInterval": 1000,
}
_OURS: Final = ("transactions.timeout_ms=2000", "transactions.check_interval_ms=1000", "send.auto_create_topics=true")
# What the original calls safe: no acknowledgement before both brokers have the message.
_ORIGINAL_GROUP: Final = _ORIGINAL | {
    "flushDiskType": "SYNC_FLUSH",
    "allAckInSyncStateSet": "true",
    "minInSyncReplicas": 2,
    "inSyncReplicas": 2,
    "totalReplicas": 3,
}


def route_of(name_server: str, topic: str) -> str | None:
    """The address that a name server gives to producers of a topic."""
    with SocketConnection(name_server, timeout_ms=2000) as connection:
        answer = connection.call(codes.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    [data] = orjson.loads(answer.body)["brokerDatas"]
    address: str | None = data["brokerAddrs"].get("0")
    return address


class Server(Protocol):
    """A running cluster with one broker group. Addresses are host:port."""

    @property
    def name_servers(self) -> str:
        """All of them, separated by semicolons."""
        ...

    def master(self) -> str:
        """The master's address; waits for one."""
        ...

    def kill_master(self) -> None:
        """kill -9, and wait until another one is master."""
        ...

    def restore(self) -> None:
        """Start again what was killed, and wait until it has caught up."""
        ...

    def close(self) -> None: ...


class Ours:
    """Three controllers and a group of three brokers, whose ports answer TLS and plaintext as the appliance's do."""

    def __init__(self, root: Path) -> None:
        tls, _ = of_the_appliance(root / "appliance")
        self._cluster = Cluster(root, broker_settings=(*tls, *_OURS), controller_settings=tls)
        self._killed: list[Process] = []
        try:
            self._cluster.start()
        except BaseException:
            self._cluster.close()
            raise

    @property
    def name_servers(self) -> str:
        return ";".join(self._cluster.controller_addresses)

    def master(self) -> str:
        return self._cluster.broker_addresses[self._cluster.master()]

    def kill_master(self) -> None:
        before = self._cluster.master()
        self._cluster.brokers[before].kill()
        self._killed.append(self._cluster.brokers[before])
        eventually("another master", lambda: self._cluster.master() != before)

    def restore(self) -> None:
        while self._killed:
            self._killed.pop().start()
        self._cluster.wait_in_sync(len(self._cluster.brokers))

    def close(self) -> None:
        self._cluster.close()


class Original:
    """A name server and one broker; with `replicas`, a controller and so many brokers."""

    def __init__(self, session: Session, replicas: int = 0) -> None:
        self._session = session
        self._name_server: NameServer = session.name_server(with_controller=replicas > 0)
        address, controller = self._name_server.address, self._name_server.controller
        settings = _ORIGINAL_GROUP if replicas else _ORIGINAL
        self._brokers: list[Broker] = [
            session.broker("broker-a", address, controllers=controller, properties=settings)
            for _ in range(max(1, replicas))
        ]
        self._killed: list[Process] = []
        self._wait_in_sync()

    @property
    def name_servers(self) -> str:
        return self._name_server.address

    def master(self) -> str:
        return eventually("a master in the routes", self._routed, 60)

    def _routed(self) -> str | None:
        with contextlib.suppress(LogboomError, ValueError):  # no broker yet, or none that is a master
            return route_of(self._name_server.address, "TBW102")
        return None

    def kill_master(self) -> None:
        before = self.master()
        [broker] = [each for each in self._brokers if each.address == before]
        broker.process.kill()
        self._killed.append(broker.process)
        eventually("another master", lambda: self._routed() not in (None, before), 90)

    def restore(self) -> None:
        while self._killed:
            self._killed.pop().start()
        self._wait_in_sync()

    def _wait_in_sync(self) -> None:
        self.master()
        if not self._name_server.controller:
            return
        wanted = f"#SyncStateSetNums\t{len(self._brokers)}"
        arguments = ("getSyncStateSet", "-a", self._name_server.controller, "-b", "broker-a")
        eventually("all brokers in sync", lambda: wanted in self._session.mqadmin(*arguments), 120)

    def close(self) -> None:
        self._session.close()


def start(kind: str, root: Path, apache: Apache, replicas: int = 0) -> Server:
    """The cluster that `--server` names: "ours" or "original"."""
    if kind == "ours":
        return Ours(root)
    session = apache.session(root)
    try:
        return Original(session, replicas)
    except BaseException:
        session.close()
        raise


def topic_fields(name: str, queues: int) -> dict[str, str]:
    return {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }


def make_topic(server: Server, name: str, queues: int) -> None:
    """Make a topic and wait for its route, for clients that cannot make any."""
    with SocketConnection(server.master(), timeout_ms=5000) as connection:
        connection.call(codes.UPDATE_AND_CREATE_TOPIC, topic_fields(name, queues))
    for address in server.name_servers.split(";"):
        eventually(f"{name} is in the routes of {address}", lambda address=address: _is_routed(address, name))


def _is_routed(name_server: str, topic: str) -> bool:
    with contextlib.suppress(LogboomError):
        return route_of(name_server, topic) is not None
    return False

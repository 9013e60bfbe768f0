"""Users of a cluster that asks everybody, and what is answered to them."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence

from remoting import codes, frame
from remoting.access.signature import Credentials
from remoting.client.access_admin import AccessAdmin
from remoting.client.socket_connection import SocketConnection
from remoting.frame import Command
from remoting.transport.client import split_address
from remoting.transport.identity import Identity
from tests.support.cluster import Cluster, eventually

PASSWORD = "correct horse battery"


class Person:
    """A user with these permissions (resource -> actions), which every broker knows of."""

    def __init__(self, cluster: Cluster, name: str, permissions: Mapping[str, Sequence[str]]) -> None:
        self.name = name
        self.identity = Identity(Credentials(name, PASSWORD.encode()))
        self._cluster = cluster
        admin = AccessAdmin(cluster.admin)
        admin.create_user(name, PASSWORD, "Normal", "enable")
        marks = {"Topic:mark-of-" + name: ("Sub",)}
        for resource, actions in {**permissions, **marks}.items():
            admin.put_permission(name, {"resource": resource, "actions": list(actions), "decision": "Allow"})
        for address in cluster.broker_addresses:
            eventually(f"{address} knows what {name} may", lambda address=address: self._is_known(address))

    def ask(self, address: str, code: int, ext: Mapping[str, str], body: bytes = b"") -> Command:
        """The answer, whatever it is."""
        with SocketConnection(address, identity=self.identity) as connection:
            return connection.call(code, ext, body, accept=tuple(range(-1, 10_000)))

    def _is_known(self, address: str) -> bool:
        ext = {"topic": "mark-of-" + self.name, "queueId": "0"}
        return self.ask(address, codes.GET_MAX_OFFSET, ext).code != codes.NO_PERMISSION


class Listener:
    """A connection that hears what a broker says without being asked."""

    def __init__(self, address: str, identity: Identity) -> None:
        assert identity.credentials is not None
        self._sign = identity.credentials.signer([address])
        self._socket = socket.create_connection(split_address(address))
        self._rest = b""
        self._said = 0

    def say(self, code: int, ext: Mapping[str, str], body: bytes) -> None:
        self._said += 1
        self._socket.sendall(frame.encode_request(code, self._said, self._sign(code, ext, body, False), body))

    def hear(self, timeout_s: float) -> list[Command]:
        """What came; nothing when nothing did in time."""
        heard: list[Command] = []
        self._socket.settimeout(timeout_s)
        try:
            self._rest += self._socket.recv(1 << 16)
        except TimeoutError:
            return heard
        self._rest = self._rest[frame.decode_frames(self._rest, heard) :]
        for each in heard:
            each.body = bytes(each.body)
        return heard

    def close(self) -> None:
        self._socket.close()


def send(cluster: Cluster, topic: str, properties: str = "", identity: Identity | None = None) -> Command:
    """A message; without an identity it is the cluster's own word."""
    ext = dict(zip("abcdefghij", ("g", topic, "TBW102", "4", "0", "0", "0", "0", properties, "0"), strict=True))
    identity = identity or cluster.identity
    with SocketConnection(cluster.broker_addresses[cluster.master()], identity=identity) as connection:
        return connection.call(codes.SEND_MESSAGE_V2, ext, b"a secret")

"""10,000 finished TLS handshakes of nobody at one port of a broker: others are served meanwhile, and what the strangers hold is
bounded."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from remoting import codes
from remoting.access.signature import Credentials
from remoting.client.access_admin import AccessAdmin
from remoting.client.socket_connection import SocketConnection
from remoting.transport.client import split_address
from remoting.transport.identity import Identity
from remoting.transport.tls import client_context
from remoting.transport.waiting import MOST_STRANGERS
from tests.security.test_unfinished import is_closed
from tests.support.certificates import of_the_appliance
from tests.support.cluster import Cluster, eventually

TOPIC: Final = "strangers"
COUNT: Final = min(10_000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 500)
_ON: Final = ("access.authentication=true",)
_OTHERS: Final = 200  # file descriptors of a broker that are none of a client's


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[tuple[Cluster, Path, Identity]]:
    """A cluster that takes signed requests alone, its authority, and somebody it knows."""
    tls, authority = of_the_appliance(tmp_path / "appliance")
    with Cluster(
        tmp_path / "cluster", controllers=1, replicas=1, broker_settings=(*_ON, *tls), controller_settings=_ON
    ) as cluster:
        cluster.start()
        cluster.admin.create_topic(TOPIC, 1)
        AccessAdmin(cluster.admin).create_user("ann", "a long secret", "Super", "enable")
        identity = Identity(Credentials("ann", b"a long secret"))
        eventually("the broker knows ann", lambda: served(cluster, identity))
        yield cluster, authority, identity


def served(cluster: Cluster, identity: Identity) -> bool:
    """Whether somebody who comes now is answered."""
    with SocketConnection(cluster.broker_addresses[0], identity=identity) as connection:
        return asked(connection)


def asked(connection: SocketConnection) -> bool:
    answer = connection.call(codes.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"}, accept=range(-1, 10_000))
    return answer.code == codes.SUCCESS


def test_strangers_with_finished_handshakes_keep_nobody_out(asking: tuple[Cluster, Path, Identity]) -> None:
    cluster, authority, identity = asking
    context, address = client_context(str(authority)), split_address(cluster.broker_addresses[0])
    descriptors = Path(f"/proc/{cluster.brokers[0].pid}/fd")
    most_open = 0
    with contextlib.ExitStack() as stack:
        early = stack.enter_context(SocketConnection(cluster.broker_addresses[0], identity=identity))
        assert asked(early)
        strangers: list[socket.socket] = []
        for number in range(COUNT):
            shaken = context.wrap_socket(socket.create_connection(address, 10))
            strangers.append(stack.enter_context(socket.socket(fileno=shaken.detach())))
            if number % 100 == 99:
                assert asked(early), "who was there before is there still"
            if number % 500 == 499:
                assert served(cluster, identity), f"after {number + 1} of them"
                most_open = max(most_open, len(os.listdir(descriptors)))
        assert most_open <= MOST_STRANGERS + _OTHERS
        if COUNT > MOST_STRANGERS:
            eventually("the oldest went", lambda: all(map(is_closed, strangers[: COUNT - MOST_STRANGERS])))
        assert not is_closed(strangers[-1])

"""Who has seen one request of a component cannot make another one of it, nor have it carried out again or by somebody else.

A user could have himself dialled (a broker's address is what its registration says), split the bytes that were signed into other
fields under another code, and was a component: with all users and their secrets.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from remoting import codes, frame
from remoting.access.signature import ACCESS_KEY, SIGNATURE, Credentials
from remoting.client.socket_connection import SocketConnection
from remoting.errors import LogboomError, RequestError
from remoting.frame import Command
from remoting.transport.identity import NOBODY, Identity
from tests.support.cluster import Cluster


@pytest.fixture(scope="module")
def cluster(secured: Cluster) -> Cluster:
    return secured


def overheard(identity: Identity, code: int, ext: Mapping[str, str], body: bytes) -> Command:
    """What somebody gets whom a component dials."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found: list[Command] = []

        def listen() -> None:
            connection, _ = listener.accept()
            with connection:
                received = b""
                while not found:
                    received += connection.recv(65536)
                    frame.decode_frames(received, found)

        thread = threading.Thread(target=listen)
        thread.start()
        with (
            pytest.raises(LogboomError),
            SocketConnection(f"127.0.0.1:{listener.getsockname()[1]}", identity=identity) as component,
        ):
            component.call(code, ext, body)
        thread.join()
    found[0].body = bytes(found[0].body)
    return found[0]


def asked(address: str, code: int, ext: Mapping[str, str], body: bytes = b"") -> str:
    """What is said to somebody who sends just this."""
    with SocketConnection(address, identity=NOBODY) as connection, pytest.raises(RequestError) as refused:
        connection.call(code, ext, body)
    assert refused.value.code == codes.NO_PERMISSION
    return refused.value.message


def test_an_overheard_request_is_nothing_elsewhere(cluster: Cluster) -> None:
    both = (codes.AUTH_LIST_USERS, codes.UPDATE_AND_CREATE_TOPIC, codes.DELETE_TOPIC_IN_BROKER)
    for addresses, answered in (
        (cluster.controller_addresses, (codes.AUTH_LIST_USERS, codes.ACCESS_STATE, codes.CONTROLLER_ELECT_MASTER)),
        (cluster.broker_addresses, (*both, codes.NOTIFY_BROKER_ROLE_CHANGED)),
    ):
        for code in answered:
            heard = overheard(cluster.identity, code, {"topic": "orders"}, b"")
            for address in addresses:
                assert "is for 127.0.0.1:" in asked(address, code, heard.ext)


def test_an_overheard_request_cannot_become_another(cluster: Cluster) -> None:
    controller = cluster.controller_addresses[0]
    heard = overheard(cluster.identity, codes.CLUSTER_VIEW, {"a": "xfilter", "b": "y"}, b"body")
    proof = {name: heard.ext[name] for name in (ACCESS_KEY, SIGNATURE)}
    for code, ext, body in (
        (codes.AUTH_LIST_USERS, heard.ext, b"body"),
        (codes.CLUSTER_VIEW, {"a": "x", "b": "filtery", **proof}, b"body"),
        (codes.CLUSTER_VIEW, {"a": "xfiltery", **proof}, b"body"),
        (codes.CLUSTER_VIEW, {"a": "xfilter", "b": "yb", **proof}, b"ody"),
        (codes.CLUSTER_VIEW, {**heard.ext, "caller": "admin"}, b"body"),
    ):
        assert "not that of a component" in asked(controller, code, ext, body)


def test_a_request_is_carried_out_once(cluster: Cluster) -> None:
    credentials = cluster.identity.credentials
    assert credentials is not None
    for address in (cluster.controller_addresses[0], cluster.broker_addresses[0]):
        code = codes.CLUSTER_VIEW if address in cluster.controller_addresses else codes.BROKER_STATE
        signed = credentials.signer([address])(code, {}, b"", False)
        with SocketConnection(address, identity=NOBODY) as connection:
            connection.call(code, signed)
        assert "carried out before" in asked(address, code, signed)


def test_the_words_of_a_component_count_from_components_alone(cluster: Cluster) -> None:
    """`caller` is what a broker says of who asked it: a user's own word for it is nothing."""
    name, password = (cluster.data / "n0" / "first-user").read_text().strip().split(":")
    root = Identity(Credentials(name, password.encode()))
    controller = cluster.controller_addresses[0]
    with SocketConnection(controller, identity=root) as connection:
        body = b'{"username": "trudy", "password": "a long enough one", "userType": "Normal", "userStatus": "enable"}'
        connection.call(codes.AUTH_CREATE_USER, {"username": "trudy"}, body)
    trudy = Identity(Credentials("trudy", b"a long enough one"))
    for code in (codes.AUTH_LIST_USERS, codes.AUTH_GET_USER, codes.ACCESS_STATE):
        for ext in ({"caller": name, "username": name}, {"caller": "", "username": name}):
            with SocketConnection(controller, identity=trudy) as connection, pytest.raises(RequestError) as refused:
                connection.call(code, ext)
            assert refused.value.code == codes.NO_PERMISSION


def test_the_first_secret_is_for_its_owner_alone(cluster: Cluster) -> None:
    path: Path = cluster.data / "n0" / "first-user"
    assert path.stat().st_mode & 0o077 == 0

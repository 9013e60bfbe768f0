"""What clients on other machines see of a secured appliance: each port is dialled at the address that they use.

Nothing here has the rights of a component: what is signed is signed as the first super user of clients.
"""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.errors import LogboomError, RequestError
from remoting.transport.client import split_address
from remoting.transport.identity import Identity
from remoting.transport.tls import client_context
from webapp.appliance import first_user
from webapp.appliance.layout import DataLayout
from webapp.appliance.reach import Secure, join_address

_DEADLINE_S = 5.0


def look_from_outside(layout: DataLayout, wanted: Secure, content: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """What works, and what does not, each in words. `content` is what the supervisor tells."""
    trust = client_context(str(layout.tls_authority_file), check_host=True)
    name_server = join_address(wanted.host, split_address(content["controllers"][0])[1])
    brokers = [each["address"] for each in content["processes"] if each["kind"] == "broker"]
    seen: list[str] = []
    faults: list[str] = []

    def look(what: str, check: Callable[[], object]) -> None:
        try:
            check()
        except (LogboomError, OSError, ValueError) as error:
            faults.append(f"{what}: {error or type(error).__name__}")
        else:
            seen.append(what)

    look(f"the console answers at https://{wanted.https}/", lambda: _console(wanted, trust))
    look(f"{name_server} refuses plaintext", lambda: _refuses_plaintext(name_server))
    look(f"{name_server} refuses who does not sign", lambda: _refuses_nobody(name_server, trust))
    user = first_user.read(layout.first_user_file)
    if user is not None:
        identity = Identity(user, trust)
        look(f"{name_server} answers the user {user.access_key}", lambda: _names(name_server, identity, brokers))
        look(f"{len(brokers)} brokers answer that user", lambda: _settings(brokers, identity))
    look("gRPC is there with TLS", lambda: _grpc(content["grpc"], trust))
    return seen, faults


def _console(wanted: Secure, trust: ssl.SSLContext) -> None:
    context = trust
    if (
        wanted.certificate_path
    ):  # it need not be of anybody whom this machine trusts, but it has to be the one that is shown
        context = ssl.create_default_context(cafile=wanted.certificate_path)
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    connection = http.client.HTTPSConnection(wanted.host, wanted.https_port, timeout=_DEADLINE_S, context=context)
    try:
        connection.request("GET", "/api/v1/health")
        answer = connection.getresponse()
        answer.read(65_536)
    except http.client.HTTPException as error:
        raise ValueError(f"it does not speak HTTP: {error!r}") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise ValueError(f"it answers with status {answer.status}")


def _refuses_plaintext(address: str) -> None:
    try:
        with SocketConnection(address, identity=Identity()) as connection:
            connection.call(codes.GET_BROKER_CLUSTER_INFO)
    except RequestError as error:
        raise ValueError(f"it answers: {error}") from error
    except LogboomError:
        return
    raise ValueError("it answers")


def _refuses_nobody(address: str, trust: ssl.SSLContext) -> None:
    try:
        with SocketConnection(address, identity=Identity(tls=trust)) as connection:
            connection.call(codes.GET_BROKER_CLUSTER_INFO)
    except RequestError as error:
        if error.code == codes.NO_PERMISSION:
            return
        raise
    raise ValueError("it answers")


def _names(address: str, identity: Identity, brokers: Sequence[str]) -> None:
    with SocketConnection(address, identity=identity) as connection:
        told = orjson.loads(connection.call(codes.GET_BROKER_CLUSTER_INFO).body)
    named = {each for group in told["brokerAddrTable"].values() for each in group["brokerAddrs"].values()}
    if missing := set(brokers) - named:
        raise ValueError(f"it does not name {', '.join(sorted(missing))}")


def _settings(brokers: Sequence[str], identity: Identity) -> None:
    for address in brokers:
        with SocketConnection(address, identity=identity) as connection:
            connection.call(codes.GET_BROKER_CONFIG)


def _grpc(endpoints: Sequence[str], trust: ssl.SSLContext) -> None:
    trust.set_alpn_protocols(["h2"])
    for address in endpoints:
        host, port = split_address(address)
        with (
            socket.create_connection((host, port), _DEADLINE_S) as plain,
            trust.wrap_socket(plain, server_hostname=host) as secured,
        ):
            if secured.selected_alpn_protocol() != "h2":
                raise ValueError(f"{address} speaks no HTTP/2")

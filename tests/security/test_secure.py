"""`manage.py secure` on a running appliance: what a stranger and a user see before and after, and that nothing sent is lost.

Linux answers on all of 127.0.0.0/8, so another of those addresses stands for the one that other machines use.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import ssl
from collections.abc import Iterator

import orjson
import pytest

from remoting import codes
from remoting.access.signature import Credentials
from remoting.client.blocking import AdminClient
from remoting.client.socket_connection import SocketConnection
from remoting.errors import ConnectionLost, RequestError
from remoting.transport.identity import NOBODY, Identity
from remoting.transport.tls import client_context
from tests.support.appliance import BROKER, CONTROLLER, HTTP, START_S, Appliance
from tests.support.cluster import eventually
from webapp.appliance import preflight, up
from webapp.appliance.reach import Secure

pytestmark = pytest.mark.slow

OUTSIDE, TOPIC = "127.0.0.2", "Orders"
HTTPS = 62


@pytest.fixture(scope="module")
def appliance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    it = Appliance(tmp_path_factory.mktemp("secure"), "--controllers", "1", "--replicas", "1")
    it.start()
    yield it
    it.process.close()


def max_offset(address: str, identity: Identity) -> int:
    with SocketConnection(address, identity=identity) as connection:
        return int(connection.call(codes.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"}).ext["offset"])


def _head(address: str, path: str, trust: ssl.SSLContext | None) -> tuple[int, str | None]:
    """The console's status, and where it sends a browser."""
    connection = (
        http.client.HTTPConnection(address, timeout=10)
        if trust is None
        else http.client.HTTPSConnection(address, timeout=10, context=trust)
    )
    with contextlib.closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Location")


def test_it_is_secured_and_undone_while_it_runs_and_keeps_what_it_acknowledged(
    appliance: Appliance, monkeypatch: pytest.MonkeyPatch
) -> None:
    name_server, broker = (f"127.0.0.1:{appliance.base + each}" for each in (CONTROLLER, BROKER))
    outside_name_server, outside_broker = (f"{OUTSIDE}:{appliance.base + each}" for each in (CONTROLLER, BROKER))
    sender = AdminClient([name_server], identity=NOBODY)
    assert sender.create_topic(TOPIC, queues=1)[0].outcome == "CONFIRMED"
    for number in range(50):
        sender.send(TOPIC, b"before %d" % number, group="broker-a")

    https = ["--https-port", str(appliance.base + HTTPS)]
    with socket.create_server((OUTSIDE, appliance.base + HTTPS)):
        refused = appliance.manage("secure", OUTSIDE, *https)
    assert (refused.returncode, "choose another --https-port" in refused.stdout) == (1, True), refused.stdout
    refused = appliance.manage("secure", OUTSIDE, "--https-port", str(appliance.base + BROKER))
    assert (refused.returncode, "one of the appliance's own" in refused.stdout) == (1, True), refused.stdout
    assert max_offset(broker, NOBODY) == 50, "nothing was stopped"

    done = appliance.manage("secure", OUTSIDE, *https)
    assert done.returncode == 0, done.stdout + appliance.said
    assert "answers the user admin" in done.stdout
    name, _, secret = appliance.layout.first_user_file.read_text().strip().partition(":")
    trust = client_context(str(appliance.layout.tls_authority_file), check_host=True)
    known = Identity(Credentials(name, secret.encode()), trust)
    with SocketConnection(outside_name_server, identity=known) as connection:
        route = orjson.loads(connection.call(codes.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC}).body)
    assert list(route["brokerDatas"][0]["brokerAddrs"].values()) == [outside_broker]
    assert max_offset(outside_broker, known) == 50
    with pytest.raises(RequestError) as stranger:
        max_offset(outside_broker, Identity(tls=trust))
    assert stranger.value.code == codes.NO_PERMISSION
    for address in (outside_broker, outside_name_server, name_server):
        with pytest.raises(ConnectionLost):
            max_offset(address, NOBODY)
    with pytest.raises(ConnectionLost):
        max_offset(broker, NOBODY)
    with pytest.raises(ConnectionRefusedError):  # the console in plaintext is for this machine alone
        socket.create_connection((OUTSIDE, appliance.base + HTTP))
    monkeypatch.setenv("LOGBOOM_TLS_CA", str(appliance.layout.tls_authority_file))
    assert appliance.status()[0] == 0
    monkeypatch.delenv("LOGBOOM_TLS_CA")
    inside, outside = f"127.0.0.1:{appliance.base + HTTP}", f"{OUTSIDE}:{appliance.base + HTTPS}"
    assert f"console https://{inside}/ and https://{outside}/," in appliance.manage("status").stdout
    trust.set_alpn_protocols(["h2", "http/1.1"])  # as browsers do
    for address in (inside, outside):
        assert _head(address, "/login", trust)[0] == 200
    assert _head(inside, "/topics/?find=x", None) == (302, f"https://{inside}/topics/?find=x")
    assert _head(inside, "/api/v1/health", None)[0] == 200, "scripts on this machine go on"

    undone = appliance.manage("secure", "--undo")
    assert undone.returncode == 0, undone.stdout + appliance.said
    assert max_offset(broker, NOBODY) == 50
    sender.send(TOPIC, b"after", group="broker-a")
    assert max_offset(broker, NOBODY) == 51


def test_a_start_that_fails_is_taken_back(appliance: Appliance) -> None:
    """Who takes a port after the command looked whether it is free stops nothing for good."""
    broker = f"127.0.0.1:{appliance.base + BROKER}"
    before, said = max_offset(broker, NOBODY), len(appliance.said)
    remembered = preflight.read_remembered(appliance.layout)
    assert remembered is not None
    wanted = remembered._replace(secure=Secure(OUTSIDE, appliance.base + HTTPS))
    with socket.create_server((OUTSIDE, appliance.base + HTTPS)):
        preflight.write_remembered(appliance.layout, wanted)
        os.kill(appliance.process.pid, up.AGAIN_SIGNAL)
        eventually("it is there again", lambda: "Ctrl-C stops everything." in appliance.said[said:], START_S)
    assert "starting again as it was before" in appliance.said[said:]
    assert preflight.read_remembered(appliance.layout) == remembered
    assert max_offset(broker, NOBODY) == before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "say either the address"),
        ((OUTSIDE, "--undo"), "say either the address"),
        (("203.0.113.77",), "no address of this machine"),
        ((OUTSIDE, "--console-certificate", "/nowhere"), "belong together"),
        ((OUTSIDE, "--console-certificate", "/nowhere", "--console-key", "/nowhere"), "cannot be used"),
        ((OUTSIDE, "--console-certificate", __file__, "--console-key", __file__), "cannot be used"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_stopped(
    appliance: Appliance, arguments: tuple[str, ...], sentence: str
) -> None:
    pid = appliance.process.pid
    refused = appliance.manage("secure", *arguments)
    assert (refused.returncode, sentence in refused.stdout) == (2, True), refused.stdout + refused.stderr
    os.kill(pid, 0)

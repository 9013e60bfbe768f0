"""The original's clients of version 5 with nothing set but an access point: they get in, and go on when the master is killed.

Once the access point is the master itself, whose process starts again as the appliance starts it again; once it is a replica, and
the master stays away.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop import programs
from tests.interop.apache import Apache, Unavailable
from tests.interop.programs import Outcome, Program
from tests.support.certificates import of_the_appliance
from tests.support.cluster import Cluster, eventually

CHECKS = ("connect", "survive-simple", "survive-push")
BEFORE = 100  # messages that are acknowledged before the kill, and again after it

LACKS = {"rust": ("survive-push",)}  # its client has no push consumer
ACCESS_POINTS = ("the master", "a replica")

Make = Callable[[Apache, Path], Program]
CLIENTS: dict[str, Make] = {
    "java": programs.java_grpc,  # TLS, whatever the certificate
    "go": lambda _, directory: programs.go_grpc(directory),  # TLS, whatever the certificate
    "node": lambda _, directory: programs.node_grpc(),  # plaintext, and one address
    "rust": lambda _, directory: programs.rust_grpc(),  # plaintext, every address at once, and a route for ever
    "cpp": lambda _, directory: programs.cpp_grpc(directory),  # TLS, whatever the certificate
}
WITHOUT_TLS = ("cpp",)  # those that are told to do without, and are asked for their defaults elsewhere


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers whose ports answer TLS and plaintext, as those of the default appliance."""
    root = tmp_path_factory.mktemp("first")
    tls, _ = of_the_appliance(root / "appliance")
    with Cluster(root / "cluster", broker_settings=tls, controller_settings=tls) as running:
        running.start()
        yield running


Lives = Callable[[str, str], Outcome]


@pytest.fixture(scope="module")
def lives(apache: Apache, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Lives:
    """What the program of a client found out that was given this access point, having lived through the loss of the master: it
    lives once, for all its checks."""

    @functools.cache
    def lived(client: str, access_point: str) -> Outcome:
        return _live(apache, cluster, tmp_path_factory.mktemp(client), client, access_point)

    return lived


def _live(apache: Apache, cluster: Cluster, directory: Path, client: str, access_point: str) -> Outcome:
    try:
        program = CLIENTS[client](apache, directory)
    except Unavailable as reason:
        pytest.skip(str(reason))
    topic = f"{client}-{access_point.split()[1]}"
    cluster.admin.create_topic(topic, 8)
    eventually("the topic's route", lambda: cluster.admin.queue_offsets(topic))
    master = cluster.master()
    given = master if access_point == "the master" else (master + 1) % len(cluster.brokers)
    words = [cluster.grpc_addresses[given], topic, topic, *(["plaintext"] if client in WITHOUT_TLS else [])]
    with program.start(words, directory) as running:
        try:
            count = running.wait_for("messages before the kill", r"acknowledged (\d+)", BEFORE)
            cluster.brokers[master].kill()
            if given == master:
                eventually("another master", lambda: cluster.master() != master)
                cluster.brokers[master].start()
            count = running.wait_for("messages after the kill", r"acknowledged (\d+)", count + 10)
            running.wait_for("more messages after the kill", r"acknowledged (\d+)", count + BEFORE)
            running.tell("stop")
            return running.outcome()
        finally:
            cluster.make_whole()


@pytest.mark.parametrize("access_point", ACCESS_POINTS)
@pytest.mark.parametrize(
    ("client", "check"),
    [
        (client, check)
        for client in CLIENTS
        for check in CHECKS
        if client not in WITHOUT_TLS and check not in LACKS.get(client, ())
    ],
)
def test_a_client_with_its_defaults(lives: Lives, client: str, access_point: str, check: str) -> None:
    lives(client, access_point).expect(check)


@pytest.mark.parametrize("access_point", ACCESS_POINTS)
@pytest.mark.parametrize("check", CHECKS)
def test_cpp_without_tls(lives: Lives, access_point: str, check: str) -> None:
    """Its channels have all addresses of a group then, and connect to the next one where a connection breaks."""
    lives("cpp", access_point).expect(check)


def test_cpp_gets_in_with_its_defaults(apache: Apache, cluster: Cluster, tmp_path: Path) -> None:
    """By TLS. It is not told to live on without the master, as it may crash then, whichever server it was connected to.

    Its versions 5.1.0 and 5.1.1 start a receive's call (`StartCall` in the constructor of ReceiveMessageStreamReader) and only
    then its first read (`StartRead`). A call to an address that refuses connections fails at once: when its end (`OnDone`) is
    there before `StartRead`, the reader deletes itself, and its constructor goes on with what is gone. By TLS a channel has one
    address, as more than one is not found in the certificate, so each receive from an address that was lost may be the one; a
    simple consumer tries again as fast as its program asks. No answer keeps it from that: the call meets nobody who answers.
    """
    try:
        program = programs.cpp_grpc(tmp_path)
    except Unavailable as reason:
        pytest.skip(str(reason))
    cluster.admin.create_topic("cpp", 8)
    eventually("the topic's route", lambda: cluster.admin.queue_offsets("cpp"))
    with program.start([cluster.grpc_addresses[cluster.master()], "cpp", "cpp"], tmp_path) as running:
        running.wait_for("messages", r"acknowledged (\d+)", BEFORE)
        running.tell("stop")
        outcome = running.outcome()
    for check in CHECKS:
        outcome.expect(check)

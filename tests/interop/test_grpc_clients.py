"""The original's clients of version 5 for Java and Node on a whole cluster: every feature of theirs is a check of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop import programs
from tests.interop.apache import Apache, Unavailable
from tests.interop.programs import Outcome, Program
from tests.support.certificates import of_the_appliance
from tests.support.cluster import Cluster, eventually

MANY = 1000
CHECKS = (
    *("simple", "push", "filter-tags", "filter-sql92", "fifo", "priority", "delay", "dead-letter", "renewal"),
    "many-topics",
)
TYPES = {"fifo": "FIFO", "priority": "PRIORITY", "delay": "DELAY"}

Make = Callable[[Apache, Path], Program]
CLIENTS: dict[str, Make] = {
    "java": lambda apache, directory: programs.java_grpc(
        apache, directory, "Features"
    ),  # TLS, whatever the certificate
    "node": lambda _, directory: programs.node_grpc("features"),  # plaintext, and one address
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers whose ports answer TLS and plaintext, as those of the default appliance."""
    root = tmp_path_factory.mktemp("features")
    tls, _ = of_the_appliance(root / "appliance")
    with Cluster(root / "cluster", broker_settings=tls, controller_settings=tls) as running:
        running.start()
        yield running


@pytest.fixture(scope="module", params=CLIENTS)
def outcome(
    apache: Apache, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Outcome:
    """What the program found out."""
    name: str = request.param
    directory = tmp_path_factory.mktemp(name)
    try:
        program = CLIENTS[name](apache, directory)
    except Unavailable as reason:
        pytest.skip(str(reason))
    for check in CHECKS:
        cluster.admin.create_topic(f"{name}-{check}", 4, TYPES.get(check, "NORMAL"))
    for number in range(MANY):
        cluster.admin.create_topic(f"{name}-many-{number}", 1)
    cluster.admin.create_group(f"{name}-fifo", fifo=True)
    cluster.admin.create_group(f"{name}-dead-letter", retry_max_times=1)
    eventually("the last topic's route", lambda: cluster.admin.queue_offsets(f"{name}-many-{MANY - 1}"))
    return program.run([cluster.grpc_addresses[cluster.master()], name], directory)


@pytest.mark.parametrize("check", CHECKS)
def test_a_client(outcome: Outcome, check: str) -> None:
    outcome.expect(check)


def test_every_check_of_the_programs_is_looked_at(outcome: Outcome) -> None:
    assert set(outcome.results) == set(CHECKS)


def test_go_sends_ahead_and_recalls(apache: Apache, cluster: Cluster, tmp_path: Path) -> None:
    try:
        program = programs.go_grpc(tmp_path)
    except Unavailable as reason:
        pytest.skip(str(reason))
    cluster.admin.create_topic("go-delay", 4, "DELAY")
    eventually("the topic's route", lambda: bool(cluster.admin.queue_offsets("go-delay")))
    program.run([cluster.grpc_addresses[0], "go-delay", "go-delays", "delays"], tmp_path).expect("delay")

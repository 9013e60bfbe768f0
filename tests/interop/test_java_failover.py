"""The original's Java producer and consumers through a kill -9 of the master: nothing acknowledged is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop import programs, servers
from tests.interop.apache import Apache, Unavailable
from tests.interop.programs import Outcome

PROMISES = ("survive-concurrent", "survive-orderly", "survive-order")
BEFORE = 300  # messages that are acknowledged before the kill, and again after it


@pytest.fixture(scope="module")
def group(
    apache: Apache, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[servers.Server]:
    """A cluster whose master may be killed."""
    running = servers.start(request.config.getoption("--server"), tmp_path_factory.mktemp("group"), apache, replicas=3)
    yield running
    running.close()


@pytest.fixture(scope="module", params=["java-4", "java-5"])
def survived(
    apache: Apache, group: servers.Server, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Outcome:
    """What the program found out, having lived through the loss of a master."""
    name: str = request.param
    try:
        program = programs.java(name, "Survive", apache, tmp_path_factory.getbasetemp())
    except Unavailable as reason:
        pytest.skip(str(reason))
    directory = tmp_path_factory.mktemp(name)
    with program.start([group.name_servers, group.master(), name], directory) as running:
        count = running.wait_for("messages before the kill", r"acknowledged (\d+)", BEFORE)
        group.kill_master()
        count = running.wait_for("messages after the kill", r"acknowledged (\d+)", count)
        running.wait_for("more messages after the kill", r"acknowledged (\d+)", count + BEFORE)
        running.tell("stop")
        outcome = running.outcome()
    group.restore()
    return outcome


@pytest.mark.parametrize("promise", PROMISES)
def test_java_through_a_kill_of_the_master(survived: Outcome, promise: str) -> None:
    survived.expect(promise)

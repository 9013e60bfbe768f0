"""What the interoperability tests share, and the count that keeps them from passing by not running."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop import servers
from tests.interop.apache import Apache, Session, Unavailable
from tests.interop.appliance import Appliance
from tests.interop.mqadmin import Tool
from tests.support.cluster import Cluster


class _Counted:
    passed = 0
    excused = 0  # skipped with a sentence that says what is missing here


_counted = _Counted()
_UNAVAILABLE = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--least-checks", type=int, default=0, help="fail when fewer tests against the original passed than this"
    )
    parser.addoption(
        "--server",
        choices=("ours", "original"),
        default="ours",
        help="what clients are run against; against the original, a check that fails is wrong itself",
    )


@pytest.fixture(scope="session")
def apache(request: pytest.FixtureRequest) -> Apache:
    """The original; everything that needs it is skipped with one sentence where it cannot be run."""
    try:
        return Apache.find()
    except Unavailable as reason:
        request.config.stash[_UNAVAILABLE] = str(reason)
        pytest.skip(str(reason))


@pytest.fixture
def session(apache: Apache, tmp_path: Path) -> Iterator[Session]:
    """Processes of the original that one test starts."""
    with apache.session(tmp_path / "apache") as running:
        yield running


@pytest.fixture(scope="session")
def server(
    apache: Apache, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[servers.Server]:
    """The cluster that clients of all languages are run against."""
    running = servers.start(request.config.getoption("--server"), tmp_path_factory.mktemp("server"), apache)
    yield running
    running.close()


@pytest.fixture(scope="module")
def appliance(tmp_path_factory: pytest.TempPathFactory, apache: Apache) -> Iterator[Appliance]:
    """An appliance of ours with the original's tool."""
    root = tmp_path_factory.mktemp("appliance")
    with Cluster(root / "cluster") as cluster, apache.session(root / "apache") as session:
        try:
            tool = Tool.start(session, ";".join(cluster.controller_addresses))
        except Unavailable as reason:
            pytest.skip(str(reason))
        with tool:
            cluster.start()
            yield Appliance(cluster, session, tool)


@pytest.fixture
def tool(appliance: Appliance) -> Iterator[Tool]:
    """The tool; the clients that a test starts beside it end with the test."""
    yield appliance.tool
    appliance.tool.stop_clients()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and report.passed:
        _counted.passed += 1
    elif report.skipped and not hasattr(report, "wasxfail"):
        _counted.excused += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    least = session.config.getoption("--least-checks")
    if (
        session.exitstatus == pytest.ExitCode.OK
        and _counted.passed + _counted.excused < least
        and _UNAVAILABLE not in session.config.stash
    ):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if (reason := config.stash.get(_UNAVAILABLE, None)) is not None:
        terminalreporter.write_line(f"nothing was checked: {reason}")
    elif _counted.passed + _counted.excused < config.getoption("--least-checks"):
        least = config.getoption("--least-checks")
        terminalreporter.write_line(f"{_counted.passed} checks passed, but there should be at least {least}", red=True)
    else:
        excused = f", {_counted.excused} could not be run here" if _counted.excused else ""
        terminalreporter.write_line(f"{_counted.passed} checks against the original passed{excused}")

"""The C++ client librocketmq on a whole cluster: every feature of its is a check of its own."""

from __future__ import annotations

import pytest

from tests.interop import programs, servers
from tests.interop.apache import Unavailable
from tests.interop.programs import Outcome

CHECKS = (
    *("send-sync", "send-async", "send-oneway", "send-orderly", "push-concurrent", "push-orderly"),
    *("push-broadcast", "filter-tags", "offsets-resumed", "reset-offset", "pull", "retry", "delay-level"),
)


@pytest.fixture(scope="module")
def cpp(server: servers.Server, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    try:
        program = programs.cpp()
    except Unavailable as reason:
        pytest.skip(str(reason))
    for check in CHECKS:
        servers.make_topic(server, f"cpp-{check}", 2)
    return program.run([server.name_servers, "cpp", server.master()], tmp_path_factory.mktemp("cpp"))


@pytest.mark.parametrize("check", CHECKS)
def test_cpp(cpp: Outcome, check: str) -> None:
    cpp.expect(check)


def test_every_check_of_the_program_is_looked_at(cpp: Outcome) -> None:
    assert set(cpp.results) == set(CHECKS)

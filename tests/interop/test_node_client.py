"""The Node client ali-ons on a whole cluster: every feature of its is a check of its own."""

from __future__ import annotations

import pytest

from tests.interop import programs, servers
from tests.interop.apache import Unavailable
from tests.interop.programs import Outcome

CHECKS = (
    *("send", "send-compressed", "push", "filter-tags", "filter-sql92", "broadcast", "offsets-resumed", "retry"),
    "delay-level",
)


@pytest.fixture(scope="module")
def node(server: servers.Server, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    try:
        program = programs.node()
    except Unavailable as reason:
        pytest.skip(str(reason))
    for check in CHECKS:
        servers.make_topic(server, f"node-{check}", 2)
    return program.run([server.name_servers, "node"], tmp_path_factory.mktemp("node"))


@pytest.mark.parametrize("check", CHECKS)
def test_node(node: Outcome, check: str) -> None:
    node.expect(check)


def test_every_check_of_the_program_is_looked_at(node: Outcome) -> None:
    assert set(node.results) == set(CHECKS)

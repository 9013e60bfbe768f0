"""The original's Go client on a whole cluster: every feature of its is a check of its own."""

from __future__ import annotations

import pytest

from tests.interop import programs, servers
from tests.interop.apache import Unavailable
from tests.interop.programs import Outcome

CHECKS = (
    *("send-sync", "send-async", "send-oneway", "send-batch", "send-properties", "send-compressed", "send-sharded"),
    *("send-to-unknown-topic", "request-reply", "delay-level", "transaction", "transaction-check-back"),
    *("push-concurrent", "push-orderly", "push-broadcast", "rebalance", "filter-tags", "filter-sql92"),
    *("offsets-resumed", "reset-offset", "pull", "pull-from", "pull-poll", "retry", "dead-letter"),
)


@pytest.fixture(scope="module")
def go(server: servers.Server, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    root = tmp_path_factory.mktemp("go")
    try:
        program = programs.go(root)
    except Unavailable as reason:
        pytest.skip(str(reason))
    return program.run([server.name_servers, server.master(), "go"], root)


@pytest.mark.parametrize("check", CHECKS)
def test_go(go: Outcome, check: str) -> None:
    go.expect(check)


def test_every_check_of_the_program_is_looked_at(go: Outcome) -> None:
    assert set(go.results) == set(CHECKS)

"""The original's Java clients of both generations on a whole cluster: every feature of theirs is a check of its own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.interop import programs, servers
from tests.interop.apache import Apache, Unavailable
from tests.interop.programs import Outcome

BOTH = (
    *("send-sync", "send-async", "send-oneway", "send-batch", "send-to-queue", "send-selector", "send-properties"),
    *("send-compressed-zlib", "send-to-unknown-topic", "request-reply", "delay-level"),
    *("send-large", "send-too-large", "namespace"),
    *("transaction-commit", "transaction-rollback", "transaction-check-back"),
    *("push-concurrent", "push-orderly", "push-orderly-suspend", "push-broadcast", "push-batch"),
    *("filter-tags", "filter-sql92", "pull", "pull-waits", "pull-offsets"),
    *("lite-pull-subscribe", "lite-pull-assign", "lite-pull-seek"),
    *("rebalance", "consume-from-first", "consume-from-last", "consume-from-timestamp"),
    *("offsets-resumed", "offsets-of-lite-pull-resumed", "subscription-changed", "reset-offset", "consumer-asked"),
    *("retry", "dead-letter", "dead-letter-orderly", "view-message", "query-by-key", "query-by-unique-key"),
)
ONLY_4 = ("request-reply-sync",)  # the clients 5.3.3 return from it before the answer is there
ONLY_5 = (
    *("send-compressed-lz4", "send-compressed-zstd", "send-auto-batch", "heartbeat-v2", "timer", "timer-recall"),
    *("pop-push", "pop-shared", "pop-orderly", "pop-retry", "assigned-by-broker", "pop-looked-at"),
)

COMPACT = (
    "send-sync",
    "send-batch",
    "push-orderly",
    "filter-tags",
    "pull",
    "retry",
    "transaction-commit",
    "view-message",
)


@pytest.fixture(scope="module")
def java_4(apache: Apache, server: servers.Server, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return _run("java-4", "java4", apache, server, tmp_path_factory)


@pytest.fixture(scope="module")
def java_5(apache: Apache, server: servers.Server, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return _run("java-5", "java5", apache, server, tmp_path_factory)


@pytest.fixture(scope="module", params=["java-4", "java-5"])
def compact(
    apache: Apache, server: servers.Server, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Outcome:
    """A few checks with the clients' other encoding of headers, which is not JSON."""
    name: str = request.param
    properties = ("rocketmq.serialize.type=ROCKETMQ",)
    return _run(name, f"{name}-compact", apache, server, tmp_path_factory, COMPACT, properties)


def _run(
    generation: str,
    prefix: str,
    apache: Apache,
    server: servers.Server,
    directories: pytest.TempPathFactory,
    checks: Sequence[str] = (),
    properties: Sequence[str] = (),
) -> Outcome:
    try:
        program = programs.java(generation, "Checks", apache, directories.getbasetemp(), properties)
    except Unavailable as reason:
        pytest.skip(str(reason))
    return program.run([server.name_servers, server.master(), prefix, *checks], directories.mktemp(prefix))


@pytest.mark.parametrize("check", [*BOTH, *ONLY_4])
def test_java_4(java_4: Outcome, check: str) -> None:
    java_4.expect(check)


@pytest.mark.parametrize("check", [*BOTH, *ONLY_5])
def test_java_5(java_5: Outcome, check: str) -> None:
    java_5.expect(check)


@pytest.mark.parametrize("check", COMPACT)
def test_java_with_compact_headers(compact: Outcome, check: str) -> None:
    compact.expect(check)


def test_every_check_of_the_programs_is_looked_at(java_4: Outcome, java_5: Outcome) -> None:
    assert set(java_4.results) == {*BOTH, *ONLY_4}
    assert set(java_5.results) == {*BOTH, *ONLY_5}

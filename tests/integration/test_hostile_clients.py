"""A broker under hostile and broken clients: it lives, answers every whole request once, and serves an honest one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from remoting import codes
from tests.fuzz.throw import throw
from tests.support.cluster import Cluster

pytestmark = pytest.mark.slow


def test_whatever_clients_send_others_are_served(tmp_path: Path) -> None:
    with Cluster(tmp_path, controllers=1, replicas=1) as cluster:
        cluster.start()
        seen = asyncio.run(throw(cluster.broker_addresses[0], cluster.admin, seed=7, seconds=4, least=1000))
        assert not seen.violations
        assert "Traceback" not in cluster.brokers[0].log_text()
        assert cluster.brokers[0].is_running
    assert seen.requests == seen.answers > 1000
    assert seen.damaged > 1000
    assert seen.closed_on_noise > 0
    assert seen.honest_sends > 0
    assert {codes.SUCCESS, codes.MESSAGE_ILLEGAL, codes.INVALID_PARAMETER, codes.TOPIC_NOT_EXIST} <= set(
        seen.answer_codes
    )

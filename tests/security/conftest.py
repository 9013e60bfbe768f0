"""A cluster that asks everybody who they are and lets them do what their permissions say; shared, so users have names of their
own in each module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster, eventually

_ON = ("access.authentication=true", "access.authorization=true")
# Open transactions are asked about at once and as often as it takes.
_ASKING = ("transactions.timeout_ms=10", "transactions.check_interval_ms=20", "transactions.check_max=1000")


@pytest.fixture(scope="package")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("secured")
    with Cluster(root, controllers=1, replicas=2, broker_settings=(*_ON, *_ASKING), controller_settings=_ON) as cluster:
        cluster.start()
        eventually("the first user is made", (cluster.data / "n0" / "first-user").exists)
        yield cluster

"""A cluster that asks everybody who they are and lets them do what their permissions say."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster, eventually

_ON = ("access.authentication=true", "access.authorization=true")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("secured")
    with Cluster(root, controllers=1, replicas=2, broker_settings=_ON, controller_settings=_ON) as cluster:
        cluster.start()
        eventually("the first user is made", (cluster.data / "n0" / "first-user").exists)
        yield cluster

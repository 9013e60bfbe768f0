"""A cluster of real processes for the tests of one file: whole before each of them, and each has a topic of its own.

A file may say with which settings the brokers start (`BROKER_SETTINGS`), and how many queues its topics have (`QUEUES`).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster, eventually
from tests.support.workload import call_until


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = getattr(request.module, "BROKER_SETTINGS", ())
    with Cluster(tmp_path_factory.mktemp("cluster"), broker_settings=settings) as cluster:
        cluster.start()
        yield cluster


@pytest.fixture
def cluster(running: Cluster) -> Cluster:
    """The same one for all tests, whole whatever the last one left."""
    running.make_whole()
    return running


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """One of each test's own: the histories of its producers are all that is in it."""
    name: str = request.node.name.removeprefix("test_")
    queues = getattr(request.module, "QUEUES", 1)
    call_until(lambda: cluster.admin.create_topic(name, queues=queues))
    eventually("the topic's route", lambda: bool(cluster.admin.queue_offsets(name)))
    return name

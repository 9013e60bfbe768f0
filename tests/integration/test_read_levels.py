"""A broker whose consumers read all that the tier has from there, though files have it, too: everybody gets the same as ever."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.idle_clients import counted
from tests.support.cluster import Cluster, eventually
from tests.support.cold_reading import (
    Read,
    by_bulk,
    by_grpc,
    by_pull,
    by_remoting_pop,
    first_local_byte,
    make_topic,
    send_batch,
)

pytestmark = pytest.mark.slow

TOPIC = "Orders"
UPLOADED = 150
MORE = 10
_GIVEN = re.compile(r"^logboom_tier_downloaded_messages_total(?:\{[^}]*\})? (\d+)", re.MULTILINE)


class Forced:
    """The cluster, its tier, and what a reader has to find."""

    def __init__(self, root: Path) -> None:
        self.tier = root / "tier"
        settings = [f"tiers.url=file://{self.tier}", "tiers.commit_interval_ms=100", "tiers.read_level=FORCE"]
        self.cluster = Cluster(root / "cluster", controllers=1, replicas=1, broker_settings=settings)

    @property
    def given(self) -> int:
        """Messages that came from the tier."""
        return counted(self.cluster.broker_addresses[0], _GIVEN)

    def send(self, count: int) -> list[Read]:
        bodies = [f"{number} ".encode().ljust(500, b".") for number in range(count)]
        first = send_batch(self.cluster, TOPIC, 0, bodies)
        return [(0, first + number, body) for number, body in enumerate(bodies)]

    def is_uploaded(self, count: int) -> bool:
        tier = self.cluster.admin.broker_state(self.cluster.broker_addresses[0]).tier
        return tier is not None and tier.messages >= count


@pytest.fixture
def forced(tmp_path: Path) -> Iterator[Forced]:
    forced = Forced(tmp_path)
    with forced.cluster as cluster:
        cluster.start()
        make_topic(cluster, TOPIC)
        yield forced


def test_all_that_the_tier_has_is_read_there_and_without_it_from_files(forced: Forced) -> None:
    cluster = forced.cluster
    expected = forced.send(UPLOADED)
    eventually("all of it is in the tier", lambda: forced.is_uploaded(UPLOADED))
    readers = (
        lambda: by_pull(cluster, TOPIC, 1),
        lambda: by_bulk(cluster, TOPIC),
        lambda: by_remoting_pop(cluster, TOPIC, "poppers", UPLOADED),
        lambda: by_grpc(cluster, TOPIC, "receivers", UPLOADED),
    )
    for read in readers:
        before = forced.given
        assert sorted(read()) == sorted(expected)
        assert forced.given - before >= UPLOADED
    assert first_local_byte(cluster, 0) == 0, "files have all of it"
    away = forced.tier.with_name("away")
    forced.tier.rename(away)
    expected += forced.send(MORE)
    forced.cluster.brokers[0].kill()  # what is in memory of the tier goes with it
    cluster.make_whole()
    before = forced.given
    assert by_pull(cluster, TOPIC, 1) == expected
    assert sorted(by_bulk(cluster, TOPIC)) == sorted(expected)
    assert forced.given == before
    away.rename(forced.tier)

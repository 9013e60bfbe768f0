"""A topic that wants its messages in files longer, with real brokers on a small disk: its files stay, the disk comes first, and
when it wants nothing any more they go."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from remoting.facts.broker_state import RetentionState
from tests.support.cluster import Cluster, eventually
from tests.support.cold_reading import (
    FILE_BYTES,
    FILLER,
    by_pull,
    first_local_byte,
    make_cold,
    make_topic,
    send_batch,
    send_filler,
)
from tests.support.small_disk import small_disk
from tests.support.workload import read_queue

pytestmark = pytest.mark.slow

DISK_BYTES = 64 << 20
FULL_PERCENT = 88
FILES = 8  # at least, with a message that is wanted in each
TOPIC = "Wanted"
WANTED = "+message.type=NORMAL,+local.reserve.time=1"
SETTINGS = (
    *(f"store.segment_size_bytes={FILE_BYTES}", "store.checkpoint_interval_ms=100", "store.index_enabled=false"),
    *("retention.reserved_time_ms=1000", "retention.interval_ms=100", "retention.enough_free_bytes=0"),
    *("retention.force_percent=85", "retention.refuse_percent=99"),
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A master and a replica, on a disk of their own, which has a file `ballast`."""
    mounted = tmp_path / "disk"
    with (
        small_disk(mounted, f"size={DISK_BYTES}"),
        Cluster(mounted, controllers=1, replicas=2, broker_settings=SETTINGS) as cluster,
    ):
        cluster.start()
        make_topic(cluster, FILLER)
        yield cluster


def told(cluster: Cluster, number: int) -> RetentionState:
    found = cluster.admin.broker_state(cluster.broker_addresses[number]).retention
    assert found is not None
    return found


def keep_from(cluster: Cluster, begin: int) -> bool:
    """Whether both brokers' logs begin there, and stay for the topic."""
    states = [told(cluster, number) for number in range(2)]
    begins = {first_local_byte(cluster, number) for number in range(2)}
    return begins == {begin} and all(state.kept_files >= FILES and state.kept_topic == TOPIC for state in states)


def overruled(cluster: Cluster) -> list[int]:
    """The brokers that removed some files which the topic wanted; what one of them removes is room for the other, too."""
    return [number for number in range(2) if told(cluster, number).overruled_files > 0]


def begins_behind(cluster: Cluster, number: int, begin: int) -> bool:
    """Whether a broker's log does."""
    return first_local_byte(cluster, number) > begin


def keep_none(cluster: Cluster) -> bool:
    """Whether no file stays for anybody at either broker."""
    return all(told(cluster, number).kept_files == 0 for number in range(2))


def fill(disk: Path) -> Path:
    """Leave less room than retention wants."""
    ballast = disk / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        while (stat := os.statvfs(disk)).f_bavail * 100 > stat.f_blocks * (100 - FULL_PERCENT):
            file.write(bytes(1 << 18))
    return ballast


def test_files_stay_for_a_topic_until_the_disk_is_full_or_it_wants_them_no_more(cluster: Cluster) -> None:
    make_topic(cluster, TOPIC, attributes=WANTED)
    for _ in range(2):
        send_filler(cluster)
    bodies = [f"{number}".encode() for number in range(FILES)]
    for body in bodies:
        send_batch(cluster, TOPIC, 0, [body])
        send_filler(cluster)
    first, *_ = read_queue(cluster.admin, TOPIC, 0)
    begin = first.physical_offset - first.physical_offset % FILE_BYTES
    assert begin > 0
    eventually("both keep them, and what is before goes", lambda: keep_from(cluster, begin))
    assert overruled(cluster) == []
    assert [body for _, _, body in by_pull(cluster, TOPIC, 1)] == bodies

    ballast = fill(cluster.data)
    for number in eventually("some of them go", lambda: overruled(cluster)):
        assert told(cluster, number).overruled_topic == TOPIC
        assert f"that topics want kept (local.reserve.time), as {TOPIC} does" in cluster.brokers[number].log_text()
        eventually("they are gone", partial(begins_behind, cluster, number, begin))
    send_filler(cluster)
    ballast.unlink()
    (offsets,) = cluster.admin.queue_offsets(TOPIC)
    assert offsets.min_offset < offsets.max_offset == FILES, "the disk takes no more than it needs"
    assert [body for _, _, body in by_pull(cluster, TOPIC, 1)] == bodies[offsets.min_offset :]

    make_topic(cluster, TOPIC, attributes="-local.reserve.time")
    make_cold(cluster)
    eventually("both keep nothing for it", lambda: keep_none(cluster))
    assert by_pull(cluster, TOPIC, 1) == []

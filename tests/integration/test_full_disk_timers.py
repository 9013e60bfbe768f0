"""Messages that wait for their moment, on a real disk that becomes full: they come on time, and keep no file of the log."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.errors import LogboomError
from remoting.facts.broker_state import BrokerState
from remoting.facts.codec import decode
from tests.support.cluster import Cluster, eventually
from tests.support.small_disk import small_disk
from tests.support.workload import call_until, read_queue

pytestmark = pytest.mark.slow

TOPIC: Final = "Later"
DISK_BYTES: Final = 96 << 20
SETTINGS: Final = (
    "store.segment_size_bytes=1048576",
    "store.index_enabled=false",
    "retention.enough_free_bytes=0",
    "retention.force_percent=50",
    "retention.refuse_percent=60",
    "retention.interval_ms=50",  # a disk so small fills up fast
)
BODY: Final = bytes(400_000)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """One broker, with a small disk of its own."""
    with (
        small_disk(tmp_path / "b0", f"size={DISK_BYTES}"),
        Cluster(tmp_path, controllers=1, replicas=1, broker_settings=SETTINGS) as cluster,
    ):
        cluster.start()
        call_until(lambda: cluster.admin.create_topic(TOPIC, queues=1, message_type="MIXED"))
        eventually("the topic's route", lambda: bool(cluster.admin.queue_offsets(TOPIC)))
        yield cluster


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def send(cluster: Cluster, key: str, body: bytes = b"", **properties: object) -> None:
    told = {"UNIQ_KEY": key, **{name: str(value) for name, value in properties.items()}}
    cluster.admin.send(TOPIC, body or key.encode(), properties=told)


def delivered(cluster: Cluster) -> dict[str, int]:
    """Messages that waited, and when they were stored."""
    records = read_queue(cluster.admin, TOPIC, 0)
    return {each.body.decode(): each.store_timestamp_ms for each in records if len(each.body) < len(BODY)}


def state(cluster: Cluster) -> BrokerState:
    with SocketConnection(cluster.broker_addresses[0], identity=cluster.identity, timeout_ms=5000) as connection:
        return decode(BrokerState, connection.call(codes.BROKER_STATE).body)


def test_what_is_due_comes_on_time_while_sends_are_refused(cluster: Cluster, tmp_path: Path) -> None:
    due_ms = now_ms() + 8000
    for number in range(20):
        send(cluster, f"timer{number}", TIMER_DELIVER_MS=due_ms + number)
    send(cluster, "level", DELAY=3)  # ten seconds
    ballast = tmp_path / "b0" / "ballast"
    ballast.write_bytes(bytes(DISK_BYTES * 65 // 100))

    def refusal() -> str | None:
        try:
            send(cluster, "early")
        except LogboomError as error:
            return str(error)
        return None

    assert "retention.refuse_percent" in eventually("a send is refused", refusal)
    wanted = {f"timer{number}" for number in range(20)} | {"level"}
    found = eventually("all that is due", lambda: found if (found := delivered(cluster)).keys() >= wanted else None)
    assert "retention.refuse_percent" in (refusal() or "")
    assert all(found[f"timer{number}"] >= due_ms + number for number in range(20))
    ballast.unlink()
    call_until(lambda: send(cluster, "again"))


def test_a_timer_that_is_far_ahead_keeps_no_file_where_the_disk_is_too_full_for_what_is_due(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Somebody else fills the disk at once: all that is appended is what lets files of the log go."""
    far_ms = now_ms() + 3_600_000
    send(cluster, "far", TIMER_DELIVER_MS=far_ms, KEYS="far")
    for _ in range(DISK_BYTES * 20 // 100 // len(BODY)):
        call_until(lambda: send(cluster, "filler", BODY))
    assert cluster.admin.queue_offsets(TOPIC)[0].min_offset == 0
    ballast = tmp_path / "b0" / "ballast"
    ballast.write_bytes(bytes(shutil.disk_usage(ballast.parent).free - DISK_BYTES * 12 // 100))
    eventually("files of the log go", lambda: cluster.admin.queue_offsets(TOPIC)[0].min_offset > 0, 60)
    ballast.unlink()
    call_until(lambda: send(cluster, "again"))
    (far,) = cluster.admin.find_timers("broker-a", topic=TOPIC, from_ms=far_ms - 1, to_ms=far_ms + 1).items
    assert (far.unique_key, far.due_ms) == ("far", far_ms)
    timers = state(cluster).timers
    assert timers is not None
    assert (timers.waiting, timers.moved, timers.lost, timers.aside) == (1, 1, 0, 0)


def test_a_timer_that_is_far_ahead_keeps_no_file_of_the_log(cluster: Cluster) -> None:
    far_ms = now_ms() + 3_600_000
    soon_ms = now_ms() + 45_000
    send(cluster, "far", TIMER_DELIVER_MS=far_ms, KEYS="far")
    send(cluster, "soon", TIMER_DELIVER_MS=soon_ms)
    for _ in range(2 * DISK_BYTES // len(BODY)):
        call_until(lambda: send(cluster, "filler", BODY))
    (far,) = cluster.admin.find_timers("broker-a", topic=TOPIC, from_ms=far_ms - 1, to_ms=far_ms + 1).items
    assert (far.unique_key, far.due_ms) == ("far", far_ms)
    timers = state(cluster).timers
    assert timers is not None
    assert (timers.waiting + timers.delivered, timers.lost, timers.aside) == (2, 0, 0)
    assert timers.moved > 0
    assert "retention moved" in cluster.brokers[0].log_text()
    found = eventually("what was due soon", lambda: found if "soon" in (found := delivered(cluster)) else None, 90)
    assert found["soon"] >= soon_ms

"""A directory that the original wrote becomes a group of ours: its replica has it all, and so has the next master."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from tests.support.cluster import Cluster, eventually
from tests.support.workload import read_queue

GOLDEN = Path(__file__).parents[1] / "golden" / "rocketmq-5.3.3"
SEGMENT_BYTES = 1 << 16
MESSAGES = 11


def lay_out(directory: Path, *, with_epochs: bool) -> None:
    """The golden log, and tables that fit it; a broker without a controller leaves no epochs."""
    (directory / "commitlog").mkdir(parents=True)
    (directory / "config").mkdir()
    for start in (0, SEGMENT_BYTES):
        name = f"{start:020d}"
        content = (GOLDEN / "log" / f"commitlog-{name}").read_bytes()
        (directory / "commitlog" / name).write_bytes(content.ljust(SEGMENT_BYTES, b"\0"))
    for name in ("checkpoint", "epochFileCheckpoint") if with_epochs else ("checkpoint",):
        (directory / name).write_bytes((GOLDEN / "log" / name).read_bytes())
    for path in (GOLDEN / "config").iterdir():
        text = path.read_text().replace("Orders", "TopicA").replace("{1:7", "{0:7")
        (directory / "config" / path.name).write_text(text)


@pytest.mark.parametrize("with_epochs", [True, False])
def test_it_is_copied_and_survives_its_first_master(tmp_path: Path, *, with_epochs: bool) -> None:
    settings = (f"store.segment_size_bytes={SEGMENT_BYTES}", "store.config_interval_ms=200")
    with Cluster(tmp_path, controllers=1, replicas=2, broker_settings=settings) as cluster:
        lay_out(tmp_path / "b0", with_epochs=with_epochs)
        cluster.controllers[0].start()
        cluster.leader()
        cluster.brokers[0].start()
        cluster.wait_in_sync(1)
        assert cluster.master() == 0
        eventually("its topic is routed", lambda: cluster.admin.queue_offsets("TopicA"))
        before = read_queue(cluster.admin, "TopicA", 0)
        assert len(before) == MESSAGES
        cluster.brokers[1].start()
        cluster.wait_in_sync(2)
        copied = tmp_path / "b1" / "config" / "consumerOffset.json"
        eventually("the replica writes the tables", copied.exists)
        assert orjson.loads(copied.read_bytes())["offsetTable"] == {"TopicA@GID_a": {"0": 7}}
        cluster.brokers[0].kill()
        eventually("the replica is master", lambda: cluster.master() == 1)
        assert read_queue(cluster.admin, "TopicA", 0) == before
        with SocketConnection(cluster.broker_addresses[1], timeout_ms=2000) as connection:
            asked = {"consumerGroup": "GID_a", "topic": "TopicA", "queueId": "0"}
            assert connection.call(codes.QUERY_CONSUMER_OFFSET, asked).ext["offset"] == "7"

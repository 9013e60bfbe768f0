"""Delayed messages and retries of real brokers, through a kill of the master: in time, counted, and dead letters in the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.errors import LogboomError
from remoting.record.codec import Record
from remoting.record.properties import encode_properties
from tests.support.cluster import Cluster, eventually
from tests.support.workload import call_until, read_queue

pytestmark = pytest.mark.slow

TOPIC, GROUP = "Orders", "givers-back"
RETRY, DEAD = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"
SCHEDULE = "SCHEDULE_TOPIC_XXXX"
DELAY_MS = 3000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, controllers=1, broker_settings=["store.delay_levels=3s 1h"]) as cluster:
        cluster.start()
        call_until(lambda: cluster.admin.create_topic(TOPIC, queues=1))
        eventually("the topic's route", lambda: bool(cluster.admin.queue_offsets(TOPIC)))
        yield cluster


def ask(cluster: Cluster, code: int, ext: dict[str, str], body: bytes = b"") -> None:
    """Have the present master do something once; a refusal is waited out."""
    stored = (codes.SUCCESS, codes.FLUSH_DISK_TIMEOUT, codes.FLUSH_SLAVE_TIMEOUT)

    def done() -> bool:
        address = cluster.broker_addresses[cluster.master()]
        with SocketConnection(address, identity=cluster.admin._identity) as connection:
            answer = connection.call(code, ext, body, timeout_ms=15_000, accept=(*stored, codes.SERVICE_NOT_AVAILABLE))
        return answer.code in stored

    eventually(f"a master that answers {code}", done)


def kill_master(cluster: Cluster) -> None:
    cluster.brokers[cluster.master()].kill()


def only(cluster: Cluster, topic: str, count: int = 1) -> Record:
    """The last of so many messages in a topic, when they are there."""

    def found() -> list[Record] | None:
        try:
            records = read_queue(cluster.admin, topic, 0)
        except LogboomError:
            return None
        return records if len(records) >= count else None

    records = eventually(f"{count} messages in {topic}", found)
    assert len(records) == count
    return records[-1]


def test_a_message_that_nobody_can_handle_comes_back_in_time_through_a_kill_of_the_master(cluster: Cluster) -> None:
    properties = encode_properties({"UNIQ_KEY": "A" * 32, "DELAY": "1"}).decode()
    names = (
        "producerGroup",
        "topic",
        "defaultTopic",
        "defaultTopicQueueNums",
        "queueId",
        "sysFlag",
        "bornTimestamp",
        "flag",
    )
    header = dict(zip(names, ("p", TOPIC, "TBW102", "4", "0", "0", "0", "0"), strict=True)) | {"properties": properties}
    ask(cluster, codes.SEND_MESSAGE, header, b"never right")
    kill_master(cluster)
    place, topics = only(cluster, TOPIC), []
    for broker in cluster.brokers:
        if not broker.is_running:
            broker.start()
    cluster.wait_in_sync(3)
    for times in range(3):
        assert place.reconsume_times == times
        fields = {"offset": str(place.physical_offset), "group": GROUP, "delayLevel": "1", "maxReconsumeTimes": "2"}
        ask(cluster, codes.CONSUMER_SEND_MSG_BACK, fields)
        if times == 0:
            kill_master(cluster)
        place = only(cluster, RETRY, times + 1) if times < 2 else only(cluster, DEAD)
        topics.append(place.topic)
    assert (topics, place.reconsume_times) == ([RETRY, RETRY, DEAD], 3)
    assert place.property_map()["DLQ_ORIGIN_TOPIC"] == TOPIC
    waiting = [record.store_timestamp_ms for record in read_queue(cluster.admin, SCHEDULE, 0)]
    delivered = [record for topic in (TOPIC, RETRY) for record in read_queue(cluster.admin, topic, 0)]
    assert len(waiting) == len(delivered) == 3
    for stored_ms, record in zip(waiting, delivered, strict=True):
        assert record.store_timestamp_ms >= stored_ms + DELAY_MS, "all brokers are on one machine, which has one clock"

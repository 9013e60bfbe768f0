"""Reports read from replicas, with real processes: one that dies or freezes in the middle costs no row and repeats none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.facts.broker_state import BrokerState
from remoting.record.properties import encode_properties
from tasks.spark.cluster import Cluster as Asked
from tasks.spark.cluster import find_ranges
from tasks.spark.options import Options
from tasks.spark.reader import read_ranges
from tests.support.client_bytes import encode_batch_body
from tests.support.cluster import Cluster, eventually
from tests.support.workload import call_until

pytestmark = pytest.mark.slow

TOPIC = "o" * 90
QUEUES = 3
MESSAGES = 3000  # of each queue
BATCH = 100
EVERYTHING = [(queue_id, offset, f"{queue_id}-{offset}") for queue_id in range(QUEUES) for offset in range(MESSAGES)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("bulk"), controllers=1) as cluster:
        cluster.start()
        call_until(lambda: cluster.admin.create_topic(TOPIC, queues=QUEUES))
        eventually("the topic's route", lambda: bool(cluster.admin.queue_offsets(TOPIC)))
        with SocketConnection(cluster.broker_addresses[cluster.master()]) as master:
            for queue_id in range(QUEUES):
                for first in range(0, MESSAGES, BATCH):
                    send(master, queue_id, first)
        yield cluster


def send(master: SocketConnection, queue_id: int, first: int) -> None:
    """A batch of messages of 2 KiB whose bodies begin with their place."""
    header = {
        **{"a": "p", "b": TOPIC, "c": "TBW102", "d": "8", "e": str(queue_id), "f": "0", "g": "1700000000000"},
        **{"h": "0", "i": "", "j": "0", "k": "false", "m": "true"},
    }
    places = [f"{queue_id}-{offset} " for offset in range(first, first + BATCH)]
    properties = [encode_properties({"UNIQ_KEY": place.strip()}) for place in places]
    items = [(0, place.encode().ljust(2048, b"."), each) for place, each in zip(places, properties, strict=True)]
    master.call(codes.SEND_BATCH_MESSAGE, header, encode_batch_body(items), timeout_ms=10_000)


class Reading:
    """One task that reads everything; `in_the_middle` happens when a few answers came."""

    def __init__(self, cluster: Cluster) -> None:
        options = Options.parse({"controllers": ",".join(cluster.controller_addresses), "subscribe": TOPIC})
        self._cluster = cluster
        self._asked = Asked(options.controllers)
        self._ranges = find_ranges(self._asked, options)
        self._batches = read_ranges(self._asked, self._ranges, ("queue_id", "queue_offset", "body"), timeout_ms=2000)
        self.rows: list[tuple[int, int, str]] = []
        self.answers = 0

    @property
    def replica(self) -> int:
        """Which broker is read."""
        return self._cluster.broker_addresses.index(self._asked.replicas(TOPIC, "broker-a")[0])

    def read(self, answers: int = 1000) -> None:
        """So many answers more, or to the end."""
        for _ in range(answers):
            batch = next(self._batches, None)
            if batch is None:
                self._asked.close()
                return
            self.answers += 1
            self.rows += [
                (row["queue_id"], row["queue_offset"], row["body"].split()[0].decode()) for row in batch.to_pylist()
            ]


def states(cluster: Cluster) -> list[BrokerState]:
    return [cluster.admin.broker_state(address) for address in cluster.broker_addresses]


def given_out(cluster: Cluster) -> list[int]:
    """How many messages each broker gave to readers since it started."""
    return [each.counters.out_messages or 0 for each in states(cluster)]


def test_a_report_is_read_from_a_replica_in_few_answers_by_defaults(cluster: Cluster) -> None:
    cluster.make_whole()
    eventually("each knows who is in the set", lambda: all(len(each.sync_state_set) == 3 for each in states(cluster)))
    before = given_out(cluster)
    reading = Reading(cluster)
    replica = reading.replica
    assert replica != cluster.master()
    reading.read()
    assert reading.rows == EVERYTHING
    assert reading.answers <= 4 * QUEUES, "32 at a time were 282"
    given = [after - each for after, each in zip(given_out(cluster), before, strict=True)]
    assert given == [len(EVERYTHING) if number == replica else 0 for number in range(3)]


@pytest.mark.parametrize("end", ["kill", "freeze"])
def test_a_replica_that_ends_in_the_middle_costs_no_row(cluster: Cluster, end: str) -> None:
    cluster.make_whole()
    reading = Reading(cluster)
    broker = cluster.brokers[reading.replica]
    reading.read(2)
    broker.kill() if end == "kill" else broker.freeze()
    reading.read()
    assert reading.rows == EVERYTHING


def test_a_master_that_is_killed_in_the_middle_costs_no_row(cluster: Cluster) -> None:
    cluster.make_whole()
    reading = Reading(cluster)
    assert reading.replica >= 0
    reading.read(2)
    cluster.brokers[cluster.master()].kill()
    reading.read()
    assert reading.rows == EVERYTHING


def test_everybody_but_the_master_is_away(cluster: Cluster) -> None:
    cluster.make_whole()
    master = cluster.master()
    for number, broker in enumerate(cluster.brokers):
        if number != master:
            broker.kill()
    reading = Reading(cluster)
    reading.read()
    assert reading.rows == EVERYTHING

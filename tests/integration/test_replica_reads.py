"""Readers on replicas, with real processes: whatever a replica gave out is there, at its place, on every later master."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.errors import LogboomError
from remoting.record.codec import decode_records
from tests.support.cluster import Cluster, eventually
from tests.support.outlived_masters import check_what_was_seen
from tests.support.pulling import pull_fields
from tests.support.workload import call_until

pytestmark = pytest.mark.slow

TOPIC = "Orders"
_ANSWERS = (codes.SUCCESS, codes.PULL_NOT_FOUND, codes.PULL_RETRY_IMMEDIATELY, codes.PULL_OFFSET_MOVED)


class Reader(threading.Thread):
    """Reads queue 0 at one broker, from its first message on, and remembers what it was given."""

    def __init__(self, address: str) -> None:
        super().__init__(name=f"reader at {address}", daemon=True)
        self.seen: dict[int, bytes] = {}
        self.suggested: set[str] = set()
        self.codes: set[int] = set()
        self._address = address
        self._offset = 0
        self._stopping = threading.Event()

    def stop(self) -> None:
        self._stopping.set()
        self.join(30)
        assert not self.is_alive()

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                with SocketConnection(self._address, timeout_ms=1000) as connection:
                    while not self._stopping.is_set():
                        self._read(connection)
            except LogboomError:
                self._stopping.wait(0.01)

    def _read(self, connection: SocketConnection) -> None:
        fields = pull_fields(TOPIC, 0, self._offset)
        answer = connection.call(codes.PULL_MESSAGE, fields, timeout_ms=1000, accept=_ANSWERS)
        self.codes.add(answer.code)
        self.suggested.add(answer.ext["suggestWhichBrokerId"])
        if answer.code != codes.SUCCESS:
            self._stopping.wait(0.005)
            return
        for record in decode_records(answer.body):
            before = self.seen.setdefault(record.queue_offset, record.body)
            assert before == record.body, f"offset {record.queue_offset} was {before!r} and is {record.body!r}"
        self._offset = int(answer.ext["nextBeginOffset"])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, broker_settings=["pull.slave_read=true"]) as cluster:
        cluster.start()
        call_until(lambda: cluster.admin.create_topic(TOPIC, queues=1))
        eventually("the topic's route", lambda: bool(cluster.admin.queue_offsets(TOPIC)))
        yield cluster


def test_what_replicas_gave_out_is_there_on_every_later_master(cluster: Cluster) -> None:
    readers = [Reader(address) for address in cluster.broker_addresses]
    history = check_what_was_seen(cluster, TOPIC, readers, masters=3)
    for reader in readers:
        assert reader.suggested == {"0"}, "nobody was far behind"
        assert codes.PULL_RETRY_IMMEDIATELY in reader.codes, "as a replica it sent its reader back"
        assert codes.PULL_OFFSET_MOVED not in reader.codes, "nobody's offset was moved"
    assert len(history.acknowledged) > 350

"""What was given out while masters died, against what every later master has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tests.support.cluster import Cluster, eventually
from tests.support.workload import History, Producer, check_queue, read_queue


class Watcher(Protocol):
    """A thread that reads queue 0 of a topic from its first message on. `seen`: bodies by offset."""

    seen: dict[int, bytes]

    def start(self) -> None: ...

    def stop(self) -> None: ...


def check_what_was_seen(cluster: Cluster, topic: str, watchers: Sequence[Watcher], masters: int) -> History:
    """Kill so many masters, one after the other, while messages are sent to the topic's only queue. Whatever the watchers were
    given by then is there at its place, and all that is there they were given; answers what was sent."""
    producer = Producer(cluster.controller_addresses, topic, "p", 0)
    producer.start()
    producer.wait_for(20)
    for watcher in watchers:
        watcher.start()
    for _ in range(masters):
        producer.wait_for(60)
        master = cluster.master()
        cluster.brokers[master].kill()
        producer.wait_for(60)
        cluster.brokers[master].start()
        cluster.wait_in_sync(3)
    history = producer.stop()
    high = int(cluster.admin.queue_offsets(topic)[0].max_offset)
    eventually("all watchers at the end", lambda: all(len(watcher.seen) == high for watcher in watchers))
    for watcher in watchers:
        watcher.stop()
    records = read_queue(cluster.admin, topic, 0)
    check_queue(records, [history])
    kept = {record.queue_offset: record.body for record in records}
    for watcher in watchers:
        assert watcher.seen == kept, f"{watcher} was given what is not there"
    return history

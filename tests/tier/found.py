"""Messages of a tier found as people find them, by the key and by the time, and held against what is at their offsets."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Final, TypeVar

from remoting.client.blocking import AdminClient
from remoting.errors import RequestError, RequestTimeout
from remoting.record.codec import Record, body_is_intact
from remoting.tier.contents import Queue
from tests.support.workload import UNIQUE_KEY

GROUP: Final = "broker-a"
_PAUSE_S: Final = 0.1
_AT_ONCE: Final = 16  # messages are looked for: who asks waits for the object store most of the time

_T = TypeVar("_T")


class Asking:
    """Requests that are made again while the object store fails them, as clients do, by several threads; `failures` counts
    those."""

    def __init__(self, admin: AdminClient, patience_s: float) -> None:
        self.admin = admin
        self.failures = 0
        self._lock = Lock()
        self._patience_s = patience_s

    def ask(self, what: str, request: Callable[[], _T]) -> _T:
        """Its answer. Raises AssertionError when there is none in time."""
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                return request()
            except (RequestError, RequestTimeout) as error:
                with self._lock:
                    self.failures += 1
                if time.monotonic() > deadline:
                    raise AssertionError(f"{what}: {error}") from error
                time.sleep(_PAUSE_S)


def read_back(asking: Asking, queue: Queue) -> list[Record]:
    """All of a queue, from offset 0 on."""
    records: list[Record] = []
    offset = 0
    while True:
        pulled = asking.ask(
            f"{queue} cannot be read from {offset} on",
            lambda at=offset: asking.admin.pull(queue.topic, GROUP, queue.queue_id, at, 256),  # type: ignore[misc]
        )
        if not pulled.records and pulled.next_offset >= pulled.max_offset:
            return records
        records += pulled.records
        offset = pulled.next_offset


def check_found(asking: Asking, queue: Queue, records: Sequence[Record], most: int) -> int:
    """Of all records of the queue at most so many, far from each other: each is found by its key, and the first one of its moment
    by that; how many. Several are looked for at a time. Raises AssertionError."""
    first_of: dict[int, int] = {}
    for record in records:
        first_of.setdefault(record.store_timestamp_ms, record.queue_offset)
    chosen = records[:: max(1, -(-len(records) // most))]

    def check(record: Record) -> None:
        _check_key(asking, queue, record)
        _check_time(asking, queue, record.store_timestamp_ms, first_of[record.store_timestamp_ms])

    pool = ThreadPoolExecutor(_AT_ONCE, "looks for messages")
    try:
        return sum(1 for _ in pool.map(check, chosen))
    finally:
        pool.shutdown(cancel_futures=True)


def _check_key(asking: Asking, queue: Queue, record: Record) -> None:
    key = record.property_map()[UNIQUE_KEY]
    found = [each.record for each in asking.ask(f"find {key}", lambda: asking.admin.find(queue.topic, key))]
    place = f"{queue.topic}/{queue.queue_id} {record.queue_offset}, key {key}"
    assert [(each.queue_id, each.queue_offset) for each in found] == [(queue.queue_id, record.queue_offset)], place
    assert body_is_intact(found[0]), f"{place}: its body is damaged"
    assert found[0].body == record.body, f"{place}: it has another body"


def _check_time(asking: Asking, queue: Queue, timestamp_ms: int, expected: int) -> None:
    at = asking.ask(
        f"the offset of {timestamp_ms} in {queue}",
        lambda: asking.admin.search_offset(queue.topic, GROUP, queue.queue_id, timestamp_ms),
    )
    assert at == expected, f"{queue.topic}/{queue.queue_id}: {at} is first since {timestamp_ms}, not {expected}"

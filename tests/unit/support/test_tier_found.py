"""The look for all messages of a tier finds what it is there to find, and many at a time."""

from __future__ import annotations

from collections.abc import Callable
from threading import Barrier
from typing import Any

import pytest

from remoting import codes
from remoting.client.blocking import FoundMessage
from remoting.errors import RequestError
from remoting.record.codec import Record, decode_record, encode_record
from remoting.record.properties import encode_properties
from remoting.tier.contents import Queue
from tests.support.workload import UNIQUE_KEY
from tests.tier import found
from tests.tier.found import Asking, check_found

QUEUE = Queue("Orders", 0)
COUNT = 64


def record(offset: int, body: bytes = b"body") -> Record:
    return decode_record(
        encode_record(
            topic=b"Orders",
            queue_id=0,
            queue_offset=offset,
            physical_offset=offset * 100,
            body=body,
            properties=encode_properties({UNIQUE_KEY: f"k{offset}"}),
            born_timestamp_ms=1,
            born_host=bytes(8),
            store_timestamp_ms=1000 + offset // 2,
            store_host=bytes(8),
        )
    )


RECORDS = [record(offset) for offset in range(COUNT)]


class Admin:
    """Of a cluster that has them all. `find` may be another one."""

    def __init__(self, find: Callable[[int], list[Record]] = lambda offset: [RECORDS[offset]]) -> None:
        self._find = find
        self.asked: set[int] = set()
        self.meets: Barrier | None = None  # who asks waits for so many others

    def find(self, topic: str, key: str) -> list[FoundMessage]:
        assert topic == QUEUE.topic
        if self.meets is not None:
            self.meets.wait(30)
        self.asked.add(int(key[1:]))
        return [FoundMessage("broker-a", each) for each in self._find(int(key[1:]))]

    def search_offset(self, topic: str, group: str, queue_id: int, timestamp_ms: int) -> int:
        assert (topic, group, queue_id) == ("Orders", "broker-a", 0)
        return (timestamp_ms - 1000) * 2


def check(admin: Any, most: int = COUNT) -> int:
    return check_found(Asking(admin, 0.0), QUEUE, RECORDS, most)


def test_all_are_looked_for_or_some_far_from_each_other() -> None:
    admin = Admin()
    assert (check(admin), admin.asked) == (COUNT, set(range(COUNT)))
    admin = Admin()
    assert (check(admin, 8), admin.asked) == (8, set(range(0, COUNT, 8)))


def test_as_many_are_asked_for_at_a_time_as_may_be() -> None:
    admin = Admin()
    admin.meets = Barrier(found._AT_ONCE)
    assert check(admin) == COUNT


def damaged(_offset: int) -> list[Record]:
    raise RequestError(codes.SYSTEM_ERROR, "block 3 of rmq_sys_INDEX/0/INDEX/1-1 is damaged")


@pytest.mark.parametrize(
    ("of_one", "said"),
    [
        (lambda _: [], "Orders/0 21, key k21"),
        (lambda offset: [RECORDS[offset], RECORDS[offset]], "Orders/0 21, key k21"),
        (lambda offset: [RECORDS[offset - 1]], "Orders/0 21, key k21"),
        (lambda offset: [record(offset, b"another")], "it has another body"),
        (damaged, "find k21: .* is damaged"),
    ],
)
def test_one_that_is_not_found_among_all_is_told(of_one: Callable[[int], list[Record]], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check(Admin(lambda offset: of_one(offset) if offset == 21 else [RECORDS[offset]]))


def test_a_moment_that_begins_elsewhere_is_told() -> None:
    admin = Admin()
    admin.search_offset = lambda *_: 1
    with pytest.raises(AssertionError, match="1 is first since 1000, not 0"):
        check(admin, 1)

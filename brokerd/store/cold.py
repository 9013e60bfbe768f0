"""What a store asks for messages that its files do not have any more, and what it is told."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from brokerd.store.queues.queue_reads import GetStatus
from remoting import codes
from remoting.disk import Bytes
from remoting.errors import RequestError

_T = TypeVar("_T")


class ColdMiss(RequestError):
    """What was asked for is on its way from the tier. Who can wait asks again when it is there; for others it is an answer."""

    def __init__(self, what: str, when_fetched: Callable[[Callable[[], None]], Callable[[], None]]) -> None:
        """`when_fetched` has its argument called once, later, when it is there or cannot be had; what it returns is for who does
        not wait for that any more."""
        super().__init__(codes.SYSTEM_BUSY, f"{what} is being fetched from the tier; try again")
        self.when_fetched = when_fetched


def all_of(ask: Callable[[int], _T], queue_ids: Iterable[int]) -> list[_T]:
    """What is asked of each queue. Raises ColdMiss when some of it has to be fetched; all of that is, at the same time."""
    found: list[_T] = []
    miss: ColdMiss | None = None
    for queue_id in queue_ids:
        try:
            found.append(ask(queue_id))
        except ColdMiss as error:
            miss = error.with_traceback(None)
    if miss is not None:
        raise miss
    return found


class ColdRead(NamedTuple):
    """What a read of the tier gave, and where to go on. `is_coming`: nothing yet, whoever listens is told; `is_missing`: nothing
    is there for these offsets any more. `body` are records in one piece, the last of which has `last_bytes`."""

    next_offset: int
    records: Sequence[bytes]
    is_coming: bool = False
    is_missing: bool = False
    body: Bytes = b""
    last_bytes: int = 0


class Cold(Protocol):
    """Messages that are not in this broker's files any more."""

    def range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """[first, end) of the queue offsets that are there, maybe not all between; both the same when none is."""

    def run_end(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Up to where all messages from that offset on are there; the offset itself when it is not, or nobody looks further."""

    def read(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        end: int,
        max_count: int,
        max_bytes: int,
        tags_codes: Collection[int] | None,
    ) -> ColdRead:
        """Messages from an offset in that range on, none at `end` or behind. Raises RequestError when they cannot be had."""

    def read_joined(
        self, topic: str, queue_id: int, queue_offset: int, end: int, max_count: int, max_bytes: int
    ) -> ColdRead:
        """The same messages, all of them, in one piece, which nobody changes."""

    def record(self, topic: str, queue_id: int, queue_offset: int) -> bytes | None:
        """One message; None when it is not there. Raises ColdMiss, and RequestError when it cannot be had."""

    def store_timestamp(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """When a message was stored, -1 when it is not there. Raises like `record`; of the first and the last one never."""

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, end: int) -> int | None:
        """The first message before `end` that was stored at that time or later; None without one. Raises like `record`."""

    def offset_by_position(self, topic: str, queue_id: int, physical_offset: int, end: int) -> int | None:
        """The message before `end` that began there in the log; None without one. Raises like `record`."""

    def last_before(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """The last message that is there before that offset; None without one."""


def status_of_cold(found: ColdRead) -> GetStatus:
    if found.is_coming:
        return GetStatus.BEING_FETCHED
    if found.is_missing:
        return GetStatus.MESSAGE_WAS_REMOVING
    return GetStatus.FOUND if found.records or found.body else GetStatus.NO_MATCHED_MESSAGE


def readable_min(cold: Cold, topic: str, queue_id: int, local_min_offset: int) -> int:
    first, end = cold.range(topic, queue_id)
    return min(first, local_min_offset) if first < end else local_min_offset

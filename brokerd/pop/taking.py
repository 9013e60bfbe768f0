"""Choosing what a pop takes: which queues in which order, from which offset, and which messages pass the filter.

Reads the store and the ledger and changes neither; what it finds becomes one record. Queues are visited from a random one on, so
that load spreads; one in five pops looks at returned messages first, the others at last, so that neither starves.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from brokerd.filters.message_filter import MessageFilter
from brokerd.metadata.service import MetadataService
from brokerd.metadata.start_offsets import StartOffsets
from brokerd.pop.copies import counts_earlier_deliveries
from brokerd.pop.handles import (
    FLAG_NORMAL,
    FLAG_RETRY_V1,
    FLAG_RETRY_V2,
    retry_topic,
    retry_topic_v1,
)
from brokerd.pop.ledger import PopLedger
from brokerd.pop.queue_ledger import Again, Blocked, QueueLedger
from brokerd.pop.records import taken_batch
from brokerd.pop.requests import PoppedMessage, PopRequest
from brokerd.pop.surroundings import Surroundings
from brokerd.store.store_reads import StoreReads
from remoting.names import RETRY_PREFIX
from remoting.record.fields import offsets_of, properties_of, queue_offset_of

_NO_BYTE_LIMIT: Final = 1 << 62
_SCAN_ROUNDS: Final = 4  # reads of one queue whose filter lets nothing through, in one pop


class Found(NamedTuple):
    """Messages of one queue. `topic` is the stored one; `counts` = deliveries from this queue, None = the first of each."""

    topic: str
    retry_flag: int
    queue_id: int
    offsets: list[int]
    records: list[bytes]
    counts: Sequence[int] | None


@dataclass(slots=True)
class Taking:
    """What one pop takes. `batches` are those of the record, also of queues that only move on; `more` = a scan is unfinished.

    `lost` are (topic, queue, offsets) that were to come again and that the store no longer has.
    """

    messages_left: int
    bytes_left: int
    batches: list[list[Any]] = field(default_factory=list)
    found: list[Found] = field(default_factory=list)
    lost: list[tuple[str, int, list[int]]] = field(default_factory=list)
    rest_count: int = 0
    more: bool = False

    @property
    def is_full(self) -> bool:
        return self.messages_left <= 0 or self.bytes_left <= 0


class Taker:
    """Plans takes; see the module."""

    def __init__(self, around: Surroundings, ledger: PopLedger, starts: StartOffsets, rng: random.Random) -> None:
        self._metadata = around.metadata
        self._reads = around.reads
        self._settings = around.settings
        self._ledger = ledger
        self._starts = starts
        self._rng = rng

    def take(self, request: PopRequest, message_filter: MessageFilter, queue_nums: int, now_ms: int) -> Taking:
        """What the request gets now; nothing found = wait. `queue_nums` are the readable queues of the topic."""
        taking = Taking(request.max_count, self._settings.max_batch_bytes)
        if request.fifo:
            for queue_id in self._ordered_queue_ids(request, queue_nums):
                if taking.is_full:
                    break
                self._take_ordered(taking, request, message_filter, queue_id, now_ms)
            return taking
        has_retry = not request.topic.startswith(RETRY_PREFIX)
        retry_first = has_retry and self._rng.randrange(100) < self._settings.retry_share_percent
        if retry_first:
            self._take_returned(taking, request, message_filter)
        for queue_id in self._queue_ids(request, queue_nums):
            if taking.is_full:
                break
            self._take_queue(taking, request, message_filter, request.topic, FLAG_NORMAL, queue_id)
        if has_retry and not retry_first and not taking.is_full:
            self._take_returned(taking, request, message_filter)
        return taking

    # ---- inside

    def _queue_ids(self, request: PopRequest, queue_nums: int) -> Sequence[int]:
        if request.queue_id >= 0:
            return (request.queue_id,)
        start = self._rng.randrange(queue_nums)
        return [*range(start, queue_nums), *range(start)]

    def _ordered_queue_ids(self, request: PopRequest, queue_nums: int) -> Sequence[int]:
        """A repeated attempt looks first where its batch is."""
        queue_ids = self._queue_ids(request, queue_nums)
        if not request.attempt_id or len(queue_ids) == 1:
            return queue_ids
        own = {
            queue.queue_id
            for queue in self._ledger.queues_of(request.group, request.topic)
            if any(batch.attempt_id == request.attempt_id for batch in queue.batches.values())
        }
        return sorted(queue_ids, key=lambda queue_id: queue_id not in own) if own else queue_ids

    def _take_returned(self, taking: Taking, request: PopRequest, message_filter: MessageFilter) -> None:
        for name, flag, queue_id in returned_queues(self._metadata, request):
            if not taking.is_full:
                self._take_queue(taking, request, message_filter, name, flag, queue_id)

    def _take_queue(
        self,
        taking: Taking,
        request: PopRequest,
        message_filter: MessageFilter,
        topic: str,
        retry_flag: int,
        queue_id: int,
    ) -> None:
        """Read on from the group's offset."""
        queue = self._ledger.queue(request.group, topic, queue_id)
        offset, is_new = self._next_offset(request, topic, queue_id, queue)
        high = self._reads.max_offset(topic, queue_id)
        before = offset
        offsets: list[int] = []
        records: list[bytes] = []
        rounds = 0
        while offset < high and not offsets:
            if rounds == _SCAN_ROUNDS:
                taking.more = True
                break
            rounds += 1
            result = self._reads.read_messages(
                topic, queue_id, offset, taking.messages_left, taking.bytes_left, message_filter.tags_codes
            )
            records = result.records
            if not message_filter.is_exact:
                records = [record for record in records if message_filter.admits(properties_of(record))]
            if len(records) == result.next_offset - offset:
                offsets = list(range(offset, result.next_offset))
            else:
                offsets = [queue_offset_of(record) for record in records]
            if result.next_offset <= offset:
                break
            offset = result.next_offset
        if offsets:
            taking.found.append(Found(topic, retry_flag, queue_id, offsets, records, None))
            taking.messages_left -= len(offsets)
            taking.bytes_left -= sum(map(len, records))
        if offsets or offset > before or is_new:
            taking.batches.append(taken_batch(topic, queue_id, offset, offsets))
        taking.rest_count += max(0, high - offset)

    def _next_offset(
        self, request: PopRequest, topic: str, queue_id: int, queue: QueueLedger | None
    ) -> tuple[int, bool]:
        """Where to read on, and whether that is the group's first look at the queue, which must be remembered."""
        committed = self._metadata.consumer_offset(request.group, topic, queue_id)
        if queue is None and committed is None:
            return self._starts.first_offset(topic, queue_id, request.init_mode), True
        offset = max(queue.next_offset if queue is not None else 0, committed or 0)
        return max(offset, self._reads.min_offset(topic, queue_id)), False

    def _take_ordered(
        self, taking: Taking, request: PopRequest, message_filter: MessageFilter, queue_id: int, now_ms: int
    ) -> None:
        queue = self._ledger.queue(request.group, request.topic, queue_id)
        plan = queue.ordered_plan(request.attempt_id, now_ms) if queue is not None else None
        if isinstance(plan, Blocked):
            return
        if not isinstance(plan, Again):
            self._take_queue(taking, request, message_filter, request.topic, FLAG_NORMAL, queue_id)
            return
        assert queue is not None
        # On a broker that became the master a moment ago, what was taken may not be readable yet: that is not lost.
        high = self._reads.max_offset(request.topic, queue_id)
        offsets = [offset for offset in plan.offsets[: taking.messages_left] if offset < high]
        records = read_offsets(self._reads, request.topic, queue_id, offsets)
        there = [offset for offset in offsets if offset in records]
        if len(there) < len(offsets):
            taking.lost.append((request.topic, queue_id, [each for each in offsets if each not in records]))
            taking.more = True
        if there:
            counts = [count for offset, count in zip(plan.offsets, plan.counts, strict=True) if offset in records]
            encoded = [records[offset] for offset in there]
            taking.found.append(Found(request.topic, FLAG_NORMAL, queue_id, there, encoded, counts))
            taking.batches.append(taken_batch(request.topic, queue_id, queue.next_offset, there, counts))
            taking.messages_left -= len(there)
            taking.bytes_left -= sum(map(len, encoded))


def returned_queues(metadata: MetadataService, request: PopRequest) -> Iterator[tuple[str, int, int]]:
    """(stored topic, retry flag, queue) of all that messages of the topic come back in to the group."""
    group, topic = request.group, request.topic
    for name, flag in ((retry_topic(group, topic), FLAG_RETRY_V2), (retry_topic_v1(group, topic), FLAG_RETRY_V1)):
        config = metadata.topic(name)
        for queue_id in range(config.read_queue_nums if config is not None else 0):
            yield name, flag, queue_id


def read_offsets(reads: StoreReads, topic: str, queue_id: int, offsets: Sequence[int]) -> dict[int, bytes]:
    """The records at exactly these ascending queue offsets; those that are gone are left out."""
    found: dict[int, bytes] = {}
    wanted = set(offsets)
    position = 0
    while position < len(offsets):
        first = offsets[position]
        count = 1
        while position + count < len(offsets) and offsets[position + count] == first + count:
            count += 1
        result = reads.read_messages(topic, queue_id, first, count, _NO_BYTE_LIMIT)
        for record in result.records:
            offset = queue_offset_of(record)
            if offset in wanted:
                found[offset] = record
        # A read that starts before the queue's first message, or in a removed file, says where to go on.
        behind = max(result.next_offset, first + 1)
        while position < len(offsets) and offsets[position] < behind:
            position += 1
    return found


def popped_messages(
    request: PopRequest, found: Sequence[Found], pop_time_ms: int, revive_queue_id: int, broker_name: str
) -> list[PoppedMessage]:
    """What was taken as the endpoints answer it, in the order taken: queue by queue, ascending."""
    messages: list[PoppedMessage] = []
    asked = request.topic
    for topic, flag, queue_id, offsets, records, counts in found:
        prefix = (
            f"{offsets[0]} {pop_time_ms} {request.invisible_time_ms} {revive_queue_id} {flag} {broker_name} {queue_id} "
        )
        starts_anew = not counts_earlier_deliveries(topic)
        for place, record in enumerate(records):
            queue_offset, physical_offset, deliveries = offsets_of(record)
            if starts_anew:
                deliveries = 0
            deliveries += counts[place] if counts is not None else 1
            handle = f"{prefix}{queue_offset} {physical_offset}"
            messages.append(PoppedMessage(record, asked, flag, queue_id, queue_offset, handle, deliveries))
    return messages

"""Reading a queue through a subscription's filter: what of the next messages is wanted, looking a bounded way ahead.

For readers that are answered at once with what was found, and asked again. Changes nothing.
"""

from __future__ import annotations

from typing import Final

from brokerd.filters.budget import Budget
from brokerd.filters.message_filter import MessageFilter
from brokerd.store.queues.queue_reads import GetResult, GetStatus
from brokerd.store.store_reads import StoreReads
from remoting.record.fields import queue_offset_of

_SCAN_ROUNDS: Final = 25


def read_admitted(
    reads: StoreReads,
    topic: str,
    queue_id: int,
    offset: int,
    max_count: int,
    max_bytes: int,
    message_filter: MessageFilter,
    budget: Budget,
) -> GetResult:
    """As `StoreReads.read_messages`, with the messages that the filter admits alone.

    None of those looked at is NO_MATCHED_MESSAGE, with where to go on: that may be before the queue's end.
    """
    tags_codes = message_filter.tags_codes
    result = reads.read_messages(topic, queue_id, offset, max_count, max_bytes, tags_codes)
    for _ in range(_SCAN_ROUNDS):
        if result.status is not GetStatus.FOUND or message_filter.is_exact:
            return result
        records, tested = budget.admitted(message_filter, result.records)
        if tested < len(result.records):
            result = result._replace(next_offset=queue_offset_of(result.records[tested]))
        if records:
            return result._replace(records=records)
        if result.next_offset >= result.max_offset or budget.is_spent():
            break
        following = reads.read_messages(topic, queue_id, result.next_offset, max_count, max_bytes, tags_codes)
        if following.status is not GetStatus.FOUND:
            break
        result = following
    return result._replace(status=GetStatus.NO_MATCHED_MESSAGE, records=[])

"""From what was taken to what the endpoints answer (pure): one tuple per message, with its handle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from brokerd.pop.copies import deliveries_before
from brokerd.pop.taking import Found
from brokerd.record_fields import offsets_of
from brokerd.services import PoppedMessage, PopRequest


def popped_messages(
    request: PopRequest, found: Sequence[Found], pop_time_ms: int, revive_queue_id: int, broker_name: str
) -> list[PoppedMessage]:
    """The messages in the order taken: queue by queue, ascending."""
    messages: list[PoppedMessage] = []
    for topic, flag, queue_id, offsets, records, counts in found:
        prefix = (
            f"{offsets[0]} {pop_time_ms} {request.invisible_time_ms} {revive_queue_id} {flag} {broker_name} {queue_id} "
        )
        for place, record in enumerate(records):
            queue_offset, physical_offset, reconsume_times = offsets_of(record)
            deliveries = deliveries_before(topic, reconsume_times) + (counts[place] if counts is not None else 1)
            messages.append(
                PoppedMessage(
                    record,
                    request.topic,
                    flag,
                    queue_id,
                    queue_offset,
                    f"{prefix}{queue_offset} {physical_offset}",
                    deliveries,
                )
            )
    return messages


def start_offsets(found: Sequence[Found]) -> Mapping[tuple[int, int], int]:
    """(retry flag, queue) -> first offset delivered, which is also the first field of every handle of that queue."""
    return {(each.retry_flag, each.queue_id): each.offsets[0] for each in found}

"""From what was taken to what the endpoints answer (pure): one tuple per message, with its handle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from brokerd.pop.copies import counts_earlier_deliveries
from brokerd.pop.requests import PoppedMessage, PopRequest
from brokerd.pop.taking import Found
from remoting.record.fields import offsets_of


def popped_messages(
    request: PopRequest, found: Sequence[Found], pop_time_ms: int, revive_queue_id: int, broker_name: str
) -> list[PoppedMessage]:
    """The messages in the order taken: queue by queue, ascending."""
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


def start_offsets(found: Sequence[Found]) -> Mapping[tuple[int, int], int]:
    """(retry flag, queue) -> first offset delivered, which is also the first field of every handle of that queue."""
    return {(each.retry_flag, each.queue_id): each.offsets[0] for each in found}

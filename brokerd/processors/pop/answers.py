"""The header strings and the body of a pop's answer on remoting (pure).

A client rebuilds the handles of ordinary messages from the strings: each (retry flag, queue) must be named exactly once, and its
offsets must be those of its messages, ascending. A message that came back carries its handle as a property instead, and the
normal topic's name.

    startOffsetInfo   flag queue start;...
    msgOffsetInfo     flag queue offset,offset;...
    orderCountInfo    flag qo<queue>%<offset> count;...;flag queue lowest count
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from brokerd.pop.handles import FLAG_NORMAL
from brokerd.pop.requests import PopOutcome, PoppedMessage
from remoting.record import checksum
from remoting.record.codec import decode_record
from remoting.record.fields import offsets_of, with_reconsume_times
from remoting.record.layout import MAX_PROPERTIES_BYTES

POP_HANDLE_PROPERTY = b"POP_CK"
_MOST_RECONSUME_TIMES: Final = 2**31 - 1  # what the field holds


def pop_header(outcome: PopOutcome, *, ordered: bool) -> dict[str, str]:
    """The fields of the answer's header; they are sent with every outcome."""
    header = {
        "popTime": str(outcome.pop_time_ms),
        "invisibleTime": str(outcome.invisible_time_ms),
        "reviveQid": str(outcome.revive_queue_id),
        "restNum": str(outcome.rest_count),
    }
    if not outcome.messages:
        return header
    queues: dict[tuple[int, int], list[PoppedMessage]] = {}
    for message in outcome.messages:
        queues.setdefault((message.retry_flag, message.queue_id), []).append(message)
    header["startOffsetInfo"] = ";".join(
        f"{flag} {queue_id} {messages[0].queue_offset}" for (flag, queue_id), messages in queues.items()
    )
    header["msgOffsetInfo"] = ";".join(
        f"{flag} {queue_id} {','.join(str(message.queue_offset) for message in messages)}"
        for (flag, queue_id), messages in queues.items()
    )
    if ordered:
        header["orderCountInfo"] = ";".join(
            _order_counts(flag, queue_id, messages) for (flag, queue_id), messages in queues.items()
        )
    return header


def pop_body(messages: Sequence[PoppedMessage]) -> bytes:
    """The records back to back, those from a retry topic under the topic that the client asked for."""
    return b"".join(
        with_deliveries(message) if message.retry_flag == FLAG_NORMAL else with_handle(message) for message in messages
    )


def with_deliveries(message: PoppedMessage) -> bytes:
    """The record of a message as the client must see it: its reconsume times are the deliveries before, also those from where it
    is stored, which the store does not count."""
    record = message.record
    times = _reconsume_times(message)
    if times is None:
        return record
    record = with_reconsume_times(record, times)
    return checksum.seal(record) if checksum.ends_with_tail(record) else record


def with_handle(message: PoppedMessage) -> bytes:
    """The record of a message from a retry topic as the client must see it: the asked topic, and its handle as a property."""
    record = decode_record(message.record)
    handle = " ".join(message.receipt_handle.split(" ")[:8])
    properties = checksum.without(record.properties)
    if properties and not properties.endswith(b"\x02"):
        properties += b"\x02"
    handle_property = POP_HANDLE_PROPERTY + b"\x01" + handle.encode() + b"\x02"
    if len(properties) + len(handle_property) <= MAX_PROPERTIES_BYTES:
        properties += handle_property
    times = _reconsume_times(message)
    if times is not None:
        record = record._replace(reconsume_times=times)
    return record._replace(topic=message.topic, properties=properties).encode()


def _reconsume_times(message: PoppedMessage) -> int | None:
    """What to show instead of what is stored; None when that is right. A dead letter counts from its first delivery on."""
    times = min(message.delivery_attempt - 1, _MOST_RECONSUME_TIMES)
    return times if times > 0 and times != offsets_of(message.record)[2] else None


def _order_counts(flag: int, queue_id: int, messages: Sequence[PoppedMessage]) -> str:
    counts = [(message.queue_offset, message.delivery_attempt - 1) for message in messages]
    parts = [f"{flag} qo{queue_id}%{offset} {count}" for offset, count in counts]
    parts.append(f"{flag} {queue_id} {min(count for _, count in counts)}")
    return ";".join(parts)

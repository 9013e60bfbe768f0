"""The receipt handle: what a client gives back to finish or postpone one message (pure).

Nine fields with a space between them; a client of the remoting protocol builds the first eight itself from the headers of its
answer, so both lengths are read:

    startOffset popTime invisibleTime reviveQueueId retryFlag brokerName queueId queueOffset [physicalOffset]

A handle is not authenticated. Every field is bounded here, and the ledger compares all of them with what it gave out.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from remoting.names import RETRY_PREFIX

ORDERED_REVIVE_QUEUE_ID: Final = 999
NORMAL_REVIVE_QUEUE_ID: Final = 0

FLAG_NORMAL: Final = 0
FLAG_RETRY_V1: Final = 1
FLAG_RETRY_V2: Final = 2

_MAX_HANDLE_LENGTH: Final = 512
_MAX_DIGITS: Final = 19  # of a signed 64-bit integer


class ReceiptHandle(NamedTuple):
    """A parsed handle. `physical_offset` is -1 in the short form; one that names a whole batch has no queue offset either."""

    start_offset: int
    pop_time_ms: int
    invisible_time_ms: int
    revive_queue_id: int
    retry_flag: int
    broker_name: str
    queue_id: int
    queue_offset: int = -1
    physical_offset: int = -1

    def encode(self) -> str:
        """The text of the handle; without the last field when the physical offset is unknown."""
        fields = self if self.physical_offset >= 0 else self[:8]
        return " ".join(map(str, fields))


def split_handle(text: str) -> tuple[str, int, int] | None:
    """(the text of the batch's handle, queue offset, physical offset or -1) of a handle; None when it is none."""
    spaces = text.count(" ")
    physical_offset = -1
    if spaces == 8:
        batch, offset, physical = text.rsplit(" ", 2)
        if not physical.isdecimal() or len(physical) > _MAX_DIGITS:
            return None
        physical_offset = int(physical)
    elif spaces == 7:
        batch, offset = text.rsplit(" ", 1)
    else:
        return None
    if not offset.isdecimal() or len(offset) > _MAX_DIGITS or len(text) > _MAX_HANDLE_LENGTH:
        return None
    return batch, int(offset), physical_offset


def decode_batch_handle(text: str) -> ReceiptHandle | None:
    """The handle of a whole batch: the first seven fields of those of its messages."""
    fields = text.split(" ")
    if len(fields) != 7:
        return None
    broker_name = fields[5]
    fields[5] = "0"
    for field in fields:
        if not field.isdecimal() or len(field) > _MAX_DIGITS:
            return None
    start, pop_time, invisible, revive_queue_id, flag, _, queue_id = map(int, fields)
    if flag > FLAG_RETRY_V2 or not broker_name:
        return None
    return ReceiptHandle(start, pop_time, invisible, revive_queue_id, flag, broker_name, queue_id)


def decode_handle(text: str) -> ReceiptHandle | None:
    """The handle in a text that a client sent; None when it is not one."""
    split = split_handle(text)
    batch = decode_batch_handle(split[0]) if split is not None else None
    return ReceiptHandle(*batch[:7], *split[1:]) if batch is not None and split is not None else None


def retry_topic(group: str, topic: str) -> str:
    """Where messages of the topic that the group did not finish come back. `+` is legal in no name, so it splits again."""
    return f"{RETRY_PREFIX}{group}+{topic}"


def retry_topic_v1(group: str, topic: str) -> str:
    """The older name of the same thing. It is read, never written: two pairs of group and topic can share one name."""
    return f"{RETRY_PREFIX}{group}_{topic}"


def split_retry_topic(name: str) -> tuple[str, str] | None:
    """(group, topic) of a retry topic of the present form; None for any other name."""
    if not name.startswith(RETRY_PREFIX):
        return None
    group, plus, topic = name[len(RETRY_PREFIX) :].partition("+")
    return (group, topic) if plus and group and topic else None


def stored_topic(group: str, topic: str, retry_flag: int) -> str:
    """The topic that holds the message of a handle with this retry flag."""
    if retry_flag == FLAG_NORMAL:
        return topic
    return retry_topic(group, topic) if retry_flag == FLAG_RETRY_V2 else retry_topic_v1(group, topic)

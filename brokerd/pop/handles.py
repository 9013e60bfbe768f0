"""The receipt handle: what a client gives back to finish or postpone one message (pure).

Eight fields, or nine, with a space between them:

    startOffset popTime invisibleTime reviveQueueId retryFlag brokerName queueId queueOffset [proof]

A client of the remoting protocol builds the eight itself from the headers of its answer, so whoever knows the group can guess
them. What is taken over gRPC has a tag, 64 random bits that the ledger keeps, and its handles end with it: 16 hexadecimal digits.
Such a batch is named by handles with its tag alone. Where there is no tag, a ninth field is the message's physical offset (the
original's proxy appends it, and so did releases before), and is compared with the log.

There is one text for one handle: numbers are ASCII digits without leading zeros, and the ledger compares all of them with what it
gave out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hmac import compare_digest
from typing import Final, NamedTuple

from remoting.names import RETRY_PREFIX

ORDERED_REVIVE_QUEUE_ID: Final = 999
NORMAL_REVIVE_QUEUE_ID: Final = 0

FLAG_NORMAL: Final = 0
FLAG_RETRY_V1: Final = 1
FLAG_RETRY_V2: Final = 2

TAG_BITS: Final = 64

_MAX_HANDLE_LENGTH: Final = 512
_TAG_DIGITS: Final = TAG_BITS // 4
_NUMBER: Final = "(?:0|[1-9][0-9]{0,18})"  # as many digits as a signed 64-bit integer has
_PLACE: Final = f"0|[1-9][0-9]{{0,{_TAG_DIGITS - 2}}}"  # shorter than a tag: no log has a petabyte
_BATCH: Final = rf"{_NUMBER} {_NUMBER} {_NUMBER} {_NUMBER} [0-2] [^ ]+ {_NUMBER}"
_SPLIT: Final = re.compile(rf"({_BATCH}) ({_NUMBER})(?: ([0-9a-f]{{{_TAG_DIGITS}}}|{_PLACE}))?")


class ReceiptHandle(NamedTuple):
    """A parsed handle. `proof` is empty in the short form."""

    start_offset: int
    pop_time_ms: int
    invisible_time_ms: int
    revive_queue_id: int
    retry_flag: int
    broker_name: str
    queue_id: int
    queue_offset: int
    proof: str = ""

    def encode(self) -> str:
        """The text of the handle."""
        return " ".join(map(str, self if self.proof else self[:8]))


def split_handle(text: str) -> tuple[str, int, str] | None:
    """(what the messages of the batch have in common, queue offset, proof) of a handle; None when it is none."""
    match = _SPLIT.fullmatch(text) if len(text) <= _MAX_HANDLE_LENGTH else None
    return (match[1], int(match[2]), match[3] or "") if match is not None else None


def join_handle(common: str, queue_offset: int, proof: str) -> ReceiptHandle:
    """The handle that `split_handle` took apart."""
    start, pop_time, invisible, revive_queue_id, flag, broker_name, queue_id = common.split(" ")
    return ReceiptHandle(
        int(start),
        int(pop_time),
        int(invisible),
        int(revive_queue_id),
        int(flag),
        broker_name,
        int(queue_id),
        queue_offset,
        proof,
    )


def decode_handle(text: str) -> ReceiptHandle | None:
    """The handle in a text that a client sent; None when it is not one."""
    split = split_handle(text)
    return join_handle(*split) if split is not None else None


def is_place(proof: str) -> bool:
    """Whether a handle ends with the physical offset of its message."""
    return 0 < len(proof) < _TAG_DIGITS


def proof_of(tag: int) -> str:
    """The last field of the handles of a batch; empty, so that there is none, when it has no tag."""
    return f"{tag:0{_TAG_DIGITS}x}" if tag else ""


def proves(proof: str, tag: int) -> bool:
    """Whether a handle with this proof may name the batch with this tag."""
    return compare_digest(proof, proof_of(tag))


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


def bases_of_retry_topic(name: str) -> Sequence[tuple[str, str]]:
    """(group, topic) of whom what is stored in a retry topic may be for, whichever form its name has; none for any other name."""
    present = split_retry_topic(name)
    if present is not None:
        return (present,)
    if not name.startswith(RETRY_PREFIX):
        return ()
    older = name[len(RETRY_PREFIX) :]
    ends = (end for end, letter in enumerate(older) if letter == "_")
    return [(older[:end], older[end + 1 :]) for end in ends if 0 < end < len(older) - 1]


def stored_topic(group: str, topic: str, retry_flag: int) -> str:
    """The topic that holds the message of a handle with this retry flag."""
    if retry_flag == FLAG_NORMAL:
        return topic
    return retry_topic(group, topic) if retry_flag == FLAG_RETRY_V2 else retry_topic_v1(group, topic)

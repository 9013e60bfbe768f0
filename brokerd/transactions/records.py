"""The records of a transaction: half message, commit, op record, and what is sent to a producer that shall decide (pure).

The layouts are the original's. A half message is the producer's message in queue 0 of the half topic, with its own topic and
queue as properties. A record that takes its place (checked once more, or moved up) carries the queue offset of the first one,
under a name that the original has for that. An op record lists queue offsets of half messages that need no look any more. A
commit is the message in its own topic; consumers see the properties of the half message with it, as they do in the original.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from brokerd.store.draft import Draft
from remoting import codes
from remoting.errors import RequestError
from remoting.java_hash import java_hash
from remoting.names import HALF_TOPIC
from remoting.record.codec import Record
from remoting.record.layout import MAX_PROPERTIES_BYTES, SYS_TRANSACTION_COMMIT, SYS_TRANSACTION_MASK
from remoting.record.properties import decode_properties, encode_properties

OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"

TRANSACTION: Final = "TRAN_MSG"
TRANSACTION_ID: Final = "__transactionId__"
PRODUCER_GROUP: Final = "PGROUP"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE_ID: Final = "REAL_QID"
CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
FIRST_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
IMMUNITY_S: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
UNIQUE_KEY: Final = "UNIQ_KEY"
# What the id of a transaction that began over gRPC proves; only its brokers keep it, and no message that they give away has it
SECRET: Final = "TRAN_SECRET"

NO_IMMUNITY: Final = -1
MAX_CHECK_TIMES: Final = 1 << 20
OWN: Final = (CHECK_TIMES, FIRST_QUEUE_OFFSET)  # what only a broker may say of a half message
_DONE_TAG: Final = "d"
_MOVED: Final = "TRAN_MOVED"  # of an op record: what it lists is not decided, it has a successor
_ENDED_AS: Final = "TRAN_ENDED_AS"  # of an op record: what became of the transactions that it lists
# Of a message in the topic of those that were given up: what somebody decided about another one there, and who
_DECISION_TAG: Final = "TRAN_DECISION"
_DECIDED_OFFSET: Final = "TRAN_DECIDED_OFFSET"
_DECIDED_BY: Final = "TRAN_DECIDED_BY"
DECISION_CODE: Final = java_hash(_DECISION_TAG)
MAX_NAME_LENGTH: Final = 200
# What the broker may add to a half message later, and to the message when it waits for a moment from its commit on: a producer's
# properties must leave room for it, since what was accepted has to be committed
ROOM_BYTES: Final = 256


class EndedAs(StrEnum):
    """What became of a transaction."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    GIVEN_UP = "given-up"
    RESUMED = "resumed"  # given up, and begun again


class Decision(NamedTuple):
    """What somebody decided about a half message that was given up: `offset` is its queue offset among those."""

    offset: int
    ended_as: EndedAs
    by: str
    at_ms: int
    end_offset: int


class Half(NamedTuple):
    """An open transaction: where its half message is now, and what decides when its producer is asked.

    `first` is the queue offset of its first half message, its name in the table; the other offsets are of the present one.
    `since_ms` is when it began, `immunity_ms` how long the producer wants to be left alone (NO_IMMUNITY: says nothing).
    """

    first: int
    queue_offset: int
    physical_offset: int
    size: int
    since_ms: int
    checks: int
    immunity_ms: int
    unique_key: str
    is_successor: bool  # takes the place of an earlier half message


_ENDINGS: Final = frozenset(EndedAs)


def is_half(draft: Draft) -> bool:
    """Whether the producer began a transaction with this message.

    A committed message that an old client sends back for a retry still looks like one; it is told by its delay.
    """
    if b"TRAN_MSG" not in draft.properties:
        return False
    properties = decode_properties(draft.properties)
    if properties.get(TRANSACTION, "").lower() != "true":
        return False
    return not (draft.reconsume_times > 0 and _integer(properties.get("DELAY"), 0) > 0)


def ordinary_draft(draft: Draft) -> Draft:
    """A message that begins no transaction. Raises RequestError for one whose flags say otherwise: nobody could ever read it."""
    if not draft.sys_flag & SYS_TRANSACTION_MASK:
        return draft
    if decode_properties(draft.properties).get(TRANSACTION, "").lower() == "true":
        return draft._replace(sys_flag=draft.sys_flag & ~SYS_TRANSACTION_MASK)
    raise RequestError(
        codes.MESSAGE_ILLEGAL, f"sysFlag names a transaction that the property {TRANSACTION} does not; set both or none"
    )


def half_draft(draft: Draft) -> Draft:
    """The half message of a message that is ready to be stored in its own topic. Raises RequestError without room for it."""
    properties = decode_properties(draft.properties)
    for name in OWN:
        properties.pop(name, None)
    if not properties.get(PRODUCER_GROUP):
        raise RequestError(
            codes.MESSAGE_ILLEGAL,
            f"a transactional message names its producer group in the property {PRODUCER_GROUP}, which is asked about it",
        )
    if properties.get(UNIQUE_KEY):
        properties[TRANSACTION_ID] = properties[UNIQUE_KEY]
    properties[REAL_TOPIC] = draft.topic
    properties[REAL_QUEUE_ID] = str(draft.queue_id)
    encoded = encode_properties(properties)
    if len(encoded) > MAX_PROPERTIES_BYTES - ROOM_BYTES:
        raise RequestError(
            codes.MESSAGE_ILLEGAL,
            f"the properties take {len(encoded)} bytes; a transactional message may have {MAX_PROPERTIES_BYTES - ROOM_BYTES}",
        )
    return draft._replace(
        topic=HALF_TOPIC, queue_id=0, properties=encoded, sys_flag=draft.sys_flag & ~SYS_TRANSACTION_MASK
    )


def successor_draft(record: Record, first: int | None, checks: int | None, secret: str | None = None) -> Draft:
    """The record that takes the place of a half message: of the transaction `first` (None: a new one), with this count of checks
    and this secret (None: what it has stays)."""
    properties = record.property_map()
    properties.pop(FIRST_QUEUE_OFFSET, None)
    if first is not None:
        properties[FIRST_QUEUE_OFFSET] = str(first)
    if checks is not None:
        properties[CHECK_TIMES] = str(checks)
    if secret is not None:
        properties[SECRET] = secret
    return _again(record, HALF_TOPIC, 0)._replace(properties=encode_properties(properties))


def given_up_draft(record: Record) -> Draft:
    """The half message in the topic of those that nobody decided."""
    return _again(record, GIVEN_UP_TOPIC, 0)


def commit_draft(record: Record, properties: Mapping[str, str]) -> Draft:
    """The message of a half message, whose properties these are, for its own topic and queue."""
    topic, queue_id = target_queue(properties)
    draft = _again(without_secret(record), topic, queue_id)
    return draft._replace(
        sys_flag=draft.sys_flag & ~SYS_TRANSACTION_MASK | SYS_TRANSACTION_COMMIT,
        prepared_transaction_offset=record.physical_offset,
    )


def op_draft(queue_offsets: Iterable[int], now_ms: int, host: bytes, ended_as: EndedAs) -> Draft:
    """The op record that says that the transactions of these half messages are decided, and how."""
    return _op_draft(queue_offsets, now_ms, host, {"TAGS": _DONE_TAG, _ENDED_AS: str(ended_as)})


def decision_draft(offset: int, ended_as: EndedAs, by: str, now_ms: int, host: bytes) -> Draft:
    """The message that says what was decided about the half message at a queue offset of those that were given up."""
    properties = {"TAGS": _DECISION_TAG, _DECIDED_OFFSET: str(offset), _ENDED_AS: str(ended_as), _DECIDED_BY: by}
    body = f"{ended_as} of {offset} by {by}".encode()
    return Draft(GIVEN_UP_TOPIC, 0, body, encode_properties(properties), now_ms, host)


def decision_of(record: Record) -> Decision | None:
    """What such a message says; None for every other one."""
    properties = record.property_map()
    offset, ended_as = _integer(properties.get(_DECIDED_OFFSET), -1), properties.get(_ENDED_AS, "")
    if properties.get("TAGS") != _DECISION_TAG or offset < 0 or ended_as not in _ENDINGS:
        return None
    end_offset = record.physical_offset + record.size
    return Decision(offset, EndedAs(ended_as), properties.get(_DECIDED_BY, ""), record.store_timestamp_ms, end_offset)


def ended_as(record: Record) -> EndedAs | None:
    """What an op record says became of its transactions; None when it does not, as those of earlier versions."""
    told = record.property_map().get(_ENDED_AS, "")
    return EndedAs(told) if told in _ENDINGS else None


def successor_noted_draft(queue_offset: int, now_ms: int, host: bytes) -> Draft:
    """The op record that says that a half message has a successor which was checked: brokers of the original, which do not know
    which one that is, pass over the half message when they read the topic."""
    return _op_draft([queue_offset], now_ms, host, {"TAGS": _DONE_TAG, _MOVED: "true"})


def done_offsets(record: Record) -> list[int]:
    """The queue offsets of half messages whose transactions an op record says are decided; what is no number is left out."""
    properties = record.property_map()
    if properties.get("TAGS") != _DONE_TAG or _MOVED in properties:
        return []
    return [int(text) for text in record.body.split(b",") if text.isdigit() and len(text) < 20]


def half_of(record: Record, properties: Mapping[str, str]) -> Half:
    """What the table keeps of a stored half message, whose properties these are."""
    return _half(
        properties,
        record.queue_offset,
        record.physical_offset,
        record.size,
        min(record.born_timestamp_ms, record.store_timestamp_ms),
    )


def half_of_draft(draft: Draft, queue_offset: int, physical_offset: int, size: int, now_ms: int) -> Half:
    """The same of one that was appended a moment ago."""
    since_ms = min(draft.born_timestamp_ms, now_ms)
    return _half(decode_properties(draft.properties), queue_offset, physical_offset, size, since_ms)


def target_queue(properties: Mapping[str, str]) -> tuple[str, int]:
    """Topic and queue that a half message is meant for. Raises RequestError when it does not say."""
    topic, queue_id = properties.get(REAL_TOPIC, ""), _integer(properties.get(REAL_QUEUE_ID), -1)
    if not topic or queue_id < 0:
        raise RequestError(codes.SYSTEM_ERROR, f"a half message without {REAL_TOPIC} and {REAL_QUEUE_ID}")
    return topic, queue_id


def asked_about(record: Record) -> Record:
    """The message as its producer is asked about it: the half message under its own topic and queue."""
    topic, queue_id = target_queue(record.property_map())
    return without_secret(record)._replace(topic=topic, queue_id=queue_id)


def without_secret(record: Record) -> Record:
    """The half message for other eyes than a broker's."""
    if SECRET.encode() not in record.properties:
        return record
    properties = record.property_map()
    properties.pop(SECRET, None)
    return record._replace(properties=encode_properties(properties))


def immunity_ms(properties: Mapping[str, str], default_ms: int) -> int:
    """How long the producer of a message wants to be left alone; the default when it says nothing that can be read."""
    seconds = _integer(properties.get(IMMUNITY_S), -1)
    return default_ms if seconds < 0 else seconds * 1000


def _op_draft(queue_offsets: Iterable[int], now_ms: int, host: bytes, properties: Mapping[str, str]) -> Draft:
    body = "".join(f"{offset}," for offset in queue_offsets).encode()
    return Draft(OP_TOPIC, 0, body, encode_properties(properties), now_ms, host)


def _half(properties: Mapping[str, str], queue_offset: int, physical_offset: int, size: int, since_ms: int) -> Half:
    first = _integer(properties.get(FIRST_QUEUE_OFFSET), -1)
    return Half(
        first if 0 <= first < queue_offset else queue_offset,
        queue_offset,
        physical_offset,
        size,
        since_ms,
        min(_integer(properties.get(CHECK_TIMES), 0), MAX_CHECK_TIMES),
        immunity_ms(properties, NO_IMMUNITY),
        properties.get(UNIQUE_KEY, ""),
        CHECK_TIMES in properties or FIRST_QUEUE_OFFSET in properties,
    )


def _again(record: Record, topic: str, queue_id: int) -> Draft:
    return Draft.again(record)._replace(topic=topic, queue_id=queue_id, prepared_transaction_offset=0)


def _integer(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else default

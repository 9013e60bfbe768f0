"""A message on its way into the log: the limits that every stored one obeys, and the bytes of its record (pure)."""

from __future__ import annotations

from typing import NamedTuple

from brokerd.store.log.derive import CodeRules
from brokerd.store.queues.consume_queues import is_directory_name
from brokerd.store.run import AppendResult, Run
from remoting import codes
from remoting.disk import Bytes
from remoting.errors import RequestError
from remoting.record import checksum
from remoting.record.codec import Record, encode_record
from remoting.record.layout import (
    HOST_BYTES,
    HOST_V6_BYTES,
    MAX_BODY_BYTES,
    MAX_PROPERTIES_BYTES,
    MAX_RETRY_TOPIC_BYTES,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_PREPARED,
    SYS_TRANSACTION_ROLLBACK,
    record_size,
)
from remoting.record.properties import tags_code


class Draft(NamedTuple):
    """A message to append. `queue_id` -1 lets the broker choose; `properties` is the encoded property string."""

    topic: str
    queue_id: int
    body: Bytes
    properties: bytes
    born_timestamp_ms: int
    born_host: bytes  # packed IPv4 (4) or IPv6 (16) address and port (4)
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0

    @classmethod
    def again(cls, record: Record) -> Draft:
        """What stores the message of a record once more, as it is; where it goes is for the caller to replace.

        Its properties are without the old record's checksum: a caller who replaces them starts from these or `property_map`.
        """
        return cls(
            record.topic,
            record.queue_id,
            record.body,
            checksum.without(record.properties),
            record.born_timestamp_ms,
            record.born_host,
            record.flag,
            record.sys_flag & ~(SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6),  # a new record gets those of its own hosts
            record.reconsume_times,
            record.prepared_transaction_offset,
        )


def check_draft(draft: Draft, store_host_length: int, largest_record_bytes: int) -> int:
    """How many bytes the draft's record takes. Raises RequestError (MESSAGE_ILLEGAL) naming the rule that it breaks."""
    topic = draft.topic.encode("utf-8", "surrogateescape")
    if not is_directory_name(draft.topic) or len(topic) > MAX_RETRY_TOPIC_BYTES:
        raise _illegal(f"topic {draft.topic!r} must have 1 to {MAX_RETRY_TOPIC_BYTES} bytes, none of them '/'")
    if draft.queue_id < 0:
        raise _illegal(f"queue id {draft.queue_id} is negative; choose a queue before storing")
    if len(draft.body) > MAX_BODY_BYTES:
        raise _illegal(f"the body has {len(draft.body)} bytes; at most {MAX_BODY_BYTES} are allowed")
    if len(draft.properties) > MAX_PROPERTIES_BYTES:
        raise _illegal(f"the properties have {len(draft.properties)} bytes; at most {MAX_PROPERTIES_BYTES} are allowed")
    if b"\0" in draft.properties:  # recovery takes a zero byte there for a torn sector
        raise _illegal("a property contains a zero byte; property names and values are text")
    if len(draft.born_host) not in (HOST_BYTES, HOST_V6_BYTES):
        raise _illegal("the born host must be an IPv4 or IPv6 address with its port")
    size = draft_size(draft, store_host_length)
    if size > largest_record_bytes:
        raise _illegal(f"the message takes {size} bytes stored; at most {largest_record_bytes} are allowed")
    return size


def draft_size(draft: Draft, store_host_length: int) -> int:
    """How many bytes the draft's record takes."""
    topic = draft.topic.encode("utf-8", "surrogateescape")
    return record_size(len(topic), len(draft.body), len(draft.properties), len(draft.born_host), store_host_length)


def takes_queue_offset(draft: Draft) -> bool:
    """Whether the message enters a consume queue: prepared and rolled-back transaction records do not."""
    return draft.sys_flag & SYS_TRANSACTION_MASK not in (SYS_TRANSACTION_PREPARED, SYS_TRANSACTION_ROLLBACK)


def encode_draft(draft: Draft, queue_offset: int, physical_offset: int, timestamp_ms: int, store_host: bytes) -> bytes:
    """The record of a checked draft."""
    return encode_record(
        topic=draft.topic.encode("utf-8", "surrogateescape"),
        queue_id=draft.queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        body=draft.body,
        properties=draft.properties,
        born_timestamp_ms=draft.born_timestamp_ms,
        born_host=draft.born_host,
        store_timestamp_ms=timestamp_ms,
        store_host=store_host,
        flag=draft.flag,
        sys_flag=draft.sys_flag,
        reconsume_times=draft.reconsume_times,
        prepared_transaction_offset=draft.prepared_transaction_offset,
    )


def lay_out_draft(
    run: Run, draft: Draft, store_host: bytes, rules: CodeRules, largest_record_bytes: int, code: int | None = None
) -> AppendResult | None:
    """Lay out the record of a checked draft; None, and nothing laid out, when the run has no room. The code of its entry comes
    from the rules, unless it is given."""
    key = (draft.topic, draft.queue_id)
    reserved = _with_room_for_checksum(draft, len(store_host), largest_record_bytes) if run.seals else None
    in_queue = takes_queue_offset(draft)
    queue_offset = run.next_offsets[key] if in_queue else 0
    position, timestamp = run.end_offset, run.timestamp_ms
    if reserved is None:
        record = encode_draft(draft, queue_offset, position, timestamp, store_host)
    else:
        record = checksum.seal(encode_draft(reserved, queue_offset, position, timestamp, store_host))
    size = len(record)
    if size > run.room:
        return None
    if in_queue:
        run.next_offsets[key] = queue_offset + 1
        if code is None:
            rule = rules.get(draft.topic)
            code = tags_code(draft.properties) if rule is None else rule(draft.properties, timestamp)
        run.entries.append((*key, queue_offset, position, size, code, timestamp, 1))
    run.records.append(record)
    run.end_offset += size
    return AppendResult(position, size, queue_offset if in_queue else -1, run.end_offset)


def _with_room_for_checksum(draft: Draft, store_host_length: int, largest_record_bytes: int) -> Draft | None:
    """The draft with room for its record's checksum; None when the largest properties or the largest record have none, which is
    no reason to refuse a message: then it is stored without."""
    reserved = draft._replace(properties=checksum.reserve(draft.properties))
    if len(reserved.properties) > MAX_PROPERTIES_BYTES:
        return None
    return reserved if draft_size(reserved, store_host_length) <= largest_record_bytes else None


def _illegal(rule: str) -> RequestError:
    return RequestError(codes.MESSAGE_ILLEGAL, rule)

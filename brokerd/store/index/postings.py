"""From log bytes to what the index holds of them: the keys of each message, hashed (pure).

A message is found by its unique key (UNIQ_KEY) and by each word of its KEYS, under its topic. Rolled-back transaction records
are not found. Messages of one producer mostly differ in their unique key alone, so what the last message's properties looked
like is tried first, and for many messages at once where records of its size follow (`runs.py`).
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from brokerd.store.derived.derive import Stop
from brokerd.store.index.hashing import KeyHasher
from brokerd.store.index.runs import NOT_PLAIN, Likeness, length_of_run, take_run
from remoting.record.layout import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_ROLLBACK,
)
from remoting.record.properties import decode_properties

# size magic physicalOffset sysFlag storeTimestamp bodyLength, for IPv4 hosts
_HEAD: Final = struct.Struct(">iI20xqi16xq20xi")
_FILLER: Final = struct.Struct(">iI")
_LONG: Final = struct.Struct(">q")
_INT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">H")
_SEPARATOR: Final = 2
_NOTHING: Final = b"\0"  # no property holds this byte
_V6_EXTRA: Final = 12
_STORE_TIMESTAMP_AT: Final = 56
_APART: Final = 16  # records that are looked at one by one when they are not alike: more each time, up to the most
_MOST_APART: Final = 256


class Postings(NamedTuple):
    """What a chunk of the log held, in columns: of each key its hash, and of its message the physical offset and the store
    timestamp; `end_offset` and `needs` as in `dispatch.Derived`."""

    hashes: list[int]
    offsets: list[int]
    timestamps: list[int]
    end_offset: int
    stop: Stop
    needs: int


class WalkMemory:
    """What one walk leaves for the next one: hashes, what the last message with one key looked like, whether the keys of
    neighbours begin alike, and for how many records no run is looked for after one that was none."""

    def __init__(self) -> None:
        self.hasher = KeyHasher()
        self.like: Likeness | None = None
        self.share = True
        self.apart = _APART


def keys_of(properties: bytes) -> list[bytes]:
    """The keys that a message with these properties is found by, its unique key first."""
    unique = _value_of(properties, b"UNIQ_KEY\x01")
    words = _value_of(properties, b"KEYS\x01").split(b" ")
    if b"" in words:
        words = [word for word in words if word]
    return [unique, *words] if unique else words


def _value_of(properties: bytes, name: bytes) -> bytes:
    """The last value that the properties give a name, b"" without one; empty values count as none."""
    end = len(properties)
    while end > 0:
        at = properties.rfind(name, 0, end)
        if at < 0:
            return b""
        if at == 0 or properties[at - 1] == _SEPARATOR:
            value, _, _ = properties[at + len(name) :].partition(b"\x02")
            if value:
                return value
        end = at + len(name) - 1
    return b""


def has_key(properties: bytes, key: str) -> bool:
    """Whether a message with these properties is found by the key."""
    decoded = decode_properties(properties)
    return decoded.get("UNIQ_KEY") == key or key in decoded.get("KEYS", "").split(" ")


def derive_postings(data: bytes, physical_offset: int, file_size: int, memory: WalkMemory) -> Postings:
    """Walk the records in `data`, the log bytes that start at the record boundary `physical_offset` of a file of that size."""
    hashes: list[int] = []
    offsets: list[int] = []
    timestamps: list[int] = []
    position, length = 0, len(data)
    last_head = length - _HEAD.size
    file_end = physical_offset - physical_offset % file_size + file_size
    head_of, add_hash, add_offset, add_timestamp = (
        _HEAD.unpack_from,
        hashes.append,
        offsets.append,
        timestamps.append,
    )

    def ended(at: int, stop: Stop, needs: int) -> Postings:
        return Postings(hashes, offsets, timestamps, at, stop, needs)

    like, try_at = memory.like, 0
    before, behind = (like.before, like.behind) if like is not None else (_NOTHING, _NOTHING)
    before_length, behind_length = len(before), len(behind)
    key_and_behind = behind_length + (like.key_length if like is not None else 0)
    hashed = memory.hasher.of_topic(like.topic if like is not None else b"")
    while position <= last_head:
        if like is not None and position >= try_at:
            size, count = length_of_run(data, position, like)
            offset = physical_offset + position
            run = take_run(data, position, offset, size, count, like, share=memory.share) if count else None
            if run is not None:
                hashes += run.hashes
                offsets += range(offset, offset + count * size, size)
                timestamps += run.timestamps
                position += count * size
                memory.apart = _APART
                continue
            if count and memory.share:
                memory.share = False
                continue
            memory.share = True
            try_at = position + max(count, memory.apart) * size
            memory.apart = min(2 * memory.apart, _MOST_APART)
        size, magic, found_offset, sys_flag, timestamp, body_length = head_of(data, position)
        offset = physical_offset + position
        end = position + size
        key_at, key_end = end - key_and_behind, end - behind_length
        topic_at = key_at - before_length
        if (
            magic == MAGIC_V1
            and found_offset == offset
            and end <= length
            and topic_at - body_length == position + _HEAD.size
            and not sys_flag & NOT_PLAIN
            and data[topic_at:key_at] == before
            and data[key_end:end] == behind
            and (key := data[key_at:key_end]).isalnum()
        ):
            add_hash(hashed(key))
            add_offset(offset)
            add_timestamp(timestamp)
            position = end
            continue
        if magic == MAGIC_BLANK:
            if offset + size != file_end:
                return ended(offset, Stop.DAMAGED, 0)
            if end > length:
                return ended(offset, Stop.PARTIAL, size)
            position = end
            continue
        if magic not in (MAGIC_V1, MAGIC_V2) or found_offset != offset or size < _HEAD.size:
            return ended(offset, Stop.DAMAGED, 0)
        if end > length:
            return ended(offset, Stop.PARTIAL, size)
        parts = _parse(data, position, end, magic == MAGIC_V2, sys_flag)
        if parts is None:
            return ended(offset, Stop.DAMAGED, 0)
        timestamp, field_at, topic, properties_at = parts
        position = end
        if sys_flag & SYS_TRANSACTION_MASK == SYS_TRANSACTION_ROLLBACK:
            continue
        properties = data[properties_at:end]
        keys = keys_of(properties)
        if not keys:
            try_at = end  # a record of the broker's own among others does not end their likeness
            continue
        of_topic = memory.hasher.of_topic(topic)
        hashes += map(of_topic, keys)
        offsets += [offset] * len(keys)
        timestamps += [timestamp] * len(keys)
        if len(keys) == 1 and (place := _only_place_of(properties, keys[0])):
            key_at, key_end = properties_at + place, properties_at + place + len(keys[0])
            before, behind = data[field_at:key_at], data[key_end:end]
            before_length, behind_length, key_and_behind = len(before), len(behind), end - key_at
            hashed = of_topic
            if magic == MAGIC_V1:
                like = memory.like = Likeness(topic, before, len(keys[0]), behind)
    stop, needs, position = _end_of(data, position, physical_offset, file_end)
    return ended(physical_offset + position, stop, needs)


def _parse(data: bytes, position: int, end: int, long_topic: bool, sys_flag: int) -> tuple[int, int, bytes, int] | None:
    """(store timestamp, position of the topic's length, topic, position of the properties) of the record there, or None."""
    shift = _V6_EXTRA if sys_flag & SYS_BORN_HOST_V6 else 0
    (timestamp,) = _LONG.unpack_from(data, position + _STORE_TIMESTAMP_AT + shift)
    if sys_flag & SYS_STORE_HOST_V6:
        shift += _V6_EXTRA
    body_at = position + _HEAD.size + shift
    if body_at > end:
        return None
    (body_length,) = _INT.unpack_from(data, body_at - 4)
    field_at = body_at + body_length
    topic_at = field_at + (2 if long_topic else 1)
    if body_length < 0 or topic_at + 2 > end:
        return None
    topic_end = topic_at + (_SHORT.unpack_from(data, field_at)[0] if long_topic else data[field_at])
    if topic_end + 2 > end or topic_end + 2 + _SHORT.unpack_from(data, topic_end)[0] != end:
        return None
    return timestamp, field_at, data[topic_at:topic_end], topic_end + 2


def _only_place_of(properties: bytes, key: bytes) -> int:
    """Where in the properties their only key is, if others of its length could be there just as well; else 0."""
    name = b"UNIQ_KEY\x01"
    at = properties.find(name + key + b"\x02")
    if at < 0 or properties.count(name) > 1 or not key.isalnum():
        return 0
    return at + len(name)


def _end_of(data: bytes, position: int, physical_offset: int, file_end: int) -> tuple[Stop, int, int]:
    """(why, what is needed, where) of the end of a walk at less bytes than a record's head has."""
    left = len(data) - position
    if not left:
        return Stop.END, 0, position
    if left >= _FILLER.size:
        size, magic = _FILLER.unpack_from(data, position)
        if magic == MAGIC_BLANK and physical_offset + position + size == file_end:
            if size <= left:
                return Stop.END, 0, position + size
            return Stop.PARTIAL, size, position
        if magic in (MAGIC_V1, MAGIC_V2):
            return Stop.PARTIAL, max(size, _HEAD.size), position
        return Stop.DAMAGED, 0, position
    return Stop.PARTIAL, _HEAD.size, position

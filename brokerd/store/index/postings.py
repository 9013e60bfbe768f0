"""From log bytes to what the index holds of them: the keys of each message, hashed (pure).

A message is found by its unique key (UNIQ_KEY) and by each word of its KEYS, under its topic. Rolled-back transaction records
are not found. Messages of one producer mostly differ in their unique key alone, so what the last message's properties looked
like is tried first.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from brokerd.store.dispatch import Stop
from remoting.message import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_ROLLBACK,
    decode_properties,
    java_hash_bits,
)

# size magic physicalOffset sysFlag storeTimestamp bodyLength, for IPv4 hosts
_HEAD: Final = struct.Struct(">iI20xqi16xq20xi")
_FILLER: Final = struct.Struct(">iI")
_LONG: Final = struct.Struct(">q")
_INT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">H")
_SEPARATOR: Final = 2
_NOTHING: Final = b"\0"  # no topic has this length, no property holds this byte
_NOT_PLAIN: Final = SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6 | SYS_TRANSACTION_MASK
_V6_EXTRA: Final = 12
_STORE_TIMESTAMP_AT: Final = 56
_MOST_TOPICS: Final = 64
_MOST_HEADS: Final = 256  # of a topic: keys of one producer and millisecond share one
_MOST_TAILS: Final = 8192
_TAIL: Final = 3  # digits of the counter at the end of a unique key
_TAIL_FACTOR: Final = pow(31, _TAIL, 1 << 32)
_LEAST_SPLIT: Final = 24  # shorter keys are hashed whole: they are people's, and share no beginnings

Posting = tuple[int, int, int]  # key hash, physical offset, store timestamp


class Postings(NamedTuple):
    """What a chunk of the log held; `end_offset` and `needs` as in `dispatch.Derived`."""

    postings: list[Posting]
    end_offset: int
    stop: Stop
    needs: int


def key_hash(topic: str, key: str) -> int:
    """The hash under which a message of the topic is found by the key."""
    return fold(java_hash_bits(f"{topic}#{key}".encode("utf-8", "surrogatepass")))


def fold(bits: int) -> int:
    """The absolute value of a 32-bit integer, and 0 for the one that has none."""
    if bits <= 0x7FFFFFFF:
        return bits
    return 0x100000000 - bits & 0x7FFFFFFF


class KeyHasher:
    """Hashes keys; remembers the hashes of beginnings and ends that many keys share."""

    def __init__(self) -> None:
        self._topics: dict[bytes, Callable[[bytes], int]] = {}

    def of_topic(self, topic: bytes) -> Callable[[bytes], int]:
        """The hash of a key of this topic."""
        hashed = self._topics.get(topic)
        if hashed is None:
            if len(self._topics) >= _MOST_TOPICS:
                self._topics.clear()
            hashed = self._topics[topic] = _hasher(topic + b"#")
        return hashed


def _hasher(prefix: bytes) -> Callable[[bytes], int]:
    heads: dict[bytes, int] = {}
    tails: dict[bytes, int] = {}

    def hashed(key: bytes) -> int:
        try:
            bits = heads[key[:-_TAIL]] + tails[key[-_TAIL:]] & 0xFFFFFFFF
        except KeyError:
            head, tail = key[:-_TAIL], key[-_TAIL:]
            if len(key) < _LEAST_SPLIT or not tail.isascii():
                return fold(java_hash_bits(prefix + key))
            if len(heads) >= _MOST_HEADS:
                heads.clear()
            if len(tails) >= _MOST_TAILS:
                tails.clear()
            heads[head] = java_hash_bits(prefix + head) * _TAIL_FACTOR
            tails[tail] = java_hash_bits(tail)
            bits = heads[head] + tails[tail] & 0xFFFFFFFF
        return bits if bits <= 0x7FFFFFFF else 0x100000000 - bits & 0x7FFFFFFF

    return hashed


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


def derive_postings(data: bytes, physical_offset: int, file_size: int, hasher: KeyHasher) -> Postings:
    """Walk the records in `data`, the log bytes that start at the record boundary `physical_offset` of a file of that size."""
    postings: list[Posting] = []
    position, length = 0, len(data)
    last_head = length - _HEAD.size
    file_end = physical_offset - physical_offset % file_size + file_size
    head_of, add = _HEAD.unpack_from, postings.append
    # What stood around the key of the last message that had one key, from its topic's length on.
    before = behind = _NOTHING
    before_length = behind_length = 1
    key_and_behind = 0
    hashed = hasher.of_topic(b"")
    while position <= last_head:
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
            and not sys_flag & _NOT_PLAIN
            and data[topic_at:key_at] == before
            and data[key_end:end] == behind
            and (key := data[key_at:key_end]).isalnum()
        ):
            add((hashed(key), offset, timestamp))
            position = end
            continue
        if magic == MAGIC_BLANK:
            if offset + size != file_end:
                return Postings(postings, offset, Stop.DAMAGED, 0)
            if end > length:
                return Postings(postings, offset, Stop.PARTIAL, size)
            position = end
            continue
        if magic not in (MAGIC_V1, MAGIC_V2) or found_offset != offset or size < _HEAD.size:
            return Postings(postings, offset, Stop.DAMAGED, 0)
        if end > length:
            return Postings(postings, offset, Stop.PARTIAL, size)
        parts = _parse(data, position, end, magic == MAGIC_V2, sys_flag)
        if parts is None:
            return Postings(postings, offset, Stop.DAMAGED, 0)
        timestamp, field_at, topic, properties_at = parts
        position = end
        if sys_flag & SYS_TRANSACTION_MASK == SYS_TRANSACTION_ROLLBACK:
            continue
        hashed = hasher.of_topic(topic)
        properties = data[properties_at:end]
        keys = keys_of(properties)
        postings += [(hashed(key), offset, timestamp) for key in keys]
        before = _NOTHING
        if len(keys) == 1 and (place := _only_place_of(properties, keys[0])):
            key_at, key_end = properties_at + place, properties_at + place + len(keys[0])
            before, behind = data[field_at:key_at], data[key_end:end]
            before_length, behind_length, key_and_behind = len(before), len(behind), end - key_at
    stop, needs, position = _end_of(data, position, physical_offset, file_end)
    return Postings(postings, physical_offset + position, stop, needs)


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

"""From log bytes to what the index holds of them: the keys of each message, hashed (pure).

A message is found by its unique key (UNIQ_KEY) and by each word of its KEYS, under its topic. Rolled-back transaction records
are not found. Messages of one producer mostly differ in their unique key alone, so what the last message's properties looked
like is tried first.
"""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple

from brokerd.store.dispatch import Stop
from remoting.disk import Bytes
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
_KEYS: Final = re.compile(rb"(?:^|\x02)(KEYS|UNIQ_KEY)\x01([^\x02]+)")
_V6: Final = SYS_BORN_HOST_V6 | SYS_STORE_HOST_V6
_MOST_HEADS: Final = 4096
_TAIL: Final = 8  # of a unique key, the part that differs from one message to the next: time and counter
_TAIL_FACTOR: Final = pow(31, _TAIL, 1 << 32)

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
    """Hashes keys; remembers the hashes of beginnings that many keys share."""

    def __init__(self) -> None:
        self._heads: dict[bytes, int] = {}

    def __call__(self, prefix: bytes, key: bytes) -> int:
        """The hash of a key under `topic#`."""
        tail = key[-_TAIL:]
        if len(key) < 2 * _TAIL or not tail.isascii():
            return fold(java_hash_bits(prefix + key))
        head = prefix + key[:-_TAIL]
        bits = self._heads.get(head)
        if bits is None:
            if len(self._heads) >= _MOST_HEADS:
                self._heads.clear()
            bits = self._heads[head] = java_hash_bits(head) * _TAIL_FACTOR
        bits = bits + java_hash_bits(tail) & 0xFFFFFFFF
        return bits if bits <= 0x7FFFFFFF else 0x100000000 - bits & 0x7FFFFFFF


def keys_of(properties: bytes) -> list[bytes]:
    """The keys that a message with these properties is found by, its unique key first."""
    unique = keys = b""
    for name, value in _KEYS.findall(properties):  # the last of a name wins
        if name == b"KEYS":
            keys = value
        else:
            unique = value
    found = [key for key in keys.split(b" ") if key]
    return [unique, *found] if unique else found


def has_key(properties: bytes, key: str) -> bool:
    """Whether a message with these properties is found by the key."""
    decoded = decode_properties(properties)
    return decoded.get("UNIQ_KEY") == key or key in decoded.get("KEYS", "").split(" ")


def derive_postings(data: Bytes, physical_offset: int, file_size: int, hashed: KeyHasher) -> Postings:
    """Walk the records in `data`, the log bytes that start at the record boundary `physical_offset` of a file of that size."""
    postings: list[Posting] = []
    position, length = 0, len(data)
    file_end = physical_offset - physical_offset % file_size + file_size
    head_of, short_of = _HEAD.unpack_from, _SHORT.unpack_from
    head = rest = topic = prefix = b""
    key_at = key_end = needs = 0
    stop = Stop.DAMAGED
    while True:
        if length - position < _HEAD.size:
            stop, needs, position = _end_of(data, position, physical_offset, file_end)
            break
        size, magic, found_offset, sys_flag, timestamp, body_length = head_of(data, position)
        offset = physical_offset + position
        end = position + size
        if magic != MAGIC_V1 and magic != MAGIC_V2:
            if magic != MAGIC_BLANK or offset + size != file_end:
                break
            if end > length:
                stop, needs = Stop.PARTIAL, size
                break
            position = end
            continue
        if found_offset != offset or size < _HEAD.size:
            break
        if end > length:
            stop, needs = Stop.PARTIAL, size
            break
        body_at = position + _HEAD.size
        if sys_flag & _V6:
            shift = 12 if sys_flag & SYS_BORN_HOST_V6 else 0
            (timestamp,) = _LONG.unpack_from(data, position + 56 + shift)
            shift += 12 if sys_flag & SYS_STORE_HOST_V6 else 0
            (body_length,) = _INT.unpack_from(data, body_at + shift - 4)
            body_at += shift
        topic_at = body_at + body_length + 1
        if body_length < 0 or topic_at + 2 > end:
            break
        topic_length = data[topic_at - 1]
        if magic == MAGIC_V2:
            (topic_length,) = short_of(data, topic_at - 1)
            topic_at += 1
        properties_at = topic_at + topic_length + 2
        if properties_at > end or properties_at + short_of(data, properties_at - 2)[0] != end:
            break
        position = end
        if sys_flag & SYS_TRANSACTION_MASK == SYS_TRANSACTION_ROLLBACK:
            continue
        properties = bytes(data[properties_at:end])
        name = data[topic_at : properties_at - 2]
        if name != topic:
            topic, prefix = bytes(name), bytes(name) + b"#"
        key = properties[key_at:key_end]
        if key.isalnum() and properties[:key_at] == head and properties[key_end:] == rest:
            postings.append((hashed(prefix, key), offset, timestamp))
            continue
        keys = keys_of(properties)
        postings += [(hashed(prefix, key), offset, timestamp) for key in keys]
        if len(keys) == 1 and (pattern := _pattern_of(properties, keys[0])) is not None:
            key_at, key_end = pattern
            head, rest = properties[:key_at], properties[key_end:]
    return Postings(postings, physical_offset + position, stop, needs)


def _pattern_of(properties: bytes, key: bytes) -> tuple[int, int] | None:
    """Where the only key of these properties is, if others of its length could be there just as well."""
    at = properties.find(b"UNIQ_KEY\x01" + key + b"\x02") + len(b"UNIQ_KEY\x01")
    if at < len(b"UNIQ_KEY\x01") or properties.count(b"UNIQ_KEY\x01") > 1 or not key.isalnum():
        return None
    return at, at + len(key)


def _end_of(data: Bytes, position: int, physical_offset: int, file_end: int) -> tuple[Stop, int, int]:
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

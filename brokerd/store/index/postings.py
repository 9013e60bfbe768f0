"""From log bytes to what the index holds of them: the keys of each message, hashed (pure).

A message is found by its unique key (UNIQ_KEY) and by each word of its KEYS, under its topic. Rolled-back transaction records
are not found. Messages of one producer mostly differ in their unique key alone, and their records in their checksums, so what the
last message's properties looked like is tried first, and for many messages at once where records of its size follow (`runs.py`).
Where the broker has its library, most are taken in C (`native_postings.py`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from brokerd.native.library import Library
from brokerd.store.index.hashing import KeyHasher
from brokerd.store.index.native_postings import NativePostings
from brokerd.store.index.runs import NOT_PLAIN, Likeness, length_of_run, likeness_of, take_run
from remoting.record.codec import encode_record
from remoting.record.fields import measure
from remoting.record.layout import (
    HEAD_BYTES,
    LENGTH_BYTES,
    MAGIC_V1,
    SYS_TRANSACTION_MASK,
    SYS_TRANSACTION_ROLLBACK,
    SYS_V6_HOSTS,
    Field,
    heads,
)
from remoting.record.properties import decode_properties
from remoting.record.walk import Stop, look

_HEAD_V4: Final = heads(
    Field.SIZE, Field.MAGIC, Field.PHYSICAL_OFFSET, Field.SYS_FLAG, Field.STORE_TIMESTAMP, Field.BODY_LENGTH
)[0].unpack_from
_STORE_TIMESTAMP: Final = heads(Field.STORE_TIMESTAMP)
_SEPARATOR: Final = 2
_ROLLED_BACK: Final = 3  # of the examples
_APART: Final = 16  # records that are looked at one by one when they are not alike: more each time, up to the most
_MOST_APART: Final = 256


class Postings(NamedTuple):
    """What a chunk of the log held, in columns: of each key its hash, and of its message the physical offset and the store
    timestamp; `end_offset`, `stop` and `needs` as in `derive.Derived`."""

    hashes: list[int]
    offsets: list[int]
    timestamps: list[int]
    end_offset: int
    stop: Stop
    needs: int


class WalkMemory:
    """What one walk leaves for the next one: hashes, what the last message with one key looked like, whether the keys of
    neighbours begin alike, and for how many records no run is looked for after one that was none; within a walk, up to where."""

    def __init__(self, library: Library | None = None) -> None:
        self.in_c = None if library is None else NativePostings(library)
        self.hasher = KeyHasher()
        self.like: Likeness | None = None
        self.share = True
        self.apart = _APART
        self.try_at = 0


def example_log() -> bytes:
    """Records for checks: with one key, several and none, in another alphabet, rolled back, with hosts of both kinds."""
    log = b""
    for n, properties in enumerate(
        (b"UNIQ_KEY\1K%d\2KEYS\1a  b\2" % 7, b"KEYS\1\xc3\xa9\2", b"UNIQ_KEY\1x", b"KEYS\1ab\2" * 2, b"")
    ):
        for hosts in (bytes(8), bytes(20)):
            log += encode_record(
                topic=b"Topic" * (n + 1),
                queue_id=0,
                queue_offset=0,
                physical_offset=len(log),
                body=bytes(n),
                properties=properties,
                born_timestamp_ms=0,
                born_host=hosts,
                store_timestamp_ms=1000 + n,
                store_host=bytes(8),
                sys_flag=SYS_TRANSACTION_ROLLBACK if n == _ROLLED_BACK else 0,
            )
    return log


def postings_agree(library: Library) -> bool:
    """Whether the library finds the postings that Python finds, and leaves the same records."""
    log = example_log()
    return all(
        derive_postings(log[:end], 0, size, WalkMemory(library)) == derive_postings(log[:end], 0, size, WalkMemory())
        for end in (len(log), len(log) - 1)
        for size in (1 << 20, len(log) + 8, len(log) + 7)
    )


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
    found = Postings(hashes, offsets, timestamps, physical_offset, Stop.END, 0)
    position = memory.try_at = 0
    while True:
        if memory.in_c is not None:
            columns = hashes, offsets, timestamps
            position = memory.in_c.take(data, position, physical_offset, file_size, columns)
        else:
            position = _take_alike(data, position, physical_offset, found, memory)
        offset = physical_offset + position
        # How large a record might be when it was written is not asked: it was dispatched.
        stop, size, is_record = look(data, position, offset, file_size, file_size)
        if stop is None and is_record and not _take_any(data, position, size, offset, found, memory):
            stop, size = Stop.DAMAGED, 0
        if stop is not None:
            return Postings(hashes, offsets, timestamps, offset, stop, size)
        position += size


def _take_alike(data: bytes, position: int, physical_offset: int, found: Postings, memory: WalkMemory) -> int:
    """Take the records from the position on that are like the last one with one key; returns where something else begins."""
    like = memory.like
    if like is None:
        return position
    topic, before, key_length, behind, digits, close = like
    hashes, offsets, timestamps, *_ = found
    hashed = memory.hasher.of_topic(topic)
    before_length, behind_length = len(before), len(behind)
    from_key = like.length_from_key()
    length = len(data)
    last_head = length - HEAD_BYTES
    while position <= last_head:
        if position >= memory.try_at:
            taken = _take_run(data, position, physical_offset + position, like, found, memory)
            if taken:
                position += taken
                continue
        size, magic, found_offset, sys_flag, timestamp, body_length = _HEAD_V4(data, position)
        end = position + size
        key_at = end - from_key
        key_end = key_at + key_length
        digits_at = key_end + behind_length
        topic_at = key_at - before_length
        if (
            magic != MAGIC_V1
            or found_offset - position != physical_offset
            or end > length
            or topic_at - body_length != position + HEAD_BYTES
            or sys_flag & NOT_PLAIN
            or data[topic_at:key_at] != before
            or data[key_end:digits_at] != behind
            or (digits and not data[digits_at : digits_at + digits].isdigit())
            or data[digits_at + digits : end] != close
            or not (key := data[key_at:key_end]).isalnum()
        ):
            break
        hashes.append(hashed(key))
        offsets.append(found_offset)
        timestamps.append(timestamp)
        position = end
    return position


def _take_run(data: bytes, position: int, offset: int, like: Likeness, found: Postings, memory: WalkMemory) -> int:
    """Take many records at once; returns how many bytes they have. After none, it is some records until the next try."""
    size, count = length_of_run(data, position, like)
    while count:
        run = take_run(data, position, offset, size, count, like, share=memory.share)
        if run is not None:
            found.hashes.extend(run.hashes)
            found.offsets.extend(range(offset, offset + count * size, size))
            found.timestamps.extend(run.timestamps)
            memory.apart = _APART
            return count * size
        if not memory.share:
            break
        memory.share = False
    memory.share = True
    memory.try_at = position + max(count, memory.apart) * size
    memory.apart = min(2 * memory.apart, _MOST_APART)
    return 0


def _take_any(data: bytes, at: int, size: int, offset: int, found: Postings, memory: WalkMemory) -> bool:
    """Take the whole record of that size there, whatever it is like; False when its parts do not add up."""
    _, magic, _, sys_flag, timestamp, body_length = _HEAD_V4(data, at)
    end = at + size
    places = measure(data, at, end, magic, sys_flag, body_length)
    if places is None:
        return False
    if sys_flag & SYS_TRANSACTION_MASK == SYS_TRANSACTION_ROLLBACK:
        return True
    _, body_end, topic_at, topic_end = places
    if hosts := sys_flag & SYS_V6_HOSTS:
        (timestamp,) = _STORE_TIMESTAMP[hosts].unpack_from(data, at)
    properties_at = topic_end + LENGTH_BYTES
    properties = data[properties_at:end]
    keys = keys_of(properties)
    if not keys:
        memory.try_at = end  # a record of the broker's own among others does not end their likeness
        return True
    topic = data[topic_at:topic_end]
    found.hashes.extend(map(memory.hasher.of_topic(topic), keys))
    found.offsets.extend([offset] * len(keys))
    found.timestamps.extend([timestamp] * len(keys))
    is_plain = magic == MAGIC_V1 and not sys_flag & NOT_PLAIN
    if is_plain and len(keys) == 1 and (place := _only_place_of(properties, keys[0])):
        key_at = properties_at + place
        key_end = key_at + len(keys[0])
        memory.like = likeness_of(topic, data[body_end:key_at], len(keys[0]), data[key_end:end])
    return True


def _only_place_of(properties: bytes, key: bytes) -> int:
    """Where in the properties their only key is, if others of its length could be there just as well; else 0."""
    name = b"UNIQ_KEY\x01"
    at = properties.find(name + key + b"\x02")
    if at < 0 or properties.count(name) > 1 or not key.isalnum():
        return 0
    return at + len(name)

"""The send path's inner loop for batches: one request's messages in, records at consecutive queue offsets out (pure).

A batch is handled in columns, one pass over all of its messages for each field: CPython does that faster than one pass with all
fields of a message. Messages that look alike, as a program's mostly do, are handled in one pass over the bytes. What is not
ordinary (see `rules`) is left to the general path.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, chain, repeat
from typing import Final, NamedTuple

from brokerd.sending.rules import MAX_KEPT_BYTES, STAMP, completed, is_ordinary, pattern_of
from brokerd.sending.tails import HIGH, LOW, MASK, MIDDLE, seal_alike
from brokerd.sending.unique_ids import UniqueIds
from brokerd.store.log.derive import Entry
from remoting.checksum import crc32
from remoting.disk import Bytes
from remoting.record.batch import ITEM_COLUMNS, ITEM_HEAD, ITEM_HEAD_BYTES, ITEM_OVERHEAD_BYTES, MAX_BATCH_COUNT
from remoting.record.checksum import TAIL_BYTES
from remoting.record.layout import (
    BATCH_COLUMNS,
    BORDER,
    HEAD_AROUND_MIDDLE,
    LENGTH,
    MAGIC_V1,
    MAX_PROPERTIES_BYTES,
    record_size,
)

_MAX_ALIKE: Final = 128  # what is taken apart by one struct; a struct holds some 600 bytes for each message
_INT: Final = struct.Struct(">i")
_TWO: Final = struct.Struct(">ii")
_MOST_PLANS: Final = 16  # of a topic
_ADDED: Final = (STAMP, STAMP + bytes(TAIL_BYTES))  # to the properties; without, and with room for, a checksum
_Shape = tuple[int, int, int, bool]  # a batch's size, that of an item, that of a body; whether records get checksums


class LaidOut(NamedTuple):
    """A batch as it goes to the log, to dispatch, and into the answer."""

    records: list[Bytes]
    entries: list[Entry]
    positions: Sequence[int]
    end_offset: int
    named: int = 0  # messages that took a name which their client had not given


class _Items(NamedTuple):
    flags: Sequence[int]
    bodies: Sequence[bytes]
    properties: Sequence[bytes]


class _Plan(NamedTuple):
    """How batches of one topic, number and size of messages, and properties are taken apart and put together."""

    parts: tuple[int, int, int, int]  # how long the body is, what lies before the key, the key, and what is behind it
    messages: int
    item_size: int
    before_key: bytes  # of an item: the length of its properties, and what of them lies before the key
    rest: bytes  # of an item, behind the key
    tags_code: int
    size: int  # of a record
    field_length: int  # of the topic in it
    size_and_magic: bytes
    body_length: bytes
    new_before_key: bytes
    new_rest: bytes  # with the next record's size and magic
    last_rest: bytes
    seals: bool  # the rest ends with room for a checksum


class BatchPlans:
    """The plans of a topic's batches; `field` is the topic as a record holds it, length first."""

    def __init__(self, field: bytes) -> None:
        self._field = field
        self._plans: dict[_Shape, _Plan] = {}

    def known(self, shape: _Shape) -> _Plan | None:
        """The last plan for batches of that shape."""
        return self._plans.get(shape)

    def make(self, data: Bytes, shape: _Shape) -> _Plan | None:
        """A plan for batches like this one; None when its messages are not alike, or one of them is not ordinary."""
        length, item_size, body_length, seals = shape
        properties_length = item_size - ITEM_OVERHEAD_BYTES - body_length
        if body_length <= 0 or not 0 < properties_length <= MAX_KEPT_BYTES or length % item_size:
            return None
        count = length // item_size
        pattern = pattern_of(bytes(data[item_size - properties_length : item_size])) if count <= _MAX_ALIKE else None
        if pattern is None:
            return None
        head, key_at, key_end, rest, code = pattern
        before_key = LENGTH.pack(properties_length) + head
        parts = body_length, len(before_key), key_end - key_at, len(rest)
        added = _ADDED[seals]
        size = record_size(len(self._field) - 1, body_length, properties_length + len(added))
        size_and_magic = BORDER.pack(size, MAGIC_V1)
        if len(self._plans) >= _MOST_PLANS:
            self._plans.clear()
        plan = self._plans[shape] = _Plan(
            parts,
            count,
            item_size,
            before_key,
            rest,
            code,
            size,
            len(self._field),
            size_and_magic,
            _INT.pack(body_length),
            self._field + LENGTH.pack(properties_length + len(added)) + head,
            rest + added + size_and_magic,
            rest + added,
            seals,
        )
        return plan


def lay_out_batch(
    body: Bytes,
    plans: BatchPlans,
    topic: str,
    field: bytes,
    queue_id: int,
    queue_offset: int,
    position: int,
    now_ms: int,
    shared: bytes,
    seals: bool,
    ids: UniqueIds,
) -> LaidOut | None:
    """Lay out the messages in a batch's body behind the log position; None when one of them is not ordinary, or none is there.

    `field` is the topic as a record holds it, length first; `plans` are that topic's, `shared` is the middle of all heads
    (`layout.MIDDLE_V4`). With `seals` each record ends with a checksum. Who has no name is named by `ids`, whose next number is
    moved on when the batch counts.
    """
    place = (queue_id, queue_offset, position, now_ms, shared, seals)
    try:
        return _lay_out_alike(body, plans, topic, *place) or _lay_out_any(bytes(body), topic, field, *place, ids)
    except struct.error:
        return None


def _lay_out_alike(
    data: Bytes,
    plans: BatchPlans,
    topic: str,
    queue_id: int,
    queue_offset: int,
    position: int,
    now_ms: int,
    shared: bytes,
    seals: bool,
) -> LaidOut | None:
    """Lay out messages that differ in their bodies' content and in their unique keys alone; None when they do not.

    Everything else is the same at the same distance, so one `struct` takes the whole batch apart and one puts it together. What
    is the same in one batch after the other is in a plan, which is tried first.
    """
    item_size, flag, body_length = ITEM_HEAD.unpack_from(data)
    shape = (len(data), item_size, body_length, seals)
    plan = plans.known(shape)
    taken = _take_apart(data, plan) if plan is not None else None
    if taken is None:
        plan = plans.make(data, shape)
        taken = _take_apart(data, plan) if plan is not None else None
    if taken is None or plan is None:
        return None
    bodies, keys = taken
    count, size = plan.messages, plan.size
    records: Bytes
    end_offset = position + count * size
    positions = range(position, end_offset, size)
    # From one record's CRC to the next one's, so that what is the same at the border is one field
    fields: list[object] = [
        0, _TWO.pack(queue_id, flag), 0, 0, shared + plan.body_length, b"", plan.new_before_key, b"", plan.new_rest,
    ] * count  # fmt: skip
    fields[0::9] = [crc32(body) & 0x7FFFFFFF for body in bodies]
    fields[2::9] = range(queue_offset, queue_offset + count)
    fields[3::9] = positions
    fields[5::9] = bodies
    fields[7::9] = keys
    fields[-1] = plan.last_rest
    packer = _alike_records(count, plan.field_length, *plan.parts[:3], len(plan.last_rest))
    if plan.seals:
        records = bytearray(count * size)
        packer.pack_into(records, 0, plan.size_and_magic, *fields)
        seal_alike(records, count, size)
    else:
        records = packer.pack(plan.size_and_magic, *fields)
    entry = (topic, queue_id, queue_offset, position, size, plan.tags_code, now_ms, count)
    return LaidOut([records], [entry], positions, end_offset)


def _take_apart(data: Bytes, plan: _Plan) -> tuple[Sequence[bytes], Sequence[bytes]] | None:
    """The bodies and the keys of a batch's messages; None when the plan is not theirs."""
    count = plan.messages
    fields = _alike_items(count, *plan.parts).unpack(data)
    sizes, heads, befores, rests = fields[0::6], fields[1::6], fields[3::6], fields[5::6]
    keys = fields[4::6]
    if (
        sizes.count(plan.item_size) != count
        or heads.count(heads[0]) != count
        or befores.count(plan.before_key) != count
        or rests.count(plan.rest) != count
        or not b"".join(keys).isalnum()
    ):
        return None
    return fields[2::6], keys


@lru_cache(maxsize=64)
def _alike_items(count: int, body: int, before_key: int, key: int, rest: int) -> struct.Struct:
    """Per message: size; flag and body length; body; properties' length and their part before the key; key; rest."""
    return struct.Struct(">" + f"{ITEM_COLUMNS}{body}s{before_key}s{key}s{rest}s" * count)


@lru_cache(maxsize=64)
def _alike_records(count: int, field: int, body: int, before_key: int, key: int, rest: int) -> struct.Struct:
    """The first record's size and magic, then per record: CRC; queueId and flag; queueOffset; physicalOffset; the shared part and
    the body's length; body; topic, properties' length and their part before the key; key; rest with what is added to the
    properties, and the next size and magic."""
    border = BORDER.size
    each = f"{BATCH_COLUMNS}{body}s{field + before_key}s{key}s"
    return struct.Struct(f">{border}s" + f"{each}{rest + border}s" * (count - 1) + f"{each}{rest}s")


def _lay_out_any(
    data: bytes,
    topic: str,
    field: bytes,
    queue_id: int,
    queue_offset: int,
    position: int,
    now_ms: int,
    shared: bytes,
    seals: bool,
    ids: UniqueIds,
) -> LaidOut | None:
    """Lay out any messages, in columns; None when one of them is not ordinary. Raises struct.error."""
    items = split(data)
    if items is None:
        return None
    flags, bodies, properties = items
    codes = _tags_codes(properties)
    named = 0
    if codes is None:
        completions = _completed(properties, ids)
        codes = None if completions is None else _tags_codes(completions.properties)
        if completions is None or codes is None:
            return None
        properties, named = completions
    lengths = set(map(len, properties))
    added = len(_ADDED[seals])
    if max(lengths) + added > MAX_PROPERTIES_BYTES:
        return None
    ends_of_head = {length: field + LENGTH.pack(length + added) for length in lengths}
    fixed = record_size(len(field) - 1, 0, added)
    body_lengths = [len(body) for body in bodies]
    sizes = [fixed + length + len(text) for length, text in zip(body_lengths, properties, strict=True)]
    *positions, end_offset = accumulate(sizes, initial=position)
    queue_offsets = range(queue_offset, queue_offset + len(bodies))
    pack = HEAD_AROUND_MIDDLE.pack
    heads = [
        pack(size, MAGIC_V1, crc32(body) & 0x7FFFFFFF, queue_id, flag, queue_offset, position, shared, length)
        for size, body, flag, queue_offset, position, length in zip(
            sizes, bodies, flags, queue_offsets, positions, body_lengths, strict=True
        )
    ]
    between = [ends_of_head[len(text)] for text in properties] if len(lengths) > 1 else repeat(*ends_of_head.values())
    ends = [begin + text + STAMP for begin, text in zip(between, properties, strict=False)]
    columns: list[Sequence[bytes]] = [heads, bodies, ends]
    if seals:
        sums = [
            crc32(end, crc32(body, crc32(head))) & MASK for head, body, end in zip(heads, bodies, ends, strict=True)
        ]
        columns.append([LOW[each % 10_000] for each in sums])
        rests = [each // 10_000 for each in sums]
        columns.append([MIDDLE[rest % 1000] for rest in rests])
        columns.append([HIGH[rest // 1000] for rest in rests])
    records: list[Bytes] = list(chain.from_iterable(zip(*columns, strict=True)))
    entries: list[Entry] = list(
        zip(
            repeat(topic),
            repeat(queue_id),
            queue_offsets,
            positions,
            sizes,
            codes,
            repeat(now_ms),
            repeat(1),
            strict=False,
        )
    )
    return LaidOut(records, entries, positions, end_offset, named)


def split(data: bytes) -> _Items | None:
    """The messages of any batch; None when their sizes do not add up, or there are too many. Raises struct.error."""
    flags: list[int] = []
    bodies: list[bytes] = []
    properties: list[bytes] = []
    at, end = 0, len(data)
    unpack, unpack_short = ITEM_HEAD.unpack_from, LENGTH.unpack_from
    while at < end:
        item_size, flag, body_length = unpack(data, at)
        body_at = at + ITEM_HEAD_BYTES
        properties_at = body_at + body_length
        at += item_size
        if body_length <= 0 or at > end or properties_at + 2 > at:
            return None
        if properties_at + 2 + unpack_short(data, properties_at)[0] != at:
            return None
        flags.append(flag)
        bodies.append(data[body_at:properties_at])
        properties.append(data[properties_at + 2 : at])
    return _Items(flags, bodies, properties) if 0 < len(bodies) <= MAX_BATCH_COUNT else None


class _Completed(NamedTuple):
    properties: Sequence[bytes]
    named: int


def _completed(properties: Sequence[bytes], ids: UniqueIds) -> _Completed | None:
    """The properties of each message as they may be stored; None when one of them is for somebody else."""
    first = properties[0]
    if not first:
        if not any(properties):
            names = [b"UNIQ_KEY\x01%b\x02" % ids.ahead(number).encode() for number in range(len(properties))]
            return _Completed(names, len(names))
    elif not first.endswith(b"\x02"):
        closed = completed(first, "")
        pattern = None if closed is None else pattern_of(closed)
        if pattern is not None and closed == first + b"\x02":
            every = [text + b"\x02" for text in properties]
            if pattern.is_of_all(every):  # they have the same names
                return _Completed(every, 0)
    named = 0
    every = []
    for text in properties:
        if not is_ordinary(text):
            closed = completed(text, ids.ahead(named))
            if closed is None:
                return None
            named += len(closed) > len(text) + 1  # more than a separator was added
            text = closed
        every.append(text)
    return _Completed(every, named)


def _tags_codes(properties: Sequence[bytes]) -> Sequence[int] | None:
    """The tags code of each message; None when one of them has properties that the general path must see."""
    pattern = pattern_of(properties[0])
    if pattern is None:
        return None
    if pattern.is_of_all(properties):
        return [pattern.tags_code] * len(properties)
    codes = []
    for text in properties:
        pattern = pattern_of(text)
        if pattern is None:
            return None
        codes.append(pattern.tags_code)
    return codes

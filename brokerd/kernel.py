"""The send path's inner loop: send requests in, log bytes, queue entries and answers out (pure).

This one module is the boundary behind which a compiled kernel can stand later: everything it reads and everything it makes is
in `encode_sends`' arguments and in `Encoded`. It handles what is common (ordinary messages and batches of them, to a known
topic, with IPv4 hosts) and stops before anything else, for the general path that knows every rule.

Queue offsets are taken from and written back to the `offsets` table as records are laid out, so the caller must append what
comes out, whole, before anybody else appends.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Final

from brokerd.send_rules import STAMP, unique_key
from remoting import codes
from remoting.disk import Bytes
from remoting.frame import Command
from remoting.message import (
    HEAD_V4,
    MAGIC_V1,
    MAX_BODY_BYTES,
    MAX_PROPERTIES_BYTES,
    RECORD_OVERHEAD_BYTES,
    java_hash,
    tags_code,
)

# The properties that most messages have and no others: one match says that nothing is special, and finds the key and the tag
_COMMON: Final = re.compile(
    rb"(?:(?:UNIQ_KEY\x01([0-9A-Za-z]+)|WAIT\x01true|TAGS\x01([^\x00-\x02]+)|KEYS\x01[^\x00-\x02]+)\x02)+"
)
_BATCH_ITEM: Final = struct.Struct(">iIIii")
_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")
# the head of a record with IPv4 hosts, cut where a batch's messages differ and where they do not (the body's length follows)
_HEAD_START: Final = struct.Struct(">IIIiiqq")
_HEAD_MIDDLE: Final = struct.Struct(">iqIIqIIiq")
MAX_BATCH_COUNT: Final = 32767
_PREFIX: Final = struct.Struct(">iI")

# The space after "code": keeps the frame's length when the caller turns 0 into a two-digit put status.
_ANSWER: Final = (
    b'{"code": 0,"extFields":{"msgId":"%b%016X","queueId":"%d","queueOffset":"%d","transactionId":"%b",'
    b'"MSG_REGION":"DefaultRegion","TRACE_ON":"true"},"flag":1,"language":"JAVA","opaque":%d,"version":479}'
)
_BATCH_ANSWER: Final = (
    b'{"code": 0,"extFields":{"msgId":"%b","queueId":"%d","queueOffset":"%d",'
    b'"MSG_REGION":"DefaultRegion","TRACE_ON":"true"},"flag":1,"language":"JAVA","opaque":%d,"version":479}'
)
ANSWER_OK: Final = b'{"code": 0,'

# (topic, queue_id, queue_offset, physical_offset, size, tags_code, store_timestamp_ms)
Entry = tuple[str, int, int, int, int, int, int]


class SendTarget:
    """A topic that accepts ordinary sends, prepared for the loop."""

    __slots__ = ("field", "name", "turn", "write_queue_nums")

    def __init__(self, name: str, write_queue_nums: int) -> None:
        encoded = name.encode()
        self.name = name
        self.field = bytes((len(encoded),)) + encoded
        self.write_queue_nums = write_queue_nums
        self.turn = 0


class Encoded:
    """What comes out, of one call after the other: `records` go to the log as they are, `entries` to dispatch, `answers` (two
    parts each) to the clients when acknowledged; `answered` are the requests that they answer.

    Of the last call, `next_index` is the first request that was not laid out: the end of the run, or one for the general path
    (`is_slow`), or one that needs a new segment. Stopping there keeps the order of a producer's messages.
    """

    __slots__ = ("answered", "answers", "end_offset", "entries", "is_slow", "next_index", "records")

    def __init__(self, position: int) -> None:
        self.records: list[Bytes] = []
        self.entries: list[Entry] = []
        self.answers: list[bytes] = []
        self.answered: list[Command] = []
        self.is_slow = False
        self.end_offset = position
        self.next_index = 0


def encode_sends(
    out: Encoded,
    requests: Sequence[Command],
    first: int,
    targets: Mapping[str, SendTarget],
    offsets: dict[tuple[str, int], int],
    segment_end: int,
    now_ms: int,
    born_host: tuple[int, int],
    store_host: tuple[int, int],
) -> None:
    """Lay out the sends from `first` on behind what `out` holds already.

    `segment_end` is the last position a record may end at (the filler's eight bytes are already taken off). Hosts are the
    (IPv4 address as an integer, port) of the connection and of this broker.
    """
    out.is_slow = False
    out.next_index = first
    records, entries, answers = out.records, out.entries, out.answers
    born_ip, born_port = born_host
    store_ip, store_port = store_host
    id_prefix = b"%08X%08X" % store_host
    for index in range(first, len(requests)):
        request = requests[index]
        ext = request.ext
        out.next_index = index
        target = targets.get(ext.get("b", ""))
        if target is None:
            out.is_slow = True
            return
        try:
            queue_id = int(ext["e"])
            sys_flag = 0 if (text := ext["f"]) == "0" else int(text)
            born_timestamp = int(ext["g"])
            flag = 0 if (text := ext["h"]) == "0" else int(text)
            reconsume_times = 0 if (text := ext.get("j") or "0") == "0" else int(text)
        except (KeyError, ValueError):
            out.is_slow = True
            return
        if queue_id < 0:
            queue_id = target.turn = (target.turn + 1) % target.write_queue_nums
        body = request.body
        body_length = len(body)
        properties = ext.get("i", "").encode()
        if (
            queue_id >= target.write_queue_nums
            or sys_flag & ~0x701
            or not 0 < body_length <= MAX_BODY_BYTES
            or not 0 <= reconsume_times < 0x8000
            or not -0x80000000 <= flag < 0x80000000
            or not 0 <= born_timestamp < 1 << 62
        ):
            out.is_slow = True
            return
        if ext.get("m") == "true":
            laid_out = _lay_out_batch(
                out, request, target, offsets, queue_id, sys_flag, born_timestamp, reconsume_times,
                segment_end, now_ms, born_host, store_host, id_prefix,
            )  # fmt: skip
            if laid_out:
                continue
            return
        common = _COMMON.fullmatch(properties)
        if common is not None:
            key, tag = common.groups()
            code = 0 if tag is None else java_hash(tag.decode("utf-8", "replace"))
        else:
            key, code = _odd_properties(properties)
        if key is None:
            out.is_slow = True
            return
        properties += STAMP
        properties_length = len(properties)
        size = RECORD_OVERHEAD_BYTES - 1 + len(target.field) + body_length + properties_length
        position = out.end_offset
        if properties_length > MAX_PROPERTIES_BYTES:
            out.is_slow = True
            return
        if position + size > segment_end:
            return
        slot = (target.name, queue_id)
        queue_offset = offsets.get(slot, 0)
        offsets[slot] = queue_offset + 1
        records += (
            HEAD_V4.pack(
                size, MAGIC_V1, zlib.crc32(body) & 0x7FFFFFFF, queue_id, flag, queue_offset, position, sys_flag,
                born_timestamp, born_ip, born_port, now_ms, store_ip, store_port, reconsume_times, 0, body_length,
            ),
            body,
            target.field,
            _SHORT.pack(properties_length),
            properties,
        )  # fmt: skip
        entries.append((target.name, queue_id, queue_offset, position, size, code, now_ms))
        out.end_offset = position + size
        if not request.flag & codes.FLAG_ONEWAY:
            header = _ANSWER % (id_prefix, position, queue_id, queue_offset, key, request.opaque)
            answers += (_PREFIX.pack(4 + len(header), len(header)), header)
            out.answered.append(request)
    out.next_index = len(requests)


def _odd_properties(properties: bytes) -> tuple[bytes | None, int]:
    """(unique key, tags code) of properties that are not only the common ones; no key when the general path must look."""
    key = unique_key(properties)
    return key, tags_code(properties) if key is not None else 0


def _lay_out_batch(
    out: Encoded,
    request: Command,
    target: SendTarget,
    offsets: dict[tuple[str, int], int],
    queue_id: int,
    sys_flag: int,
    born_timestamp: int,
    reconsume_times: int,
    segment_end: int,
    now_ms: int,
    born_host: tuple[int, int],
    store_host: tuple[int, int],
    id_prefix: bytes,
) -> bool:
    """Lay out a batch as records at consecutive queue offsets; False (and nothing laid out) when the loop must stop."""
    name, field = target.name, target.field
    fixed = RECORD_OVERHEAD_BYTES - 1 + len(field) + len(STAMP)
    same_in_all = _HEAD_MIDDLE.pack(sys_flag & ~1, born_timestamp, *born_host, now_ms, *store_host, reconsume_times, 0)
    slot = (name, queue_id)
    first_offset = queue_offset = offsets.get(slot, 0)
    position = out.end_offset
    view = memoryview(request.body)
    at, end = 0, len(view)
    records: list[Bytes] = []
    entries: list[Entry] = []
    ids = []
    try:
        while at < end:
            item_size, _, _, flag, body_length = _BATCH_ITEM.unpack_from(view, at)
            properties_at = at + 20 + body_length
            item_end = at + item_size
            properties = bytes(view[properties_at + 2 : item_end])
            properties_length = len(properties)
            if (
                body_length <= 0
                or item_end > end
                or item_size != 22 + body_length + properties_length
                or _SHORT.unpack_from(view, properties_at)[0] != properties_length
                or properties_length + len(STAMP) > MAX_PROPERTIES_BYTES
            ):
                out.is_slow = True
                return False
            common = _COMMON.fullmatch(properties)
            if common is not None:
                key, tag = common.groups()
                code = 0 if tag is None else java_hash(tag.decode("utf-8", "replace"))
            else:
                key, code = _odd_properties(properties)
            if key is None:
                out.is_slow = True
                return False
            body = view[at + 20 : properties_at]
            size = fixed + body_length + properties_length
            records += (
                _HEAD_START.pack(size, MAGIC_V1, zlib.crc32(body) & 0x7FFFFFFF, queue_id, flag, queue_offset, position),
                same_in_all,
                _INT.pack(body_length),
                body,
                field + _SHORT.pack(properties_length + len(STAMP)) + properties + STAMP,
            )
            entries.append((name, queue_id, queue_offset, position, size, code, now_ms))
            ids.append(b"%b%016X" % (id_prefix, position))
            position += size
            queue_offset += 1
            at = item_end
    except struct.error:
        out.is_slow = True
        return False
    if not ids or len(ids) > MAX_BATCH_COUNT:
        out.is_slow = True
        return False
    if position > segment_end:
        return False
    offsets[slot] = queue_offset
    out.records += records
    out.entries += entries
    out.end_offset = position
    if not request.flag & codes.FLAG_ONEWAY:
        header = _BATCH_ANSWER % (b",".join(ids), queue_id, first_offset, request.opaque)
        out.answers += (_PREFIX.pack(4 + len(header), len(header)), header)
        out.answered.append(request)
    return True

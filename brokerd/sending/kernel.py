"""The send path's inner loop: send requests in, log bytes, queue entries and answers out (pure).

This one module is the boundary behind which a compiled kernel can stand later: everything it reads and everything it makes is
in `encode_sends`' arguments and in `Encoded`. It handles what is common (ordinary messages and batches of them, to a known
topic, with IPv4 hosts) and stops before anything else, for the general path that knows every rule.

Queue offsets are taken from and written back to the `offsets` table as records are laid out, so the caller must append what
comes out, whole, before anybody else appends.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final

from brokerd.sending.batch_kernel import BatchPlans, lay_out_batch, pack_shared
from brokerd.sending.rules import MAX_KEPT_BYTES, STAMP, Pattern, pattern_of
from brokerd.store.derived.derive import Entry
from remoting import codes
from remoting.checksum import crc32
from remoting.disk import Bytes
from remoting.frame import Command
from remoting.record.layout import HEAD_V4, MAGIC_V1, MAX_BODY_BYTES, MAX_PROPERTIES_BYTES, RECORD_OVERHEAD_BYTES

_SHORT: Final = struct.Struct(">h")
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

_NO_PATTERN: Final = Pattern(b"\0", 0, 0, b"\0", 0)  # no message follows it


class SendTarget:
    """A topic that accepts ordinary sends, prepared for the loop. `pattern` is what its last message's properties followed."""

    __slots__ = ("field", "name", "pattern", "plans", "turn", "write_queue_nums")

    def __init__(self, name: str, write_queue_nums: int) -> None:
        encoded = name.encode()
        self.name = name
        self.field = bytes((len(encoded),)) + encoded
        self.write_queue_nums = write_queue_nums
        self.turn = 0
        self.pattern = _NO_PATTERN
        self.plans = BatchPlans(self.field)


class Encoded:
    """What comes out, of one call after the other: `records` go to the log as they are, `entries` to dispatch, `answers` (two
    parts each) to the clients when acknowledged; `answered` are the requests that they answer.

    Of the last call, `next_index` is the first request that was not laid out: the end of the run, or one for the general path
    (`is_slow`), or one that needs a new segment. Stopping there keeps the order of a producer's messages.
    """

    __slots__ = ("answered", "answers", "end_offset", "entries", "folded", "is_slow", "next_index", "records")

    def __init__(self, position: int) -> None:
        self.records: list[Bytes] = []
        self.entries: list[Entry] = []
        self.answers: list[bytes] = []
        self.answered: list[Command] = []
        self.is_slow = False
        self.end_offset = position
        self.next_index = 0
        self.folded = 0  # messages without an entry of their own

    @property
    def message_count(self) -> int:
        return len(self.entries) + self.folded


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
            laid_out = _add_batch(
                out, request, target, offsets, queue_id, sys_flag, born_timestamp, reconsume_times,
                segment_end, now_ms, born_host, store_host, id_prefix,
            )  # fmt: skip
            if laid_out:
                continue
            return
        head, key_at, key_end, rest, code = target.pattern
        key = properties[key_at:key_end]
        if properties[key_end:] != rest or properties[:key_at] != head or not key.isalnum():
            pattern = pattern_of(properties)
            if pattern is None:
                out.is_slow = True
                return
            if len(properties) <= MAX_KEPT_BYTES:
                target.pattern = pattern
            key, code = properties[pattern.key_at : pattern.key_end], pattern.tags_code
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
                size, MAGIC_V1, crc32(body) & 0x7FFFFFFF, queue_id, flag, queue_offset, position, sys_flag,
                born_timestamp, born_ip, born_port, now_ms, store_ip, store_port, reconsume_times, 0, body_length,
            ),
            body,
            target.field,
            _SHORT.pack(properties_length),
            properties,
        )  # fmt: skip
        entries.append((target.name, queue_id, queue_offset, position, size, code, now_ms, 1))
        out.end_offset = position + size
        if not request.flag & codes.FLAG_ONEWAY:
            header = _ANSWER % (id_prefix, position, queue_id, queue_offset, key, request.opaque)
            answers += (_PREFIX.pack(4 + len(header), len(header)), header)
            out.answered.append(request)
    out.next_index = len(requests)


def _add_batch(
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
    """Lay out a batch; False, and nothing laid out, when the loop must stop."""
    slot = (target.name, queue_id)
    queue_offset = offsets.get(slot, 0)
    shared = pack_shared(sys_flag & ~1, born_timestamp, born_host, now_ms, store_host, reconsume_times)
    laid_out = lay_out_batch(
        request.body, target.plans, target.name, target.field, queue_id, queue_offset, out.end_offset, now_ms, shared
    )
    if laid_out is None:
        out.is_slow = True
        return False
    records, entries, positions, end_offset = laid_out
    if end_offset > segment_end:
        return False
    offsets[slot] = queue_offset + len(positions)
    out.records += records
    out.entries += entries
    out.folded += len(positions) - len(entries)
    out.end_offset = end_offset
    if not request.flag & codes.FLAG_ONEWAY:
        numbers = struct.pack(f">{len(positions)}q", *positions).hex(",", 8).upper().encode()
        ids = id_prefix + numbers.replace(b",", b"," + id_prefix)
        header = _BATCH_ANSWER % (ids, queue_id, queue_offset, request.opaque)
        out.answers += (_PREFIX.pack(4 + len(header), len(header)), header)
        out.answered.append(request)
    return True

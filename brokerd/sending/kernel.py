"""The send path's inner loop: send requests in, log bytes, queue entries and answers out (pure).

It handles messages and batches of them to known topics: most, which are stored as they came, here, others in `stored_form`.
It stops before anything else, for the general path that knows every rule. What it reads and makes is in `boundary`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final

import orjson

from brokerd.metadata.configs import PERM_WRITE, TopicConfig
from brokerd.sending.batch_kernel import BatchPlans, LaidOut, lay_out_batch
from brokerd.sending.boundary import ANSWER_OK, Source, Stop, Taken, Together
from brokerd.sending.reading import Send, begins_with_send, sends_of
from brokerd.sending.rules import (
    MAX_KEPT_BYTES,
    STAMP,
    Pattern,
    asks_for_time,
    check_destination,
    completed,
    may_be_completed,
    pattern_of,
)
from brokerd.sending.stored_form import (
    Asked,
    KernelRules,
    LaidOutSends,
    lay_out_many,
    lay_out_one,
)
from brokerd.sending.tails import HIGH, LOW, MASK, MIDDLE
from brokerd.sending.unique_ids import UniqueIds
from brokerd.store.draft import Draft
from brokerd.store.run import Run
from remoting import codes, frame
from remoting.checksum import crc32
from remoting.errors import RequestError
from remoting.frame import Command
from remoting.names import RETRY_PREFIX
from remoting.record.checksum import TAIL_BYTES
from remoting.record.layout import (
    HEAD_V4,
    HOST_BYTES,
    HOST_V6_BYTES,
    LENGTH,
    MAGIC_V1,
    MAX_BODY_BYTES,
    MAX_PROPERTIES_BYTES,
    MAX_TOPIC_BYTES,
    MIDDLE_V4,
    SYS_COMPRESSED,
    SYS_COMPRESSION_TYPE_MASK,
    record_size,
)

_PREFIX: Final = struct.Struct(">iI")
_READ_AHEAD: Final = 16  # frames that may be decoded in vain, when the kernel stops at the first of them
_OTHER_SYS_FLAGS: Final = ~(SYS_COMPRESSED | SYS_COMPRESSION_TYPE_MASK)
_ANSWER: Final = (
    ANSWER_OK + b'"extFields":{"msgId":"%b%016X","queueId":"%d","queueOffset":"%d","transactionId":"%b",%b'
    b'"MSG_REGION":"DefaultRegion","TRACE_ON":"true"},"flag":1,"language":"JAVA","opaque":%d,"version":479}'
)
_HANDLE: Final = b'"recallHandle":"%b",'
_BATCH_ANSWER: Final = (
    ANSWER_OK + b'"extFields":{"msgId":"%b","queueId":"%d","queueOffset":"%d",'
    b'"MSG_REGION":"DefaultRegion","TRACE_ON":"true"},"flag":1,"language":"JAVA","opaque":%d,"version":479}'
)

_ADDED_BYTES: Final = (len(STAMP), len(STAMP) + TAIL_BYTES)  # to the properties; without and with a checksum
_NO_PATTERN: Final = Pattern(b"\0", 0, 0, b"\0", 0)  # no message follows it


class _Target:
    """A topic that accepts ordinary sends, prepared for the loop. `pattern` is what its last message's properties followed,
    `before_properties` is what stood between its body and them, for properties of that length."""

    __slots__ = (
        "before_properties",
        "field",
        "fixed_bytes",
        "name",
        "pattern",
        "plans",
        "properties_length",
        "turn",
        "write_queue_nums",
    )

    def __init__(self, name: str, write_queue_nums: int) -> None:
        encoded = name.encode()
        self.name = name
        self.field = bytes((len(encoded),)) + encoded
        self.fixed_bytes = record_size(len(encoded), 0, 0)
        self.write_queue_nums = write_queue_nums
        self.turn = 0
        self.pattern = _NO_PATTERN
        self.properties_length = -1
        self.before_properties = b""
        self.plans = BatchPlans(self.field)


class Kernel:
    """`boundary.SendKernel` in Python."""

    def __init__(
        self, store_host: bytes, rules: KernelRules | None = None, *, max_frame_bytes: int = frame.MAX_FRAME_BYTES
    ) -> None:
        """Without rules nobody keeps timers, delayed messages and transactions."""
        self._rules = rules or KernelRules(UniqueIds(0))
        self._store_host = store_host
        self._id_prefix = store_host.hex().upper().encode()
        self._max_frame_bytes = max_frame_bytes
        self._targets: dict[str, _Target] = {}

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(self._targets)

    def topics_changed(self, topics: Mapping[str, TopicConfig | None]) -> None:
        for name, config in topics.items():
            if config is None or not _is_ordinary(config):
                self._targets.pop(name, None)
            elif (target := self._targets.get(name)) is not None:
                target.write_queue_nums = config.write_queue_nums
            else:
                self._targets[name] = _Target(name, config.write_queue_nums)

    def turn_of(self, topic: str) -> int:
        """The queue of a topic to which the last message went whose queue was chosen here."""
        return self._targets[topic].turn

    def set_turn(self, topic: str, queue_id: int) -> None:
        """The same was done elsewhere."""
        self._targets[topic].turn = queue_id

    def may_take(self, buffer: bytes, peer: bytes) -> bool:
        return begins_with_send(buffer) and len(peer) in (HOST_BYTES, HOST_V6_BYTES)

    def take(self, run: Run, sources: Sequence[Source]) -> list[Taken]:
        found: list[Taken] = []
        for source in sources:
            found.append(self.take_one(run, source))
            if found[-1].stop is not Stop.END:
                break
        return found

    def take_together(self, run: Run, buffers: Sequence[bytes], peers: Sequence[bytes], most: int) -> Together | None:
        return None

    def take_one(self, run: Run, source: Source) -> Taken:
        """The same of one source."""
        buffer, position, peer, most, _ = source
        taken = Taken()
        while True:
            ahead = most if most < _READ_AHEAD else _READ_AHEAD
            sends, ends, is_other_next = sends_of(buffer, position, ahead, self._max_frame_bytes)
            count = self._lay_out(run, sends, peer, taken)
            if count:
                position = ends[count - 1]
            if count < ahead or is_other_next or count == most:
                break
            most -= count
        taken.position = position
        if is_other_next and taken.stop is Stop.END:
            taken.stop = Stop.OTHER
        return taken

    def take_decoded(self, run: Run, requests: Sequence[Command], first: int, peer: bytes) -> Taken:
        taken = Taken()
        rest = requests[first:] if first else requests
        sends = [(each.ext, each.opaque, each.flag, each.body) for each in rest]
        taken.position = first + self._lay_out(run, sends, peer, taken)
        return taken

    def _lay_out(self, run: Run, sends: Sequence[Send], peer: bytes, taken: Taken) -> int:
        """Lay out the first of the sends; returns how many of them, and `taken` gets their answers and why it stopped."""
        count = 0
        targets, rules = self._targets, self._rules
        records, entries, answers, opaques = run.records, run.entries, taken.answers, taken.opaques
        next_offsets, limit, now_ms = run.next_offsets, run.limit, run.timestamp_ms
        seals = run.seals
        added_bytes = _ADDED_BYTES[seals]
        store_host, id_prefix = self._store_host, self._id_prefix
        has_short_hosts = len(peer) == len(store_host) == HOST_BYTES
        position = run.end_offset
        asked = Asked(rules.terms)
        stop = Stop.OTHER
        for ext, opaque, frame_flag, body in sends:
            target = targets.get(ext.get("b", ""))
            if target is None:
                break
            try:
                queue_id = int(ext["e"])
                sys_flag = 0 if (text := ext["f"]) == "0" else int(text)
                born_timestamp = int(ext["g"])
                flag = 0 if (text := ext["h"]) == "0" else int(text)
                reconsume_times = 0 if (text := ext.get("j") or "0") == "0" else int(text)
            except (KeyError, ValueError):
                break
            is_turn = queue_id < 0
            if is_turn:
                queue_id = (target.turn + 1) % target.write_queue_nums
            body_length = len(body)
            properties = ext.get("i", "").encode()
            if (
                queue_id >= target.write_queue_nums
                or not 0 <= sys_flag < 0x80000000
                or not 0 < body_length <= MAX_BODY_BYTES
                or not 0 <= reconsume_times < 0x8000
                or not -0x80000000 <= flag < 0x80000000
                or not 0 <= born_timestamp < 1 << 62
            ):
                break
            is_batch = ext.get("m") == "true"
            if is_batch and asks_for_time(properties):  # a batch waits for nothing as a whole
                break
            is_plain = has_short_hosts and not sys_flag & _OTHER_SYS_FLAGS
            slot = (target.name, queue_id)
            queue_offset = next_offsets[slot]
            if is_batch:
                laid_out = None
                if is_plain:
                    middle = MIDDLE_V4.pack(
                        sys_flag & ~SYS_COMPRESSED, born_timestamp, peer, now_ms, store_host, reconsume_times, 0
                    )
                    laid_out = lay_out_batch(
                        body,
                        target.plans,
                        target.name,
                        target.field,
                        queue_id,
                        queue_offset,
                        position,
                        now_ms,
                        middle,
                        seals,
                        rules.ids,
                    )
                if laid_out is not None:
                    if laid_out.end_offset > limit:
                        stop = _beyond(run, laid_out.end_offset - position)
                        break
                    _add_batch(run, laid_out)
                    if is_turn:
                        target.turn = queue_id
                    rules.ids.next_number += laid_out.named
                    positions = laid_out.positions
                    next_offsets[slot] = queue_offset + len(positions)
                    position = laid_out.end_offset
                    if not frame_flag & codes.FLAG_ONEWAY:
                        header = _BATCH_ANSWER % (
                            _message_ids(id_prefix, positions), queue_id, queue_offset, opaque,
                        )  # fmt: skip
                        answers += (_PREFIX.pack(4 + len(header), len(header)), header)
                        opaques.append(opaque)
                    count += 1
                    continue
            elif is_plain:
                is_named = False
                head, key_at, key_end, rest, code = target.pattern
                key = properties[key_at:key_end]
                is_known = properties[key_end:] == rest and properties[:key_at] == head and key.isalnum()
                if not is_known:
                    pattern = pattern_of(properties)
                    if pattern is None and may_be_completed(properties):
                        closed = completed(properties, rules.ids.ahead(0))
                        pattern = None if closed is None else pattern_of(closed)
                        if closed is not None and pattern is not None:
                            is_named = len(closed) > len(properties) + 1  # more than a separator was added
                            properties = closed
                    if pattern is not None:
                        is_known = True
                        if len(properties) <= MAX_KEPT_BYTES:
                            target.pattern = pattern
                        key, code = properties[pattern.key_at : pattern.key_end], pattern.tags_code
                properties_length = len(properties) + added_bytes
                if is_known and properties_length <= MAX_PROPERTIES_BYTES:
                    size = target.fixed_bytes + body_length + properties_length
                    if position + size > limit:
                        stop = _beyond(run, size)
                        break
                    if is_turn:
                        target.turn = queue_id
                    next_offsets[slot] = queue_offset + 1
                    record_head = HEAD_V4.pack(
                        size, MAGIC_V1, crc32(body) & 0x7FFFFFFF, queue_id, flag, queue_offset, position, sys_flag,
                        born_timestamp, peer, now_ms, store_host, reconsume_times, 0, body_length,
                    )  # fmt: skip
                    if properties_length != target.properties_length:
                        target.properties_length = properties_length
                        target.before_properties = target.field + LENGTH.pack(properties_length)
                    behind_body = target.before_properties + properties + STAMP
                    if seals:
                        checksum = crc32(behind_body, crc32(body, crc32(record_head))) & MASK
                        first_digits = checksum // 10_000
                        records += (
                            record_head,
                            body,
                            behind_body,
                            LOW[checksum % 10_000],
                            MIDDLE[first_digits % 1000],
                            HIGH[first_digits // 1000],
                        )
                    else:
                        records += (record_head, body, behind_body)
                    entries.append((target.name, queue_id, queue_offset, position, size, code, now_ms, 1))
                    if not frame_flag & codes.FLAG_ONEWAY:
                        header = _ANSWER % (id_prefix, position, queue_id, queue_offset, key, b"", opaque)
                        answers += (_PREFIX.pack(4 + len(header), len(header)), header)
                        opaques.append(opaque)
                    rules.ids.next_number += is_named
                    position += size
                    count += 1
                    continue
            run.end_offset = position
            draft = Draft(
                target.name, queue_id, body, properties, born_timestamp, peer, flag,
                sys_flag & ~SYS_COMPRESSED if is_batch else sys_flag, reconsume_times,
            )  # fmt: skip
            other = (lay_out_many if is_batch else lay_out_one)(run, draft, rules, asked, store_host)
            if not isinstance(other, LaidOutSends):
                stop = Stop.OTHER if other is None else _beyond(run, other)
                break
            if is_turn:
                target.turn = queue_id
            if not frame_flag & codes.FLAG_ONEWAY:
                header = self._answer(other, queue_id, opaque, is_batch=is_batch)
                pieces = [_PREFIX.pack(4 + len(header), len(header)), header]
                if other.waits:
                    answers += pieces
                    opaques.append(opaque)
                else:
                    taken.add_early(pieces, [opaque])
            position = run.end_offset
            count += 1
        else:
            stop = Stop.END
        run.end_offset = position
        taken.stop = stop
        return count

    def _answer(self, sends: LaidOutSends, queue_id: int, opaque: int, *, is_batch: bool) -> bytes:
        """The header of the answer to what was not stored as it came."""
        prefix = self._id_prefix
        if is_batch:
            return _BATCH_ANSWER % (_message_ids(prefix, sends.positions), queue_id, sends.queue_offset, opaque)
        handle = _HANDLE % sends.handle.encode() if sends.handle else b""
        key = orjson.dumps(sends.key)[1:-1]
        return _ANSWER % (prefix, sends.positions[0], queue_id, sends.queue_offset, key, handle, opaque)


def _is_ordinary(config: TopicConfig) -> bool:
    """Whether ordinary messages of the topic need no rule beside what the kernel knows."""
    try:
        check_destination(config.name)
    except RequestError:
        return False
    is_open = config.perm & PERM_WRITE and config.write_queue_nums > 0
    return bool(is_open) and len(config.name) <= MAX_TOPIC_BYTES and not config.name.startswith(RETRY_PREFIX)


def _beyond(run: Run, size: int) -> Stop:
    """What a request means that has no room in the run: the general path refuses what no file has room for."""
    return Stop.FULL if size <= run.most_bytes else Stop.OTHER


def _add_batch(run: Run, laid_out: LaidOut) -> None:
    run.records += laid_out.records
    run.entries += laid_out.entries
    run.folded += len(laid_out.positions) - len(laid_out.entries)


def _message_ids(prefix: bytes, positions: Sequence[int]) -> bytes:
    numbers = struct.pack(f">{len(positions)}q", *positions).hex(",", 8).upper().encode()
    return prefix + numbers.replace(b",", b"," + prefix)

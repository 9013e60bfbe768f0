"""Sends that are not stored as they came, as the kernel lays them out: half messages, those that wait, those whose properties are
completed, those of peers with IPv6 addresses (pure).

What is stored of them is what the general path would store (`rules`, `transactions.records`, `delay.rules`, `timers.rules`), in
one pass over the properties. All else is left to that path: what is refused, what recalls another message.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from brokerd.delay.levels import DELAY, Delays, parse_level
from brokerd.delay.rules import REAL_QUEUE, REAL_TOPIC
from brokerd.sending.batch_kernel import split
from brokerd.sending.halves import LaidOutHalves
from brokerd.sending.rules import (
    DROPPED,
    STAMP,
    STAMP_PROPERTIES,
    is_ordinary,
    unique_key,
)
from brokerd.sending.tails import HIGH, LOW, MASK, MIDDLE
from brokerd.sending.unique_ids import UniqueIds
from brokerd.store.draft import Draft, lay_out_draft
from brokerd.store.log.derive import NO_RULES
from brokerd.store.run import Run
from brokerd.timers.rules import ASK, added_for, asked_ms, may_wait, most_properties_bytes, wait_until
from brokerd.timers.terms import Terms
from brokerd.transactions import records
from brokerd.transactions.records import NO_IMMUNITY, Half
from remoting.checksum import crc32
from remoting.errors import RequestError
from remoting.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from remoting.record.checksum import TAIL_BYTES
from remoting.record.layout import (
    HEAD_V4,
    HOST_BYTES,
    LENGTH,
    MAGIC_V1,
    MAX_PROPERTIES_BYTES,
    SYS_INNER_BATCH,
    SYS_NEED_UNWRAP,
    SYS_TRANSACTION_MASK,
    SYS_V6_HOSTS,
    record_size,
)
from remoting.record.properties import decode_properties, encode_properties, tags_code

TIMERS: Final = (TIMER_TOPIC, 0)
_TIMER: Final = "TIMER_"  # which all begin with that is about moments
_KEY: Final = "UNIQ_KEY"
_REQUESTER: Final = "REPLY_TO_CLIENT"
_MOST_BYTES: Final = MAX_PROPERTIES_BYTES - TAIL_BYTES
_REWRITTEN: Final = {*DROPPED, _REQUESTER}
_UNKNOWN_FLAGS: Final = SYS_INNER_BATCH | SYS_NEED_UNWRAP
# What a half message has that the general path must look at
_OF_HALVES: Final = {records.TRANSACTION_ID, records.REAL_TOPIC, records.REAL_QUEUE_ID, *records.OWN}
# The terms of this turn of the loop; None when all is for the general path
AskTerms = Callable[[], Terms | None]


def no_terms() -> Terms | None:
    """Where nobody keeps timers."""
    return None


class KernelRules(NamedTuple):
    """What kernels need of the rest of the broker. `ids` names messages, `terms()` says by what messages wait for a moment of
    their own in this turn of the loop, `delays` are those of the delay levels; without `halves` nobody keeps transactions."""

    ids: UniqueIds
    terms: AskTerms = no_terms
    delays: Delays = ()
    cluster: str = ""
    halves: LaidOutHalves | None = None


class Asked:
    """The terms of a turn, asked for once."""

    __slots__ = ("_ask", "_terms")

    def __init__(self, ask: AskTerms) -> None:
        self._ask = ask
        self._terms: Terms | bool | None = False

    def terms(self) -> Terms | None:
        if self._terms is False:
            self._terms = self._ask()
        assert not isinstance(self._terms, bool)
        return self._terms


class Stored(NamedTuple):
    """How a message is stored, in what differs from its draft. `code` is its entry's; `waits`: its producer is answered when
    it is acknowledged and not before; `is_named`: it took a name, its client having given none; `due_ms` is when it is due that
    waits for a moment of its own. Of a half message: what it takes of the room for them, how long its producer is left alone."""

    topic: str
    queue_id: int
    properties: bytes
    sys_flag: int
    key: str
    code: int
    waits: bool
    is_named: bool = False
    due_ms: int = -1
    opens_bytes: int = -1
    immunity_ms: int = NO_IMMUNITY


class LaidOutSends(NamedTuple):
    """Where the messages of a request went. Of a single one: its name, and what recalls it ("": nothing does)."""

    positions: Sequence[int]
    queue_offset: int  # of the first
    waits: bool
    key: str = ""
    handle: str = ""


def lay_out_one(
    run: Run, draft: Draft, rules: KernelRules, asked: Asked, store_host: bytes
) -> LaidOutSends | int | None:
    """Lay out a send, whose queue is chosen; None when it is for the general path, its size when the run has no room for it."""
    stored = stored_form(run, draft, rules, asked, run.next_offsets[TIMERS], 0)
    if stored is None:
        return None
    size = _size(run, draft, stored, store_host)
    if size > run.room:
        return size
    position = run.end_offset
    queue_offset = _lay_out(run, draft, stored, size, store_host)
    if stored.opens_bytes >= 0:
        assert rules.halves is not None, "it was asked for room"
        since_ms = min(draft.born_timestamp_ms, run.timestamp_ms)
        place = queue_offset, queue_offset, position, size
        rules.halves.add(run, [Half(*place, since_ms, 0, stored.immunity_ms, stored.key, False)])
    rules.ids.next_number += stored.is_named
    handle = ""
    if stored.due_ms >= 0:
        terms = asked.terms()
        assert terms is not None, "it waits by them"
        handle = terms.handle(draft.topic, stored.due_ms, stored.key, queue_offset)
    return LaidOutSends((position,), queue_offset, stored.waits, stored.key, handle)


def lay_out_many(
    run: Run, batch: Draft, rules: KernelRules, asked: Asked, store_host: bytes
) -> LaidOutSends | int | None:
    """Lay out the messages in the body of a batch; otherwise as `lay_out_one`."""
    try:
        items = split(bytes(batch.body))
    except struct.error:
        return None
    if items is None or batch.sys_flag & SYS_TRANSACTION_MASK:
        return None
    every: list[tuple[Draft, Stored, int]] = []
    place, named, total = run.next_offsets[TIMERS], 0, 0
    for flag, body, properties in zip(*items, strict=True):
        draft = batch._replace(flag=flag, body=body, properties=properties)
        stored = stored_form(run, draft, rules, asked, place, named)
        if stored is None or stored.topic not in (batch.topic, TIMER_TOPIC):
            return None  # a batch has no delay level, and begins no transaction
        size = _size(run, draft, stored, store_host)
        place += stored.due_ms >= 0
        named += stored.is_named
        total += size
        every.append((draft, stored, size))
    if total > run.room:
        return total
    positions, queue_offsets = [], []
    for draft, stored, size in every:
        positions.append(run.end_offset)
        queue_offsets.append(_lay_out(run, draft, stored, size, store_host))
    rules.ids.next_number += named
    return LaidOutSends(positions, queue_offsets[0], any(stored.waits for _, stored, _ in every))


def stored_form(run: Run, draft: Draft, rules: KernelRules, asked: Asked, place: int, named: int) -> Stored | None:
    """How a message is stored; None when that is for the general path. `place` is the queue offset that it gets in the timer
    topic, `named` how many messages before it took a name."""
    topic, queue_id, properties, sys_flag = draft.topic, draft.queue_id, draft.properties, draft.sys_flag
    if sys_flag & _UNKNOWN_FLAGS or b"\0" in properties:
        return None
    is_in_transaction = bool(sys_flag & SYS_TRANSACTION_MASK)
    if not is_in_transaction and is_ordinary(properties):
        if len(properties) + len(STAMP) > _MOST_BYTES:
            return None
        code = tags_code(properties)
        return Stored(topic, queue_id, properties + STAMP, sys_flag, unique_key(draft), code, True)
    told = _Told(properties)
    found = told.found
    if b"TIMER_" in properties and any(name.startswith(_TIMER) for name in found):
        moment_ms, terms = None if is_in_transaction else _moment_ms(draft, asked, found), asked.terms()
        if moment_ms is None or terms is None:
            return None
        if moment_ms > terms.clock.now_ms:
            waiting = _waiting(draft, rules, terms, told, moment_ms, named)
            return waiting if waiting is not None and has_room(asked, place, waiting) else None
    is_named = told.complete(rules, named)
    if is_in_transaction or records.TRANSACTION in found:
        return _half(run, draft, rules, told, is_named)
    key, waits = found[_KEY], _waits(found)
    level = parse_level(found[DELAY]) if DELAY in found else 0
    if level is None or (level > 0 and not rules.delays):
        return None
    if level > 0:
        level = min(level, len(rules.delays))
        told.change(DELAY, str(level))
        encoded = told.written({REAL_TOPIC: topic, REAL_QUEUE: str(queue_id)})
        code = run.timestamp_ms + rules.delays[level - 1]
        topic, queue_id = SCHEDULE_TOPIC, level - 1
    else:
        encoded = told.written({})
        code = tags_code(encoded)
    if len(encoded) > _MOST_BYTES:
        return None
    return Stored(topic, queue_id, encoded, sys_flag, key, code, waits, is_named)


def waiting_form(draft: Draft, rules: KernelRules, asked: Asked) -> Stored | None:
    """How a message waits that asks for a moment of its own, whose queue is chosen, where no run is at hand; None for any other,
    and for what is for the general path. The room in its second is for the caller to take."""
    if draft.sys_flag & (_UNKNOWN_FLAGS | SYS_TRANSACTION_MASK) or b"\0" in draft.properties:
        return None
    told = _Told(draft.properties)
    moment_ms, terms = _moment_ms(draft, asked, told.found), asked.terms()
    if moment_ms is None or terms is None or moment_ms <= terms.clock.now_ms:
        return None
    return _waiting(draft, rules, terms, told, moment_ms, 0)


class _Told:
    """The properties of a message, `found`, and what they are written as while that is how they came: `_base`, then None."""

    __slots__ = ("_base", "found")

    def __init__(self, properties: bytes) -> None:
        closed = properties if not properties or properties.endswith(b"\x02") else properties + b"\x02"
        self.found = found = decode_properties(closed)
        # Every entry gave a property of its own: written again, they are the same.
        is_tidy = len(found) == closed.count(b"\x02") and found.keys().isdisjoint(_REWRITTEN)
        self._base = closed if is_tidy and (closed.isascii() or _is_utf8(closed)) else None

    def complete(self, rules: KernelRules, named: int) -> bool:
        """What the broker adds to the properties of every message, and takes out; whether it had to name it."""
        found = self.found
        is_named = _KEY not in found
        if self._base is None:
            for name in DROPPED:
                found.pop(name, None)
        if is_named:
            found[_KEY] = name = rules.ids.ahead(named)
            if self._base is not None:
                self._base += b"UNIQ_KEY\x01%b\x02" % name.encode()
        if _REQUESTER in found:
            found["CLUSTER"] = rules.cluster
        if self._base is not None:
            self._base += STAMP
        return is_named

    def change(self, name: str, value: str) -> None:
        """A property that is there has this value."""
        if self.found[name] != value:
            self.found[name] = value
            self._base = None

    def written(self, added: Mapping[str, str]) -> bytes:
        """Completed properties with these behind them."""
        if self._base is not None and self.found.keys().isdisjoint(added):
            return self._base + encode_properties(added)
        return encode_properties({**self.found, **STAMP_PROPERTIES, **added})


def _asks_for_level(found: Mapping[str, str]) -> bool:
    return DELAY in found and parse_level(found[DELAY]) != 0


def _waits(found: Mapping[str, str]) -> bool:
    return found.get("WAIT") != "false"


def _is_utf8(encoded: bytes) -> bool:
    try:
        encoded.decode()
    except UnicodeDecodeError:
        return False
    return True


def has_room(asked: Asked, place: int, waiting: Stored) -> bool:
    """Whether what waits so has room in its second, at that queue offset in the timer topic: then it counts there."""
    terms = asked.terms()
    slots = terms.slots if terms is not None else None
    return slots is None or slots.take_all(place, (waiting.due_ms,), (waiting.code,)) == 1


def _moment_ms(draft: Draft, asked: Asked, found: Mapping[str, str]) -> int | None:
    """When a message with these properties is to be delivered, which may have passed; None for one that names no moment, one that
    says something else of timers, and one that cannot be kept."""
    others = (name for name in found if name.startswith(_TIMER) and name not in ASK)
    if not may_wait(draft) or records.TRANSACTION in found or _asks_for_level(found) or any(others):
        return None
    terms = asked.terms()
    if terms is None:
        return None
    now_ms = terms.clock.now_ms
    try:
        moment_ms = asked_ms(found, now_ms)
    except RequestError:
        return None
    return moment_ms if moment_ms is not None and moment_ms <= now_ms + terms.max_ahead_ms else None


def _waiting(draft: Draft, rules: KernelRules, terms: Terms, told: _Told, moment_ms: int, named: int) -> Stored | None:
    """A message that waits for a moment, which is ahead."""
    found = told.found
    wait = wait_until(moment_ms, terms.clock)
    is_named = told.complete(rules, named)
    encoded = told.written(added_for(wait, draft.topic, draft.queue_id))
    if len(encoded) > min(most_properties_bytes(wait), _MOST_BYTES):
        return None
    key, waits = found[_KEY], _waits(found)
    return Stored(TIMER_TOPIC, 0, encoded, draft.sys_flag, key, wait.code, waits, is_named, wait.due_ms)


def _half(run: Run, draft: Draft, rules: KernelRules, told: _Told, is_named: bool) -> Stored | None:
    """The half message of a message whose properties are completed."""
    found = told.found
    if (
        found.get(records.TRANSACTION, "").lower() != "true"
        or _asks_for_level(found)
        or not found.get(records.PRODUCER_GROUP)
        or not found.keys().isdisjoint(_OF_HALVES)
        or rules.halves is None
    ):
        return None
    opens_bytes = len(draft.body) + len(told.written({}))
    halves, room_bytes = rules.halves.room(run)
    if halves <= 0 or opens_bytes > room_bytes:
        return None
    key = found[_KEY]
    added = {records.TRANSACTION_ID: key, records.REAL_TOPIC: draft.topic, records.REAL_QUEUE_ID: str(draft.queue_id)}
    encoded = told.written(added)
    if len(encoded) > MAX_PROPERTIES_BYTES - records.ROOM_BYTES:
        return None
    flags, waits = draft.sys_flag & ~SYS_TRANSACTION_MASK, _waits(found)
    immunity_ms = records.immunity_ms(found, NO_IMMUNITY)
    return Stored(HALF_TOPIC, 0, encoded, flags, key, tags_code(encoded), waits, is_named, -1, opens_bytes, immunity_ms)


def _size(run: Run, draft: Draft, stored: Stored, store_host: bytes) -> int:
    """How many bytes the record takes."""
    length = len(stored.properties) + TAIL_BYTES * run.seals
    return record_size(len(stored.topic.encode()), len(draft.body), length, len(draft.born_host), len(store_host))


def _lay_out(run: Run, draft: Draft, stored: Stored, size: int, store_host: bytes) -> int:
    """Lay out a message for which there is room; its queue offset."""
    topic, queue_id, properties, sys_flag = stored[:4]
    if len(draft.born_host) != HOST_BYTES or len(store_host) != HOST_BYTES:
        whole = draft._replace(topic=topic, queue_id=queue_id, properties=properties, sys_flag=sys_flag)
        place = lay_out_draft(run, whole, store_host, NO_RULES, run.most_bytes, code=stored.code)
        assert place is not None, "there was room for it"
        return place.queue_offset
    slot, name, body, position = (topic, queue_id), topic.encode(), draft.body, run.end_offset
    queue_offset = run.next_offsets[slot]
    head = HEAD_V4.pack(
        size, MAGIC_V1, crc32(body) & MASK, queue_id, draft.flag, queue_offset, position, sys_flag & ~SYS_V6_HOSTS,
        draft.born_timestamp_ms, draft.born_host, run.timestamp_ms, store_host, draft.reconsume_times, 0, len(body),
    )  # fmt: skip
    length = LENGTH.pack(len(properties) + TAIL_BYTES * run.seals)
    behind = b"".join((bytes((len(name),)), name, length, properties))
    if run.seals:
        checksum = crc32(behind, crc32(body, crc32(head))) & MASK
        rest = checksum // 10_000
        run.records += (head, body, behind, LOW[checksum % 10_000], MIDDLE[rest % 1000], HIGH[rest // 1000])
    else:
        run.records += (head, body, behind)
    run.next_offsets[slot] = queue_offset + 1
    run.entries.append((topic, queue_id, queue_offset, position, size, stored.code, run.timestamp_ms, 1))
    run.end_offset += size
    return queue_offset

"""Sends that are not stored as they came, as the kernel lays them out: half messages, those that wait, those whose properties are
completed, those of peers with IPv6 addresses (pure).

What is stored of them is what the general path would store (`rules`, `transactions.records`, `delay.rules`, `timers.rules`), in
one pass over the properties. All else is left to that path: what is refused, what is answered before it is acknowledged, what
recalls another message, what is due already.
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
from brokerd.store.draft import Draft, draft_size, lay_out_draft
from brokerd.store.log.derive import NO_RULES
from brokerd.store.run import Run
from brokerd.timers.rules import ASK, added_for, asked_ms, may_wait, most_properties_bytes, wait_until
from brokerd.timers.terms import Terms
from brokerd.transactions import records
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
)
from remoting.record.properties import decode_properties, encode_properties, tags_code

TIMERS: Final = (TIMER_TOPIC, 0)
_HALVES: Final = (HALF_TOPIC, 0)
_TIMER: Final = "TIMER_"  # which all begin with that is about moments
_KEY: Final = "UNIQ_KEY"
_REQUESTER: Final = "REPLY_TO_CLIENT"
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
    """A message as it is stored. `code` is its entry's; `due_ms` when it is due that waits for a moment of its own; `is_named`
    whether it took a name that its client had not given; `opens_bytes` what a half message takes of the room for them."""

    draft: Draft
    key: str
    code: int
    due_ms: int = -1
    is_named: bool = False
    opens_bytes: int = -1


class LaidOutSends(NamedTuple):
    """Where the messages of a request went. Of a single one: its name, and what recalls it ("": nothing does)."""

    positions: Sequence[int]
    queue_offset: int  # of the first
    key: str = ""
    handle: str = ""


def lay_out_one(
    run: Run, draft: Draft, rules: KernelRules, asked: Asked, store_host: bytes
) -> LaidOutSends | int | None:
    """Lay out a send, whose queue is chosen; None when it is for the general path, its size when the run has no room for it."""
    stored = stored_form(run, draft, rules, asked, run.next_offsets[TIMERS], 0)
    if stored is None:
        return None
    placed = _lay_out(run, [stored], rules, store_host)
    if isinstance(placed, int):
        return placed
    handle = ""
    if stored.due_ms >= 0:
        terms = asked.terms()
        assert terms is not None, "it waits by them"
        handle = terms.handle(draft.topic, stored.due_ms, stored.key, placed.queue_offset)
    return placed._replace(key=stored.key, handle=handle)


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
    every: list[Stored] = []
    place, named = run.next_offsets[TIMERS], 0
    for flag, body, properties in zip(*items, strict=True):
        draft = batch._replace(flag=flag, body=body, properties=properties)
        stored = stored_form(run, draft, rules, asked, place, named)
        if stored is None or stored.draft.topic not in (batch.topic, TIMER_TOPIC):
            return None  # a batch has no delay level, and begins no transaction
        place += stored.due_ms >= 0
        named += stored.is_named
        every.append(stored)
    return _lay_out(run, every, rules, store_host)


def stored_form(run: Run, draft: Draft, rules: KernelRules, asked: Asked, place: int, named: int) -> Stored | None:
    """The message as it is stored; None when that is for the general path. `place` is the queue offset that it gets in the timer
    topic, `named` how many messages before it took a name."""
    properties, sys_flag = draft.properties, draft.sys_flag
    if sys_flag & _UNKNOWN_FLAGS or b"\0" in properties:
        return None
    if is_ordinary(properties) and not sys_flag & SYS_TRANSACTION_MASK:
        if len(properties) + len(STAMP) > MAX_PROPERTIES_BYTES - TAIL_BYTES:
            return None
        return Stored(draft._replace(properties=properties + STAMP), unique_key(draft), tags_code(properties))
    found = decode_properties(properties)
    if found.get("WAIT") == "false":
        return None
    wait = None
    if b"TIMER_" in properties and any(name.startswith(_TIMER) for name in found):
        if not _is_ordinary_wait(draft, found):
            return None
        terms = asked.terms()
        if terms is None:
            return None
        now_ms = terms.clock.now_ms
        try:
            moment_ms = asked_ms(found, now_ms)
        except RequestError:
            return None
        if moment_ms is None or not now_ms < moment_ms <= now_ms + terms.max_ahead_ms:
            return None
        wait = wait_until(moment_ms, terms.clock)
    for name in DROPPED:
        found.pop(name, None)
    is_named = _KEY not in found
    if is_named:
        found[_KEY] = rules.ids.ahead(named)
    if _REQUESTER in found:
        found["CLUSTER"] = rules.cluster
    found |= STAMP_PROPERTIES
    key = found[_KEY]
    if wait is not None:
        if sys_flag & SYS_TRANSACTION_MASK:
            return None
        encoded = encode_properties(found | added_for(wait, draft.topic, draft.queue_id))
        if len(encoded) > min(most_properties_bytes(wait), MAX_PROPERTIES_BYTES - TAIL_BYTES):
            return None
        if terms is not None and terms.slots is not None and not terms.slots.take(place, wait):
            return None
        waiting = draft._replace(topic=TIMER_TOPIC, queue_id=0, properties=encoded)
        return Stored(waiting, key, wait.code, wait.due_ms, is_named)
    if records.TRANSACTION in found or sys_flag & SYS_TRANSACTION_MASK:
        return _half(run, draft, rules, found, is_named)
    level = parse_level(found.get(DELAY, ""))
    if level is None:
        return None
    code = -1
    if level > 0:
        level = min(level, len(rules.delays))
        if not level:
            return None
        found |= {DELAY: str(level), REAL_TOPIC: draft.topic, REAL_QUEUE: str(draft.queue_id)}
        draft = draft._replace(topic=SCHEDULE_TOPIC, queue_id=level - 1)
        code = run.timestamp_ms + rules.delays[level - 1]
    encoded = encode_properties(found)
    if len(encoded) > MAX_PROPERTIES_BYTES - TAIL_BYTES:
        return None
    return Stored(draft._replace(properties=encoded), key, tags_code(encoded) if code < 0 else code, -1, is_named)


def _is_ordinary_wait(draft: Draft, found: Mapping[str, str]) -> bool:
    """Whether what asks for a moment asks for nothing else that the general path must look at."""
    return may_wait(draft) and not any(
        name in (DELAY, records.TRANSACTION) or (name.startswith(_TIMER) and name not in ASK) for name in found
    )


def _half(run: Run, draft: Draft, rules: KernelRules, found: dict[str, str], is_named: bool) -> Stored | None:
    """The half message of a message whose properties, with their stamp, are `found`."""
    if (
        found.get(records.TRANSACTION, "").lower() != "true"
        or DELAY in found
        or not found.get(records.PRODUCER_GROUP)
        or not found.keys().isdisjoint(_OF_HALVES)
        or rules.halves is None
    ):
        return None
    opens_bytes = len(draft.body) + len(encode_properties(found))
    count, room_bytes = rules.halves.room(run)
    if count <= 0 or opens_bytes > room_bytes:
        return None
    key = found[_KEY]
    found |= {
        records.TRANSACTION_ID: key,
        records.REAL_TOPIC: draft.topic,
        records.REAL_QUEUE_ID: str(draft.queue_id),
    }
    encoded = encode_properties(found)
    if len(encoded) > MAX_PROPERTIES_BYTES - records.ROOM_BYTES:
        return None
    flags = draft.sys_flag & ~SYS_TRANSACTION_MASK
    half = draft._replace(topic=HALF_TOPIC, queue_id=0, properties=encoded, sys_flag=flags)
    return Stored(half, key, tags_code(encoded), -1, is_named, opens_bytes)


def _lay_out(run: Run, every: Sequence[Stored], rules: KernelRules, store_host: bytes) -> LaidOutSends | int:
    """All of them, or, when the run has no room, nothing; then their size."""
    size = sum(draft_size(stored.draft, len(store_host)) for stored in every) + run.seals * len(every) * TAIL_BYTES
    if size > run.room:
        return size
    positions, first = [], -1
    for stored in every:
        position = run.end_offset
        queue_offset = _lay_out_record(run, stored, store_host)
        first = queue_offset if first < 0 else first
        positions.append(position)
        if stored.opens_bytes >= 0:
            _open(run, stored, rules, position, queue_offset)
    rules.ids.next_number += sum(stored.is_named for stored in every)
    return LaidOutSends(positions, first)


def _open(run: Run, stored: Stored, rules: KernelRules, position: int, queue_offset: int) -> None:
    """A half message was laid out."""
    draft = stored.draft
    size = run.end_offset - position
    half = records.half_of_draft(draft, queue_offset, position, size, run.timestamp_ms)
    assert rules.halves is not None, "it was asked for room"
    rules.halves.add(run, [half])


def _lay_out_record(run: Run, stored: Stored, store_host: bytes) -> int:
    """Its queue offset."""
    draft = stored.draft
    if len(draft.born_host) != HOST_BYTES or len(store_host) != HOST_BYTES:
        place = lay_out_draft(run, draft, store_host, NO_RULES, run.most_bytes, code=stored.code)
        assert place is not None, "there was room for all"
        return place.queue_offset
    slot = draft.topic, draft.queue_id
    topic, body, position = draft.topic.encode(), draft.body, run.end_offset
    queue_offset = run.next_offsets[slot]
    length = len(draft.properties) + TAIL_BYTES * run.seals
    behind = b"".join((bytes((len(topic),)), topic, LENGTH.pack(length), draft.properties))
    size = HEAD_V4.size + len(body) + len(behind) + TAIL_BYTES * run.seals
    head = HEAD_V4.pack(
        size, MAGIC_V1, crc32(body) & MASK, draft.queue_id, draft.flag, queue_offset, position, draft.sys_flag & ~SYS_V6_HOSTS,
        draft.born_timestamp_ms, draft.born_host, run.timestamp_ms, store_host, draft.reconsume_times, 0, len(body),
    )  # fmt: skip
    run.records += (head, body, behind)
    if run.seals:
        checksum = crc32(behind, crc32(body, crc32(head))) & MASK
        rest = checksum // 10_000
        run.records += (LOW[checksum % 10_000], MIDDLE[rest % 1000], HIGH[rest // 1000])
    run.next_offsets[slot] = queue_offset + 1
    run.entries.append((*slot, queue_offset, position, size, stored.code, run.timestamp_ms, 1))
    run.end_offset += size
    return queue_offset

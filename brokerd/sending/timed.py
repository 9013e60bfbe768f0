"""Ordinary sends for a moment of their own, as the kernel lays them out: what the general path would store, and their handles
(pure).

What a message may ask for, and what it waits with, is decided in `brokerd.timers.rules`. Here is what of that is ordinary: all
else (delete markers, what is due already, what names itself as the broker does, what is refused) is left to the general path.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Final, NamedTuple

from brokerd.delay.rules import REAL_QUEUE, REAL_TOPIC
from brokerd.sending.batch_kernel import split
from brokerd.sending.rules import STAMP, asks_for_more, is_common, is_ordinary, unique_key
from brokerd.store.draft import Draft, draft_size, lay_out_draft
from brokerd.store.run import Run
from brokerd.timers.codes import CODE_RULES
from brokerd.timers.rules import ASK, added_for, asked_ms, may_wait, most_properties_bytes, wait_until
from brokerd.timers.terms import Terms
from remoting.errors import RequestError
from remoting.names import TIMER_TOPIC
from remoting.record.checksum import TAIL_BYTES
from remoting.record.layout import MAX_PROPERTIES_BYTES
from remoting.record.properties import decode_properties, encode_properties

_QUEUE: Final = (TIMER_TOPIC, 0)

# The terms of this turn of the loop; None when all is for the general path
AskTerms = Callable[[], Terms | None]


def no_terms() -> Terms | None:
    """Where nobody keeps timers."""
    return None


class Waiting(NamedTuple):
    """A draft as it waits; when it is due."""

    draft: Draft
    due_ms: int


class LaidOutSends(NamedTuple):
    """Where the messages of a request went; `handle` recalls a single one ("": nothing does)."""

    positions: Sequence[int]
    queue_offset: int  # of the first
    handle: str = ""


def lay_out_waiting(run: Run, draft: Draft, terms: Terms | None, store_host: bytes) -> LaidOutSends | int | None:
    """Lay out a send; None when it is not an ordinary one that waits, its size when the run has no room for it."""
    if terms is None:
        return None
    waiting = to_waiting(draft, terms, run.next_offsets[_QUEUE])
    if waiting is None:
        return None
    placed = _lay_out(run, [waiting.draft], store_host)
    if isinstance(placed, int):
        return placed
    handle = terms.handle(draft.topic, waiting.due_ms, unique_key(draft), placed.queue_offset)
    return placed._replace(handle=handle)


def lay_out_batch(run: Run, batch: Draft, terms: Terms | None, store_host: bytes) -> LaidOutSends | int | None:
    """Lay out the messages in the body of a batch, of which some wait; otherwise as `lay_out_waiting`."""
    try:
        items = split(bytes(batch.body)) if terms is not None else None
    except struct.error:
        items = None
    if terms is None or items is None:
        return None
    drafts = []
    place = run.next_offsets[_QUEUE]
    for flag, body, properties in zip(*items, strict=True):
        draft = batch._replace(flag=flag, body=body, properties=properties)
        if is_ordinary(properties):
            if len(properties) + len(STAMP) + TAIL_BYTES * run.seals > MAX_PROPERTIES_BYTES:
                return None
            drafts.append(draft._replace(properties=properties + STAMP))
        elif (waiting := to_waiting(draft, terms, place)) is not None:
            drafts.append(waiting.draft)
            place += 1
        else:
            return None
    return _lay_out(run, drafts, store_host)


def to_waiting(draft: Draft, terms: Terms, place: int) -> Waiting | None:
    """The draft as it waits; None when it does not, is not ordinary, or has no room in its second. Its queue is chosen already;
    `place` is the queue offset that it gets in the timer topic."""
    if not may_wait(draft):
        return None
    properties = decode_properties(draft.properties)
    others = {name: value for name, value in properties.items() if name not in ASK and not is_common(name, value)}
    key = properties.get("UNIQ_KEY", "")
    if (
        encode_properties(properties) != draft.properties
        or b"\0" in draft.properties
        or not (key.isascii() and key.isalnum())
        or (others and (REAL_TOPIC in others or REAL_QUEUE in others or asks_for_more(encode_properties(others))))
    ):
        return None
    now_ms = terms.clock.now_ms
    try:
        asked = asked_ms(properties, now_ms)
    except RequestError:
        return None
    if asked is None or not now_ms < asked <= now_ms + terms.max_ahead_ms:
        return None
    wait = wait_until(asked, terms.clock)
    encoded = draft.properties + STAMP + encode_properties(added_for(wait, draft.topic, draft.queue_id))
    if len(encoded) > min(most_properties_bytes(wait), MAX_PROPERTIES_BYTES - TAIL_BYTES):
        return None
    if terms.slots is not None and not terms.slots.take(place, wait):
        return None
    return Waiting(draft._replace(topic=TIMER_TOPIC, queue_id=0, properties=encoded), wait.due_ms)


def _lay_out(run: Run, drafts: Sequence[Draft], store_host: bytes) -> LaidOutSends | int:
    """All of them, or, when the run has no room, nothing; then their size."""
    size = sum(map(draft_size, drafts, repeat(len(store_host)))) + run.seals * len(drafts) * TAIL_BYTES
    if size > run.room:
        return size
    places = []
    for draft in drafts:
        place = lay_out_draft(run, draft, store_host, CODE_RULES, run.most_bytes)
        assert place is not None, "there was room for all"
        places.append(place)
    return LaidOutSends([place.physical_offset for place in places], places[0].queue_offset)

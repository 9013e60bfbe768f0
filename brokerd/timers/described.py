"""A record of the timer topic for people (pure)."""

from __future__ import annotations

from typing import Final

from brokerd.delay.rules import REAL_QUEUE, REAL_TOPIC
from brokerd.timers.codes import (
    LEG_MS,
    OUT_MS,
    PLACE,
    RECALL,
    RECALLED_BY,
    ROLL_TIMES,
    Key,
    due_by,
    due_of,
    kind_of,
    number_of,
    slot_of,
    timer_code,
)
from brokerd.timers.copies import UNIQUE_KEY, name_of, place_of
from brokerd.timers.cursor import TimerTable
from remoting.facts.timers import TimerItem, TimerStanding
from remoting.record.codec import Record

_MOST_TEXT: Final = 1024  # of a key or tag that is told


def describe(record: Record, table: TimerTable, *, is_in_tier: bool = False) -> TimerItem:
    """The record, and what it is now by what the table says; with `is_in_tier` it is one that its message waits by there."""
    properties, offset = record.property_map(), record.queue_offset
    code = timer_code(record.properties, record.store_timestamp_ms)
    due_ms = due_by(properties)
    slot_ms = number_of(properties, OUT_MS)
    place = place_of(kind_of(code), properties, offset)
    if place in table.places or table.taken_back.is_named(
        name_of(properties), slot_of(due_of(code)) if slot_ms is None else slot_ms
    ):
        standing = TimerStanding.RECALLED
    elif is_in_tier:
        standing = TimerStanding.WAITING
    else:
        standing = TimerStanding.OVER if table.done.has(Key(due_of(code), offset)) else TimerStanding.WAITING
    if offset in table.aside and not is_in_tier:
        standing = TimerStanding.ASIDE
    target = None
    if kind_of(code) == RECALL:
        standing = TimerStanding.MARKER
        target = number_of(properties, PLACE)
        place = offset if target is None else target
    return TimerItem(
        offset=offset,
        place=place,
        standing=standing,
        topic=properties.get(REAL_TOPIC, ""),
        queue_id=number_of(properties, REAL_QUEUE) or 0,
        unique_key=properties.get(UNIQUE_KEY, "")[:_MOST_TEXT],
        due_ms=due_of(code) if due_ms is None else due_ms,
        stored_ms=record.store_timestamp_ms,
        born_ms=record.born_timestamp_ms,
        size=record.size,
        keys=properties.get("KEYS", "")[:_MOST_TEXT],
        tag=properties.get("TAGS", "")[:_MOST_TEXT],
        leg_ms=number_of(properties, LEG_MS),
        rolls=number_of(properties, ROLL_TIMES) or 0,
        recalled_by=None if target is None else properties.get(RECALLED_BY),  # a client's marker names no place
        is_in_tier=is_in_tier,
    )

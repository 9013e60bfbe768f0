"""The life of a message that waited, or waits, for its moment: received, appended again on its way, delivered or recalled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from remoting.facts.timers import TimerItem, TimerStanding
from remoting.names import TIMER_TOPIC
from webapp import gateway
from webapp.display import duration_ms
from webapp.errors import Problem
from webapp.messages.browse import Message, show

_OUT: Final = "TIMER_OUT_MS"
_DUE: Final = "TIMER_DUE_MS"
_PLACE: Final = "TIMER_PLACE"
_MOST: Final = 64


@dataclass(frozen=True, slots=True)
class Step:
    """What happened, and when; None is now. `topic` and the rest say which message shows it."""

    at_ms: int | None
    what: str
    detail: str = ""
    topic: str = ""
    group: str = ""
    queue_id: int = 0
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Life:
    """In order of time. `problem`: why a part of it is not known."""

    steps: Sequence[Step]
    problem: str = ""


def life_of(message: Message, topic: str) -> Life | None:
    """None of a message that never waited so. What the cluster is asked beyond the message may be missing, and that is said."""
    properties = message.properties
    if topic != TIMER_TOPIC and _OUT not in properties:
        return None
    key = properties.get("UNIQ_KEY", "")
    delivered = None if topic == TIMER_TOPIC else message
    steps: list[Step] = []
    problem = "" if key else "the message has no id to look for"
    items: list[TimerItem] = []
    if key:
        try:
            items = _records(message, key, topic)
            if delivered is None:
                delivered = _delivered(message, key, items)
        except Problem as error:
            problem = error.detail
    steps = sorted(_waited(items, message.group), key=lambda each: each.at_ms or 0)
    if delivered is not None:
        steps.append(_arrived(delivered))
    elif items:
        steps.append(_now(items))
    return Life(steps, problem)


def _records(message: Message, key: str, topic: str) -> list[TimerItem]:
    """The records of that message: others may have the same key."""
    place = _place(message, topic)
    page = gateway.find_timers(message.group, key=key, count=_MOST)
    return [each for each in page.items if place in (None, each.place) and each.unique_key == key]


def _place(message: Message, topic: str) -> int | None:
    text = message.properties.get(_PLACE, "")
    if text.isascii() and text.isdecimal() and len(text) < 19:
        return int(text)
    return message.offset if topic == TIMER_TOPIC else None


def _waited(items: Sequence[TimerItem], group: str) -> Iterator[Step]:
    in_log = {each.offset for each in items if not each.is_in_tier}
    for each in items:
        place = {"topic": TIMER_TOPIC, "group": group, "queue_id": 0, "offset": each.offset}
        if each.is_in_tier:
            if each.offset in in_log:  # for a while it is in both
                continue
            place = {}
        if each.standing is TimerStanding.MARKER:
            by = f"by {each.recalled_by}" if each.recalled_by else "by a client"
            yield Step(each.stored_ms, "recalled", by, **place)  # type: ignore[arg-type]
        elif each.offset == each.place:
            yield Step(each.stored_ms, "received", _until(each), **place)  # type: ignore[arg-type]
        else:
            yield Step(each.stored_ms, f"appended again ({each.rolls})", _until(each), **place)  # type: ignore[arg-type]


def _until(item: TimerItem) -> str:
    waits = f"due {duration_ms(max(0, item.due_ms - item.stored_ms))} later"
    return waits if item.leg_ms is None else f"{waits}; waits there for {duration_ms(item.leg_ms - item.stored_ms)}"


def _delivered(message: Message, key: str, items: Sequence[TimerItem]) -> Message | None:
    """What its topic has of it, in the broker group that had it waiting."""
    if not items:
        return None
    place = str(items[0].place)
    for found in gateway.find(items[0].topic, key, _MOST):
        if found.group == message.group and found.record.property_map().get(_PLACE) == place:
            return show(found.record, found.group, limit=0)
    return None


def _arrived(message: Message) -> Step:
    record, due = message.record, message.properties.get(_DUE, "")
    late = ""
    if due.isascii() and due.isdecimal() and len(due) < 17:
        late = f"{duration_ms(max(0, record.store_timestamp_ms - int(due)))} late"
    return Step(
        record.store_timestamp_ms, "delivered", late, record.topic, message.group, record.queue_id, record.queue_offset
    )


def _now(items: Sequence[TimerItem]) -> Step:
    standings = {each.standing for each in items}
    if TimerStanding.ASIDE in standings:
        return Step(None, "set aside", "it cannot be read or stored now; the page of timers says why")
    if TimerStanding.WAITING in standings:
        in_tier = any(each.is_in_tier and each.standing is TimerStanding.WAITING for each in items)
        return Step(None, "waiting", "in the tier" if in_tier else "")
    if TimerStanding.RECALLED in standings or TimerStanding.MARKER in standings:
        return Step(None, "never delivered", "it was recalled")
    return Step(None, "over", "its topic has no such message any more, or it was dropped")

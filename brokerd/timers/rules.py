"""When a message that asks for a moment of its own is due, and how it waits for it (pure).

Clients ask with one of three properties, of which the first that is there counts: `TIMER_DELAY_SEC`, `TIMER_DELAY_MS` (from when
the message is taken, or its transaction committed) and `TIMER_DELIVER_MS` (wall time). A delay level beats them all
(`delay/rules.py`). What is due already is an ordinary message. `TIMER_OUT_MS` is the broker's mark: a message that has it was in
the timer topic before, and does not wait a second time, whoever passes it on with the properties it had.

`TIMER_DEL_UNIQKEY` makes a message take another one back that waits in the same slot, and it is never delivered itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

from brokerd.delay.rules import REAL_QUEUE, REAL_TOPIC
from brokerd.store.draft import Draft
from brokerd.timers.codes import (
    DELETE_KEY,
    DEQUEUE_MS,
    DUE_MS,
    ENQUEUE_MS,
    LEG_MS,
    MAX_DUE_MS,
    MOVED,
    OUT_MS,
    PLACE,
    RECALLED_BY,
    ROLL_TIMES,
    slot_of,
)
from brokerd.timers.copies import ROLL_ROOM_BYTES
from brokerd.timers.rolling import Wait, leg_before
from remoting import codes
from remoting.disk import Bytes
from remoting.errors import RequestError
from remoting.names import TIMER_TOPIC, is_brokers_topic
from remoting.record.layout import MAX_PROPERTIES_BYTES
from remoting.record.properties import decode_properties, encode_properties

DELAY_SEC: Final = "TIMER_DELAY_SEC"
DELAY_MS: Final = "TIMER_DELAY_MS"
DELIVER_MS: Final = "TIMER_DELIVER_MS"

ASK: Final = (DELAY_SEC, DELAY_MS, DELIVER_MS)  # the first that is there counts
_TIMER: Final = b"TIMER_D"  # which all three begin with
_MAX_DIGITS: Final = 19
_TRANSACTION: Final = "TRAN_MSG"
# What only brokers write. OUT_MS stays with a message that was delivered, and so may come back from a consumer
_OWN: Final = (DUE_MS, LEG_MS, PLACE, ROLL_TIMES, ENQUEUE_MS, DEQUEUE_MS, MOVED, RECALLED_BY)


class Clock(NamedTuple):
    """`now_ms` by the clock that timers are kept by; what is appended now has to be due at `least_due_ms` or later, and is
    appended again on its way when it is due further ahead than `window_ms`. While it is not settled what time it is, it may be
    `later_ms`, too."""

    now_ms: int
    least_due_ms: int
    window_ms: int
    later_ms: int = 0


def check_moment(properties: dict[str, str], topic: str, now_ms: int, max_ahead_ms: int) -> None:
    """Take out what only brokers write. Raises RequestError for a moment that cannot be kept, and for what cannot recall."""
    for name in _OWN:
        properties.pop(name, None)
    due_ms = asked_ms(properties, now_ms)
    if due_ms is not None and due_ms - now_ms > max_ahead_ms:
        raise RequestError(codes.MESSAGE_ILLEGAL, too_far_ahead(due_ms - now_ms, max_ahead_ms))
    if DELETE_KEY in properties:
        _check_recall(properties, topic, due_ms is not None and due_ms > now_ms)


def too_far_ahead(ahead_ms: int, max_ahead_ms: int) -> str:
    """The sentence for who asked for it."""
    return (
        f"the message is to be delivered {_in_words(ahead_ms)} ahead; at most {_in_words(max_ahead_ms)} are accepted (setting "
        "timers.max_ahead_s of the broker)"
    )


def too_many_due(due_ms: int, most: int) -> str:
    """The sentence for who asked for it."""
    second = datetime.fromtimestamp(slot_of(due_ms) / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return (
        f"timer message is under flow control: {most} messages are to be delivered in the second from {second} UTC, no more are "
        "accepted (setting timers.max_per_slot of the broker); ask for another second, or have the setting raised"
    )


def mentions_moment(encoded: Bytes) -> bool:
    """A quick look: False for encoded properties, or what holds several, that ask for no moment."""
    return _TIMER in bytes(encoded)


def asks_for_moment(properties: bytes) -> bool:
    """Whether encoded properties ask for a moment, which may have passed."""
    return _TIMER in properties and not decode_properties(properties).keys().isdisjoint(ASK)


def asked_ms(properties: Mapping[str, str], now_ms: int, later_ms: int = 0) -> int | None:
    """When a message wants to be delivered (wall time, ms); None when it does not say, or was delivered before.

    A delay counts from `later_ms`, which it may be as well, if that is ahead by no more than the delay itself: the message never
    comes early then, and after twice its delay at most. Raises RequestError when what it says is no number.
    """
    if OUT_MS in properties:
        return None
    for name in ASK:
        text = properties.get(name)
        if text is not None:
            number = _number(name, text)
            if name == DELIVER_MS:
                return number
            delay_ms = number * 1000 if name == DELAY_SEC else number
            return (later_ms if 0 < later_ms - now_ms <= delay_ms else now_ms) + delay_ms
    return None


def may_wait(draft: Draft) -> bool:
    """A quick look: False for what asks for no moment, and for what brokers write themselves."""
    return _TIMER in draft.properties and not is_brokers_topic(draft.topic)


def to_waiting_draft(draft: Draft, clock: Clock) -> Draft:
    """The draft as it waits in the timer topic, if it asks for a moment that is not there yet; else the draft itself. Its queue
    is chosen already, and the moment was checked.

    Raises RequestError when there is no room for where it is going.
    """
    if not may_wait(draft):
        return draft
    properties = decode_properties(draft.properties)
    due_ms = asked_ms(properties, clock.now_ms, clock.later_ms)
    if due_ms is None or due_ms <= clock.now_ms:
        return draft
    wait = wait_until(due_ms, clock)
    if DELETE_KEY in properties:
        wait = wait._replace(leg_ms=clock.least_due_ms)  # it has its effect at once
    encoded = encode_properties(properties | added_for(wait, draft.topic, draft.queue_id))
    if len(encoded) > most_properties_bytes(wait):
        raise RequestError(
            codes.MESSAGE_ILLEGAL,
            f"the properties of a message that waits so take {len(encoded)} bytes; at most {most_properties_bytes(wait)} are "
            "stored",
        )
    return draft._replace(topic=TIMER_TOPIC, queue_id=0, properties=encoded)


def wait_until(due_ms: int, clock: Clock) -> Wait:
    """Of a message that asks for this moment, which has not come."""
    due_ms = min(max(due_ms, clock.least_due_ms), MAX_DUE_MS)
    return Wait(due_ms, leg_before(due_ms, clock.now_ms, clock.least_due_ms, clock.window_ms))


def most_properties_bytes(wait: Wait) -> int:
    """How many bytes the properties of what waits so may take, with what the wait adds."""
    return MAX_PROPERTIES_BYTES - (0 if wait.leg_ms is None else ROLL_ROOM_BYTES)


def added_for(wait: Wait, topic: str, queue_id: int) -> dict[str, str]:
    """The properties by which a message for that queue waits, in their order."""
    added = {
        REAL_TOPIC: topic,
        REAL_QUEUE: str(queue_id),
        OUT_MS: str(slot_of(wait.due_ms)),
        DUE_MS: str(wait.due_ms),
    }
    return added if wait.leg_ms is None else {**added, LEG_MS: str(wait.leg_ms)}


def _check_recall(properties: dict[str, str], topic: str, is_ahead: bool) -> None:
    """A message that recalls names one of its own topic, as `topic+key`, or by the key alone; the first form is stored."""
    wanted = properties[DELETE_KEY]
    if not is_ahead or properties.get(_TRANSACTION, "").lower() == "true":
        raise RequestError(
            codes.MESSAGE_ILLEGAL,
            f"a message that recalls another (property {DELETE_KEY}) needs the same delivery time, which has not come, and "
            "begins no transaction",
        )
    prefix = f"{topic}+"
    key = wanted.removeprefix(prefix)
    if not key or (key is wanted and "+" in wanted):
        raise RequestError(
            codes.MESSAGE_ILLEGAL,
            f"the property {DELETE_KEY} names what is recalled as {prefix}KEY, the topic of this message and the unique key of "
            f"the other, not {wanted[:64]!r}",
        )
    properties[DELETE_KEY] = prefix + key


def _number(name: str, text: str) -> int:
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > _MAX_DIGITS:
        unit = "seconds" if name == DELAY_SEC else "milliseconds"
        raise RequestError(
            codes.MESSAGE_ILLEGAL, f"the property {name} must be a whole number of {unit}, not {text[:32]!r}"
        )
    return int(text)


def _in_words(duration_ms: int) -> str:
    minutes, rest_ms = divmod(duration_ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = (days, "d"), (hours, "h"), (minutes, "min"), (rest_ms / 1000, "s")
    return " ".join(f"{number:,.16g} {unit}" for number, unit in parts if number) or "0 s"

"""By what a message that asks for a moment is taken in one turn of the loop, and named for its recall (pure)."""

from __future__ import annotations

from typing import Final, NamedTuple

from brokerd.timers.handles import Recallable, encode_handle, has_handle
from brokerd.timers.rules import Clock
from brokerd.timers.slots import SlotLimit
from remoting.names import RETRY_PREFIX

MAX_BROKER_NAME_BYTES: Final = 255


class Terms(NamedTuple):
    """`key` makes the handles of this broker group, whose name is `broker_name`; what is due more than `max_ahead_ms` ahead is
    refused, and where `slots` counts, what is due in a second that is full. There are terms only while it is settled what time it
    is, so `clock` has no other."""

    clock: Clock
    max_ahead_ms: int
    key: bytes
    broker_name: str
    slots: SlotLimit | None = None

    def handle(self, topic: str, due_ms: int, unique_key: str, place: int) -> str:
        """See `handle_for`."""
        return handle_for(topic, self.broker_name, due_ms, unique_key, place, self.key)


def handle_for(topic: str, broker_name: str, due_ms: int, unique_key: str, place: int, key: bytes) -> str:
    """What recalls the message that was sent to a topic and waits first at that queue offset; "" when nothing does."""
    if topic.startswith(RETRY_PREFIX) or not has_handle(unique_key):
        return ""
    return encode_handle(Recallable(topic, broker_name, due_ms, unique_key, place), key)

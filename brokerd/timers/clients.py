"""Messages that clients send for a moment of their own, and take back: what both endpoints and the transactions use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from brokerd.delay.rules import REAL_TOPIC
from brokerd.store.draft import Draft
from brokerd.store.run import AppendResult
from brokerd.timers import rules
from brokerd.timers.codes import DELETE_KEY, DUE_MS, LEG_MS, number_of
from brokerd.timers.handles import decode_handle
from brokerd.timers.interface import Recalled, Timers
from brokerd.timers.rolling import Wait
from brokerd.timers.terms import MAX_BROKER_NAME_BYTES, Terms, handle_for
from remoting import codes
from remoting.errors import FlowControl, RequestError
from remoting.names import RETRY_PREFIX
from remoting.record.properties import decode_properties

# What a recall ends with: the unique key of the message that was taken back, or why it was not
RecallDone = Callable[[str | RequestError], None]

_NO_HANDLE: Final = (
    "this is no recall handle of this broker group: pass the one that the answer to the send had, as it was"
)

_NO_ROOM_FOR_MARKER: Final = (
    f"the property {DELETE_KEY} has no effect now: too many messages are taken back so that are not due yet, of this topic or of "
    "others; send it again when these are due"
)
_STILL_COUNTED: Final = (
    "the timers that wait are still being counted, for the limit of each second (setting timers.max_per_slot of the broker); "
    "send this again in a moment"
)


class Limits(Protocol):
    """What clients may ask for: settings, as they are now."""

    @property
    def max_ahead_s(self) -> int: ...


class TimedMessages:
    """`sending.sender.TimedMessages`. All is called on the loop's thread."""

    def __init__(
        self, timers: Timers, limits: Callable[[], Limits], broker_name: str, next_place: Callable[[], int]
    ) -> None:
        """`next_place()` is the queue offset in the timer topic that is next."""
        self._timers = timers
        self.next_place = next_place
        self._limits = limits
        self._broker_name = broker_name

    @property
    def max_ahead_ms(self) -> int:
        """How far ahead of now a message may be delivered."""
        return self._limits().max_ahead_s * 1000

    def check_moment(self, properties: dict[str, str], topic: str) -> None:
        """See `rules.check_moment`. Raises RequestError also for a delete marker that would have no effect."""
        rules.check_moment(properties, topic, self._timers.now_ms(), self.max_ahead_ms)
        if DELETE_KEY in properties and not self._timers.has_room_for_marker(topic):
            raise RequestError(codes.SYSTEM_BUSY, _NO_ROOM_FOR_MARKER)

    def to_waiting_draft(self, draft: Draft) -> Draft:
        """The draft as it waits; see `rules.to_waiting_draft`. It is to be appended in this turn of the loop."""
        if not rules.may_wait(draft):
            return draft
        timers = self._timers
        timers.follow_clock()
        timers.recall_key()  # drawn before there is a message whose handle needs it: it is not lost before that is
        clock = rules.Clock(timers.now_ms(), timers.least_due_ms, timers.window_ms, timers.later_ms())
        return rules.to_waiting_draft(draft, clock)

    def terms(self) -> Terms | None:
        """By what messages wait that are appended in this turn of the loop; None when the general path must see them first: it
        may append, where this is asked while messages are being laid out."""
        timers, key = self._timers, self._timers.drawn_key
        if key is None or not timers.is_settled or len(self._broker_name.encode()) > MAX_BROKER_NAME_BYTES:
            return None
        slots = timers.slot_limit()
        if slots is not None and slots.is_behind:
            return None
        clock = rules.Clock(timers.now_ms(), timers.least_due_ms, timers.window_ms)
        return Terms(clock, self.max_ahead_ms, key, self._broker_name, slots)

    def check_room(self, draft: Draft, laid_out: int) -> None:
        """Raises FlowControl when too many timers are due in the second of a draft that waits, and RequestError with SYSTEM_BUSY
        while that is not known; `laid_out` others are appended before it in this turn of the loop."""
        slots = self._timers.slot_limit()
        if slots is None:
            return
        properties = decode_properties(draft.properties)
        due_ms = number_of(properties, DUE_MS)
        if due_ms is None or DELETE_KEY in properties or properties[REAL_TOPIC].startswith(RETRY_PREFIX):
            return
        if slots.is_behind:
            raise RequestError(codes.SYSTEM_BUSY, _STILL_COUNTED)
        if not slots.take(self.next_place() + laid_out, Wait(due_ms, number_of(properties, LEG_MS))):
            if slots.is_unsure:
                raise RequestError(codes.SYSTEM_BUSY, _STILL_COUNTED)
            raise FlowControl(rules.too_many_due(due_ms, slots.most()))

    def handle_of(self, draft: Draft, place: AppendResult) -> str:
        """What recalls a message that was stored in the timer topic; "" for what recalls another, or cannot be named."""
        key = self._timers.recall_key()
        properties = decode_properties(draft.properties)
        topic, unique_key = properties[REAL_TOPIC], properties.get("UNIQ_KEY", "")
        due_ms = number_of(properties, DUE_MS)
        assert due_ms is not None
        if key is None or DELETE_KEY in properties:
            return ""
        return handle_for(topic, self._broker_name, due_ms, unique_key, place.queue_offset, key)

    def recall(self, topic: str, handle: str, done: RecallDone) -> None:
        """Take the message back that was sent to this topic and answered with this handle. Raises RequestError for another
        handle; the rest, also that the message was delivered, `done` is told."""
        key = self._timers.recall_key()
        if key is None:
            raise RequestError(codes.SERVICE_NOT_AVAILABLE, "this broker cannot check recall handles yet; try again")
        found = decode_handle(handle, key)
        if found is None or found.broker_name != self._broker_name:
            raise RequestError(codes.ILLEGAL_OPERATION, _NO_HANDLE)
        if found.topic != topic:
            raise RequestError(codes.ILLEGAL_OPERATION, f"the message was sent to {found.topic}, not to {topic[:127]}")
        self._timers.recall(
            Recalled(found.topic, found.unique_key, found.place, found.due_ms),
            lambda error: done(found.unique_key if error is None else error),
        )

"""ReceiveMessage: pop, and stream what came: a status, one frame per message, and always a delivery timestamp at the end.

A call that waits is one parked object, no task. When its client goes away the wait is cancelled; when messages were taken for a
client that is gone by then, they are made visible again soon. Messages that turn out not to be for the client (the tag's hash
matched but not the tag, or they were delivered often enough) do not end the call: it polls on for the rest of its time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from brokerd.loop.long_polling import ANY_QUEUE
from brokerd.metadata.configs import PERM_READ, Metadata
from brokerd.metadata.start_offsets import InitMode
from brokerd.pop.queue_ledger import MAX_BATCH
from brokerd.pop.requests import MAX_ATTEMPT_ID, Parked, PopOutcome, PoppedMessage, PopRequest, PopStatus
from brokerd.pop.service import PopService
from brokerd.proxy import properties
from brokerd.proxy.calls import Call
from brokerd.proxy.mapping import to_message
from brokerd.proxy.methods.base import CLIENT_ID, attempt, header, parse
from brokerd.proxy.methods.groups import Groups
from brokerd.proxy.names import group_name, topic_name
from brokerd.proxy.protobuf import definition, milliseconds, service
from brokerd.proxy.status import OK, Code, Refusal, encode_length, refusal_of, status_field
from remoting.errors import ProtocolError, RequestError
from remoting.names import DEAD_LETTER_PREFIX
from remoting.record.codec import decode_record

log = logging.getLogger(__name__)

MIN_INVISIBLE_MS: Final = 10_000
MAX_INVISIBLE_MS: Final = 12 * 3600 * 1000
RENEWED_INVISIBLE_MS: Final = 60_000
MIN_POLLING_MS: Final = 5_000
MAX_POLLING_MS: Final = 20_000
# answered this long before the client's own deadline, so that an empty answer is no time-out
RESERVED_MS: Final = 100
# taken for a client that is gone: visible again after this
RETURNED_INVISIBLE_MS: Final = 1_000

_MAX_ROUNDS: Final = 64
_SQL: Final = definition.FilterType.Value("SQL")
_NO_MESSAGE: Final = status_field(Code.MESSAGE_NOT_FOUND, "no new message")


@dataclass(slots=True, eq=False)
class ReceiveMessage:
    """The method; keeps the calls that wait so that a stopping broker can answer them."""

    popper: PopService
    metadata: Metadata
    groups: Groups
    monotonic_ms: Callable[[], int]
    wall_ms: Callable[[], int]
    waiting: set[_Receive] = field(default_factory=set)

    def __call__(self, calls: Sequence[Call]) -> None:
        for call in calls:
            request = parse(call, service.ReceiveMessageRequest, self.refuse)
            if request is not None:
                attempt(call, request, self.refuse, self._begin, call, request)

    def stop(self) -> None:
        """Answer every call that waits: nothing came."""
        for receive in list(self.waiting):
            receive.give_up()

    def refuse(self, call: Call, request: Any, refusal: Refusal) -> None:
        self.finish(call, [refusal.status])

    def finish(self, call: Call, frames: list[bytes]) -> None:
        """Send the frames and the delivery timestamp that has to follow, and end the call."""
        timestamp = service.ReceiveMessageResponse()
        timestamp.delivery_timestamp.FromMilliseconds(self.wall_ms())
        frames.append(timestamp.SerializeToString())
        call.send(frames)
        call.finish()

    def _begin(self, call: Call, request: Any) -> None:
        now_ms = self.monotonic_ms()
        asked = request.message_queue.topic
        topic = topic_name(asked)
        group = group_name(request.group)
        pop = PopRequest(
            group,
            topic,
            ANY_QUEUE,
            batch_size(request.batch_size),
            invisible_time_ms(request),
            now_ms + polling_ms(request, call.deadline_ms, now_ms),
            init_mode=InitMode.MAX,
            expression_type="SQL92" if request.filter_expression.type == _SQL else "TAG",
            expression=request.filter_expression.expression.strip() or "*",
            attempt_id=request.attempt_id[:MAX_ATTEMPT_ID],
            client_id=header(call, CLIENT_ID),
            auto_renew=request.auto_renew,
        )
        config = self.metadata.topic(topic)
        if config is None:
            raise Refusal(Code.TOPIC_NOT_FOUND, f"topic {topic} does not exist")
        if not config.perm & PERM_READ:
            raise Refusal(Code.FORBIDDEN, f"topic {topic} has no queue that can be read")

        def ensured(error: RequestError | None) -> None:
            if error is not None:
                self.refuse(call, request, refusal_of(error))
            elif call.live:
                # which order a group has is the group's own setting: a request may come before any settings did
                found = self.groups.get(group)
                label = definition.Resource(resource_namespace=asked.resource_namespace, name=asked.name)
                receive = _Receive(self, call, label, replace(pop, fifo=found is not None and found.fifo))
                call.when_writable(receive.start)

        self.groups.ensure(group, ensured)


class _Receive:
    """One call under way. It may wait for long, and holds no more of what its client sent than it needs."""

    __slots__ = ("_call", "_max_attempts", "_method", "_parked", "_pop", "_rounds", "_topic")

    def __init__(self, method: ReceiveMessage, call: Call, topic: Any, pop: PopRequest) -> None:
        """`topic` is the Resource that the messages are labelled with."""
        call.message = b""
        self._method = method
        self._call = call
        self._topic = topic
        self._pop = pop
        self._rounds = 0
        self._parked: Parked | None = None
        group = method.groups.get(pop.group)
        dead_letters = pop.topic.startswith(DEAD_LETTER_PREFIX)
        # the failures of a dead-letter topic stay in it
        self._max_attempts = None if group is None or dead_letters else group.retry_max_times + 1

    def start(self) -> None:
        """Pop, now or when the client has read what it was sent before."""
        if self._call.live:
            attempt(self._call, None, self._method.refuse, self._take)

    def give_up(self) -> None:
        """Stop waiting and say that nothing came."""
        self._forget(cancel=True)
        self._method.finish(self._call, [_NO_MESSAGE])

    def _take(self) -> None:
        self._rounds += 1
        finished = False

        def done(outcome: PopOutcome) -> None:
            nonlocal finished
            finished = True
            self._forget(cancel=False)
            attempt(self._call, None, self._method.refuse, self._taken, outcome)

        parked = self._method.popper.pop(self._pop, done)
        if parked is not None and not finished:
            self._parked = parked
            self._method.waiting.add(self)
            self._call.on_cancel = partial(self._forget, cancel=True)

    def _forget(self, *, cancel: bool) -> None:
        self._method.waiting.discard(self)
        self._call.on_cancel = None
        parked, self._parked = self._parked, None
        if cancel and parked is not None:
            parked.cancel()

    def _taken(self, outcome: PopOutcome) -> None:
        if outcome.error is not None:
            self._method.refuse(self._call, None, refusal_of(outcome.error))
            return
        if outcome.status is PopStatus.POLLING_FULL:
            raise Refusal(Code.TOO_MANY_REQUESTS, "too many calls wait for messages of this topic; try again")
        if not self._call.live:
            self._return(outcome.messages)
            return
        tags = wanted_tags(self._pop)
        frames = [frame for popped in outcome.messages if (frame := self._frame(popped, outcome, tags)) is not None]
        if frames:
            self._method.finish(self._call, [OK, *frames])
        elif outcome.messages and self._rounds < _MAX_ROUNDS and self._method.monotonic_ms() < self._pop.deadline_ms:
            self._take()
        else:
            self._method.finish(self._call, [_NO_MESSAGE])

    def _frame(self, popped: PoppedMessage, outcome: PopOutcome, tags: frozenset[str] | None) -> bytes | None:
        """The response frame of a message; None when it is not for this client."""
        popper, pop = self._method.popper, self._pop
        try:
            record = decode_record(popped.record)
        except ProtocolError as error:
            log.error("a record of %s cannot be delivered to group %s: %s", pop.topic, pop.group, error)
            return None
        stored = record.property_map()
        if tags is not None and stored.get(properties.TAGS, "") not in tags:
            popper.ack(pop.group, pop.topic, [popped.receipt_handle], _ignore)
            return None
        if self._max_attempts is not None and popped.delivery_attempt > self._max_attempts:
            popper.forward_to_dead_letter(pop.group, pop.topic, popped.receipt_handle, _ignore)
            return None
        invisible = outcome.invisible_time_ms or pop.invisible_time_ms
        message = to_message(popped, record, stored, self._topic, invisible)
        return b"\x12" + encode_length(len(message)) + message

    def _return(self, messages: Sequence[PoppedMessage]) -> None:
        """The client went away while its messages were taken."""
        for popped in messages:
            self._method.popper.change_invisible_time(
                self._pop.group, self._pop.topic, popped.receipt_handle, RETURNED_INVISIBLE_MS, _ignore
            )


def batch_size(asked: int) -> int:
    """How many messages at most; clients that do not say get what fits into one answer."""
    if asked < 0:
        raise Refusal(Code.BAD_REQUEST, "batch_size must not be negative")
    return min(asked, MAX_BATCH) or MAX_BATCH


def invisible_time_ms(request: Any) -> int:
    """How long the messages stay hidden. A push consumer leaves it to the broker, which renews while the client lives."""
    if request.auto_renew:
        return RENEWED_INVISIBLE_MS
    value = milliseconds(request.invisible_duration)
    if value < MIN_INVISIBLE_MS:
        raise Refusal(Code.ILLEGAL_INVISIBLE_TIME, "the invisibleTime is too small; it must be at least 10 seconds")
    if value > MAX_INVISIBLE_MS:
        raise Refusal(Code.ILLEGAL_INVISIBLE_TIME, "the invisibleTime is too large; it may be at most 12 hours")
    return value


def polling_ms(request: Any, deadline_ms: int | None, now_ms: int) -> int:
    """How long to wait for messages: what the client asks, within bounds, and never beyond its own deadline."""
    asked = milliseconds(request.long_polling_timeout)
    left = MAX_POLLING_MS + RESERVED_MS if deadline_ms is None else deadline_ms - now_ms
    if asked <= 0:
        wait = min(max(left // 2, MIN_POLLING_MS), MAX_POLLING_MS)
    else:
        wait = min(asked, MAX_POLLING_MS)
        if wait > left and left < MIN_POLLING_MS:
            raise Refusal(
                Code.ILLEGAL_POLLING_TIME,
                f"a long_polling_timeout of {asked} ms does not fit into the call's deadline, {left} ms from now",
            )
    return max(0, min(wait, left - RESERVED_MS))


def wanted_tags(pop: PopRequest) -> frozenset[str] | None:
    """The tags of a tag expression; None when every message matches (or an other filter decides)."""
    if pop.expression_type != "TAG" or pop.expression == "*":
        return None
    return frozenset(filter(None, (tag.strip() for tag in pop.expression.split("||"))))


def changes_that_give_back(receive: bytes, answers: Sequence[bytes]) -> list[bytes]:
    """The requests that make the messages of an answer visible again soon; `receive` is the request they were taken for."""
    asked = service.ReceiveMessageRequest.FromString(receive)
    changes = []
    for answer in answers:
        handle = service.ReceiveMessageResponse.FromString(answer).message.system_properties.receipt_handle
        if handle:
            change = service.ChangeInvisibleDurationRequest(
                group=asked.group, topic=asked.message_queue.topic, receipt_handle=handle
            )
            change.invisible_duration.FromMilliseconds(RETURNED_INVISIBLE_MS)
            changes.append(change.SerializeToString())
    return changes


def _ignore(result: object) -> None:
    """Nobody waits for the outcome: if it fails, the message comes back by itself."""

"""ReceiveMessage: pop, and stream what came: a status, one frame per message, and always a delivery timestamp at the end.

A call that waits is one parked object, no task. When its client goes away the wait is cancelled; when messages were taken for a
client that is gone by then, they are made visible again soon. Messages that turn out not to be for the client (the tag's hash
matched but not the tag, or they were delivered often enough) do not end the call: it polls on for the rest of its time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from brokerd.loop.long_polling import ANY_QUEUE
from brokerd.metadata.configs import PERM_READ, Metadata
from brokerd.metadata.start_offsets import InitMode
from brokerd.pop.requests import Parked, PopOutcome, PoppedMessage, PopRequest, PopStatus
from brokerd.pop.service import PopService
from brokerd.proxy.calls import Call
from brokerd.proxy.methods.asked import NO_MESSAGE, Asked, asked_of, wait_of
from brokerd.proxy.methods.base import CLIENT_ID, LANGUAGE, attempt, check_client_id, header
from brokerd.proxy.methods.groups import Groups
from brokerd.proxy.methods.invisible_time import with_invisible_time
from brokerd.proxy.protobuf import service
from brokerd.proxy.received import Answers, answers_of
from brokerd.proxy.status import OK, Code, Refusal, encode_length, refusal_of
from remoting.errors import RequestError
from remoting.names import DEAD_LETTER_PREFIX

log = logging.getLogger(__name__)

# taken for a client that is gone: visible again after this
RETURNED_INVISIBLE_MS: Final = 1_000

_MAX_ROUNDS: Final = 64
# Long waits end up to this much later, together with others (a power of two): less than what is reserved of a client's deadline
_TOGETHER_MS: Final = 32
_LONG_WAIT_MS: Final = 1000


@dataclass(slots=True, eq=False)
class ReceiveMessage:
    """The method; keeps the calls that wait so that a stopping broker can answer them."""

    popper: PopService
    metadata: Metadata
    groups: Groups
    monotonic_ms: Callable[[], int]
    wall_ms: Callable[[], int]
    answers: Answers = answers_of
    waiting: set[_Receive] = field(default_factory=set)

    def __call__(self, calls: Sequence[Call]) -> None:
        for call in calls:
            attempt(call, None, self.refuse, self._begin, call)

    def stop(self) -> None:
        """Answer every call that waits: nothing came."""
        for receive in list(self.waiting):
            receive.give_up()

    def refuse(self, call: Call, request: Any, refusal: Refusal) -> None:
        self.finish(call, [refusal.status])

    def finish(self, call: Call, frames: list[bytes]) -> None:
        """Send the frames and the delivery timestamp that has to follow, and end the call."""
        frames.append(_delivery_timestamp(self.wall_ms()))
        call.finish_with(frames)

    def _begin(self, call: Call) -> None:
        check_client_id(call)
        settings = self.popper.settings
        asked = with_invisible_time(asked_of(call.message), self.groups, settings)
        now_ms = self.monotonic_ms()
        wait = wait_of(asked.wait_ms, call.deadline_ms, now_ms, settings)
        topic, group = asked.topic, asked.group
        config = self.metadata.topic(topic)
        if config is None:
            raise Refusal(Code.TOPIC_NOT_FOUND, f"topic {topic} does not exist")
        if not config.perm & PERM_READ:
            raise Refusal(Code.FORBIDDEN, f"topic {topic} has no queue that can be read")
        deadline_ms = now_ms + wait.ms
        if wait.ms >= _LONG_WAIT_MS:
            deadline_ms |= _TOGETHER_MS - 1

        def ensured(error: RequestError | None) -> None:
            if error is not None:
                self.refuse(call, None, refusal_of(error))
            elif call.live:
                receive = _Receive(self, call, asked, deadline_ms, wait.empty)
                call.when_writable(receive.start)

        self.groups.ensure(group, ensured)


class _Receive:
    """One call under way. It may wait for long, and holds no more of what its client sent than it needs."""

    __slots__ = ("_call", "_empty", "_is_taking", "_label", "_max_attempts", "_method", "_parked", "_pop", "_rounds")

    def __init__(self, method: ReceiveMessage, call: Call, asked: Asked, deadline_ms: int, empty: bytes) -> None:
        """`empty` is the status when no messages come until the deadline."""
        call.message = b""
        self._method = method
        self._call = call
        self._label = asked.label
        self._empty = empty
        self._rounds = 0
        self._parked: Parked | None = None
        self._is_taking = False
        # which order a group has is the group's own setting: a request may come before any settings did
        group = method.groups.get(asked.group)
        self._pop = PopRequest(
            asked.group,
            asked.topic,
            ANY_QUEUE,
            asked.batch_size,
            asked.invisible_time_ms,
            deadline_ms,
            InitMode.MAX,
            asked.expression_type,
            asked.expression,
            group is not None and group.fifo,
            asked.attempt_id,
            header(call, CLIENT_ID),
            asked.auto_renew,
        )
        dead_letters = asked.topic.startswith(DEAD_LETTER_PREFIX)
        # the failures of a dead-letter topic stay in it
        self._max_attempts = None if group is None or dead_letters else group.retry_max_times + 1

    def start(self) -> None:
        """Pop, now or when the client has read what it was sent before."""
        if self._call.live:
            attempt(self._call, None, self._method.refuse, self._take)

    def give_up(self) -> None:
        """Stop waiting and say that nothing came."""
        self._forget(cancel=True)
        self._method.finish(self._call, [NO_MESSAGE])

    def _take(self) -> None:
        self._rounds += 1
        self._is_taking = True
        parked = self._method.popper.pop(self._pop, self._done)
        if parked is not None and self._is_taking:
            self._parked = parked
            self._method.waiting.add(self)
            self._call.on_cancel = self._cancel

    def _done(self, outcome: PopOutcome) -> None:
        self._is_taking = False
        self._forget(cancel=False)
        attempt(self._call, None, self._method.refuse, self._taken, outcome)

    def _cancel(self) -> None:
        self._forget(cancel=True)

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
        frames = self._frames(outcome) if outcome.messages else []
        if frames:
            self._method.finish(self._call, [OK, *frames])
        elif outcome.messages and self._rounds < _MAX_ROUNDS and self._method.monotonic_ms() < self._pop.deadline_ms:
            self._take()
        else:
            self._method.finish(self._call, [self._empty])

    def _frames(self, outcome: PopOutcome) -> list[bytes]:
        """The response frames of those messages that are for this client."""
        popper, pop, most = self._method.popper, self._pop, self._max_attempts
        tags = wanted_tags(pop)
        invisible_time_ms = outcome.invisible_time_ms or pop.invisible_time_ms
        answers = self._method.answers(outcome.messages, self._label, invisible_time_ms, header(self._call, LANGUAGE))
        frames = []
        self._return(outcome.messages[len(answers) :])
        for popped, answered in zip(outcome.messages, answers, strict=False):
            if answered is None:
                continue
            tag, frame = answered
            if tags is not None and tag not in tags:
                popper.ack(pop.group, pop.topic, [popped.receipt_handle], _ignore)
            elif most is not None and popped.delivery_attempt > most:
                popper.forward_to_dead_letter(pop.group, pop.topic, popped.receipt_handle, _ignore)
            else:
                frames.append(frame)
        return frames

    def _return(self, messages: Sequence[PoppedMessage]) -> None:
        """Of what was taken, what the client does not get: it went away meanwhile, or it would be too much at once."""
        for popped in messages:
            self._method.popper.change_invisible_time(
                self._pop.group, self._pop.topic, popped.receipt_handle, RETURNED_INVISIBLE_MS, _ignore
            )


def wanted_tags(pop: PopRequest) -> frozenset[bytes] | None:
    """The tags of a tag expression; None when every message matches (or an other filter decides)."""
    if pop.expression_type != "TAG" or pop.expression == "*":
        return None
    return frozenset(tag.encode() for each in pop.expression.split("||") if (tag := each.strip()))


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


@lru_cache(maxsize=1)  # many are answered in one turn of the loop
def _delivery_timestamp(now_ms: int) -> bytes:
    """The response that says when messages were given out, or that none are: field 3, seconds and nanoseconds."""
    seconds, ms = divmod(now_ms, 1000)
    timestamp = b"\x08" + encode_length(seconds)
    if ms:
        timestamp += b"\x10" + encode_length(ms * 1_000_000)
    return b"\x1a" + encode_length(len(timestamp)) + timestamp


def _ignore(result: object) -> None:
    """Nobody waits for the outcome: if it fails, the message comes back by itself."""

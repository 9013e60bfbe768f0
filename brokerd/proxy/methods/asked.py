"""What a receive asks for: its request, taken apart, and what the bounds of waiting make of it (pure).

A client that waits asks the same again and again, and so do those of its group: requests of equal bytes are taken apart once. The
attempt id, which a push consumer draws for each request, is the last field of what all clients encode, and is looked at alone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple
from uuid import UUID

from google.protobuf.message import DecodeError

from brokerd.pop.batch import MAX_BATCH
from brokerd.pop.requests import MAX_ATTEMPT_ID
from brokerd.pop.settings import PopSettings
from brokerd.proxy.names import group_name, topic_name
from brokerd.proxy.protobuf import definition, milliseconds, service
from brokerd.proxy.received import topic_label
from brokerd.proxy.status import Code, Refusal, status_field

# answered this long before the client's own deadline, so that an empty answer is no time-out
RESERVED_MS: Final = 100
NO_MESSAGE: Final = status_field(Code.MESSAGE_NOT_FOUND, "no new message")

_SQL: Final = definition.FilterType.Value("SQL")
_REMEMBERED_BYTES: Final = 512  # longer requests are taken apart each time
_UUID_CHARACTERS: Final = len(str(UUID(int=0)))
_ATTEMPT_ID: Final = b"\x42" + bytes((_UUID_CHARACTERS,))  # field 8 of the request: a text of that length
_ATTEMPT_BYTES: Final = len(_ATTEMPT_ID) + _UUID_CHARACTERS


class Asked(NamedTuple):
    """A request, in the broker's names. `label` is the topic as it was asked for; without `auto_renew` the client says how long
    messages are hidden. What it says of its wait may be 0."""

    group: str
    topic: str
    label: bytes
    batch_size: int
    invisible_time_ms: int
    wait_ms: int
    expression_type: str
    expression: str
    attempt_id: str
    auto_renew: bool


def asked_of(message: bytes) -> Asked:
    """Raises Refusal."""
    if len(message) > _REMEMBERED_BYTES:
        return _take_apart(message)
    if message[-_ATTEMPT_BYTES:-_UUID_CHARACTERS] == _ATTEMPT_ID and message[-_UUID_CHARACTERS:].isascii():
        try:
            asked = _remembered(message[:-_ATTEMPT_BYTES])
        except Refusal:
            return _take_apart(message)  # those bytes were the end of something else, or it is to be refused
        return asked._replace(attempt_id=message[-_UUID_CHARACTERS:].decode())
    return _remembered(message)


def _take_apart(message: bytes) -> Asked:
    try:
        request = service.ReceiveMessageRequest.FromString(message)
    except DecodeError as error:
        raise Refusal(Code.BAD_REQUEST, f"undecodable request: {error}") from error
    topic = request.message_queue.topic
    return Asked(
        topic=topic_name(topic),
        group=group_name(request.group),
        label=topic_label(topic),
        batch_size=batch_size(request.batch_size),
        invisible_time_ms=milliseconds(request.invisible_duration),
        wait_ms=milliseconds(request.long_polling_timeout),
        expression_type="SQL92" if request.filter_expression.type == _SQL else "TAG",
        expression=request.filter_expression.expression.strip() or "*",
        attempt_id=request.attempt_id[:MAX_ATTEMPT_ID],
        auto_renew=request.auto_renew,
    )


_remembered: Final = lru_cache(maxsize=1024)(_take_apart)


def batch_size(asked: int) -> int:
    """How many messages at most; clients that do not say get what fits into one answer."""
    if asked < 0:
        raise Refusal(Code.BAD_REQUEST, "batch_size must not be negative")
    return min(asked, MAX_BATCH) or MAX_BATCH


class Wait(NamedTuple):
    """How long a call waits for messages, and the status that it gets when none come."""

    ms: int
    empty: bytes = NO_MESSAGE


def wait_of(asked_ms: int, deadline_ms: int | None, now_ms: int, settings: PopSettings) -> Wait:
    """What the client asks, up to a bound, and never beyond its own deadline.

    A client whose deadline leaves no time to poll would ask again as soon as it is told that nothing is there. It gets what is
    there, and otherwise ILLEGAL_POLLING_TIME. One that says nothing about a wait is told that nothing is there.
    """
    least, longest = settings.min_wait_ms, settings.max_wait_ms
    left = longest + RESERVED_MS if deadline_ms is None else deadline_ms - now_ms
    if asked_ms <= 0:
        return Wait(max(0, min(max(left // 2, least), longest, left - RESERVED_MS)))
    if deadline_ms is not None and left + RESERVED_MS < least:  # clients round
        text = (
            f"nothing is there, and the call's deadline, {left} ms from now, is not enough for polling: {least} ms; a "
            "client's deadline is its long_polling_timeout and what it gives any request"
        )
        return Wait(0, status_field(Code.ILLEGAL_POLLING_TIME, text))
    return Wait(max(0, min(asked_ms, longest, left - RESERVED_MS)))

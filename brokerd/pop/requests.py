"""POP as the endpoints use it, without any wire format (pure).

A call never blocks; its result arrives through `done`, exactly once, at once or later on the loop: when a record is acknowledged,
a parked poll is woken, or a deadline passed. Refusals are `RequestError`s, given to `done` where the outcome type has room for
one and raised otherwise, only by argument checks that happen before anything was done. `PopService` is the implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from brokerd.metadata.start_offsets import InitMode
from remoting.errors import RequestError

MAX_ATTEMPT_ID: Final = 128  # characters; what is longer is cut


class PopRequest(NamedTuple):  # a frozen dataclass of so many fields takes 5.6 us to make, this one 1.0
    """Take up to `max_count` (<= 32) messages for `group`, hidden from the group's others for `invisible_time_ms`.

    `queue_id` -1 = any queue of this broker. `deadline_ms` is on the monotonic clock: how long to wait when nothing is there
    (now or earlier = do not wait); `client_id` is whose wait it is. `auto_renew` makes the entry a lease of that client: not due
    while it lives.
    `expression` is a tag expression (`*`, `A || B`) or SQL92 according to `expression_type` (`TAG`, `SQL92`). Without `has_tag`
    the handles are those that a client builds itself, which can be guessed (`handles`).
    """

    group: str
    topic: str
    queue_id: int
    max_count: int
    invisible_time_ms: int
    deadline_ms: int
    init_mode: InitMode = InitMode.MAX
    expression_type: str = "TAG"
    expression: str = "*"
    fifo: bool = False
    attempt_id: str = ""
    client_id: str = ""
    auto_renew: bool = False
    has_tag: bool = True


class Parked(Protocol):
    """A call that is not answered yet."""

    def cancel(self) -> None:
        """Forget it: it takes nothing, and its `done` is not called any more. What it took already is given all the same."""


class PopStatus(IntEnum):
    FOUND = 0
    NOTHING = 1  # nothing came within the time
    POLLING_FULL = 2  # too many are waiting already
    REFUSED = 3  # see error


class PoppedMessage(NamedTuple):
    """One taken message: its stored record bytes and the handle (eight or nine fields) that acks it.

    `topic` is the topic that the client asked for, also when the record was stored in the group's retry topic.
    """

    record: bytes
    topic: str
    retry_flag: int
    queue_id: int
    queue_offset: int
    receipt_handle: str
    delivery_attempt: int


@dataclass(frozen=True, slots=True)
class PopOutcome:
    """The answer to a pop; its messages are queue by queue, ascending."""

    status: PopStatus
    messages: Sequence[PoppedMessage] = ()
    pop_time_ms: int = 0
    invisible_time_ms: int = 0
    revive_queue_id: int = 0
    rest_count: int = 0
    error: RequestError | None = None


PopDone = Callable[[PopOutcome], None]


class AckStatus(IntEnum):
    OK = 0
    INVALID_HANDLE = 1  # malformed, forged, expired, or replaced by a newer handle
    FAILED = 2  # the record could not be acknowledged; the client should try again


@dataclass(frozen=True, slots=True)
class InvisibleTimeOutcome:
    """The answer to a change of the invisible time; on failure `receipt_handle` is the old one."""

    status: AckStatus
    receipt_handle: str
    pop_time_ms: int = 0
    invisible_time_ms: int = 0
    revive_queue_id: int = 0

"""What a producer may do with a transaction, and what becomes of those that nobody decides (pure)."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple

from brokerd.transactions.records import (
    CHECK_TIMES,
    IMMUNITY_S,
    NO_IMMUNITY,
    PRODUCER_GROUP,
    SECRET,
    UNIQUE_KEY,
    Half,
    immunity_ms,
)
from brokerd.transactions.settings import TransactionSettings
from brokerd.transactions.table import OpenTransactions
from remoting import codes
from remoting.errors import RequestError
from remoting.names import HALF_TOPIC
from remoting.record.codec import Record


class Outcome(IntEnum):
    """As the protocol writes it."""

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


@dataclass(frozen=True, slots=True)
class EndTransaction:
    """A producer's decision about the half message at these offsets; `from_check`: it was asked.

    `secret` is what the transaction's id proves, `unique_key` the message that it is said to be about (None: it is not said).
    """

    producer_group: str
    queue_offset: int
    physical_offset: int
    outcome: Outcome
    from_check: bool = False
    secret: str = ""
    unique_key: str | None = None


class WrongTransaction(RequestError):
    """No open transaction is what a decision is said to be about, and none will be: deciding again is in vain."""

    def __init__(self, text: str) -> None:
        super().__init__(codes.SYSTEM_ERROR, text)


class Due(Enum):
    """What the look at an open transaction asks for."""

    NOTHING = "it has time left"
    CHECK = "ask its producer"
    MOVE_UP = "it has time left, but would hold back the log"
    GIVE_UP = "it was checked often enough"


class HalfRoom(NamedTuple):
    """How many transactions may be opened now, and with how many bytes of messages."""

    halves: int
    size_bytes: int


def room_for(table: OpenTransactions, settings: TransactionSettings) -> HalfRoom:
    """What `check_admission` leaves; nothing where transactions are rejected."""
    if settings.reject:
        return HalfRoom(0, 0)
    return HalfRoom(settings.max_open - len(table), settings.max_open_bytes - table.size_bytes)


def check_admission(table: OpenTransactions, size: int, settings: TransactionSettings) -> None:
    """Raise RequestError when no transaction of that many bytes may be opened now."""
    if settings.reject:
        raise RequestError(
            codes.NO_PERMISSION, "this broker does not take transactional messages (transactions.reject is true)"
        )
    if len(table) >= settings.max_open or table.size_bytes + size > settings.max_open_bytes:
        raise RequestError(
            codes.SYSTEM_BUSY,
            f"{len(table)} transactions with {table.size_bytes} bytes are open, which is as many as this broker keeps "
            "(transactions.max_open, transactions.max_open_bytes); try again when some have ended",
        )


def check_end(
    request: EndTransaction, record: Record | None, now_ms: int, settings: TransactionSettings
) -> tuple[Record, Mapping[str, str]]:
    """The half message that a decision is about, with its properties. Raises RequestError when it cannot be about the record that
    it names, which is none, or not any more."""
    if record is None or record.topic != HALF_TOPIC:
        raise WrongTransaction(f"no half message starts at {request.physical_offset} of this broker's log")
    properties = record.property_map()
    if not hmac.compare_digest(properties.get(SECRET, "").encode(), request.secret.encode()):
        raise WrongTransaction(
            f"no half message at {request.physical_offset} of this broker's log began a transaction of this id"
        )
    # Of a record that was checked only those know who were asked about it; some clients do not say so.
    from_check = request.from_check or CHECK_TIMES in properties
    if not from_check and IMMUNITY_S in properties:
        age_ms = now_ms - record.born_timestamp_ms
        limit_ms = immunity_ms(properties, settings.timeout_ms)
        if age_ms > limit_ms:
            raise RequestError(
                codes.ILLEGAL_OPERATION,
                f"the transaction is {age_ms} ms old and was to be ended by itself within {limit_ms} ms ({IMMUNITY_S}); "
                "from then on only the answer to a check ends it",
            )
    if properties.get(PRODUCER_GROUP) != request.producer_group:
        raise WrongTransaction(f"the producer group is wrong: the half message is not of {request.producer_group}")
    if record.queue_offset != request.queue_offset:
        raise WrongTransaction(
            f"the transaction state table offset is wrong: the half message is at {record.queue_offset}, "
            f"not at {request.queue_offset}"
        )
    if record.physical_offset != request.physical_offset:
        raise WrongTransaction(f"the commit log offset is wrong: the half message is at {record.physical_offset}")
    if request.unique_key is not None and properties.get(UNIQUE_KEY) != request.unique_key:
        raise WrongTransaction(f"the half message is not {request.unique_key!r}")
    return record, properties


def decide_due(half: Half, now_ms: int, log_end: int, move_up_bytes: int, settings: TransactionSettings) -> Due:
    """What to do about an open transaction in a look at all. A message that waits long is written again before it is
    `move_up_bytes` behind the end, so that the log can be cleaned and a start has little to read."""
    age_ms = now_ms - half.since_ms
    wanted_ms = settings.timeout_ms if half.immunity_ms == NO_IMMUNITY else half.immunity_ms
    limit_ms = min(wanted_ms, settings.max_immunity_ms)
    if age_ms <= limit_ms:
        return Due.MOVE_UP if log_end - half.physical_offset > move_up_bytes else Due.NOTHING
    return Due.GIVE_UP if half.checks >= settings.check_max else Due.CHECK

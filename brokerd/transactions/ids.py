"""The id under which a gRPC client knows its transaction (pure).

It says where the half message is, so that ending a transaction needs no memory, and proves that whoever shows it was told of it:
the secret is drawn at random for each transaction and kept in the half message. `T1-{physical}-{queue offset}-{secret}-{broker}`;
numbers are decimal without leading zeros, the secret is 32 lower-case hexadecimal digits. There is one way to write an id.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

SECRET_BYTES: Final = 16
SECRET_LENGTH: Final = 2 * SECRET_BYTES

_ID: Final = re.compile(r"T1-(0|[1-9][0-9]{0,18})-(0|[1-9][0-9]{0,18})-([0-9a-f]{32})-([^\x00-\x1f]{1,255})", re.ASCII)


class TransactionId(NamedTuple):
    """Where a half message is, and what only its producer and its brokers know."""

    physical_offset: int
    queue_offset: int
    secret: str
    broker_name: str

    def __str__(self) -> str:
        return f"T1-{self.physical_offset}-{self.queue_offset}-{self.secret}-{self.broker_name}"


def parse_transaction_id(text: str) -> TransactionId | None:
    """The id that is written so; None for any other text."""
    found = _ID.fullmatch(text)
    if found is None:
        return None
    physical_offset, queue_offset, secret, broker_name = found.groups()
    return TransactionId(int(physical_offset), int(queue_offset), secret, broker_name)

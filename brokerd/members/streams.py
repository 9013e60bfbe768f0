"""The way to a gRPC client: what a broker says to it without being asked, over its telemetry stream (pure).

The stream may end at this broker or at a replica that the client chose; who speaks on it need not know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from remoting.errors import LogboomError
from remoting.record.codec import Record


class Told(NamedTuple):
    """What a client answered: its status in the numbers of the gRPC protocol, and a text (a remark, or what its threads do)."""

    code: int
    text: str


Answered = Callable[[Told | LogboomError], None]


class CommandStream(Protocol):
    """One client's stream. What is sent on it may be lost with the client."""

    @property
    def is_open(self) -> bool:
        """The stream is there and the client reads it."""

    def recover_orphan(self, half: Record, transaction_id: str) -> bool:
        """Ask a producer what became of a transaction; it answers by ending it. Whether the question was sent."""

    def verify_message(self, record: Record, timeout_ms: int, answered: Answered) -> None:
        """Let a consumer consume one message now; `answered` gets how that went, or why nobody knows, exactly once."""

    def print_threads(self, timeout_ms: int, answered: Answered) -> None:
        """Ask what the client's threads are doing; `answered` as above."""

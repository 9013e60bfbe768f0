"""Sending as the endpoints use it, without any wire format (pure).

A call never blocks; its result arrives through `done`, exactly once, at once or later on the loop, when the records are
acknowledged. `MessageSender` is the implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from brokerd.store.draft import Draft
from brokerd.store.put_status import PutStatus
from remoting.errors import RequestError

ROLE_CHANGED: Final = "the role of this broker changed while the message waited; whether it is stored is unknown"


class SendOutcome(NamedTuple):
    """What became of one draft. Offsets are -1 when nothing was stored; `error` says why and what to do.

    Of a half message, and of one that waits for its time, the queue is that of its message, the offsets are its own.
    `recall_handle` recalls a message that waits for a moment of its own ("" for any other).
    """

    status: PutStatus
    queue_id: int = -1
    queue_offset: int = -1
    physical_offset: int = -1
    error: RequestError | None = None
    recall_handle: str = ""


class Sender(Protocol):
    def send(self, drafts: Sequence[Draft], done: Callable[[Sequence[SendOutcome]], None]) -> None:
        """Append all drafts in one go; `done` gets one outcome per draft, in order, when the last is acknowledged or failed."""

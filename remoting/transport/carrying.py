"""Who writes to sockets beside the loop, and who lends them to him (pure).

One that is lent for a piece gets a ticket. Until that is through, he writes nothing else, and his socket stays open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from remoting.disk import Bytes


def nothing() -> None:
    """Done before somebody asks, where he sees what was answered without it."""


class Lender(Protocol):
    """What a carrier needs of a connection."""

    def lend(self, ticket: int, seen: int, count: int) -> int:
        """The descriptor to write the answers of `count` two-way requests to; the ticket is for this piece, 0 for who writes them
        now. -1 when something is to be written before them, or nobody else may write. All tickets up to `seen` are through."""

    def keep_lent(self, ticket: int) -> None:
        """What was lent for now is the piece's with that ticket."""

    def lend_more(self, count: int) -> tuple[int, int]:
        """The same while it may be lent for a piece that is not through: the descriptor, and the ticket of that. Nothing is
        written unless all of that was."""

    def go_away(self, seen: int, most_bytes: int = 0) -> tuple[int, int, bytes]:
        """From now on somebody else reads, and answers: the descriptor, the ticket of the piece that is under way, 0 for none,
        and what was read of a frame that is not all there, and has no more than so many bytes. -1 when something is to be read
        or written before."""

    def come_back(self, data: Bytes) -> None:
        """Read again, and send what waited; this was read meanwhile and not taken."""

    def give_back(self, rest: Bytes) -> None:
        """The socket did not take this; it is to be sent before everything else, but what was given back before."""

    def take_out(self) -> Sequence[Bytes]:
        """What is to be sent: somebody else sends it."""

    def go_on_sending(self) -> None:
        """Send what waited, or was given back."""

    def abort(self) -> None:
        """Close: what was begun cannot be sent to its end."""


class Carrier(Protocol):
    """What a lender needs of it."""

    def keeps(self, lender: Lender, ticket: int) -> bool:
        """Whether the piece is not through yet, which is neither written nor is what is left of it given back. Then what is to be
        sent is sent here, or the lender is told to go on sending when it is."""

    def finish(self, ticket: int) -> None:
        """Return when the piece is through."""

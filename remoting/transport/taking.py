"""Who takes requests undecoded from a connection, and how many at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from remoting.frame import Command
from remoting.transport.carrying import Carrier
from remoting.transport.watch import Watch

if TYPE_CHECKING:
    from remoting.transport.connection import RemotingConnection

MOST_TAKEN: Final = 128  # requests of one connection, before the others of the loop have their turn


class RequestTaker(Protocol):
    """Takes requests of one kind one by one, as they were received."""

    def take(self, connection: RemotingConnection, buffer: bytes, position: int) -> int:
        """Answer the request whose frame begins there, or `owe` the connection an answer: where it ends. The same position when
        it is to be decoded."""


@dataclass(frozen=True, slots=True)
class Intake:
    """What a listener's connections count unfinished frames with. `may_send_much` is asked, where requests are signed, for the
    header of a long frame on a connection that has not shown who it is yet; None = nobody is asked who he is. `quick` is shown
    what would be decoded otherwise. A carrier may write answers."""

    watch: Watch
    may_send_much: Callable[[Command], bool] | None = None
    quick: RequestTaker | None = None
    carrier: Carrier | None = None


class BufferTaker(Protocol):
    """Takes requests of one kind in bulk, as they were received."""

    @property
    def goes_first(self) -> bool:
        """Whether it has something to take: what others asked meanwhile is handled behind that."""

    def offer(self, connection: RemotingConnection, buffer: bytes) -> bool:
        """Whether to take requests from the buffer, `MOST_TAKEN` of them at most.

        If so, the taker calls `go_on` once in a later turn, unless `connection.offered` is empty by then. Until it does, the
        connection handles nothing else, so its requests stay in order.
        """

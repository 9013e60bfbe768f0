"""Who takes requests undecoded from a connection, and how many at a time."""

from __future__ import annotations

from typing import Final, Protocol, TypeVar

Connection = TypeVar("Connection", contravariant=True)

MOST_TAKEN: Final = 128  # requests of one connection, before the others of the loop have their turn


class RequestTaker(Protocol[Connection]):
    """Takes requests of one kind one by one, as they were received."""

    def take(self, connection: Connection, buffer: bytes, position: int) -> int:
        """Answer the request whose frame begins there, or `owe` the connection an answer: where it ends. The same position when
        it is to be decoded."""


class BufferTaker(Protocol[Connection]):
    """Takes requests of one kind in bulk, as they were received."""

    @property
    def goes_first(self) -> bool:
        """Whether it has something to take: what others asked meanwhile is handled behind that."""

    def offer(self, connection: Connection, buffer: bytes) -> bool:
        """Whether to take requests from the buffer, `MOST_TAKEN` of them at most.

        If so, the taker calls `go_on` once in a later turn, unless `connection.offered` is empty by then. Until it does, the
        connection handles nothing else, so its requests stay in order.
        """

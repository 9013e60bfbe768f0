"""Who takes requests undecoded from a connection, and how many at a time."""

from __future__ import annotations

from typing import Any, Final, Protocol, TypeVar

Connection = TypeVar("Connection", contravariant=True)

MOST_TAKEN: Final = 128  # requests of one connection, before the others of the loop have their turn
WORTH_WHILE: Final = 2  # requests answered elsewhere, of one connection at a time
_DENSE_S: Final = 0.005
_DENSE_FOR_DISK_S: Final = 0.02  # each of many has a sync or two between what he sends
_OFTEN: Final = 4
_LONG: Final = 64  # requests; behind each further failure twice as many
_LONGEST: Final = 4096


class Density:
    """Whether somebody asks so densely that it is worth while to have others read what he asks."""

    __slots__ = ("_count", "_last_s", "_rest", "kinds")

    def __init__(self) -> None:
        self._count = (
            0  # of his requests up to now, each soon after the one before; below 0 while it was not worth while
        )
        self._last_s = 0.0
        self._rest = _LONG
        self.kinds: dict[int, Any] = {}  # what he asked of late, as whoever takes that knows it, and bounds it

    def note(self, now_s: float, *, waits_for_disk: bool = False) -> bool:
        """He asks now; whether that is dense. Who waits for the disk cannot ask as densely as others."""
        dense_s = _DENSE_FOR_DISK_S if waits_for_disk else _DENSE_S
        self._count = self._count + 1 if now_s - self._last_s <= dense_s else min(self._count, 0)
        self._last_s = now_s
        return self._count >= _OFTEN

    def came_back(self, answers: int, worth_while: int = WORTH_WHILE) -> None:
        """Others answered so many; if that were too few, it is tried again after many more."""
        if answers < worth_while:
            self._count = -self._rest
            self._rest = min(2 * self._rest, _LONGEST)
        else:
            self._rest = _LONG


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

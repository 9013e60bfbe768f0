"""Where records end in raw log bytes that arrive in pieces cut anywhere, as a replica receives them (pure)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from remoting.disk import Bytes
from remoting.errors import ProtocolError
from remoting.record.walk import START_BYTES, Stop, describe_damage, look, walk


class Fed(NamedTuple):
    """The records that became whole by what was fed: the one that began before it, as its offsets in the log, which is empty when
    there is none; and where in the data the others begin."""

    first: range
    others: list[int]


_NO_RECORD = range(0)


class BoundaryTracker:
    """Follows the boundaries of records. `complete_offset` is the end of the last whole record or filler.

    Bytes that cannot be a log (bad magic, size out of bounds, a record that names another offset or crosses a file) are refused
    as soon as the start of the record is there.
    """

    __slots__ = ("_file_size", "_head", "_max_record_bytes", "complete_offset")

    def __init__(self, offset: int, file_size: int, max_record_bytes: int) -> None:
        self.complete_offset = offset
        self._file_size = file_size
        self._max_record_bytes = max_record_bytes
        self._head = b""  # the first bytes of the record that is not yet whole

    def copy(self) -> BoundaryTracker:
        """Another one that stands where this one does."""
        twin = BoundaryTracker(self.complete_offset, self._file_size, self._max_record_bytes)
        twin._head = self._head
        return twin

    def move(self, offset: int) -> None:
        """Continue at another boundary, forgetting any part of a record."""
        self.complete_offset = offset
        self._head = b""

    def feed(self, offset: int, data: Bytes, check: Callable[[Fed], None] | None = None) -> None:
        """Take the bytes at `offset`; raises ProtocolError, changing nothing, when they cannot be part of a log.

        `check` is told the records that become whole, before what stands behind them is refused: it may raise what is wrong with
        them, which is then what is wrong with the bytes.
        """
        complete = self.complete_offset
        first = _NO_RECORD
        if complete < offset:
            head = self._head + bytes(data[: max(0, START_BYTES - len(self._head))])
            stop, size, is_record = look(head, 0, complete, self._file_size, self._max_record_bytes)
            if stop is Stop.DAMAGED:
                raise self._refusal(head, 0, complete)
            if not size or complete + size > offset + len(data):
                self._head = head
                return
            if is_record:
                first = range(complete, complete + size)
            complete += size
        file_size, most = self._file_size, self._max_record_bytes
        others, end, stop, _ = walk(data, complete - offset, complete, file_size, most)
        if check is not None:
            check(Fed(first, others))
        if stop is Stop.DAMAGED:
            raise self._refusal(data, end, offset + end)
        self.complete_offset, self._head = offset + end, bytes(data[end : end + START_BYTES])

    def _refusal(self, data: Bytes, position: int, offset: int) -> ProtocolError:
        why = describe_damage(data, position, offset, self._file_size)
        return ProtocolError(f"{why}; all replicas of a group need the same store.segment_size_bytes")

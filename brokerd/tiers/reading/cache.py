"""Messages of the tier in memory: pieces of queues, at most so many bytes (pure).

Who reads on and on hardly needs again what he read to its end, and soon what was fetched ahead of him, which nobody used yet.
So those pieces go first that somebody read to the end, then the one not used for longest. Who reads much at once, as reports
do, reads it once and alone: what he read to its end has a small part of the room. So he pushes out little of what consumers
share, and what is fetched for him next goes to memory that was just used, which is found in a fraction of the time that new
memory takes.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable
from operator import attrgetter

from brokerd.store.unit import UNIT, UNIT_BYTES
from remoting.disk import Bytes
from remoting.tier.contents import Queue

_GOOD_PART = 8  # an answer keeps no more than so many times as much in memory, until its client reads it or is behind
_ONCE_PART = 8  # of the room, for what was read by who reads it once
_PIECE_BYTES = 400  # about what a piece takes besides its content


class Piece:
    """Messages `[first, end)` of a queue, as they are stored: what a reader wants of them is found when he asks."""

    __slots__ = ("_begin", "_entries", "content", "end", "first", "queue", "read_to", "size")

    def __init__(self, queue: Queue, first: int, entries: Bytes, content: Bytes) -> None:
        """`entries` of the messages, whose records are the content, one behind the other."""
        self.queue = queue
        self.first = first
        self.end = first + len(entries) // UNIT_BYTES
        self.content = content
        self.read_to = first  # how far somebody read it
        self._entries = entries
        self._begin: int = UNIT.unpack_from(entries)[0]
        self.size = _memory_of(content) + len(entries) + _PIECE_BYTES

    @property
    def messages(self) -> int:
        return self.end - self.first

    def place(self, queue_offset: int) -> int:
        """Where the message begins in the content; the content's end behind the last one."""
        if queue_offset == self.end:
            return len(self.content)
        found: int = UNIT.unpack_from(self._entries, (queue_offset - self.first) * UNIT_BYTES)[0]
        return found - self._begin

    def code(self, queue_offset: int) -> int:
        """The message's tags code."""
        found: int = UNIT.unpack_from(self._entries, (queue_offset - self.first) * UNIT_BYTES)[2]
        return found

    def record(self, queue_offset: int) -> bytes:
        """The bytes of one message."""
        return bytes(self.content[self.place(queue_offset) : self.place(queue_offset + 1)])

    def joined(self, first: int, end: int) -> Bytes:
        """Those of several, one behind the other; no copy when they are a good part of the content, which stays while they do."""
        begin, stop = self.place(first), self.place(end)
        if memoryview(self.content).readonly and (stop - begin) * _GOOD_PART >= len(self.content):
            return memoryview(self.content)[begin:stop]
        return bytes(self.content[begin:stop])

    def fitting(self, first: int, end: int, max_bytes: int) -> int:
        """The end of the messages from the first one on that have no more bytes, at least one."""
        last = self.place(first) + max_bytes
        return first + max(1, bisect_right(range(first + 1, end + 1), last, key=self.place))


class Cache:
    """All pieces. Those of a queue do not overlap. `dropped` is told of each that had to go, and was not read to its end."""

    def __init__(self, max_bytes: int, dropped: Callable[[Piece], None] = lambda _: None) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._dropped = dropped
        self._used: OrderedDict[Piece, None] = OrderedDict()  # the one not used for longest first, here and below
        self._finished: OrderedDict[Piece, None] = OrderedDict()
        self._read_once: OrderedDict[Piece, None] = OrderedDict()
        self._once_bytes = 0
        self._by_queue: dict[Queue, list[Piece]] = {}

    def __len__(self) -> int:
        return len(self._used) + len(self._finished) + len(self._read_once)

    def find(self, queue: Queue, queue_offset: int) -> Piece | None:
        """The piece that has the message; it counts as used."""
        pieces = self._by_queue.get(queue, ())
        number = bisect_right(pieces, queue_offset, key=attrgetter("first")) - 1
        if number < 0 or queue_offset >= pieces[number].end:
            return None
        piece = pieces[number]
        self._row_of(piece).move_to_end(piece)
        return piece

    def was_read(self, piece: Piece, up_to: int, *, once: bool = False) -> None:
        """By somebody, of what is kept here; `once`: who comes to its end is not expected to have others behind him."""
        piece.read_to = max(piece.read_to, up_to)
        if piece.read_to < piece.end or self._used.pop(piece, piece) is not None:
            return
        if not once:
            self._finished[piece] = None
            return
        self._read_once[piece] = None
        self._once_bytes += piece.size
        while self._once_bytes * _ONCE_PART > self.max_bytes and len(self._read_once) > 1:
            self._remove(next(iter(self._read_once)))

    def room_behind(self, queue: Queue, queue_offset: int, end: int) -> int:
        """Up to where, `end` at most, no piece has what follows an offset that none has."""
        pieces = self._by_queue.get(queue, ())
        number = bisect_right(pieces, queue_offset, key=attrgetter("first"))
        return min(end, pieces[number].first) if number < len(pieces) else end

    def add(self, piece: Piece) -> None:
        """Keep it, unless other pieces have some of it already; those that have to go do."""
        pieces = self._by_queue.setdefault(piece.queue, [])
        number = bisect_right(pieces, piece.first, key=attrgetter("first"))
        before = pieces[number - 1].end if number else 0
        if before > piece.first or (number < len(pieces) and pieces[number].first < piece.end):
            return
        insort(pieces, piece, key=attrgetter("first"))
        self._used[piece] = None
        self.bytes += piece.size
        while self.bytes > self.max_bytes and len(self) > 1:
            self._remove(next(iter(self._read_once or self._finished or self._used)))

    def forget(self, topic: str | None) -> None:
        """What the tier has of the topic, or of any, may be something else now."""
        for queue in [queue for queue in self._by_queue if topic is None or queue.topic == topic]:
            for piece in self._by_queue.pop(queue):
                self._forget(piece)

    def _remove(self, piece: Piece) -> None:
        self._forget(piece)
        pieces = self._by_queue[piece.queue]
        pieces.remove(piece)
        if not pieces:
            del self._by_queue[piece.queue]
        if piece.read_to < piece.end:
            self._dropped(piece)

    def _forget(self, piece: Piece) -> None:
        row = self._row_of(piece)
        del row[piece]
        self.bytes -= piece.size
        if row is self._read_once:
            self._once_bytes -= piece.size

    def _row_of(self, piece: Piece) -> OrderedDict[Piece, None]:
        """Where it stands."""
        if piece in self._used:
            return self._used
        return self._finished if piece in self._finished else self._read_once


def _memory_of(content: Bytes) -> int:
    """How many bytes stay in memory as long as it does: what it is a part of may have more."""
    return memoryview(memoryview(content).obj).nbytes

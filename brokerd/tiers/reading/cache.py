"""Messages of the tier in memory: pieces of queues, at most so many bytes; the one not used for longest goes first (pure)."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable
from itertools import accumulate
from operator import attrgetter

from brokerd.store.unit import UNIT
from remoting.tier.contents import Queue

_PIECE_BYTES = 400  # about what a piece takes besides its content
_ENTRY_BYTES = 40  # and each message of it


class Piece:
    """Messages `[first, end)` of a queue."""

    __slots__ = ("codes", "content", "end", "first", "places", "queue", "read_to")

    def __init__(self, queue: Queue, first: int, entries: bytes, content: bytes) -> None:
        """`entries` of the messages, whose records are the content, one behind the other."""
        units = list(UNIT.iter_unpack(entries))
        self.queue = queue
        self.first = first
        self.end = first + len(units)
        self.places = list(accumulate((size for _, size, _ in units), initial=0))
        self.codes = [code for _, _, code in units]
        self.content = content
        self.read_to = first  # how far somebody read it

    @property
    def size(self) -> int:
        return len(self.content) + _PIECE_BYTES + _ENTRY_BYTES * len(self.codes)

    def record(self, queue_offset: int) -> bytes:
        """The bytes of one message."""
        number = queue_offset - self.first
        return self.content[self.places[number] : self.places[number + 1]]


class Cache:
    """All pieces. Those of a queue do not overlap. `dropped` is told of each that had to go, and was not read to its end."""

    def __init__(self, max_bytes: int, dropped: Callable[[Piece], None] = lambda _: None) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._dropped = dropped
        self._used: OrderedDict[Piece, None] = OrderedDict()
        self._by_queue: dict[Queue, list[Piece]] = {}

    def __len__(self) -> int:
        return len(self._used)

    def find(self, queue: Queue, queue_offset: int) -> Piece | None:
        """The piece that has the message; it counts as used."""
        pieces = self._by_queue.get(queue, ())
        number = bisect_right(pieces, queue_offset, key=attrgetter("first")) - 1
        if number < 0 or queue_offset >= pieces[number].end:
            return None
        self._used.move_to_end(pieces[number])
        return pieces[number]

    def room_behind(self, queue: Queue, queue_offset: int, end: int) -> int:
        """Up to where, `end` at most, no piece has what follows an offset that none has."""
        pieces = self._by_queue.get(queue, ())
        number = bisect_right(pieces, queue_offset, key=attrgetter("first"))
        return min(end, pieces[number].first) if number < len(pieces) else end

    def add(self, piece: Piece) -> None:
        """Keep it, unless others have some of it already; what was not used for longest makes room."""
        pieces = self._by_queue.setdefault(piece.queue, [])
        number = bisect_right(pieces, piece.first, key=attrgetter("first"))
        before = pieces[number - 1].end if number else 0
        if before > piece.first or (number < len(pieces) and pieces[number].first < piece.end):
            return
        insort(pieces, piece, key=attrgetter("first"))
        self._used[piece] = None
        self.bytes += piece.size
        while self.bytes > self.max_bytes and len(self._used) > 1:
            self._remove(next(iter(self._used)))

    def forget(self, topic: str | None) -> None:
        """What the tier has of the topic, or of any, may be something else now."""
        for queue in [queue for queue in self._by_queue if topic is None or queue.topic == topic]:
            for piece in self._by_queue.pop(queue):
                del self._used[piece]
                self.bytes -= piece.size

    def _remove(self, piece: Piece) -> None:
        del self._used[piece]
        self.bytes -= piece.size
        pieces = self._by_queue[piece.queue]
        pieces.remove(piece)
        if not pieces:
            del self._by_queue[piece.queue]
        if piece.read_to < piece.end:
            self._dropped(piece)

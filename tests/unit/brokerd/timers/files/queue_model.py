"""The timer topic's queue as a list, and what the timer files must find in it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from brokerd.store.derived.followers import FollowerWrite
from brokerd.store.unit import Unit
from brokerd.timers.codes import MESSAGE, RECALL, SLOT_MS, START, Key, due_of, encode_code, key_of, kind_of
from brokerd.timers.done import Done
from brokerd.timers.far import Far
from brokerd.timers.files.layout import Shape, slot_for
from brokerd.timers.files.source import Delivered, Origin
from brokerd.timers.files.timer_files import TimerFiles
from brokerd.timers.said import Said
from remoting.disk import Disk

RECORD_SIZE = 100
TINY = Shape(slots=15, file_bytes=4 * 52 + 20)  # four timers a file
ORIGIN = Origin(0x1234, 1_000, False)


class ListedQueue:
    """`TimerSource` of which a test decides everything."""

    def __init__(self) -> None:
        self.end_offset = 0
        self.codes: list[int] = []
        self.places: list[int] = []  # where the records begin
        self.low = 0
        self.history = [Delivered(Done(START), 0)]
        self.marked_ms = 2 * SLOT_MS
        self.unseen = 0  # of the history, since less is dispatched than was before

    @property
    def cursor(self) -> Key:
        return self.history[-1].done.cursor

    def add(self, due_ms: int, kind: int = MESSAGE) -> None:
        self.codes.append(encode_code(due_ms, kind))
        self.places.append(self.end_offset)
        self.end_offset += RECORD_SIZE

    def deliver(self, cursor: Key) -> None:
        """Everything up to the cursor, and the log says so at its end."""
        self.end_offset += 1
        self.history.append(Delivered(self.history[-1].done.passed(cursor), self.end_offset))

    def set_back(self, cursor: Key) -> None:
        """The cursor goes there, and a fence keeps what was delivered."""
        self.end_offset += 1
        done = self.history[-1].done.set_back(cursor, len(self.codes))
        self.history.append(Delivered(done, self.end_offset))

    def cut(self, end: int) -> None:
        """The log ends before the record of that queue offset."""
        end = max(self.low, end)
        if end < len(self.codes):
            self.end_offset = self.places[end]
            del self.codes[end:], self.places[end:]
            while self.history[-1].known_at > self.end_offset:
                self.history.pop()

    def delivered(self) -> Delivered | None:
        shown = self.history[: len(self.history) - self.unseen]
        return shown[-1] if shown else None

    def log_range(self) -> tuple[int, int]:
        return self.places[self.low] if self.low < len(self.places) else self.end_offset, self.end_offset

    def queue_range(self) -> tuple[int, int]:
        return self.low, len(self.codes)

    def units(self, first: int, count: int) -> Sequence[Unit]:
        assert first >= self.low
        end = min(first + count, len(self.codes))
        return [(self.places[offset], RECORD_SIZE, self.codes[offset]) for offset in range(first, end)]

    known_units = units

    def origin(self, physical_offset: int, size: int) -> Origin:
        """A delete marker takes back what is in the slot `marked_ms` behind its own."""
        code = self.codes[bisect_left(self.places, physical_offset)]
        return ORIGIN._replace(slot_ms=slot_for(due_of(code)) + self.marked_ms) if kind_of(code) == RECALL else ORIGIN

    def said(self, first: int, count: int, least_ms: int) -> Said | None:
        """It has no records."""
        return None

    def expected(self, after: Key, until_ms: int, limit: int, end: int) -> list[tuple[int, int]]:
        """What `between` has to find of the entries before `end`."""
        behind = max(after, self.cursor)
        found = [
            (key_of(self.codes[offset], offset), self.codes[offset])
            for offset in range(self.low, min(end, len(self.codes)))
        ]
        return [(code, key.offset) for key, code in sorted(found) if behind < key and key.due_ms < until_ms][:limit]


def make_files(disk: Disk, queue: ListedQueue, shape: Shape = TINY, most_records: int = 3) -> TimerFiles:
    return TimerFiles(disk, queue, shape, most_records)


def open_files(disk: Disk, queue: ListedQueue, *, known: bool = True, clean: bool = False) -> TimerFiles:
    """What a start finds."""
    files = make_files(disk, queue)
    files.load(known=known, clean=clean)
    return files


def follow(files: TimerFiles, queue: ListedQueue) -> None:
    """Take all that there is, or as much as there is room for."""
    while files.step() or files.take(queue.end_offset, 4 << 9):
        pass


def write(files: TimerFiles) -> None:
    """A checkpoint."""
    written: FollowerWrite | None = files.begin_write(closing=True)
    if written is not None:
        written.run()
        files.finish_write(written)


def ask(files: Far, after: Key | None = None, until_ms: int = 1 << 50, limit: int = 1000) -> list[tuple[int, int]]:
    """The answer, in as many calls as it takes; from the cursor on, if nothing else is said."""
    if after is None:
        delivered = files._source.delivered() if isinstance(files, TimerFiles) else None
        after = START if delivered is None else delivered.done.cursor
    for _ in range(10_000):
        found = files.between(after, until_ms, limit)
        if found is not None:
            return list(found)
    raise AssertionError("the question is never answered")

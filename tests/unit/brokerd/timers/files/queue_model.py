"""The timer topic's queue as a list, and what the timer files must find in it."""

from __future__ import annotations

from collections.abc import Sequence

from brokerd.store.derived.followers import FollowerWrite
from brokerd.store.unit import Unit
from brokerd.timers.codes import MESSAGE, START, Key, encode_code, key_of
from brokerd.timers.files.layout import Shape
from brokerd.timers.files.source import Origin
from brokerd.timers.files.timer_files import TimerFiles
from remoting.disk import Disk

RECORD_SIZE = 100
TINY = Shape(slots=16, file_bytes=4 * 52 + 20)  # four timers a file
ORIGIN = Origin(0x1234, 1_000, False)


class ListedQueue:
    """`TimerSource` of which a test decides everything. Record n stands at n * RECORD_SIZE."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.low = 0
        self.cursor: Key | None = START

    @property
    def end_offset(self) -> int:
        return len(self.codes) * RECORD_SIZE

    def add(self, due_ms: int, kind: int = MESSAGE) -> None:
        self.codes.append(encode_code(due_ms, kind))

    def log_range(self) -> tuple[int, int]:
        return self.low * RECORD_SIZE, self.end_offset

    def queue_range(self) -> tuple[int, int]:
        return self.low, len(self.codes)

    def units(self, first: int, count: int) -> Sequence[Unit]:
        assert first >= self.low
        return [
            (offset * RECORD_SIZE, RECORD_SIZE, self.codes[offset])
            for offset in range(first, min(first + count, len(self.codes)))
        ]

    known_units = units

    def origin(self, physical_offset: int, size: int) -> Origin:
        return ORIGIN

    def expected(self, after: Key, until_ms: int, limit: int, end: int) -> list[tuple[int, int]]:
        """What `between` has to find of the entries before `end`."""
        assert self.cursor is not None
        behind = max(after, self.cursor)
        found = [
            (key_of(self.codes[offset], offset), self.codes[offset]) for offset in range(self.low, min(end, len(self.codes)))
        ]
        return [(code, key.offset) for key, code in sorted(found) if behind < key and key.due_ms < until_ms][:limit]


def make_files(disk: Disk, queue: ListedQueue, shape: Shape = TINY, most_records: int = 3) -> TimerFiles:
    return TimerFiles(disk, queue, lambda: queue.cursor, shape, most_records)


def open_files(disk: Disk, queue: ListedQueue, *, known: bool = True, clean: bool = False) -> TimerFiles:
    """What a start finds."""
    files = make_files(disk, queue)
    files.load(known=known, clean=clean)
    return files


def follow(files: TimerFiles, queue: ListedQueue) -> None:
    """Take all that there is, or as much as there is room for."""
    while files.take(queue.end_offset, 4 << 9):
        pass


def write(files: TimerFiles) -> None:
    """A checkpoint."""
    written: FollowerWrite | None = files.begin_write(closing=True)
    if written is not None:
        written.run()
        files.finish_write(written)


def ask(files: TimerFiles, after: Key = START, until_ms: int = 1 << 50, limit: int = 1000) -> list[tuple[int, int]]:
    """The answer, in as many calls as it takes."""
    for _ in range(10_000):
        found = files.between(after, until_ms, limit)
        if found is not None:
            return list(found)
    raise AssertionError("the question is never answered")

"""New units of consume queues on their way to files, in a helper thread while the loop goes on."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, NamedTuple

from brokerd.store.queues.consume_queue import ConsumeQueue, QueueFiles
from brokerd.store.queues.native_writes import NativeWrites, UnitsOf
from remoting.disk import Disk

_ONE_BY_ONE: Final = 64
_PARTS_IN_TURN: Final = 4  # a cut waits for so many syncs
_WRITERS: Final = 32
_PARTS_UNDER_LOCK: Final = 256


class QueuePart(NamedTuple):
    """Units of one queue to be written."""

    queue: ConsumeQueue
    generation: int
    first: int
    units: bytes


class Untaken(NamedTuple):
    """Queues that a write has not looked at yet: those that have something for it, and those that kept units in memory so far."""

    warm: deque[ConsumeQueue]
    dirty: deque[ConsumeQueue]


@dataclass(slots=True)
class QueueWrite:
    """A set of units to make durable. `run` blocks and belongs into a helper thread; it skips queues that were cut meanwhile. The
    queues of so many parts know that they are written (`finished`)."""

    disk: Disk
    files: QueueFiles
    parts: list[QueuePart]
    doomed: list[str]
    lock: threading.Lock
    native: NativeWrites | None
    untaken: Untaken
    finished: int = 0

    def run(self) -> None:
        for directory in self.doomed:
            self.disk.remove(directory)
        if len(self.parts) <= _ONE_BY_ONE:
            for first in range(0, len(self.parts), _PARTS_IN_TURN):
                with self.lock:
                    self._write(self.parts[first : first + _PARTS_IN_TURN])
            return
        # Each file needs a sync of its own; the file system does many at a time for the price of one.
        with ThreadPoolExecutor(_WRITERS, "queue writer") as pool:
            for first in range(0, len(self.parts), _PARTS_UNDER_LOCK):
                with self.lock:
                    parts = self.parts[first : first + _PARTS_UNDER_LOCK]
                    for _ in pool.map(self._write, [parts[each::_WRITERS] for each in range(_WRITERS)]):
                        pass

    def _write(self, parts: list[QueuePart]) -> None:
        present = [part for part in parts if part.queue.generation == part.generation]
        if self.native is not None and present:
            self.native.write([UnitsOf(queue.directory, first, units) for queue, _, first, units in present])
            return
        for queue, _, first, units in present:
            self.files.write(queue.directory, first, units)

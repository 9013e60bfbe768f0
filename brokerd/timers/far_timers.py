"""Far timers by the files, as far as these follow the timer topic's queue, and by the queue itself from there on.

The files follow when there is time for it, or are made again, so what they lack may be anything from nothing to all timers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from brokerd.store.unit import Unit
from brokerd.timers.codes import Key, key_of
from brokerd.timers.done import Done
from brokerd.timers.due_entries import DueEntries
from brokerd.timers.far import Far, Found
from brokerd.timers.queue_far import QueueFar


class FarTimers:
    """A `far.Far`. `queue_range`, `read_units` and `entries` are as for QueueFar."""

    def __init__(
        self,
        files: Far,
        queue_range: Callable[[], tuple[int, int]],
        read_units: Callable[[int, int], Sequence[Unit]],
        entries: DueEntries | None = None,
    ) -> None:
        self._files = files
        self._queue_range = queue_range
        self._followed = 0  # how far the files were when the queue was looked at last
        self._joint: int | None = None  # where the two parts of the answer under way meet
        self._asked: tuple[Key, int, int] | None = None
        self._found: Sequence[Found] = ()
        self._queue = QueueFar(self._behind_files, read_units, entries)

    def _behind_files(self) -> tuple[int, int]:
        """The part of the queue that the files lack."""
        low, end = self._queue_range()
        begin = self._files.applied if self._joint is None else self._joint
        return max(low, min(begin, end)), end

    def _look_back(self) -> None:
        """The files may have begun again: then the queue is to be looked through again, too."""
        applied = self._files.applied
        if applied < self._followed:
            self._queue.truncated(applied)
        self._followed = applied
        if self._joint is not None and applied < self._joint:
            self._joint = self._asked = None

    # ---- far.Far

    @property
    def applied(self) -> int:
        self._look_back()
        return max(self._queue.applied, self._files.applied)

    def between(self, after: Key, until_ms: int, limit: int) -> Sequence[Found] | None:
        self._look_back()
        if self._joint is None or self._asked != (after, until_ms, limit):
            self._joint, self._asked = None, (after, until_ms, limit)
            found = self._files.between(after, until_ms, limit)
            if found is None:
                return None
            self._look_back()
            self._found, self._joint = found, self._files.applied
        behind = self._queue.between(after, until_ms, limit)
        if behind is None:
            return None
        joint, self._joint = self._joint, None
        behind = [each for each in behind if each[1] >= joint]
        if not (self._found and behind):  # each is in order
            return [*self._found, *behind][:limit]
        return sorted([*self._found, *behind], key=lambda each: key_of(*each))[:limit]

    def held_queue_offset(self, done: Done) -> int:
        self._look_back()
        held = self._files.held_queue_offset(done)
        return held if held < self._files.applied else max(held, self._queue.held_queue_offset(done))

    def step(self) -> bool:
        has_more = self._files.step()
        self._look_back()
        return self._queue.step() or has_more

    def arrived(self, end: int, codes: Sequence[int]) -> None:
        self._look_back()
        self._queue.arrived(end, codes)

    def truncated(self, end: int) -> None:
        self._files.truncated(end)
        self._queue.truncated(end)
        self._joint = self._asked = None

    def rebuild(self) -> None:
        self._files.rebuild()
        self._look_back()

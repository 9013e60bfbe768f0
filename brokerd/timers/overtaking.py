"""Letting the newest timers overtake, while those in front of them are late.

When the first one that is due is late by `LATE_MS`, and more wait in front of the newest than are worth a thought, those are left
behind (`lanes.py`). That is recorded, so that what is sent from there on is due behind the split, and nobody takes for delivered
what was left. Delete markers do not stay behind: what they take back may be among the newest. Those of clients were due in the
millisecond behind the front when they came, so all of them are in memory when that is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from brokerd.timers.batch import Batch, Batches
from brokerd.timers.codes import last_of
from brokerd.timers.lanes import MAX_LEFT, Lanes

LATE_MS: Final = 400
TAIL_BATCHES: Final = 4  # of the newest that are due already may go on in front
_MARKERS_AT_ONCE: Final = 256


class Overtaking:
    """For a master, from `begin` on. `append` says whether the log has the batch."""

    def __init__(self, lanes: Lanes, batches: Batches, batch_messages: int, append: Callable[[Batch], bool]) -> None:
        self._lanes = lanes
        self._batches = batches
        self._most = TAIL_BATCHES * batch_messages
        self._append = append
        self._looked: set[int] = set()  # delete markers whose effect is recorded

    def begin(self) -> None:
        """This broker is the master now."""
        self._looked.clear()

    def look(self, now_ms: int, may_pass_ms: int) -> bool:
        """Leave behind what is late, if that is due; whether a batch was appended. Nothing that is not in the queue yet is due
        before `may_pass_ms`."""
        newest = self._lanes.newest
        may_leave = self._lanes.left < MAX_LEFT and newest.covered >= last_of(self._batches.table.done.front.due_ms + 1)
        end_ms = newest.late_end_ms(now_ms, LATE_MS, self._most) if may_leave else None
        if end_ms is None:
            self._looked.clear()
            return False
        markers = [offset for offset in newest.recalls(end_ms + 1) if self._is_new(offset)][:_MARKERS_AT_ONCE]
        if markers:
            batch = self._batches.of_markers(markers)
            is_recorded = bool(batch.names) and self._append(batch)
            if is_recorded or not batch.names:
                self._looked.update(markers)
            return is_recorded
        if may_pass_ms <= end_ms or not self._append(Batch(last_of(end_ms), after=last_of(end_ms))):
            return False
        self._lanes.leave(last_of(end_ms))
        self._looked.clear()
        return True

    def _is_new(self, marker: int) -> bool:
        """Whether nothing says yet what it takes back. The record of a move says it of the entries in front, whose files may have
        gone since."""
        return marker >= self._batches.table.done.moved and marker not in self._looked

"""Where timers that are not due soon are found: by their entries in the timer topic's queue, or in files made of these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from brokerd.timers.codes import Key
from brokerd.timers.done import Done

Found = tuple[int, int]  # code and queue offset of an entry


class Far(Protocol):
    """Finds entries by when they are due. It follows the timer topic's queue at its own pace, on every replica."""

    @property
    def applied(self) -> int:
        """The entries of queue offsets below it are found."""

    def between(self, after: Key, until_ms: int, limit: int) -> Sequence[Found] | None:
        """The first `limit` entries, of any kind, that are due behind `after` and before `until_ms`, in order of their keys; of
        those with queue offsets below `applied` as it is when they are returned. They may be done with, but for the cursor.

        None: that takes further turns of the loop; ask the same again in one of the next.
        """

    def held_queue_offset(self, done: Done) -> int:
        """All entries below that queue offset are done with. It may be smaller than it needs to be, and grows with the cursor."""

    def step(self) -> bool:
        """Do a portion, of a few milliseconds, of what it is behind; whether there is more, for further turns."""

    def arrived(self, end: int, codes: Sequence[int]) -> None:
        """Entries with these codes were dispatched; the last of them has the queue offset `end - 1`."""

    def truncated(self, end: int) -> None:
        """The queue ends there now, and may go on with others."""

    def rebuild(self) -> None:
        """What was found may not be true any more: begin again from the queue."""

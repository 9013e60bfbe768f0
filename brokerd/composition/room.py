"""What a broker's heartbeats say of the room on its disk.

The controllers take the lead from a master without room, so what passes at once must not look like that, and what comes again
and again must not look like room: where a quota or the file system itself refuses bytes, the disk says that it has room until
the next append.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from brokerd.store.store import MessageStore

_AGAIN_MS: Final = 10_000


class RoomReport:
    """Asked with every heartbeat. `now_ms` is monotonic."""

    def __init__(self, store: MessageStore, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._now_ms = now_ms
        self._filled_ms: int | None = None  # when the disk became full last
        self._is_again = False  # soon after the time before
        self._end_then = 0  # where the log ended
        store.full_listeners.append(self._changed)

    def has_room(self) -> bool:
        """Whether the disk takes messages; one that became full twice within 10 s has to take one first, or rest for as long."""
        if self._store.is_full:
            return False
        is_doubtful = self._is_again and self._filled_ms is not None and self._now_ms() - self._filled_ms < _AGAIN_MS
        return not is_doubtful or self._store.commitlog.end_offset > self._end_then

    def _changed(self) -> None:
        if self._store.is_full:
            now_ms = self._now_ms()
            self._is_again = self._filled_ms is not None and now_ms - self._filled_ms < _AGAIN_MS
            self._filled_ms = now_ms
            self._end_then = self._store.commitlog.end_offset

"""Up to where each group pulled each queue: ahead of what it committed by what its consumers still work on. In memory only."""

from __future__ import annotations

from typing import Final

MAX_QUEUES: Final = 1_000_000


class PullOffsets:
    """The highest use is one entry per queue that a group pulls; behind `limit` of them new ones are not noted."""

    def __init__(self, limit: int = MAX_QUEUES) -> None:
        self._limit = limit
        self._offsets: dict[tuple[str, str, int], int] = {}

    def note(self, reader: tuple[str, str, int], next_offset: int) -> None:
        """A pull of (group, topic, queue id) was answered: the next one goes on at that offset."""
        if len(self._offsets) < self._limit or reader in self._offsets:
            self._offsets[reader] = next_offset

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        return self._offsets.get((group, topic, queue_id))

    def forget(self, group: str | None, topic: str | None) -> None:
        """Everything of a group, or of a topic, that was deleted."""
        gone = [key for key in self._offsets if group in (None, key[0]) and topic in (None, key[1])]
        for key in gone:
            del self._offsets[key]

    def clear(self) -> None:
        self._offsets.clear()

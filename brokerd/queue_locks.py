"""Which client of a group may consume which queue in order: locks that last a minute unless they are refreshed (pure).

In memory only, as in the original: after a change of master clients lock anew, and for a moment two of them may hold one queue.
Consumers that need the order kept through that use a FIFO group, whose order is in the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

LOCK_MS: Final = 60_000
MAX_LOCKS: Final = 1_000_000

Queue = tuple[str, int]  # topic, queue id


class QueueLocks:
    """The locks of one broker. `limit` bounds their number."""

    def __init__(self, limit: int = MAX_LOCKS) -> None:
        self._limit = limit
        self._locks: dict[tuple[str, str, int], tuple[str, int]] = {}  # -> (client id, refreshed)

    def __len__(self) -> int:
        return len(self._locks)

    def lock(self, group: str, client_id: str, queues: Iterable[Queue], now_ms: int) -> list[Queue]:
        """Lock, or refresh, what is free or this client's own; returns what it holds now of the queues asked for."""
        held = []
        looked_for_room = False
        for topic, queue_id in queues:
            key = group, topic, queue_id
            owner = self._locks.get(key)
            if owner is not None and owner[0] != client_id and now_ms - owner[1] < LOCK_MS:
                continue
            if owner is None and len(self._locks) >= self._limit:
                if not looked_for_room:
                    looked_for_room = True
                    self.expire(now_ms)
                if len(self._locks) >= self._limit:
                    continue
            self._locks[key] = client_id, now_ms
            held.append((topic, queue_id))
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[Queue]) -> None:
        """Give up what this client holds."""
        for topic, queue_id in queues:
            key = group, topic, queue_id
            owner = self._locks.get(key)
            if owner is not None and owner[0] == client_id:
                del self._locks[key]

    def expire(self, now_ms: int) -> int:
        """Forget locks that nobody refreshed; returns how many."""
        old = [key for key, (_, refreshed_ms) in self._locks.items() if now_ms - refreshed_ms >= LOCK_MS]
        for key in old:
            del self._locks[key]
        return len(old)

    def clear(self) -> None:
        """This broker does not lock any more."""
        self._locks.clear()
